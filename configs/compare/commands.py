"""`ptm` commands for a table: what is missing is run, what is found is kept, and the table is
written after each."""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, dict[str, Any]]


def recorded(
    kind: str,
    known: Collection[str],
    only: Sequence[str],
    workdir: Path,
    *,
    words: Callable[[str], list[str]],
    facts: Callable[[str, dict[str, Any]], dict[str, Any]],
    write: Callable[[Results], None],
    before: Callable[[str], list[list[str]]] = lambda name: [],
) -> Results:
    """{name: words, minutes and facts} of the names in `only`, or of all that are `known`, as
    WORKDIR/results.json keeps it.

    words   the command of a name, as `ptm` takes it; one that is recorded with the same words is
            not run again
    before  commands that must have run before it, each with its program: `ptm` or `python`
    facts   of a name and what its command printed as JSON
    write   the table of all results

    Ends the program where a name is not known or a command fails, whose runs go on when it is
    called again.
    """
    if unknown := sorted(set(only) - set(known)):
        sys.exit(f"unknown {kind} {unknown[0]!r}; there are: {', '.join(known)}")
    workdir.mkdir(parents=True, exist_ok=True)
    record = workdir / "results.json"
    results: Results = json.loads(record.read_text(encoding="utf8")) if record.is_file() else {}
    for name in only or known:
        asked, first = words(name), before(name)
        if results.get(name, {}).get("words") == asked:
            continue
        began = time.perf_counter()
        for command in first:
            _run(command)
        done = _run(["ptm", *asked, "--json"])
        minutes = round((time.perf_counter() - began) / 60, 1)
        results[name] = {
            "before": first,
            "words": asked,
            "minutes": minutes,
            **facts(name, json.loads(done)),
        }
        record.write_text(json.dumps(results, indent=1) + "\n", encoding="utf8")
        write(results)
    write(results)
    return results


def _run(command: Sequence[str]) -> str:
    """What a command prints. Ends the program where it fails."""
    print(shlex.join(command), file=sys.stderr, flush=True)
    module = ["-m", "ptm_jax.cli.main"] if command[0] == "ptm" else []
    done = subprocess.run(
        [sys.executable, *module, *command[1:]], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def heading(title: str, init: str) -> list[str]:
    """The first lines of a table: what began, and when it was measured."""
    return [
        f"# {title}",
        "",
        f"`{Path(init).name or init}`, held-out examples, times 100; {datetime.date.today()}.",
        "",
    ]


def shown(mean: float, sd: float, seeds: int) -> str:
    """A mean times 100, with its standard deviation where there are several seeds."""
    return f"{100 * mean:.1f} ± {100 * sd:.1f}" if seeds > 1 else f"{100 * mean:.1f}"
