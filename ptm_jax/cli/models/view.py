"""View a model on a text, or the results of a probe or an attack: a page of HTML.

Example:
  ptm view MODEL --text "a long but very funny story" --out page.html
  ptm view MODEL --text "Paris is the [MASK] of France" --target capital --out page.html
  ptm view MODEL --text "Who wrote it?" --pair "The king wrote it." --target "The king"
  ptm view MODEL --text "..." --methods occlusion integrated_gradients --json
  ptm view MODEL --text "the trophy does not fit into the case" --by attention --out page.html
  ptm view MODEL --text "the trophy does not fit into the case" --by neurons --out page.html
  ptm view MODEL --text "the bank of the river" --by contexts --data corpus.txt --out page.html
  ptm view probes/structural --by curves --out page.html
  ptm view attack.csv --by pairs --out page.html

A page opens without a network, at any width, and by keyboard. saliency: which tokens a prediction
rests on: a class of a classifier, the word at the [MASK] of a masked language model, or the answer
to a question. Its table has the faithfulness of each method for this text. Believe the method
without whose tokens the prediction falls, and with whose tokens alone it stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ptm_jax.cli import options

if TYPE_CHECKING:
    from ptm_jax.inference.saliency.context_pages import Sentence
    from ptm_jax.inference.saliency.html_pages import Page

DEFAULT = ("integrated_gradients", "gradient_input", "gradient", "occlusion")
OPTIONS: Mapping[str, Sequence[str]] = {
    "saliency": ("target", "pair", "methods", "steps", "samples", "seed"),
    "attention": (),
    "neurons": (),
    "contexts": ("data", "layer", "top"),
    "curves": (),
    "pairs": (),
}
"""{view: its options}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir, or a checkpoint: for saliency a classifier or a masked language model, else any
    encoder. curves: the folder of `ptm probe --out`. pairs: a table (.csv, .tsv, .jsonl) with
    original_text and perturbed_text, as TextAttack writes it."""
    text: options.Text = None
    """The text; with [MASK] for a masked language model."""
    by: Literal["saliency", "attention", "neurons", "contexts", "curves", "pairs"] = "saliency"
    """saliency: scores of tokens for a prediction. attention: the maps of every head. neurons: the
    queries and keys of every head, and their products. contexts: the tokens of --data that are
    nearest to each token. curves: the figures of a probe. pairs: the texts of an attack."""
    tower: options.Text = None
    """The network to view if the model has several, as "generator" of ELECTRA (default: main)."""
    target: options.Text = None
    """saliency: the class, the word or the answer to explain (default: the most probable one); an
    answer is words of the passage, or START:END in its characters."""
    pair: options.Text = None
    """saliency: the second text of a classifier of pairs, or the passage of a question."""
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="METHOD ...")] = DEFAULT
    """gradient, gradient_input, integrated_gradients, smooth_gradient, occlusion, lime, attention,
    rollout."""
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 50
    """Nodes of integrated_gradients, and noisy texts of smooth_gradient."""
    samples: Annotated[int, tyro.conf.arg(metavar="N")] = 500
    """Texts with missing tokens of lime."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of smooth_gradient and lime."""
    data: options.Path = None
    """contexts: sentences, one a line, or CoNLL-U (.conllu), whose tags the page counts."""
    layer: options.Number = None
    """contexts: one layer with each of its heads (default: the states and contexts of all)."""
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """contexts: neighbours of a token."""
    out: options.Path = None
    """The page to write (.html)."""
    json: options.Flag = False
    """Print one JSON document: the numbers of the view."""


def run(args: Args) -> int:
    """Makes the page, prints its numbers, and writes it."""
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.saliency import html_pages

    if args.out is not None:
        html_pages.check_ending(args.out)
    others = [name for names in OPTIONS.values() for name in names if name not in OPTIONS[args.by]]
    if flags := options.given(args, others):
        name = flags[0].removeprefix("--")
        owner = next(view for view, names in OPTIONS.items() if name in names)
        raise UserError(f"{flags[0]} is for --by {owner}; leave it out")
    if args.tower is not None and args.by in RESULTS:
        raise UserError(f"--by {args.by} shows results; leave --tower out")
    if (args.text is None) != (args.by in RESULTS):
        raise UserError(
            f"--by {args.by} shows results; leave --text out" if args.by in RESULTS
            else f"--by {args.by} needs a text; give it as --text TEXT"
        )  # fmt: skip
    page = RESULTS[args.by](args) if args.by in RESULTS else _of_model(args)
    lines = TABLES[args.by](page.document)
    if args.out is not None:
        page.write(args.out)
        lines.append(f"the page is in {args.out}")
    return options.report(page.document, "\n".join(lines), args.json)


def _of_model(args: Args) -> Page:
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.loading import has_encoder, load
    from ptm_jax.inference.saliency import text_pages
    from ptm_jax.runs.run import best_checkpoint, stop_remark

    settings = {name: vars(args)[name] for name in OPTIONS[args.by]}
    if "data" in settings:
        if (file := settings.pop("data")) is None:
            raise UserError("--by contexts needs sentences; give a file as --data FILE")
        settings["sentences"] = _sentences(Path(file))
    model = load(best_checkpoint(args.model), tower=args.tower)
    if (remark := stop_remark(args.model)) is not None:
        options.say(remark)
    if not has_encoder(model):
        raise UserError(f"{args.model} has vectors of words and no network; give an encoder")
    return text_pages.view(model, args.text, args.by, **settings)


def _sentences(file: Path) -> list[Sentence]:
    """The words of each line, or the words and their upos of CoNLL-U."""
    from ptm_jax.inference.saliency.context_pages import Sentence
    from ptm_jax.inference.streams.lines import Source
    from ptm_jax.tasks.probes import probe_data

    if file.suffix == ".conllu":
        upos = probe_data.COLUMNS["upos"]
        return [
            Sentence(one.words, [row[upos] for row in one.rows])
            for one in probe_data.sentences_of(file)
        ]
    words = (line.text.split() for line in Source(file).lines())
    return [Sentence(one) for one in words if one]


def _curves(args: Args) -> Page:
    from ptm_jax.inference.saliency import curve_pages

    return curve_pages.of_file(args.model)


def _pairs(args: Args) -> Page:
    from ptm_jax.inference.saliency import pair_pages
    from ptm_jax.tasks.formats import tabular

    names = pair_pages.ORIGINAL, pair_pages.CHANGED
    rows = tabular.rows(args.model, columns=(), needed=[(name,) for name in names])
    pairs = []
    for place, row in rows:
        for name in names:
            tabular.needed_text(place, row, name)
        pairs.append(row)
    return pair_pages.pair_page(Path(args.model).name, pairs)


def _saliency_table(document: Mapping[str, Any]) -> list[str]:
    methods = document["methods"]
    rows = [
        [piece, *(f"{one['scores'][place]:.4f}" for one in methods.values())]
        for place, piece in enumerate(document["tokens"])
    ]
    rows += [
        [name, *(f"{one[name]:.4f}" for one in methods.values())]
        for name in next(iter(methods.values()))
        if name != "scores"
    ]
    title = f"{document['target']}: {document['measure']} {document['prediction']:.4f}"
    return [title, options.table(["token", *methods], rows)]


def _attention_table(document: Mapping[str, Any]) -> list[str]:
    rows = [[str(n), *(f"{x:.2f}" for x in row)] for n, row in enumerate(document["bits"], 1)]
    heads = [f"head {h}" for h in range(1, len(document["bits"][0]) + 1)]
    return ["bits of a token's attention, by layer", options.table(["layer", *heads], rows)]


def _neuron_table(document: Mapping[str, Any]) -> list[str]:
    rows = [[str(n), f"{x:.4f}"] for n, x in enumerate(document["difference"], 1)]
    title = "greatest difference of the softmax of query times key from the model's attention"
    return [title, options.table(["layer", "difference"], rows)]


def _context_table(document: Mapping[str, Any]) -> list[str]:
    states = [name for name in document["spaces"] if name.startswith("state")]
    rows = [
        [piece, *(f"{one['word']} {one['score']:.3f}" for one in near[:5])]
        for piece, near in zip(document["tokens"], document["spaces"][states[-1]], strict=True)
    ]
    head = ["token", *(str(n) for n in range(1, max(map(len, rows), default=1)))]
    return [f"nearest words, by the {states[-1]}", options.table(head, rows)]


def _curve_table(document: Mapping[str, Any]) -> list[str]:
    layers = document["layers"]
    rows = [
        [str(n), *("" if row[n] is None else options.figure(row[n]) for row in layers.values())]
        for n in range(len(next(iter(layers.values()))))
    ]
    return [options.table(["layer", *layers], rows)]


def _pair_table(document: Mapping[str, Any]) -> list[str]:
    return [
        f"{document['pairs']} pairs, {document['changed']} of them changed, "
        f"{document['changed_words']:.1%} of the words"
    ]


RESULTS = {"curves": _curves, "pairs": _pairs}
TABLES = {
    "saliency": _saliency_table,
    "attention": _attention_table,
    "neurons": _neuron_table,
    "contexts": _context_table,
    "curves": _curve_table,
    "pairs": _pair_table,
}
