"""Seconds until a page of `ptm view` is painted and answers: 12 layers, 12 heads, 512 tokens.

    python -m benchmarks.views [--pictures FOLDER]

The model has drawn parameters of the size of BERT-base. A headless Chromium opens each page: first
paint is the browser's own mark, `ready` the end of the page's script, `click` the time from a click
on a token to the next frame. --pictures writes each page, at 400 and at 1200 pixels.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.browser import Browser, browser
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.towers import abstract
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.saliency import (
    attributions,
    curve_pages,
    pair_pages,
    saliency_pages,
    text_pages,
)
from ptm_jax.inference.saliency.html_pages import Page

WIDTHS = (400, 1200)
TOKENS, METHODS = 510, ("integrated_gradients", "occlusion", "lime")
CLICK = """new Promise(done => {{
  const begin = performance.now(), one = document.querySelectorAll({selector!r})[7];
  one.click(); requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
}})"""
TARGETS = {"curves": "#body tr", "pairs": "article"}


def pages(words: list[str]) -> dict[str, Page]:
    """Returns {view: page} of drawn texts and parameters."""
    draw = np.random.default_rng(0)
    text = " ".join(draw.choice(words, TOKENS))
    tokenizer = make(TokenizerSpec(kind="wordpiece", specials="bert", vocab=104), [text] * 20)
    fields = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(tokenizer.pieces),
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512,
    }  # fmt: skip
    system, _ = checkpoint.record_of(Config(fields))

    def drawn(path, leaf):
        one = path[-1].key == "scale"
        return np.float32(one) + np.float32(0 if one else 0.05) * draw.standard_normal(
            leaf.shape, np.float32
        )

    shapes = abstract(system.towers, checkpoint.example(system))
    model = Pretrained(system, jax.tree_util.tree_map_with_path(drawn, shapes), tokenizer)
    sentences = [list(draw.choice(words, 12)) for _ in range(60)]
    scores = {
        name: attributions.Attribution(tuple(text.split()), draw.normal(size=TOKENS), "good", -0.5)
        for name in METHODS
    }
    figures = dict.fromkeys(METHODS, {"comprehensiveness": 0.5, "sufficiency": 0.1})
    curves = {name: np.sort(draw.uniform(size=13)) for name in ("accuracy", "control task")}
    rows = [
        {pair_pages.ORIGINAL: text, pair_pages.CHANGED: text.replace(words[n], words[0])}
        for n in range(1, len(words))
    ]
    return {
        "attention": text_pages.view(model, text, "attention"),
        "neurons": text_pages.view(model, text, "neurons"),
        "contexts": text_pages.view(model, text, "contexts", sentences=sentences),
        "saliency": saliency_pages.page("saliency", scores, figures),
        "curves": curve_pages.curve_page("curves", curves, {"most frequent label": 0.3}),
        "pairs": pair_pages.pair_page("pairs", rows),
    }


def timed(tab: Browser, name: str, path: Path) -> list[str]:
    """Returns the figures of a page."""
    tab.open(path)
    marks = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    while not (paint := tab.value(marks)):
        time.sleep(0.02)
    ready = tab.value("performance.getEntriesByType('navigation')[0].domInteractive")
    click = tab.value(CLICK.format(selector=TARGETS.get(name, ".token")))
    figures = [f"{x / 1000:.2f} s" for x in (paint, ready, click)]
    return [name, f"{path.stat().st_size / 1e6:.1f} MB", *figures, str(len(tab.requests))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    words = [a + b for a in "bdfgklmnprst" for b in ("a", "em", "il", "or", "ust")]
    with tempfile.TemporaryDirectory() as folder, browser() as tab:
        if tab is None:
            raise SystemExit("no chromium is installed")
        print(f"{datetime.date.today()}, {TOKENS + 2} tokens, 12 layers, 12 heads\n")
        print("| view | page | first paint | ready | click | requests |\n|---|---|---|---|---|---|")
        for name, page in pages(words).items():
            path = Path(folder) / f"{name}.html"
            page.write(path)
            print("| " + " | ".join(timed(tab, name, path)) + " |", flush=True)
            for width in WIDTHS if args.pictures else ():
                args.pictures.mkdir(parents=True, exist_ok=True)
                tab.open(path, width)
                time.sleep(2)
                tab.picture(args.pictures / f"{name}-{width}.png")


if __name__ == "__main__":
    main()
