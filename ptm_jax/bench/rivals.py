"""The best settings of the other side, found by trying: precisions, attention kernels, huge pages, compilation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ptm_jax.bench import peer, timing
from ptm_jax.bench.record import threads

# PyTorch's switch and the C library's: fresh activations then cost few page faults.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

# Seconds that a request may take.
LONGEST = 600.0


@dataclasses.dataclass
class Field:
    """What was tried: a meter and the least seconds of every variant, and one line for each that did not work."""

    meters: dict[str, timing.Meter] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> str | None:
        return self.best_of("")

    def best_of(self, side: str) -> str | None:
        """The fastest of the variants whose names begin so."""
        return min((name for name in self.seconds if name.startswith(side)), key=self.seconds.get, default=None)


def variants(precisions: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """{name: request} of every precision with both attention kernels."""
    return {
        f"torch, {precision}, {attention}": {"precision": precision, "attention": attention}
        for precision in precisions
        for attention in ("eager", "sdpa")
    }


def steps(
    task: Mapping[str, Any], ours: timing.Meter, rounds: int, limit: float, stack: ExitStack, say: timing.Say
) -> Field:
    """The field of training steps: six variants, then the best with huge pages, compiled, and both.

    Our step takes its turn among theirs, so that all meet the machine in one state. `limit` is the seconds that a
    compilation has (0: none is tried); `stack` ends the children.
    """
    tried = variants(("float32", "float32, medium", "bfloat16 autocast"))
    return _best("step", task, tried, ours, rounds, limit, stack, say)


def lengths(
    task: Mapping[str, Any], ours: timing.Meter, rounds: int, limit: float, stack: ExitStack, say: timing.Say
) -> Field:
    """The field of training steps on rows that are padded to the longest of their batch, sorted by length; the best of
    them also as they come; else as `steps`."""
    tried = {name: {**request, "order": "sorted"} for name, request in variants(("float32", "bfloat16 autocast")).items()}
    others = {"as they come": {"order": "random"}}
    return _best("lengths", task, tried, ours, rounds, limit, stack, say, others)


def layers(
    task: Mapping[str, Any], ours: timing.Meter, rounds: int, limit: float, stack: ExitStack, say: timing.Say
) -> Field:
    """The field of one layer forward and backward, as `steps`."""
    tried = variants(("float32", "bfloat16 autocast"))
    return _best("layer", task, tried, ours, rounds, limit, stack, say)


def attention(
    task: Mapping[str, Any] | None,
    others: Mapping[str, timing.Meter],
    ours: timing.Meter,
    rounds: int,
    stack: ExitStack,
    say: timing.Say,
) -> Field:
    """The field of attention alone: torch's own function in both precisions (no task: no torch), and `others`."""
    requests: dict[str, tuple[Any, Any]] = dict.fromkeys(others, (None, None))
    if task is not None:
        child = stack.enter_context(peer.Peer("attention", task, threads()))
        requests |= {f"torch, {given}, sdpa": (child, {"precision": given}) for given in ("float32", "bfloat16")}
    field = Field(meters=dict(others))
    if requests:
        say(f"attention: trying {len(requests)} settings of the peers")
        _try(field, requests, ours, rounds, say)
    return field


def _best(work, task, tried, ours, rounds, limit, stack, say, others=None) -> Field:
    """The field of `tried`, then the best of them with `others`, with huge pages, compiled, and both."""
    field = Field()
    say(f"{work}: trying {len(tried)} settings of the peer")
    child = stack.enter_context(peer.Peer(work, task, threads()))
    _try(field, {name: (child, request) for name, request in tried.items()}, ours, rounds, say)
    if field.best is None:
        return field
    plain = field.best
    request = tried[plain]
    more = {f"{plain}, {name}": ({**request, **changes}, {}) for name, changes in (others or {}).items()}
    more[f"{plain}, huge pages"] = (request, HUGE_PAGES)
    if limit:
        more[f"{plain}, compiled"] = ({**request, "compile": True}, {})
        more[f"{plain}, huge pages, compiled"] = ({**request, "compile": True}, HUGE_PAGES)
    for name, (request, environment) in more.items():
        say(f"{work}: {name}")
        child = stack.enter_context(peer.Peer(work, task, threads(), environment))
        _try(field, {name: (child, request), plain: (None, None)}, ours, rounds, say, limit or LONGEST)
    return field


def _try(field: Field, requests, ours: timing.Meter, rounds: int, say: timing.Say, limit: float = LONGEST) -> None:
    meters = {"ours": ours}
    for name, (child, request) in requests.items():
        if child is None:  # one that was measured already stands beside the new one
            meters[name] = field.meters[name]
            continue
        try:
            child(request, limit)
        except peer.Failed as error:
            field.failures.append(f"{name}: {error}")
            say(f"  {name}: {error}")
            continue
        meters[name] = _meter(child, request)
    found = timing.alternate(meters, rounds, say=say)
    for name, times in found.items():
        if name != "ours":
            field.meters[name], field.seconds[name] = meters[name], min(times)


def _meter(child: peer.Peer, request: Mapping[str, Any]) -> timing.Meter:
    return lambda: child(request)


def generation(
    task: Mapping[str, Any], batches: tuple[int, ...], rounds: int, stack: ExitStack, say: timing.Say
) -> dict[int, Field]:
    """The field of greedy decoding for every batch."""
    child = stack.enter_context(peer.Peer("generate", task, threads()))
    fields = {}
    for batch in batches:
        say(f"generate: trying the peer's settings at batch {batch}")
        fields[batch] = Field()
        requests = {
            name: (child, {**request, "batch": batch}) for name, request in variants(("float32", "bfloat16")).items()
        }
        _try(fields[batch], requests, lambda: 0.0, rounds, say)
    return fields

