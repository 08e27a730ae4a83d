"""Search for the best settings of torch and transformers: precision, attention kernel, huge pages,
compilation."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks import peer, tokamax_peer
from ptm_jax.bench import timing
from ptm_jax.bench.attention import Case
from ptm_jax.bench.peers import Field, Peers
from ptm_jax.bench.record import threads

# Settings of PyTorch and of the C library for huge pages, which reduce page faults for new
# activations.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

# Maximum seconds per request.
LONGEST = 600.0

# A precision whose first call takes this many times another's is not measured: bfloat16 where the
# CPU emulates it.
HOPELESS = 4.0

# Seconds that a first call may take more, for threads and memory.
WARMING = 10.0


def variants(precisions: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Returns {name: request} for every precision with both attention kernels."""
    return {
        f"torch, {precision}, {attention}": {"precision": precision, "attention": attention}
        for precision in precisions
        for attention in ("eager", "sdpa")
    }


class Installed(Peers):
    """The installed peers: torch and transformers in child processes, tokamax in this process."""

    def missing(self) -> str | None:
        return peer.missing()

    def steps(self, task, ours, rounds, limit, stack, say) -> Field:
        """Measures six settings, then the best one with huge pages, compiled, and with both.

        Our step alternates with theirs, so that all are measured under the same machine conditions.
        """
        if self.missing():
            return Field()
        tried = variants(("float32", "float32, medium", "bfloat16 autocast"))
        return _best("step", task, tried, ours, rounds, limit, stack, say)

    def generation(self, task, rounds, stack, say) -> Field:
        field = Field()
        if self.missing():
            return field
        recurrent = task["network"] == "lstm"
        child = stack.enter_context(
            peer.Peer("sampling" if recurrent else "generate", task, threads())
        )
        say(f"generate: trying the peer's settings at batch {task['batch']}")
        plain = {f"torch, {name}": {"precision": name} for name in ("float32", "bfloat16")}
        wanted = plain if recurrent else variants(("float32", "bfloat16"))
        requests = {
            name: (child, {**request, "batch": task["batch"]}) for name, request in wanted.items()
        }
        _try(field, requests, lambda: 0.0, rounds, say)
        return field

    def recurrent(self, task, ours, rounds, stack, say) -> Field:
        """Measures torch in both precisions and, without projection, Flax's RNN."""
        field, requests = Field(), {}
        if not task["project"]:
            field.meters["flax, float32"] = timing.clocked(
                _flax_rnn(*(task[k] for k in ("batch", "length", "width", "inputs")))
            )
            requests["flax, float32"] = (None, None)
        if not self.missing():
            child = stack.enter_context(peer.Peer("recurrent", task, threads()))
            requests |= {
                f"torch, {name}": (child, {"precision": name})
                for name in ("float32", "bfloat16 autocast")
            }
        _try(field, requests, ours, rounds, say)
        return field

    def attention(self, case: Case, ours, rounds, stack, say) -> Field:
        """Measures torch's and tokamax's attention functions in both precisions."""
        others, failures = tokamax_peer.programs(functools.partial(tokamax_peer.attention, case))
        field = Field(
            held={name: held for name, (_, held) in others.items()}, failures=list(failures)
        )
        field.meters |= {name: timing.clocked(call) for name, (call, _) in others.items()}
        requests: dict[str, tuple[Any, Any]] = dict.fromkeys(others, (None, None))
        if not self.missing():
            task = {**case.sizes.shapes(), "case": case.name, "segments": case.segments.tolist()}
            child = stack.enter_context(
                peer.Peer("attention", {**task, "buckets": case.buckets.tolist()}, threads())
            )
            requests |= {
                f"torch, {given}, sdpa": (child, {"precision": given})
                for given in ("float32", "bfloat16")
            }
        if requests:
            say(f"attention: trying {len(requests)} settings of the peers")
            _try(field, requests, ours, rounds, say)
        return field

    def cross_entropy(self, arguments, ours, rounds, stack, say) -> Field:
        others, failures = tokamax_peer.programs(
            functools.partial(tokamax_peer.cross_entropy, arguments)
        )
        field = Field(
            held={name: held for name, (_, held) in others.items()}, failures=list(failures)
        )
        field.meters |= {name: timing.clocked(call) for name, (call, _) in others.items()}
        if not self.missing():
            (tokens, width), vocab = arguments[0].shape, len(arguments[1])
            task = {"tokens": tokens, "width": width, "vocab": vocab}
            child = stack.enter_context(peer.Peer("cross_entropy", task, threads()))
            for name in ("float32", "bfloat16 autocast"):
                field.meters[f"torch, {name}"] = functools.partial(child, {"precision": name})
        return field


def _flax_rnn(batch: int, length: int, width: int, inputs: int):
    """Returns a call of Flax's RNN over its OptimizedLSTMCell, forward and backward."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    module, x = nn.RNN(nn.OptimizedLSTMCell(width)), jnp.ones((batch, length, inputs))
    params = module.init(jax.random.key(0), x)
    program = jax.jit(jax.value_and_grad(lambda params, x: module.apply(params, x).sum(), (0, 1)))
    return lambda: program(params, x)


def lengths(
    task: Mapping[str, Any],
    ours: timing.Meter,
    rounds: int,
    limit: float,
    stack: ExitStack,
    say: timing.Say,
) -> Field:
    """Measures training steps on rows sorted by length and padded to the longest of their batch.

    The best setting is also measured on unsorted rows. Otherwise as `steps`.
    """
    tried = {
        name: {**request, "order": "sorted"}
        for name, request in variants(("float32", "bfloat16 autocast")).items()
    }
    others = {"as they come": {"order": "random"}}
    return _best("lengths", task, tried, ours, rounds, limit, stack, say, others)


def layers(
    task: Mapping[str, Any],
    ours: timing.Meter,
    rounds: int,
    limit: float,
    stack: ExitStack,
    say: timing.Say,
) -> Field:
    """Measures one layer, forward and backward, as `steps` does."""
    tried = variants(("float32", "bfloat16 autocast"))
    return _best("layer", task, tried, ours, rounds, limit, stack, say)


def _best(work, task, tried, ours, rounds, limit, stack, say, others=None) -> Field:
    """Measures the settings `tried`, then the best one with `others`, with huge pages, compiled,
    and with both."""
    field = Field()
    say(f"{work}: trying {len(tried)} settings of the peer")
    child = stack.enter_context(peer.Peer(work, task, threads()))
    _try(field, {name: (child, request) for name, request in tried.items()}, ours, rounds, say)
    if field.best is None:
        return field
    plain = field.best
    request = tried[plain]
    more = {
        f"{plain}, {name}": ({**request, **changes}, {}) for name, changes in (others or {}).items()
    }
    more[f"{plain}, huge pages"] = (request, HUGE_PAGES)
    if limit:
        more[f"{plain}, compiled"] = ({**request, "compile": True}, {})
        more[f"{plain}, huge pages, compiled"] = ({**request, "compile": True}, HUGE_PAGES)
    for name, (request, environment) in more.items():
        say(f"{work}: {name}")
        child = stack.enter_context(peer.Peer(work, task, threads(), environment))
        _try(
            field,
            {name: (child, request), plain: (None, None)},
            ours,
            rounds,
            say,
            limit or LONGEST,
        )
    return field


def _try(
    field: Field, requests, ours: timing.Meter, rounds: int, say: timing.Say, limit: float = LONGEST
) -> None:
    meters, first, hopeless = {"ours": ours}, {}, set()
    for name, (child, request) in requests.items():
        if child is None:  # a setting that was measured before, as a reference for the new one
            meters[name] = field.meters[name]
            continue
        if request.get("precision") in hopeless:
            continue
        # A first call that compiles may be slow.
        soon = limit if request.get("compile") else HOPELESS * min(first.values(), default=limit)
        try:
            first[name] = child(request, min(limit, WARMING + soon))
        except peer.TooSlow as error:
            hopeless.add(request.get("precision"))
            say(f"  {name}: left out; {error}")
            continue
        except peer.Failed as error:
            field.failures.append(f"{name}: {error}")
            say(f"  {name}: {error}")
            continue
        if first[name] > HOPELESS * min(first.values()):
            hopeless.add(request.get("precision"))
            say(
                f"  {name}: left out; its first call took {first[name]:.1f} s, another's "
                f"{min(first.values()):.1f} s"
            )
            continue
        meters[name] = _Answers(name, child, request, field.failures)
    found = timing.alternate(meters, rounds, say=say)
    for name, times in found.items():
        if name != "ours" and min(times) < math.inf:
            field.meters[name], field.seconds[name] = meters[name], min(times)


class _Answers:
    """A meter of a setting. One that fails once is not asked again, and takes for ever: the others
    are measured all the same."""

    def __init__(self, name: str, child: peer.Peer, request: Mapping[str, Any], failures: list):
        self._name, self._failures, self._failed = name, failures, False
        self._call = functools.partial(child, request)

    def __call__(self) -> float:
        if self._failed:
            return math.inf
        try:
            return self._call()
        except peer.Failed as error:
            self._failed = True
            self._failures.append(f"{self._name}: {error}")
            return math.inf
