"""Mine hard negatives: texts that a sentence encoder finds near an anchor, and that are no answer
to it.

Example:
  ptm mine MODEL --data pairs.tsv --out mined.jsonl
  ptm mine MODEL --data pairs.tsv --corpus passages.txt --out mined.jsonl --negatives 5 \
    --range-min 10 --range-max 100 --relative-margin 0.05 --sampling random
  ptm mine MODEL --data pairs.tsv --out mined.jsonl --rescore CROSS_ENCODER --max-score 0.5
  ptm mine TEACHER --data triplets.jsonl --negatives 0 --scores --out scored.jsonl
  ptm mine MASKED --by relation --data pairs.tsv --corpus texts.txt --out rows.jsonl

The rows of --out train at once: ptm train --task contrast --data mined.jsonl. Negatives come from
the texts after the anchors of --data and from --corpus, whose vectors are in memory by blocks. The
negatives that a row has stay. --scores writes the similarities, or the logits of --rescore, of all
texts after the anchor: a teacher's scores, for a student of any vocabulary.

--by relation finds sentences of --corpus that express a relation between the two words of each pair
(Bouraoui et al. 2020), and writes them with pairs of --data and with corrupted pairs, as texts with
the classes related and unrelated. Every fifth pair is in rows.heldout.jsonl: ptm train --init MODEL
--task classify --data rows.jsonl, then ptm evaluate RUN --task relation --data rows.heldout.jsonl.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError

Score = Annotated[float | None, tyro.conf.arg(metavar="X")]
SETTINGS = (
    "negatives", "range_min", "range_max", "max_score", "min_score", "absolute_margin",
    "relative_margin", "sampling", "seed",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir, or a checkpoint of an encoder: as of ptm predict --task search. --by relation: of
    a masked language model."""
    data: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """Pairs or n-tuples, as of ptm train --task contrast. --by relation: a head, a tab and a
    tail in each line."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE.jsonl")]
    """File to write."""
    by: Literal["texts", "relation"] = "texts"
    """relation: texts that express a relation of words."""
    templates: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """relation: sentences that are kept, at most. A word must be among the first --range-max words
    at its mask (default: 100)."""
    corpus: options.Path = None
    """A file with a text in each line, or a .csv, .tsv or .jsonl with a column text, whose texts
    are candidates too."""
    negatives: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    """Negatives for each anchor, at most. 0: none, for --scores of the rows as they are. relation:
    corrupted pairs for each pair, beside the pair turned round."""
    range_min: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Nearest texts that are passed over."""
    range_max: options.Number = None
    """Rank of the last candidate (default: --range-min and --negatives; with a limit of scores ten
    times as many)."""
    max_score: Score = None
    """Highest score of a negative."""
    min_score: Score = None
    """Lowest score of a negative."""
    absolute_margin: Score = None
    """A negative's score is so much below the positive text's, at least."""
    relative_margin: Score = None
    """The same, as a share of the positive text's score: 0.05 of NV-Retriever."""
    sampling: Literal["top", "random"] = "top"
    """The nearest candidates, or a draw from all of them."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the draw."""
    rescore: options.Text = None
    """A cross-encoder, whose logits take the place of the similarities of the candidates."""
    scores: options.Flag = False
    """Write the scores of the texts after the anchor."""
    text_column: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = ()
    """Columns of the anchor, the positive text and any negatives (default: by their names)."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Texts in a batch."""
    overwrite: options.Flag = False
    """Write --out anew where it is there."""
    json: options.Flag = False
    """Print one JSON document: rows, texts, missing, out."""


def run(args: Args) -> int:
    """Mines, and writes the rows."""
    from ptm_jax.inference.loading import load
    from ptm_jax.runs.run import best_checkpoint
    from ptm_jax.tasks import mining
    from ptm_jax.tasks.formats.text_groups import TextGroups

    out = Path(args.out)
    if out.suffix != ".jsonl":
        raise UserError(f"--out is {args.out}; the rows are written as .jsonl")
    if out.exists() and not args.overwrite:
        raise UserError(f"{out} is there already; choose another --out, or give --overwrite")
    if args.by == "relation":
        return _relation(args, out)
    if flags := options.given(args, ["templates"]):
        raise UserError(f"{flags[0]} is for --by relation; leave it out")
    settings = mining.Mining(**{name: vars(args)[name] for name in SETTINGS})
    examples = TextGroups()
    if args.text_column:
        examples = examples.with_columns([args.data], args.text_column, ())
    groups = list(examples.read(args.data))
    model, *others = (
        load(best_checkpoint(name)) for name in (args.model, args.rescore) if name is not None
    )
    result = mining.mined(
        model, groups, args.corpus or (), settings, scores=args.scores, batch_size=args.batch,
        rescorer=others[0] if others else None,
    )  # fmt: skip
    _write(out, result.rows)
    document = {
        "rows": len(result.rows), "texts": result.texts, "missing": result.missing, "out": args.out,
    }  # fmt: skip
    asked = args.negatives * len(result.rows)
    text = f"{len(result.rows):,} rows with negatives from {result.texts:,} texts, in {args.out}"
    if result.missing:
        text += f"\n  {result.missing:,} of {asked:,} negatives were not found within the limits"
    return options.report(document, text, args.json)


def _relation(args: Args, out: Path) -> int:
    """Finds templates of a relation, and writes them with its pairs."""
    from ptm_jax.inference.loading import load
    from ptm_jax.runs.run import best_checkpoint
    from ptm_jax.tasks import mining
    from ptm_jax.tasks.clozes import relation_induction as induction

    names = (*SETTINGS[3:8], "range_min", "rescore", "scores", "text_column")
    if flags := options.given(args, names):
        raise UserError(f"{flags[0]} is not for --by relation; leave it out")
    if args.corpus is None or args.negatives < 1 or args.templates < 1:
        raise UserError(
            "--by relation needs --corpus FILE, and --negatives and --templates of at least 1"
        )
    pairs = induction.pairs_of(args.data)
    heldout = [pair for number, pair in enumerate(pairs, 1) if number % 5 == 0]
    pairs = [pair for number, pair in enumerate(pairs, 1) if number % 5]
    model, top = load(best_checkpoint(args.model)), args.range_max or 100
    sentences = induction.candidates(pairs, mining.Texts((), args.corpus))
    templates = induction.chosen(
        model, pairs, sentences, top=top, count=args.templates, batch=args.batch
    )
    if not templates:
        raise UserError(
            f"{args.corpus} has {len(sentences)} sentences with both words of a pair, and in none "
            f"of them both words are among the first {top}; give more text, or a greater "
            "--range-max"
        )
    counts = []
    for file, some in ((out, pairs), (out.with_suffix(".heldout.jsonl"), heldout)):
        rows = induction.rows_of(some, templates, args.negatives, args.seed)
        _write(file, rows)
        counts.append(len(rows))
    document = {"templates": templates, "rows": counts[0], "heldout": counts[1], "out": args.out}
    text = f"{len(templates)} of {len(sentences)} sentences, {counts[0]:,} rows in {args.out}"
    if heldout:
        text += f"\n  {counts[1]:,} rows of {len(heldout)} held-out pairs in {file}"
    return options.report(document, text, args.json)


def _write(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    draft = file.with_name(file.name + ".draft")
    draft.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with draft.open("w", encoding="utf8") as opened:
        opened.writelines(lines)
    draft.replace(file)
