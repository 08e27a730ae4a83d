"""Deaths of processes that write predictions."""

import itertools

from ptm_jax.inference.streams import journal


class Cut(Exception):
    """The death of a process."""


def killed_after(monkeypatch, blocks, error=Cut):
    """The process dies after so many blocks."""
    flush, count = journal.flush, itertools.count()

    def dying(file):
        flush(file)
        if isinstance(file.name, str) and next(count) == blocks:  # the output, not its record
            raise error

    monkeypatch.setattr(journal, "flush", dying)


DIES = """
import os, pathlib, signal, time
here = pathlib.Path(os.environ["PTM_TEST_DIED"])
if os.environ.get("JAX_PROCESS_ID") == "0":
    while not here.exists():
        time.sleep(0.1)
elif os.environ.get("JAX_PROCESS_ID") == "1" and not here.exists():
    from ptm_jax.inference.streams import journal
    flush, blocks = journal.flush, []
    def dying(file):
        flush(file)
        blocks.append(isinstance(file.name, str))
        if sum(blocks) == 6:
            here.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    journal.flush = dying
"""
"""A sitecustomize.py: process 1 is killed in its second shard, once, and process 0 begins then, so
that process 1 has had one."""
