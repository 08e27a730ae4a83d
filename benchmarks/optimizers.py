"""Time of an update of all parameters of BERT-base, beside torch's fused AdamW and a copy.

    python -m benchmarks.optimizers [--out benchmarks/]

An update reads gradient, parameter and two moments and writes three of them: 28 bytes a parameter.
LAMB and StableAdamW need a norm of each tensor before they can write it, so they read three arrays
twice: 40 bytes. Adafactor reads the gradient three times, for its sums, for the size of the update
and for the update, and the parameter twice. Processor time, so run it on one core (`taskset -c 0`)
of a machine that has little else to do.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.published_sizes import shapes
from ptm_jax import systems
from ptm_jax.core import paths
from ptm_jax.core.recipe import (
    LAMB,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adamax,
    AdamW,
    Optimizer,
    StableAdamW,
)
from ptm_jax.training.updates import optimizers

NAME = "bert_base"
BYTES = {
    "copy": 8, "AdamW": 28, "torch's AdamW": 28, "StableAdamW": 40, "LAMB": 40, "Adafactor": 24,
    "Adafactor with momentum": 32, "Adamax": 28, "Adagrad": 20, "Adadelta": 28, "SGD": 12,
    "SGD with momentum": 20,
}  # fmt: skip
"""{what: bytes that it moves for a parameter}."""


def updates(optimizer: Optimizer) -> Callable[[], None]:
    """Returns a call that updates the parameters of BERT-base once."""
    recipe = dataclasses.replace(systems.get(NAME).recipe, optimizer=optimizer, clip=None)
    built = optimizers.build(recipe)
    params = paths.unflatten({k: jnp.ones(s.shape, jnp.float32) for k, s in shapes(NAME).items()})
    grads = jax.tree.map(lambda leaf: leaf * 1e-3, params)

    def step(params, state, grads):
        changes, state = built.update(grads, state, params, placed=True)
        return optimizers.apply(params, changes), state

    state = jax.jit(built.init)(params)
    program = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, grads).compile()
    current = [params, state]
    del params, state

    def call() -> None:
        current[:] = jax.block_until_ready(program(*current, grads))

    return call


def torch_updates() -> Callable[[], None]:
    """Returns the same for torch's fused AdamW, its fastest."""
    import torch

    torch.set_num_threads(1)
    leaves = [torch.ones(leaf.shape, requires_grad=True) for leaf in shapes(NAME).values()]
    for leaf in leaves:
        leaf.grad = torch.full_like(leaf, 1e-3)
    return torch.optim.AdamW(leaves, lr=1e-4, fused=True).step


def copies() -> Callable[[], None]:
    """Returns a call that copies as many float32 numbers."""
    source = np.ones(sum(leaf.size for leaf in shapes(NAME).values()), np.float32)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def milliseconds(call: Callable[[], None], rounds: int) -> float:
    """Returns the median of the processor time of a call, after two that do not count."""
    spent = []
    for _ in range(rounds + 2):
        before = time.process_time()
        call()
        spent.append(time.process_time() - before)
    return 1e3 * float(np.median(spent[2:]))


def page(figures: dict[str, float], machine: str) -> str:
    """Returns the table in Markdown."""
    count = sum(leaf.size for leaf in shapes(NAME).values())
    rows = [
        f"| {name} | {spent:,.0f} | {BYTES[name]} | {BYTES[name] * count / spent / 1e6:.1f} |"
        for name, spent in figures.items()
    ]
    lines = "\n".join(["| update | ms | bytes a parameter | GB/s |", "|---|---:|---:|---:|", *rows])
    return f"""# Updates of BERT-base

{lines}

Processor time of one update of {count:,} parameters in float32 without clipping, medians of one
process, on {machine}.
LAMB and StableAdamW read three arrays a second time, after the norms of the tensors, and Adafactor
the gradient three times. Where XLA sums these norms, StableAdamW took 732 ms, LAMB 588, Adafactor
530 and 599 with momentum on the same core (AdamW 162, a copy 34). The rules from Adamax on are
XLA's: a loop for each array that an update writes.
`taskset -c 0 python -m benchmarks.optimizers --out benchmarks/`
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--machine", default="one core of this machine", help="for the page")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    calls: dict[str, Callable[[], Callable[[], None]]] = {
        "copy": copies,
        "AdamW": lambda: updates(AdamW()),
        "StableAdamW": lambda: updates(StableAdamW()),
        "LAMB": lambda: updates(LAMB()),
        "Adafactor": lambda: updates(Adafactor()),
        "Adafactor with momentum": lambda: updates(Adafactor(momentum=0.9)),
        "Adamax": lambda: updates(Adamax()),
        "Adagrad": lambda: updates(Adagrad()),
        "Adadelta": lambda: updates(Adadelta()),
        "SGD": lambda: updates(SGD()),
        "SGD with momentum": lambda: updates(SGD(momentum=0.9)),
    }
    if importlib.util.find_spec("torch") is not None:
        calls["torch's AdamW"] = torch_updates
    figures = {name: milliseconds(made(), args.rounds) for name, made in calls.items()}
    text = page(figures, args.machine)
    print(text)
    if args.out is not None:
        (args.out / "optimizers.md").write_text(text)


if __name__ == "__main__":
    main()
