"""Training steps of AWD-LSTM beside fastai's class in torch, at the sizes of Penn Treebank.

    python -m benchmarks.awd_lstm                          # needs torch and `make .venv/.fastai`
    python -m benchmarks.awd_lstm --batch 20 --rounds 5

Both sides train 10,000 words, 400 units, three layers of 1,150, with dropout of words, inputs,
layers and recurrent kernels, AR and TAR, SGD of rate 30 and clip 0.25, on rows of 70 tokens whose
states go on from the row before. Rounds alternate in one process on all of its cores; a round is
`--steps` updates. An epoch of Penn Treebank is 929,589 tokens.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.bench import record
from ptm_jax.cli import allocator
from ptm_jax.core.precision import Precision
from ptm_jax.core.spec import respell, with_field
from ptm_jax.mesh import rules
from ptm_jax.training.steps.step import program

FILE = Path(sys.prefix) / "fastai/fastai/text/models/awdlstm.py"
TOKENS = 929_589
WORDS, WIDTH, HIDDEN, LAYERS = 10_000, 400, 1150, 3
Round = Callable[[int], float]


@dataclasses.dataclass(frozen=True)
class Args:
    """What is measured."""

    batch: int = 80
    length: int = 70
    steps: int = 3
    rounds: int = 9
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of this package's products."""


def fastai_classes() -> Any:
    """Returns fastai's module of AWD-LSTM from its file alone. What the file takes from the rest of
    the package, which needs torchvision, pandas and spacy, is written here."""
    import torch

    class Layer(torch.nn.Module):
        """fastai's Module, which asks for no call of super."""

        def __new__(cls, *args, **options):
            new = super().__new__(cls)
            torch.nn.Module.__init__(new)
            return new

        def __init__(self):
            pass

    def store_attr(names):
        frame = sys._getframe(1).f_locals
        for name in names.split(","):
            setattr(frame["self"], name, frame[name])

    around = {
        "Module": Layer,
        "L": lambda names: [names],
        "store_attr": store_attr,
        "to_detach": lambda states, **_: [tuple(p.detach() for p in state) for state in states],
        "ifnone": lambda a, b: b if a is None else a,
        "one_param": lambda module: next(module.parameters()),
        "nn": torch.nn,
        "F": torch.nn.functional,
        "Tensor": torch.Tensor,
        "torch": torch,
        "warnings": warnings,
        "MutableSequence": MutableSequence,
    }
    names = ("fastai", "fastai.data", "fastai.data.all", "fastai.text", "fastai.text.core")
    made = {name: types.ModuleType(name) for name in (*names, "fastai.text.models")}
    for module in made.values():
        module.__path__ = []
    vars(made["fastai.data.all"]).update(around)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        spec = importlib.util.spec_from_file_location("fastai.text.models.awdlstm", FILE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, module_before in before.items():
            sys.modules.pop(name)
            if module_before is not None:
                sys.modules[name] = module_before
    return module


def ours(args: Args) -> Round:
    """Returns a function that runs steps of the system `awd_lstm` and returns their seconds."""
    system = respell(systems.get("awd_lstm"), Precision, Precision(args.precision))
    for field, value in (("batch", args.batch), ("length", args.length)):
        system = with_field(system, f"recipe.phases[0].{field}", value)
    batches = [
        {
            "input_ids": ids,
            "segment_ids": np.ones_like(ids),
            "positions": np.broadcast_to(np.arange(args.length, dtype=np.int32), ids.shape),
            "rows": np.arange(args.batch, dtype=np.int32),
        }
        for ids in texts(args)
    ]
    made, _ = program(system, 0).on(rules.make_mesh(), "replicated", batches[0])
    step, state = jax.jit(made.step, donate_argnums=0), jax.jit(made.init)(batches[0])
    box = [state]

    def run(steps: int) -> float:
        began = time.perf_counter()
        for number in range(steps):
            box[0], _ = step(box[0], batches[number % len(batches)])
        jax.block_until_ready(box[0].params)
        return time.perf_counter() - began

    return run


def fastais(args: Args) -> Round:
    """Returns a function that runs steps of fastai's AWD_LSTM, its tied decoder and penalties."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    network = fastai_classes().AWD_LSTM(
        WORDS, WIDTH, HIDDEN, LAYERS, hidden_p=0.25, input_p=0.4, embed_p=0.1, weight_p=0.5
    )
    decoder, last = torch.nn.Linear(WIDTH, WORDS), torch.nn.Dropout(0.4)
    decoder.weight = network.encoder.weight
    params = [*{id(p): p for part in (network, decoder) for p in part.parameters()}.values()]
    optimizer = torch.optim.SGD(params, lr=30.0)
    batches = [torch.tensor(ids, dtype=torch.int64) for ids in texts(args)]

    def run(steps: int) -> float:
        began = time.perf_counter()
        for number in range(steps):
            ids = batches[number % len(batches)]
            raw = network(ids)
            states = last(raw)
            logits = decoder(states[:, :-1]).reshape(-1, WORDS)
            loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1))
            loss = loss + 2 * states.pow(2).mean() + (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 0.25)
            optimizer.step()
        return time.perf_counter() - began

    return run


def texts(args: Args) -> list[np.ndarray]:
    """Returns four batches [B, L] int32 of words."""
    draw = np.random.default_rng(0)
    shape = (4, args.batch, args.length)
    return list(draw.integers(4, WORDS, shape).astype(np.int32))


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    sides: dict[str, Round] = {"ptm_jax": ours(args), "fastai": fastais(args)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side(1)  # compiles
    for _ in range(args.rounds):
        for name, side in sides.items():
            seconds[name].append(side(args.steps))
    tokens = args.batch * args.length * args.steps
    ratios = sorted(b / a for a, b in zip(seconds["ptm_jax"], seconds["fastai"], strict=True))
    print(f"{record.device()}, batch {args.batch} x {args.length}, {args.precision}")
    for name, rounds in seconds.items():
        rate = tokens / statistics.median(rounds)
        print(f"{name:8}  {rate:8,.0f} tokens/s, an epoch of Penn Treebank {TOKENS / rate:,.0f} s")
    low, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.9))
    print(f"times fastai: {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, for all sides
    main()
