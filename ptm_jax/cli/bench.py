"""Speed on this machine, beside torch and transformers where they are installed; ratios of alternating pairs.

Example:
  ptm bench --list
  ptm bench step --quick
  ptm bench masking vocabulary --json
  ptm bench lengths --set lengths.text=wikitext-2/valid.txt lengths.batch=16
  ptm bench --out benchmarks/
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")] = ()
    """Which benchmarks; all of `--list` unless given."""
    list: options.Flag = False
    """The benchmarks there are."""
    quick: options.Flag = False
    """Fewer rounds and no compilation of the peer: figures to look at, not to quote."""
    repeats: options.Number = None
    """Rounds, in each of which all sides take a turn; 15 unless given, 5 with --quick."""
    set: options.Sets = ()
    """Other sizes than a benchmark's own, as NAME.FIELD=VALUE; a wrong field is told with those there are."""
    out: options.Path = None
    """A folder whose JSON and Markdown table of this device get the new rows."""
    json: options.Flag = False
    """One document: a list of name, ours, peers, ratio, spread, roofline, settings."""


def run(args: Args) -> int:
    """Measure, and print a table."""
    from ptm_jax.bench import report, suite

    if args.list:
        return _show(suite.BENCHMARKS, args.json)
    entries = []
    sizes = suite.sized(options.pairs(args.set))
    for found in suite.run(args.names, quick=args.quick, repeats=args.repeats, sizes=sizes, say=options.say):
        entries += found
        if args.out is not None:
            options.say(f"written: {report.write(found, args.out)}")
    if args.json:
        options.print_json(report.document(entries))
    else:
        print(options.table(report.HEADER, [report.summary(entry) for entry in entries], width=160))
        for entry in entries:
            if entry.ratio is None and "reason" in entry.settings:
                print(f"{entry.name}: no ratio: {entry.settings['reason']}")
    return 0


def _show(benchmarks, as_json: bool) -> int:
    rows = {name: benchmark.summary for name, benchmark in benchmarks.items()}
    if as_json:
        options.print_json([{"name": name, "summary": summary} for name, summary in rows.items()])
    else:
        print(options.table(("name", "measures"), list(rows.items())))
    return 0
