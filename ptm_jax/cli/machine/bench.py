"""Speed on this machine, as ratios of alternating pairs. `python -m benchmarks` in a checkout
compares with other libraries.

Example:
  ptm bench --list
  ptm bench step --quick
  ptm bench masking attention --json
  ptm bench step --set step.batch=16 step.length=512
  ptm bench --out benchmarks/
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")] = ()
    """Names of benchmarks (default: all of --list)."""
    list: options.Flag = False
    """List the benchmarks and exit."""
    quick: options.Flag = False
    """Fewer rounds: figures to look at, not to quote."""
    repeats: options.Number = None
    """Rounds, in each of which every side takes a turn (default: 15, or 5 with --quick)."""
    set: options.Sets = ()
    """Sizes of a benchmark, as NAME.FIELD=VALUE."""
    out: options.Path = None
    """Folder with the JSON file and the Markdown table of this device; new rows replace old
    ones."""
    json: options.Flag = False
    """Print one JSON list of name, ours, peers, ratio, spread, roofline, settings."""


def run(args: Args) -> int:
    """Measure, and print a table."""
    from ptm_jax.bench import suite
    from ptm_jax.bench.peers import Peers

    return measure(args, suite.BENCHMARKS, Peers())


def measure(args: Args, benchmarks: Mapping[str, Any], peers: Any) -> int:
    """The command over a set of benchmarks and the peers that they are compared with."""
    from ptm_jax.bench import report, suite

    if args.list:
        rows = {name: benchmark.summary for name, benchmark in benchmarks.items()}
        document = [{"name": name, "summary": summary} for name, summary in rows.items()]
        return options.report(
            document, options.table(("name", "measures"), list(rows.items())), args.json
        )
    entries, failed = [], None
    settings = {"benchmarks": benchmarks, "sizes": suite.sized(options.pairs(args.set), benchmarks)}
    how = {"quick": args.quick, "repeats": args.repeats, "say": options.say, "peers": peers}
    try:
        for measured in suite.run(args.names, **settings, **how):
            entries += measured
            if args.out is not None:
                options.say(f"written: {report.write(measured, args.out)}")
    except (Exception, KeyboardInterrupt) as error:
        if not entries:
            raise
        failed = error
    alone = [entry for entry in entries if entry.ratio is None and "reason" in entry.settings]
    lines = [options.table(report.HEADER, [report.summary(entry) for entry in entries], width=160)]
    lines += [f"{entry.name}: no ratio: {entry.settings['reason']}" for entry in alone]
    status = options.report(report.document(entries), "\n".join(lines), args.json)
    if failed is not None:  # after the benchmarks that ended
        raise failed
    return status
