"""Profiles of steps, their table of operations, and the goodput of a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.training.logs import dearest, goodput, profile


def traced(*events, steps=((0.0, 100.0),), devices=1, waiting=0.0):
    events = tuple(dearest.Event(*event) for event in events)
    return dearest.Trace(events=events, devices=devices, steps=steps, waiting=waiting)


def test_times_and_shares_are_those_of_a_count_by_the_nanosecond():
    rng = np.random.default_rng(3)
    names = ("dot.1", "fusion.2", "all-reduce.3", "copy", "while.7")
    events = [
        (str(rng.choice(names)), int(rng.integers(0, 900)), int(rng.integers(1, 60)))
        for _ in range(40)
    ]
    trace = traced(*events, steps=((0, 400), (400, 1000)), devices=2, waiting=50.0)
    known = {"fusion.2": dearest.Operation("products", "ffn/dot_general")}
    summary = dearest.summarised(trace, known, number=2)
    counted = [event for event in events if not event[0].startswith("while")]
    busy = np.zeros(1000, bool)
    for _, start, length in counted:
        busy[start : start + length] = True
    total = sum(length for *_, length in counted)
    of = {name: sum(e[2] for e in counted if e[0] == name) for name in names}
    assert summary.seconds == pytest.approx(1000e-9 / 2)
    assert summary.shares["products"] == pytest.approx((of["dot.1"] + of["fusion.2"]) / total)
    assert summary.shares["messages"] == pytest.approx(of["all-reduce.3"] / total)
    assert summary.shares["idle"] == pytest.approx(1 - busy.mean())
    assert summary.shares["input"] == pytest.approx(0.05)
    longest = sorted(of.values())[::-1][:2]
    assert [row[3] for row in summary.rows] == pytest.approx([t / 1e9 / 2 / 2 for t in longest])


def test_the_operations_of_a_compiled_program():
    @jax.jit
    def step(x, w):
        with jax.named_scope("feedforward"):
            return jax.nn.gelu(x @ w).sum() + jnp.sort(x).mean()

    text = step.lower(jnp.ones((64, 64)), jnp.ones((64, 64))).compile().as_text()
    known = dearest.operations(text)
    products = [one for one in known.values() if one.kind == "products"]
    assert products and any("feedforward" in one.source for one in products)
    line = '  %ar = f32[4]{0} all-reduce(%x), replica_groups={}, metadata={op_name="jit(f)/psum"}'
    custom = '  %k = f32[4]{0} custom-call(%x), custom_call_target="ptm_attention"'
    both = dearest.operations(f"ENTRY %main (x: f32[4]) -> f32[4] {{\n{line}\n{custom}\n}}\n")
    assert {name: one.kind for name, one in both.items()} == {"ar": "messages", "k": "kernels"}


def test_goodput_is_the_time_that_is_not_lost(monkeypatch):
    clock = iter((0.0, 4.0, 4.0, 7.0, 10.0, 12.0, 20.0, 20.0))
    monkeypatch.setattr(goodput.time, "perf_counter", lambda: next(clock))
    spent = goodput.Goodput()
    spent.started()
    with spent.losing("compiling"):  # 4 to 7
        pass
    with spent.losing("saving"):  # 10 to 12
        pass
    record = spent.record()
    assert record["total"] == 20.0 and spent.share() == pytest.approx(11 / 20)
    assert goodput.described(record) == "55% (starting 20%, compiling 15%, saving 10%)"


def test_a_resumed_run_adds_earlier_times_and_what_it_repeats(monkeypatch):
    clock = iter((0.0, 10.0))
    monkeypatch.setattr(goodput.time, "perf_counter", lambda: next(clock))
    spent = goodput.Goodput()
    spent.resume({"total": 30.0, "evaluating": 6.0}, repeated=10.0)
    assert spent.share() == pytest.approx(1 - (6 + 10) / 50)


@pytest.mark.parametrize("words", ["20", "a:b", "3:", "-1:4"])
def test_a_span_that_is_none(words):
    with pytest.raises(UserError, match="first and the last step"):
        profile.steps_of(words)


@pytest.mark.parametrize("span", [(0, 4), (5, 4)])
def test_a_span_of_no_steps(tmp_path, span):
    with pytest.raises(UserError, match="counted from 1"):
        profile.Profiler(tmp_path, span)
