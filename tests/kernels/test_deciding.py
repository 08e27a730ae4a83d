"""A device decides by a check of its candidates. The device is injected; kernels are made wrong by
hand."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import subprocess
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import choice, cross_entropy, deciding, faults, program_cache
from ptm_jax.kernels.attention import attend, candidates, dense, splash, tpu
from ptm_jax.kernels.cross_entropy import candidates as losses
from ptm_jax.kernels.cross_entropy import tpu as cross_tpu
from ptm_jax.kernels.deciding import Candidate, Case

HERE = deciding.Device("TPU v5 lite", "tpu", ("jax 0.10.2", "libtpu 0.0.30"))


@pytest.fixture(autouse=True)
def attached(monkeypatch, tmp_path):
    """A process on a TPU, with an empty folder of answers."""
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(deciding, "device", lambda: HERE)
    monkeypatch.setattr(deciding, "_known", {})
    monkeypatch.setattr(choice, "platform", lambda: "tpu")


@dataclasses.dataclass(frozen=True)
class Square(deciding.Question):
    """Squares of three numbers, for candidates that are quickly compiled."""

    kind, definition, compute, key = "square", "reference", "float32", "squares of 3"
    size: int = 3

    def cases(self):
        def call(module, x):
            return {
                "result": module.square(x),
                "gradient of x": jax.grad(lambda x: module.square(x).sum())(x),
            }

        def right(x):
            return {"result": x * x, "gradient of x": 2 * x}

        return [Case(jnp.arange(1.0, 1 + self.size), call, right, lambda module: module.refusal())]


class Forward(Square):
    """Without a gradient."""

    key = "squares without a gradient"

    def cases(self):
        case = super().cases()[0]

        def call(module, x):
            return {"result": module.square(x)}

        return [dataclasses.replace(case, call=call, right=lambda x: {"result": x * x})]


@jax.custom_vjp
def turned(x):
    return x * x


turned.defvjp(lambda x: (x * x, x), lambda x, g: (-2 * x * g,))


def candidate(name, square, refused=None):
    return Candidate(name, lambda: types.SimpleNamespace(square=square, refusal=lambda: refused))


def raising(x):
    raise NotImplementedError("Mosaic cannot\n lower this")


GIVEN = (
    candidate("reference", lambda x: x**2),
    candidate("slower", lambda x: x * x),
    candidate("forward", lambda x: x * x * 1.01),
    candidate("backward", turned),
    candidate("nan", lambda x: x * x + jnp.log(x - 2)),
    candidate("raising", raising),
    candidate("other", lambda x: x * x, "it computes no squares"),
    Candidate("gone", lambda: __import__("ptm_jax.no_such_kernel")),
)


def test_what_no_device_has_run_is_not_taken(monkeypatch):
    """The Hopper kernel waits for a card with scores by key, and only with these."""

    @dataclasses.dataclass(frozen=True)
    class Extra(Square):
        key = "squares and more"
        extras: tuple[str, ...] = ("more",)

    monkeypatch.setattr(deciding, "_timed", lambda programs: dict.fromkeys(programs, 1.0))
    waits = dataclasses.replace(GIVEN[1], untried=("more",))
    assert {*deciding.ask(Square(), (GIVEN[0], waits), "tpu").seconds} == {"reference", "slower"}
    answer = deciding.ask(Extra(), (GIVEN[0], waits), "tpu")
    assert {*answer.seconds} == {"reference"}
    assert answer.refused == {"slower": "no device has run it with more"}
    untried = {(one.name, *one.platforms): one.untried for one in candidates.CANDIDATES}
    assert untried["pallas", "gpu"] == ("by_key",) and untried["pallas", "tpu"] == ()


def test_a_candidate_that_is_wrong_is_left_out_with_a_line(monkeypatch, capsys):
    """Wrong by hand: the result, its gradient, not a number, raising, not there. A right one that
    is slower comes later."""
    taken = {"reference": 2e-3, "slower": 3e-3}
    monkeypatch.setattr(
        deciding, "_timed", lambda programs: {name: taken[name] for name in programs}
    )
    answer = deciding.ask(Square(), GIVEN, "tpu")
    assert list(answer.seconds) == ["reference", "slower"] and answer.refused == {
        "other": "it computes no squares"
    }
    assert answer.left_out == {
        "forward": "its result is wrong by 0.01 of the greatest number (at most 0.0001 is allowed)",
        "backward": "its gradient of x is wrong by 2 of the greatest number (at most 0.0001 is "
        "allowed)",
        "nan": "its result is not finite",
        "raising": "NotImplementedError: Mosaic cannot lower this",
        "gone": "ModuleNotFoundError: No module named 'ptm_jax.no_such_kernel'",
    }
    lines = capsys.readouterr().err.splitlines()
    assert lines[:5] == [
        f"kernels: squares of 3: {name} is left out: {why}" for name, why in answer.left_out.items()
    ]
    assert lines[5].startswith(
        f"kernels: TPU v5 lite, jax {jax.__version__}: squares of 3: reference; checked in "
    )
    assert len(lines) == 6


def test_a_kernel_that_breaks_the_device_is_left_out_by_the_next_process(monkeypatch):
    """Its own process cannot go on: every later call fails."""

    def breaking(x):
        def fault(x):
            raise RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS")

        return jax.pure_callback(fault, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    several = (candidate("breaking", breaking), GIVEN[0])
    question = Forward()
    monkeypatch.setattr(faults, "alive", lambda: False)
    with pytest.raises(UserError, match="'breaking' broke the device .* Run the command again"):
        deciding.ask(question, several, "tpu")
    assert deciding._known == {} and deciding.answers(HERE) == {}
    monkeypatch.setattr(faults, "alive", lambda: True)
    answer = deciding.ask(question, several, "tpu")
    assert answer.left_out == {"breaking": faults.REASON} and [*answer.seconds] == ["reference"]


def test_a_kernel_that_raises_leaves_no_mark():
    deciding.ask(Square(), GIVEN, "tpu")
    assert faults.broken(HERE.file, Square().key) == set()
    assert not any(faults._marks(HERE.file).values())


def test_a_kernel_in_which_a_process_ended_is_left_out():
    child = subprocess.Popen(["true"])
    child.wait()
    here, other = socket.gethostname(), "another machine"
    marks = {"ended": [here, child.pid], "runs": [here, os.getpid()], "far": [other, child.pid]}
    program_cache.write(f"{HERE.file}-running", {"squares": marks})
    assert faults.broken(HERE.file, "squares") == {"ended"}
    deciding.forget()
    assert not faults.broken(HERE.file, "squares")


def test_the_fastest_is_taken_where_it_is_faster_by_a_twentieth(monkeypatch, capsys):
    for seconds, best, words in (
        (1.0, "slower", "slower (2.0 times reference)"),
        (1.95, "reference", "reference;"),
    ):
        monkeypatch.setattr(deciding, "_known", {})
        monkeypatch.setattr(
            deciding, "_timed", lambda programs, each=seconds: {"reference": 2.0, "slower": each}
        )
        program_cache.write(HERE.file, {})
        assert next(iter(deciding.ask(Square(), GIVEN[:2], "tpu").seconds)) == best
        assert words in capsys.readouterr().err


def test_a_candidate_may_refuse_all_but_what_is_timed(monkeypatch):
    """cuDNN refuses odd lengths: it is checked on the even ones of the class."""
    cases = Square().cases()
    odd = dataclasses.replace(
        cases[0],
        refusal=lambda module: module.refusal() or "odd",
        call=lambda *given: pytest.fail(),
    )
    monkeypatch.setattr(Square, "cases", lambda self: [odd, *cases])
    answer = deciding.ask(Square(), [*GIVEN[:3], GIVEN[6]], "tpu")
    assert (
        {*answer.seconds} == {"reference", "slower"}
        and [*answer.left_out] == ["forward"]
        and [*answer.refused] == ["other"]
    )


def test_where_nothing_is_right_the_definition_stays():
    answer = deciding.ask(Square(), [GIVEN[2]], "tpu")
    assert list(answer.seconds) == ["reference"] and "forward" in answer.left_out


def test_a_check_that_fails_stops_nothing_and_is_not_kept(monkeypatch, capsys):
    def full(*given):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(deciding, "_timed", full)
    answer = deciding.ask(Square(), GIVEN[:2], "tpu")
    assert list(answer.seconds) == ["reference"] and not deciding.answers(HERE)
    assert (
        "every candidate is left out: RuntimeError: RESOURCE_EXHAUSTED: out of memory"
        in capsys.readouterr().err
    )


def count(monkeypatch):
    """The checks that are made, each of which has the same answer."""
    checks, made = [], deciding.Answer({"reference": 1.0}, {}, {}, 1.0, "2026-01-01")
    monkeypatch.setattr(deciding, "checked", lambda *given: checks.append(1) or made)
    return checks


def test_an_answer_is_kept_by_device_versions_and_class(monkeypatch, capsys):
    checks = count(monkeypatch)
    first = deciding.ask(Square(), GIVEN[:2], "tpu")
    assert deciding.ask(Square(), GIVEN[:2], "tpu") is first and checks == [1]
    monkeypatch.setattr(deciding, "_known", {})  # another process
    capsys.readouterr()
    assert deciding.ask(Square(), GIVEN[:2], "tpu") == first and len(checks) == 1
    assert capsys.readouterr().err == ""
    assert deciding.answers(HERE)["squares of 3"]["question"] == {"size": 3}
    newer = dataclasses.replace(HERE, versions=("jax 0.11.0", "libtpu 0.0.30"))
    assert len({one.file for one in (HERE, newer, dataclasses.replace(HERE, kind="TPU v4"))}) == 3
    monkeypatch.setattr(deciding, "_known", {})
    monkeypatch.setattr(deciding, "device", lambda: newer)
    deciding.ask(Square(), GIVEN[:2], "tpu")
    assert len(checks) == 2
    deciding.forget()
    deciding.ask(Square(), GIVEN[:2], "tpu")
    assert len(checks) == 3


DAMAGED = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "no answers": lambda path: program_cache.write(HERE.file, [1, 2]),
    "another answer": lambda path: program_cache.write(
        HERE.file, {"squares of 3": {"answer": {"seconds": {"reference": "fast"}}}}
    ),
    "a word": lambda path: program_cache.write(HERE.file, {"squares of 3": "pallas"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_checked_again(name, monkeypatch, tmp_path):
    checks = count(monkeypatch)
    deciding.ask(Square(), GIVEN[:1], "tpu")
    (path,) = (tmp_path / "cache").rglob("*.json.gz")
    DAMAGED[name](path)
    monkeypatch.setattr(deciding, "_known", {})
    deciding.ask(Square(), GIVEN[:1], "tpu")
    assert (
        len(checks) == 2
        and "reference" in deciding.answers(HERE)["squares of 3"]["answer"]["seconds"]
    )


def test_a_folder_that_cannot_be_written_leaves_the_answer_in_memory(monkeypatch, tmp_path):
    checks = count(monkeypatch)
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file" / "below"), "off"):
        monkeypatch.setenv("PTM_CACHE", place)
        monkeypatch.setattr(deciding, "_known", {})
        assert deciding.ask(Square(), GIVEN[:1], "tpu") is deciding.ask(Square(), GIVEN[:1], "tpu")
    assert len(checks) == 2


def test_processes_take_the_answer_of_the_first(monkeypatch):
    """Process 1 makes none of its own: it takes what the first sends."""
    from jax.experimental import multihost_utils

    made = deciding.Answer(
        {"pallas": 0.5, "reference": 1.0}, {}, {"cudnn": "why"}, 1.0, "2026-01-01"
    )
    sent = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        multihost_utils, "broadcast_one_to_all", lambda x: sent.append(x) or sent[0]
    )
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert deciding._agreed(lambda: made) == made
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert deciding._agreed(lambda: pytest.fail("a check of its own")) == made and not sent[1].any()


def test_a_cpu_and_a_topology_are_not_asked(monkeypatch):
    monkeypatch.setattr(deciding, "ask", lambda *given: pytest.fail("asked"))
    q, seen = jnp.ones((1, 4, 1, 8)), Visibility(*[jnp.ones((1, 4), jnp.int32)] * 2)
    monkeypatch.setattr(choice, "platform", lambda: "cpu")

    def taken():
        return jax.eval_shape(lambda: attend(q, q, q, visibility=seen, scale=1.0))[1]

    assert taken() is not None
    monkeypatch.setattr(choice, "platform", lambda: "tpu")
    elsewhere = types.SimpleNamespace(
        mesh=types.SimpleNamespace(devices=np.array(["a device of a topology"]))
    )
    monkeypatch.setattr(deciding, "current", lambda: elsewhere)
    assert taken() is not None


def doctor(capsys, *words):
    assert main(["doctor", *words]) == 0
    return capsys.readouterr()


def test_the_doctor_names_what_there_is_and_why_a_cpu_takes_xla(monkeypatch, capsys):
    monkeypatch.setattr(
        deciding, "device", lambda: dataclasses.replace(HERE, kind="cpu", platform="cpu")
    )
    monkeypatch.setenv("XLA_FLAGS_OF_A_TEST", "on")
    found = json.loads(doctor(capsys, "--json").out)
    assert [one["platform"] for one in found["devices"]] == [
        one.platform for one in jax.local_devices()
    ]
    assert (
        found["versions"]["jax"] == jax.__version__
        and found["variables"]["XLA_FLAGS_OF_A_TEST"] == "on"
    )
    assert (
        found["cache"]["folder"].startswith(os.environ["PTM_CACHE"])
        and found["kernels"]["classes"] == []
    )
    assert "XLA by blocks above; the Pallas kernels are for TPUs" in found["kernels"]["why"]
    text = doctor(capsys).out
    for word in (
        "devices    ",
        "versions   ",
        "variables  ",
        "cache      ",
        "kernels    cpu: attention is the definition",
    ):
        assert f"\n{word}" in f"\n{text}"


def test_the_doctor_shows_and_repeats_the_checks(monkeypatch, capsys):
    wrong = {"pallas": "its result is not finite"}
    made = deciding.Answer(
        {"splash": 5e-4, "reference": 1e-3}, {"xla": "no"}, wrong, 1.1, "2026-01-01"
    )
    others = {
        kind: dataclasses.replace(made, seconds={name: 1e-3}, refused={})
        for kind, name in (("cross-entropy", "xla"), ("softmax", "reference"))
    }
    checks = []

    def answer(question, candidates):
        return checks.append(question.key) or others.get(question.kind, made)

    monkeypatch.setattr(deciding, "checked", answer)
    first = doctor(capsys)
    assert (
        len(checks) == 4
        and "512 x 512, heads of 64, bfloat16, order: splash (2.0 times reference)" in first.err
    )
    assert (
        "    splash     0.500 ms\n" in first.out
        and "    xla        not for this: no\n" in first.out
    )
    assert "    pallas     left out: its result is not finite\n" in first.out
    monkeypatch.setattr(deciding, "_known", {})
    again = doctor(capsys)
    assert again.out == first.out and not again.err and len(checks) == 4
    assert doctor(capsys, "--repeat").out == first.out and checks[4:] == checks[:4]
    found = json.loads(doctor(capsys, "--json").out)["kernels"]["classes"]
    assert [one["takes"] for one in found] == ["splash", "splash", "xla", "reference"] and found[0][
        "seconds"
    ] == made.seconds


def wrapped(attention, refusal=lambda *given: None):
    return lambda: types.SimpleNamespace(attention=attention, refusal=refusal)


def test_auto_asks_while_it_is_traced(monkeypatch, capsys):
    """Under jit, grad and scan. The kernel, wrong by hand, is left out; the right one is taken and
    is what is computed."""
    calls = []

    def right(q, k, v, args):
        calls.append(q)
        return dense.attention(q, k, v, args)

    def off(q, k, v, args):
        return dense.attention(q, k, v, dataclasses.replace(args, scale=args.scale * 1.05))

    given = (
        Candidate("reference", lambda: dense),
        Candidate("splash", wrapped(right), ("tpu",)),
        Candidate("pallas", wrapped(off), ("tpu",)),
    )
    monkeypatch.setattr(candidates, "CANDIDATES", given)
    monkeypatch.setattr(candidates.Class, "cases", lambda self: [self._case(2, 1, 3, 3)])
    monkeypatch.setattr(
        deciding, "_timed", lambda programs: dict(zip(programs, (2.0, 1.0), strict=False))
    )
    x = jax.random.normal(jax.random.key(0), (1, 6, 1, 4))
    seen = Visibility(*[jnp.ones((1, 6), jnp.int32)] * 2)

    def loss(x, impl):
        def layer(x, _):
            return (attend(x, x, x, visibility=seen, scale=0.5, impl=impl)[0], None)

        return jax.lax.scan(layer, x, length=2)[0].sum()

    auto = jax.jit(jax.grad(lambda x: loss(x, "auto")))(x)
    assert isinstance(calls[-1], jax.core.Tracer) and calls[-1].shape == (1, 6, 1, 4)
    expected = jax.jit(jax.grad(lambda x: loss(x, "reference")))(x)
    np.testing.assert_allclose(auto, expected, rtol=1e-5, atol=1e-6)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(
        "kernels: attention of 8 x 8, heads of 4, float32: pallas is left out: its "
    )
    assert "attention of 8 x 8, heads of 4, float32: splash (2.0 times reference)" in lines[1]


@pytest.mark.full
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_kernels_of_a_tpu_pass_in_the_interpreter(compute, monkeypatch):
    """Ours, JAX's splash and the blocks, forward and backward; ours made wrong by hand is left
    out."""

    def interpreted(module):
        return wrapped(functools.partial(module.attention, interpret=True), module.refusal)

    def wrong(q, k, v, args):
        return tpu.attention(
            q, k, v, dataclasses.replace(args, scale=1.05 * args.scale), interpret=True
        )

    given = (
        *candidates.CANDIDATES[:2],
        Candidate("pallas", interpreted(tpu), ("tpu",)),
        Candidate("splash", interpreted(splash), ("tpu",)),
        Candidate("ours, wrong", wrapped(wrong), ("tpu",)),
    )
    monkeypatch.setattr(candidates, "TIMED", 1 << 15)
    answer = deciding.ask(candidates.Class(compute, compute, 64, 64, 128), given, "tpu")
    there = {"reference", "xla", "pallas"}
    assert {*answer.seconds} == there | ({"splash"} if compute == "bfloat16" else set())
    assert [*answer.left_out] == ["ours, wrong"] and [*answer.refused] == (
        [] if compute == "bfloat16" else ["splash"]
    )


EXTRAS = (
    "order",
    "strict",
    "group",
    "window",
    "allow",
    "dropout",
    "bias",
    "bias of rows",
    "distances",
    "by_key",
    "types",
    "values",
    "places",
)


@pytest.mark.full
@pytest.mark.parametrize("extras", [*EXTRAS, "relative", "a step of decoding"])
def test_every_class_has_cases_that_the_blocks_pass(extras, monkeypatch):
    """The drawn inputs hold what the class names: the path by blocks agrees with the definition on
    them."""
    monkeypatch.setattr(candidates, "TIMED", 1 << 10)
    queries, relative = 1 if extras.startswith("a step") else 16, 8 if extras == "relative" else 0
    held = {"places": ("distances", "places"), "strict": ("values", "strict")}.get(
        extras, (extras,)
    )
    held = held if extras in EXTRAS else ()
    question = candidates.Class("float32", "float32", 8, queries, 32, relative, held)
    answer = deciding.ask(question, candidates.CANDIDATES[:2], "tpu")
    assert {*answer.seconds} == {"reference", "xla"} and not answer.left_out
    x, args, _ = question.cases()[0].inputs
    assert candidates.class_of(x["q"], x["k"], candidates._filled(args, x)).extras == held


@pytest.mark.full
def test_a_cross_entropy_is_asked_above_what_is_held(monkeypatch):
    interpreted = types.SimpleNamespace(
        refusal=cross_tpu.refusal,
        forward=lambda plan, *given: cross_tpu.forward(
            dataclasses.replace(plan, interpret=True), *given
        ),
        backward=lambda plan, *given: cross_tpu.backward(
            dataclasses.replace(plan, interpret=True), *given
        ),
    )
    monkeypatch.setattr(cross_entropy, "platform", lambda: "tpu")
    monkeypatch.setattr(losses, "TOKENS", 64)
    monkeypatch.setattr(losses, "WORDS", 512)
    kernels = (losses.CANDIDATES[0], Candidate("pallas", lambda: interpreted, ("tpu",)))
    monkeypatch.setattr(losses, "CANDIDATES", kernels)
    monkeypatch.setattr(
        deciding, "_timed", lambda programs: {name: 2.0 - (name == "pallas") for name in programs}
    )
    assert cross_entropy.choose("auto", 1024, 30522, 16) is interpreted
    assert cross_entropy.choose("auto", 1024, 30522, 16, soft=True) is cross_entropy.blocked
    assert cross_entropy.choose("auto", 16, 30522, 16) is None
    (key,) = deciding.answers(HERE)
    assert key == "cross-entropy of 64 tokens, 512 words, width 16, float32"
