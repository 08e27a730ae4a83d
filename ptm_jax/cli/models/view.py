"""View what a prediction rests on, or the attention of a text: a page of HTML.

Example:
  ptm view MODEL --text "a long but very funny story" --out page.html
  ptm view MODEL --text "Paris is the [MASK] of France" --target capital --out page.html
  ptm view MODEL --text "the trophy does not fit into the case" --by attention --out page.html
  ptm view MODEL --text "..." --methods occlusion integrated_gradients --json

The prediction is a class of a classifier, or the word at the [MASK] of a masked language model. The
page opens without a network. Its table has the faithfulness of each method for this text. Believe
the method without whose tokens the prediction falls, and with whose tokens alone it stays. The page
of --by attention has all heads of all layers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options

DEFAULT = ("integrated_gradients", "gradient_input", "gradient", "occlusion")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir, or a checkpoint: a classifier or a masked language model; with --by attention any
    encoder with attention."""
    text: Annotated[str, tyro.conf.arg(metavar="TEXT")]
    """The text; with [MASK] for a masked language model."""
    by: Literal["saliency", "attention"] = "saliency"
    """saliency: scores of tokens for a prediction. attention: the maps of every head."""
    target: options.Text = None
    """The class or the word to explain (default: the most probable one)."""
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="METHOD ...")] = DEFAULT
    """gradient, gradient_input, integrated_gradients, smooth_gradient, occlusion, lime."""
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 50
    """Nodes of integrated_gradients, and noisy texts of smooth_gradient."""
    samples: Annotated[int, tyro.conf.arg(metavar="N")] = 500
    """Texts with missing tokens of lime."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of smooth_gradient and lime."""
    out: options.Path = None
    """The page to write (.html)."""
    json: options.Flag = False
    """Print one JSON document: target, prediction, tokens, methods."""


def run(args: Args) -> int:
    """Explains a prediction, prints the tokens by method, and writes the page."""
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.loading import load
    from ptm_jax.inference.saliency import attributions, faithfulness, pages
    from ptm_jax.runs.run import best_checkpoint

    if min(args.steps, args.samples) < 1 or not args.methods:
        raise UserError("--steps and --samples must be at least 1, and --methods needs a name")
    if args.out is not None and Path(args.out).suffix not in (".html", ".htm"):
        raise UserError(f"--out is {args.out}; the page is a file that ends in .html")
    if args.by == "attention":
        return _attention(args)
    model = load(best_checkpoint(args.model))
    function = attributions.function_of(model, args.text, args.target)
    settings = {"steps": args.steps, "samples": args.samples, "seed": args.seed}
    results = {
        method: attributions.explained(function, method, **settings) for method in args.methods
    }
    figures = {
        method: faithfulness.faithfulness(function, one.scores) for method, one in results.items()
    }
    first = next(iter(results.values()))
    document = {
        "target": first.target, "prediction": first.prediction, "tokens": list(first.pieces),
        "methods": {
            name: {"scores": one.scores.tolist(), **figures[name]} for name, one in results.items()
        },
    }  # fmt: skip
    rows = [
        [piece, *(f"{one.scores[place]:.4f}" for one in results.values())]
        for place, piece in enumerate(first.pieces)
    ]
    rows += [
        [name, *(f"{figures[method][name]:.4f}" for method in results)]
        for name in next(iter(figures.values()))
    ]
    lines = [f"{first.target}: {first.prediction:.4f}", options.table(["token", *results], rows)]
    if args.out is not None:
        title = f"{Path(args.model).name}: {first.target}"
        Path(args.out).write_text(pages.page(title, results, figures), encoding="utf8")
        lines.append(f"the page is in {args.out}")
    return options.report(document, "\n".join(lines), args.json)


def _attention(args: Args) -> int:
    """Writes the page of the attention maps, and prints what each head reads most."""
    import numpy as np

    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.loading import load
    from ptm_jax.inference.saliency import attention_pages
    from ptm_jax.runs.run import best_checkpoint

    names = ("target", "methods", "steps", "samples", "seed")
    if flags := options.given(args, names):
        raise UserError(f"{flags[0]} is for --by saliency; leave it out")
    model = load(best_checkpoint(args.model))
    (ids,) = model.ids_of([args.text])
    maps = model(ids[None], attention=True, logits=False).attention
    if maps is None or not maps.shape[2]:
        raise UserError(f"{model.system.name} has no attention; give an encoder with attention")
    maps, tokenizer = maps[:, 0], model._tokenizer()
    pieces = [tokenizer.piece(int(i)) for i in ids]
    places = np.arange(len(ids))
    distance = np.abs(places[:, None] - places)
    entropy = -(maps * np.log2(np.maximum(maps, 1e-12))).sum(-1).mean(-1)
    document = {
        "tokens": pieces, "distance": (maps * distance).sum(-1).mean(-1).round(4).tolist(),
        "bits": entropy.round(4).tolist(),
    }  # fmt: skip
    rows = [[str(n), *(f"{x:.2f}" for x in row)] for n, row in enumerate(entropy, 1)]
    heads = [f"head {h}" for h in range(1, maps.shape[1] + 1)]
    lines = ["bits of a token's attention, by layer", options.table(["layer", *heads], rows)]
    if args.out is not None:
        title = f"{Path(args.model).name}: attention"
        text = attention_pages.page(title, pieces, maps)
        Path(args.out).write_text(text, encoding="utf8")
        lines.append(f"the page is in {args.out}")
    return options.report(document, "\n".join(lines), args.json)
