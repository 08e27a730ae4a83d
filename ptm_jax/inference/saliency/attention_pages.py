"""A page of HTML with the attention of a text by layer and head, which needs no network.

All heads stand in a grid, after the model view of Vig (2019); the chosen one is drawn as lines from
each token to those that it reads, after the head view. A token keeps its greatest weights only, so
that long texts stay quick; the page states how many, and which share of the attention they hold.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence

import numpy as np

GREATEST = 32
"""Weights of a token, at most."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 64rem; padding: 0 .75rem;
  color: #1a1a1a; background: #fff }
h1 { font-size: 1.2rem } label { margin-right: 1rem; white-space: nowrap }
#grid { display: grid; gap: 2px; margin: .5rem 0; overflow-x: auto }
#grid button { padding: 0; border: 2px solid transparent; background: none; line-height: 0 }
#grid button[aria-pressed=true] { border-color: #e08214 }
#grid button:focus-visible { outline: 3px solid #2166ac }
#grid canvas { width: 100%; max-width: 48px; aspect-ratio: 1; background: #f4f4f4 }
#lines { display: grid; grid-template-columns: repeat(3, minmax(4rem, 1fr)) }
#lines div { line-height: 20px } #lines canvas { width: 100% }
.token { display: block; height: 20px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; cursor: pointer; padding: 0 .2rem }
#left .token { text-align: right } .token[aria-pressed=true] { background: #d1e0ef }
.token:focus-visible { outline: 2px solid #2166ac; outline-offset: -2px }
#score { min-height: 1.5rem; font-variant-numeric: tabular-nums }
"""

SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
const [N, H, L, K] = data.shape;
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const places = new Uint16Array(bytes(data.places).buffer), weights = bytes(data.weights);
const element = id => document.getElementById(id);
const left = element('left'), right = element('right'), canvas = element('canvas');
const layer = element('layer'), head = element('head'), score = element('score');
let token = -1;
const at = (n, h, i) => ((n * H + h) * L + i) * K;
function thumbnail(canvas, n, h) {
  const size = Math.min(L, 48), context = canvas.getContext('2d');
  canvas.width = canvas.height = size;
  const image = context.createImageData(size, size), sums = new Float32Array(size * size);
  for (let i = 0; i < L; i++) for (let k = 0, p = at(n, h, i); k < K; k++) {
    const cell = Math.floor(i * size / L) * size + Math.floor(places[p + k] * size / L);
    sums[cell] = Math.max(sums[cell], weights[p + k]);
  }
  sums.forEach((value, c) => image.data.set([33, 102, 172, value], 4 * c));
  context.putImageData(image, 0, 0);
}
function draw() {
  const n = Number(layer.value), h = Number(head.value);
  document.querySelectorAll('#grid button').forEach((button, b) =>
    button.setAttribute('aria-pressed', b === n * H + h));
  [...left.children].forEach((one, i) => one.setAttribute('aria-pressed', i === token));
  const context = canvas.getContext('2d'), width = canvas.width = canvas.clientWidth;
  canvas.height = 20 * L;
  const read = new Float32Array(L);
  for (let i = 0; i < L; i++) {
    if (token >= 0 && i !== token) continue;
    for (let k = 0, p = at(n, h, i); k < K; k++) {
      const weight = weights[p + k] / 255, j = places[p + k];
      read[j] = Math.max(read[j], weight);
      if (weight < (token < 0 ? 0.05 : 0.004)) continue;
      context.strokeStyle = `rgba(33,102,172,${token < 0 ? weight : Math.min(1, 0.15 + weight)})`;
      context.lineWidth = 1 + 2 * weight;
      context.beginPath(); context.moveTo(0, 20 * i + 10); context.lineTo(width, 20 * j + 10);
      context.stroke();
    }
  }
  [...right.children].forEach((one, j) => {
    one.style.background = token < 0 ? '' : `rgba(33,102,172,${0.6 * read[j]})`;
  });
  const best = [...read.keys()].sort((a, b) => read[b] - read[a]).slice(0, 3);
  score.textContent = token < 0 ? 'Choose a token on the left.' : `${data.pieces[token]} reads ` +
    best.map(j => `${data.pieces[j]} ${read[j].toFixed(2)}`).join(', ');
}
function listed(list, choose) {
  data.pieces.forEach((piece, i) => {
    const one = document.createElement('span');
    one.className = 'token'; one.textContent = piece;
    if (choose) {
      one.tabIndex = 0; one.setAttribute('role', 'button');
      const chosen = () => { token = token === i ? -1 : i; draw(); };
      one.addEventListener('click', chosen);
      one.addEventListener('mouseenter', () => { token = i; draw(); });
      one.addEventListener('keydown', event => {
        if (event.key === 'Enter' || event.key === ' ') { chosen(); event.preventDefault(); }
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], other = left.children[i + step];
        if (step && other) { other.focus(); event.preventDefault(); }
      });
    }
    list.append(one);
  });
}
for (const [select, count] of [[layer, N], [head, H]]) {
  for (let i = 0; i < count; i++) select.append(new Option(i + 1, i));
  select.addEventListener('change', draw);
}
listed(left, true); listed(right, false);
const grid = element('grid');
grid.style.gridTemplateColumns = `repeat(${H}, minmax(14px, 50px))`;
const waiting = [];
for (let n = 0; n < N; n++) for (let h = 0; h < H; h++) {
  const button = document.createElement('button'), canvas = document.createElement('canvas');
  button.title = `layer ${n + 1}, head ${h + 1}`; button.setAttribute('aria-label', button.title);
  button.addEventListener('click', () => { layer.value = n; head.value = h; draw(); });
  button.append(canvas); grid.append(button); waiting.push([canvas, n, h]);
}
function next() { // a row of heads at a time, so that the page answers meanwhile
  waiting.splice(0, H).forEach(one => thumbnail(...one));
  if (waiting.length) setTimeout(next);
}
addEventListener('resize', draw);
draw(); setTimeout(next);
"""


def page(title: str, pieces: Sequence[str], maps: np.ndarray) -> str:
    """Returns the page of the attention maps [N, H, L, L] of a text with `pieces` [L]."""
    layers, heads, length, _ = maps.shape
    count = min(GREATEST, length)
    places = np.argpartition(-maps, count - 1, axis=-1)[..., :count]
    weights = np.take_along_axis(maps, places, -1)
    share = float(weights.sum(-1).mean())
    data = {
        "pieces": list(pieces),
        "shape": [layers, heads, length, count],
        "places": _bytes(places.astype("<u2")),
        "weights": _bytes(np.round(255 * np.clip(weights, 0, 1)).astype(np.uint8)),
    }
    part = (
        ""
        if count == length
        else f" A token keeps its {count} greatest weights, {share:.1%} of its attention."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p>{layers} layers with {heads} heads each, a layer in a "
        "row. A cell is a head: the token that reads goes down, the token that is read goes "
        f"right.{part}</p>"
        '<div id="grid"></div><p><label>layer <select id="layer"></select></label>'
        '<label>head <select id="head"></select></label></p>'
        '<div id="score" aria-live="polite"></div><div id="lines"><div id="left"></div>'
        '<canvas id="canvas"></canvas><div id="right"></div></div>'
        '<script type="application/json" id="data">'
        f"{json.dumps(data, ensure_ascii=False).replace('<', chr(92) + 'u003c')}</script>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def rollout(maps: np.ndarray) -> np.ndarray:
    """Returns how much of each input token is in each output token [L, L] (Abnar and Zuidema 2020,
    Eq. 1): the product over the layers of half the mean of the heads and half the identity."""
    length = maps.shape[-1]
    flow = np.eye(length)
    for layer in maps.mean(1):
        flow = (0.5 * layer + 0.5 * np.eye(length)) @ flow
    return flow


def _bytes(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
