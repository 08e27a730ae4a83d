"""Benchmarks of the training step of BERT-base: its speed, and the share of dynamic masking."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax

from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import FINALISTS, Peers, rated
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.core.streams import stream
from ptm_jax.corruptions.base import capacity

OURS = ("bfloat16", "float32")
BFLOAT16 = "bfloat16 products with float32 accumulation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSizes(Sizes):
    """`screening` steps choose the variants of the peer for all rounds.
    `compile_limit` is the maximum seconds for torch.compile."""

    screening: int = 4
    compile_limit: int = 600


def step(sizes: StepSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures the tokens/s of a masked-LM training step.
    Ours, and the peers' at their best settings."""
    say(f"step: compiling {' and '.join(OURS)}")
    batch = programs.rows(sizes)
    works: dict[str, programs.Training] = {}
    for name in OURS:
        state = works[OURS[0]].state if works else None
        works[name] = programs.training(programs.bert(sizes, name), batch, state)
    meters: dict[str, timing.Meter] = {
        name: timing.Step(w.step, w.state, batch) for name, w in works.items()
    }
    absent = peers.missing()
    with contextlib.ExitStack() as stack:
        task = {**sizes.shapes(), "predictions": capacity(sizes.length, 0.15)}
        field = peers.steps(
            task, meters["bfloat16"], sizes.screening, sizes.compile_limit, stack, say=say
        )
        meters |= field.finalists()
        say(f"step: {repeats} rounds of ours and {', '.join(field.finalists()) or 'no peer'}")
        seconds = timing.alternate(
            {**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say
        )
    ours, theirs, first, ratios = rated(field, seconds, OURS, sizes.batch * sizes.length)
    return [
        Entry(
            name="step",
            ours=ours,
            peers=theirs,
            ratio=median(ratios) if ratios else None,
            spread=spread(ratios),
            roofline=products(works[first].flops, seconds[first], seconds["gemm"]),
            settings=settings(
                ratio=f"tokens/s of ours in {first} over the peer's best ({field.best})",
                compares="tokens_per_second",
                reason="; ".join([absent] if absent else field.failures) or None,
                screening=f"all rounds measure the peer's fastest {FINALISTS} settings in "
                f"{sizes.screening} steps; its best has the least median",
                **_step_settings(sizes),
            ),
        )
    ]


def _step_settings(sizes: StepSizes) -> dict[str, Any]:
    return {
        **sizes.shapes(),
        "predictions_per_row": capacity(sizes.length, 0.15),
        "dropout": 0.1,
        "optimizer": "AdamW, no clipping; torch: fused",
        "ours": f"corruption inside the step, head on the masked positions; bfloat16: {BFLOAT16}; "
        f"{programs.UNROLLED}",
        "peer": "logits at all positions, as the library has it; inputs are there already; one "
        "process of its own",
        "processes": "strictly alternating, in turned order",
    }


def products(operations: float, seconds, rates) -> dict[str, float]:
    """Returns the model's FLOP/s as a share of a matrix product's, measured in the same round."""
    reached = [operations / took / rate for took, rate in zip(seconds, rates, strict=True)]
    return {
        "gemm_flops_per_second": median(rates),
        "model_flops": operations,
        "share": median(reached),
    }


def masking(sizes: Sizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures the share of dynamic masking in the time of a training step."""
    say("masking: compiling the step with and without")
    batch = programs.rows(sizes)
    system = programs.bert(sizes, "bfloat16")
    work = programs.training(system, batch)
    ready = programs.corrupted(work.program, batch)
    without = programs.training(dataclasses.replace(system, corruption=None), ready, work.state)
    corrupt = jax.jit(
        lambda number, rows: system.corruption(stream(0, "corruption-train", number), rows)
    )
    alone = timing.clocked(lambda: corrupt(1, batch))
    meters = {
        "step": timing.Step(work.step, work.state, batch),
        "alone": lambda: median([alone() for _ in range(11)]),
        "without": timing.Step(without.step, without.state, ready),
        "gemm": timing.products(sizes.gemm),
    }
    seconds = timing.alternate(meters, repeats, warmup=2, say=say)
    ratios = over(seconds["alone"], seconds["step"])
    difference = [a / b - 1.0 for a, b in zip(seconds["step"], seconds["without"], strict=True)]
    return [
        Entry(
            name="masking",
            ours={
                "step": {"seconds": median(seconds["step"])},
                "step without masking": {
                    "seconds": median(seconds["without"]),
                    "difference": median(difference),
                },
                "masking alone": {"seconds": median(seconds["alone"])},
            },
            peers={},
            ratio=median(ratios),
            spread=spread(ratios),
            roofline=products(work.flops, seconds["step"], seconds["gemm"]),
            settings=settings(
                ratio="seconds of the jitted corruption over seconds of the step",
                compares="seconds",
                precision=BFLOAT16,
                layers_are=programs.UNROLLED,
                **sizes.shapes(),
            ),
        )
    ]
