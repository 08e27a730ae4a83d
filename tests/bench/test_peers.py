"""The peers' best setting is chosen by all rounds, not by a trial of one run."""

import itertools

import pytest

from ptm_jax.bench import timing
from ptm_jax.bench.peers import Field, rated

ROUNDS = {
    "torch, a": [4.0, 5.0, 4.0, 6.0, 4.0],
    "torch, b": [2.0, 9.0, 2.0, 2.0, 3.0],
    "torch, c": [3.0, 3.0, 3.0, 3.0, 3.0],
    "torch, d": [1.0, 1.0, 1.0, 1.0, 1.0],
    "flax": [8.0, 8.0, 8.0, 8.0, 8.0],
}
TRIAL = {"torch, a": 2.0, "torch, b": 3.0, "torch, c": 2.5, "torch, d": 7.0, "flax": 9.0}
"""The trial ranks a, c and b, whose medians are 4, 3 and 2. Only a longer trial would keep d."""


def field():
    """The field after its trial. A meter answers with its seconds of each round in turn."""
    series = {name: itertools.cycle(seconds) for name, seconds in ROUNDS.items()}
    meters = {name: lambda turn=turn: next(turn) for name, turn in series.items()}
    return Field(meters=meters, seconds=dict(TRIAL))


def test_the_median_of_the_rounds_chooses_among_the_fastest_of_the_trial():
    peers, ours = field(), itertools.cycle([1.0, 1.5, 1.0, 0.5, 1.0])
    assert peers.best == "torch, a"
    assert list(peers.finalists()) == ["torch, a", "torch, c", "torch, b"]
    meters = {"bfloat16": lambda: next(ours), "float32": lambda: 2.0} | peers.finalists()
    timings = timing.alternate({**meters, "gemm": lambda: 1e9}, 5, warmup=0)
    mine, theirs, first, ratios = rated(peers, timings, ("bfloat16", "float32"), 100)
    assert (peers.best, first) == ("torch, b", "bfloat16")
    assert ratios == [2.0, 6.0, 2.0, 4.0, 3.0]  # of each round: b over ours
    assert mine["bfloat16"] == {"tokens_per_second": 100.0, "seconds": 1.0}
    seconds = {name: figures["seconds"] for name, figures in theirs.items()}
    assert seconds == {
        "torch, a": 4.0, "torch, b": 2.0, "torch, c": 3.0, "torch, d": 7.0, "flax": 9.0,
    }  # fmt: skip


def test_a_side_without_a_finalist_has_the_best_of_its_trial():
    peers = field()
    assert list(peers.finalists("flax")) == ["flax"] and peers.best_of("flax") == "flax"
    peers.decide({name: ROUNDS[name] for name in peers.finalists()} | {"gemm": [1.0]})
    assert peers.best_of("flax") == "flax" and peers.best_of("torch") == "torch, b"
    assert set(peers.medians) == set(peers.finalists())


@pytest.mark.parametrize("seconds", [{}, {"torch, a": 2.0}])
def test_fewer_settings_than_finalists(seconds):
    peers = field()
    peers.seconds = seconds
    timings = {"ours": [1.0, 1.0], **{name: [2.0, 4.0] for name in peers.finalists()}}
    theirs, _, ratios = rated(peers, timings, ("ours",), 6)[1:]
    assert list(peers.finalists()) == list(seconds) and ratios == [2.0, 4.0][: 2 * len(seconds)]
    assert theirs == {name: {"tokens_per_second": 2.0, "seconds": 3.0} for name in seconds}
