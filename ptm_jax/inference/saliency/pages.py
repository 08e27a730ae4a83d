"""A page of HTML with the saliency of a text by several methods, which needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping

import numpy as np

from ptm_jax.inference.saliency.attributions import Attribution

BLUE, ORANGE = (33, 102, 172), (224, 130, 20)
"""Colours of tokens for and against the prediction, which colour-blind readers tell apart."""

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
h1 { font-size: 1.2rem } table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .5rem; text-align: right }
th:first-child, td:first-child { text-align: left }
tr[aria-selected=true] { background: #eef3f8 } tbody tr { cursor: pointer }
tbody tr:focus { outline: 3px solid #2166ac }
.text { font-size: 1.1rem; line-height: 2.2; margin: 1rem 0; overflow-wrap: anywhere }
.token { padding: .15rem .2rem; border-radius: .2rem; white-space: pre-wrap }
.token:focus, .token:hover { outline: 2px solid #1a1a1a }
#score { min-height: 1.6rem; font-variant-numeric: tabular-nums }
label { display: block; margin: .5rem 0 }
@media (max-width: 480px) { body { font-size: 14px }
  th, td { padding: .25rem; font-size: 12px; overflow-wrap: anywhere } }
"""

SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
const text = document.getElementById('text'), score = document.getElementById('score');
const rows = [...document.querySelectorAll('tbody tr')], least = document.getElementById('least');
let chosen = 0;
function blank() {
  const mark = document.createElement('b');
  mark.textContent = ` [${data.target}] `;
  return mark;
}
function colour(value) {
  const rgb = value >= 0 ? data.colours[0] : data.colours[1];
  return `rgba(${rgb.join(',')},${Math.min(1, Math.abs(value)) * 0.6})`;
}
function show() {
  const method = data.methods[chosen], most = Math.max(...method.scores.map(Math.abs), 1e-12);
  rows.forEach((row, i) => row.setAttribute('aria-selected', i === chosen));
  [...text.querySelectorAll('.token')].forEach((token, i) => {
    const value = method.scores[i] / most, hidden = Math.abs(value) < Number(least.value);
    token.style.background = hidden ? 'transparent' : colour(value);
    token.dataset.line = `${data.pieces[i]}: ${method.scores[i].toPrecision(4)} (${method.name})`;
    token.setAttribute('aria-label', token.dataset.line);
  });
}
data.pieces.forEach((piece, i) => {
  if (i === data.mask) text.append(blank());
  const token = document.createElement('span');
  token.className = 'token'; token.tabIndex = 0; token.textContent = piece;
  for (const event of ['mouseenter', 'focus'])
    token.addEventListener(event, () => { score.textContent = token.dataset.line; });
  text.append(token);
});
if (data.mask === data.pieces.length) text.append(blank());
rows.forEach((row, i) => {
  row.tabIndex = 0;
  row.addEventListener('click', () => { chosen = i; show(); });
  row.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') { chosen = i; show(); event.preventDefault(); }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && rows[i + step]) { rows[i + step].focus(); event.preventDefault(); }
  });
});
least.addEventListener('input', show);
show();
"""


def page(
    title: str, results: Mapping[str, Attribution], figures: Mapping[str, Mapping[str, float]]
) -> str:
    """Returns the page.

    results  {method: the scores of the text}
    figures  {method: its figures of faithfulness}
    """
    first = next(iter(results.values()))
    data = {
        "pieces": list(first.pieces),
        "target": first.target,
        "mask": first.mask,
        "colours": [BLUE, ORANGE],
        "methods": [
            {"name": name, "scores": np.round(one.scores, 6).tolist()}
            for name, one in results.items()
        ],
    }
    names = list(next(iter(figures.values())))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("method", *names))
    body = "".join(
        f"<tr><td>{html.escape(method)}</td>"
        + "".join(f"<td>{figures[method][name]:.4f}</td>" for name in names)
        + "</tr>"
        for method in results
    )
    prediction = f"{first.target}: {first.prediction:.4f}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p>Prediction {html.escape(prediction)}. "
        "Blue tokens carry it, orange ones speak against it. Choose a method by a click or the "
        'keys Tab, arrows and Enter.</p><div id="text" class="text"></div>'
        '<div id="score" aria-live="polite"></div>'
        '<label>hide scores below <input id="least" type="range" min="0" max="1" step="0.05" '
        'value="0"> of the greatest</label>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "<p>Comprehensiveness: the fall of the prediction without the highest tokens; high is "
        "faithful. Sufficiency: its fall with these tokens alone; low is faithful.</p>"
        f'<script type="application/json" id="data">{_embedded(data)}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _embedded(data: object) -> str:
    """Returns JSON that cannot end its element."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
