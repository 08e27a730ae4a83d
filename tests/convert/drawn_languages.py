"""Draws configs of each family of many languages and of translation and compares a class of each,
by turns, with Transformers: states, attention maps, scores, losses, gradients, and the tensors of
the export.

    python -m tests.convert.drawn_languages --number 12 --family Xmod

`drawing_languages` has the fields of each family.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import drawn  # noqa: E402  which sets the options of the compiler before JAX is imported
import jax  # noqa: E402
import peers  # noqa: E402
import pytest  # noqa: E402
from drawing_languages import FAMILIES, compare  # noqa: E402
from transformers.utils import logging  # noqa: E402


def compared(prefix, number, folder):
    """Compares one config, with the library as it is afterwards."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        compare(prefix, number, folder, monkeypatch)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=12)
    parser.add_argument("--family", action="append", choices=list(FAMILIES))
    options = parser.parse_args()
    say = functools.partial(print, flush=True)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    peers.torch.set_num_threads(1)
    results = [drawn.Result(prefix) for prefix in options.family or FAMILIES]
    for result in results:
        for number in range(options.number):
            peers.MEASURED.clear()
            run = functools.partial(compared, result.family, number)
            drawn.attempt(result, f"{result.family} {number}", run, say)
            drawn.add_measured(result)
        jax.clear_caches()
        say(drawn.table([result]).splitlines()[2])
    print(drawn.table(results))
    return min(sum(len(result.faults) for result in results), 1)


if __name__ == "__main__":
    raise SystemExit(main())
