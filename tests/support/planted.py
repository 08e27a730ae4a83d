"""A tiny run with planted faults, in processes of its own (`python -m support.planted DIR TEXT`).

The loss of the rows of one host is NaN at a step. PLANT="FAULT:STEP" plants one in the process that
has it: `sleep` (its rows come late), `stop` (SIGSTOP, in place of its rows), `slow` (each of its
rows comes late). Each process prints the updates that were left out, and a checksum of its copy of
the parameters at evaluations.
"""

import dataclasses
import hashlib
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.recipe import Phase, SkipSpikes
from ptm_jax.training import loop
from ptm_jax.training.hosts import hosts
from support import tiny_runs as tiny

STEPS, BAD, LATE = 40, 30, 6.0


@dataclasses.dataclass(frozen=True)
class HalfBad:
    """Masked words. At step `BAD` the weights of the second half of the rows are NaN."""

    def __call__(self, towers, batch, key):
        weights = batch["mlm_weights"]
        bad = (jnp.arange(len(weights)) >= len(weights) // 2) & (batch.get("step", 0) == BAD - 1)
        batch = batch | {"mlm_weights": jnp.where(bad[:, None], jnp.nan, weights)}
        return tiny.watched_mlm(towers, batch, key)


class Rows:
    """A stream with a fault."""

    def __init__(self, stream, kind, step):
        self.stream, self.state = stream, stream.state
        self.kind, self.step = kind, step

    def __iter__(self):
        for number, rows in enumerate(self.stream, 1):
            if self.kind == "slow":
                time.sleep(0.1)
            elif number == self.step and self.kind == "sleep":
                time.sleep(LATE)
            elif number == self.step and self.kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            yield rows


def plant():
    kind, _, step = os.environ.get("PLANT", "").partition(":")
    kept = loop.features.kept
    if kind:
        loop.features.kept = lambda program, params, stream, *more: Rows(
            kept(program, params, stream, *more), kind, int(step)
        )


def experiment(text):
    recipe = dataclasses.replace(
        tiny.system.recipe, phases=(Phase(steps=STEPS, batch=8, length=16),), clip=SkipSpikes()
    )
    system = dataclasses.replace(tiny.system, objective=HalfBad(), recipe=recipe)
    times = {"log_every": 4, "eval_every": 16, "save_every": 8}
    return dataclasses.replace(tiny.config, system=system, data=(text,), **times)


def heard(step, split, values):
    if values.get("skipped"):
        print(f"left out {values['skipped']:g} of the updates to {step}", flush=True)


def watch(step, program, params):
    leaves = jax.tree.leaves(params)
    local = b"".join(np.asarray(leaf.addressable_data(0)).tobytes() for leaf in leaves)
    print(f"parameters {step} {hashlib.sha256(local).hexdigest()[:16]}", flush=True)
    return False


if __name__ == "__main__":
    from support.planted import experiment, heard, plant, watch

    plant()
    hosts.join()
    result = loop.train(experiment(sys.argv[2]), sys.argv[1], watch=watch, callbacks=(heard,))
    print(f"done: {result.step} steps", flush=True)
