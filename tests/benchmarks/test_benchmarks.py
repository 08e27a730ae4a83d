"""The comparisons outside the package at sizes that measure nothing: whole rows, peers in turn,
peers that fail."""

import sys

import pytest

from benchmarks import peer, rivals, tokamax_peer
from benchmarks.__main__ import BENCHMARKS, MORE, main
from benchmarks.rivals import Installed
from ptm_jax import systems
from ptm_jax.bench.peers import Field
from ptm_jax.systems.survey import matrix
from support.benches import NETWORK, check, measure

TINY = {
    "corruptions": {**NETWORK, "vocab": 300, "length": 128},
    "vocabulary": {**NETWORK, "small": 110},
    "lengths": {
        **NETWORK,
        "vocab": 400,
        "length": 32,
        "characters": 40_000,
        "tokens": 300,
        "batches": 2,
        "screening": 1,
        "compile_limit": 0,
    },  # fmt: skip
    "packing": {
        **NETWORK,
        "vocab": 400,
        "layers": 1,
        "length": 64,
        "characters": 60_000,
        "tokens": 300,
        "impls": ("reference",),
    },  # fmt: skip
    "layer": {**NETWORK, "shapes_of": ((2, 16),), "screening": 1, "compile_limit": 0},
    "import": {"width": 64, "layers": 1, "vocab": 80, "meshes": ("fsdp",)},
    "checkpoint": {**NETWORK, "steps": 2},
    "compile": {**NETWORK, "shallow": 1},
    "step": {**NETWORK, "screening": 1, "compile_limit": 0},
    "attention": {
        "cases": ("t5", "packed"),
        "batch": 1,
        "length": 24,
        "heads": 2,
        "width": 4,
        "documents": 8,
        "gemm": 64,
    },
    "cross_entropy": {"vocabularies": (120,), "tokens": 8, "width": 4, "screening": 1, "gemm": 64},
    "generate": {**NETWORK, "length": 4, "new": 4, "batches": (2,), "screening": 1},
}
CORRUPTING = [
    task for task, name in matrix.TASKS.items() if systems.get(name).corruption is not None
]
OF_THE_TABLE = (
    "alone, AdamW of the table",
    "alone, the head and its gradients",
    "alone, gradient of the words looked up, added to the head's",
)
ROWS = {
    "corruptions": {f"corruption/{task}": {"corruption alone", "step"} for task in CORRUPTING},
    "vocabulary": {"vocabulary": {"vocabulary 110", "vocabulary 120", "difference", *OF_THE_TABLE}},
    "lengths": {"lengths": {"packed"}},
    "packing": {"packing": {"packed, reference", "dense, reference"}},
    "layer": {"layer/16": {"bfloat16"}},
    "import": {"import/fsdp": {"import"}},
    "checkpoint": {"checkpoint": {"write", "restore", "stall"}},
    "compile": {
        "compile": {"1 layers", "2 layers"},
        "compile, warm": {"from nothing", "from the cache"},
    },
}


def measured(name):
    return measure(name, TINY[name], benchmarks=BENCHMARKS, peers=Installed())


def test_every_benchmark_has_its_rows():
    assert list(ROWS) == list(MORE)


@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_a_benchmark_gives_whole_rows(name, monkeypatch):
    monkeypatch.setattr(peer, "missing", lambda: "torch not installed")
    rows = [check(entry) for entry in measured(name)]
    assert {row["name"]: set(row["ours"]) for row in rows} == ROWS[name]


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["step", "lengths", "layer", "attention", "cross_entropy", "generate"]
)
def test_a_peer_is_measured_in_turn(name):
    if peer.missing():
        pytest.skip(peer.missing())
    for entry in measured(name):
        row = check(entry)
        assert (
            row["ratio"] > 0
            and any(peer.startswith("torch") for peer in row["peers"])
            and len(row["peers"]) >= 2  # settings that are slow in the trial are left out
        )


@pytest.mark.full
@pytest.mark.parametrize("name", ["attention", "cross_entropy"])
def test_tokamax_is_measured_in_turn(name):
    if reason := tokamax_peer.missing():
        pytest.skip(reason)
    for entry in measured(name):
        peers = check(entry)["peers"]
        theirs = [peers[f"tokamax, {precision}, xla"] for precision in ("float32", "bfloat16")]
        assert any("over ours" in figures for figures in theirs)
        assert all(figures["temporary_bytes"] > 0 for figures in theirs)


@pytest.mark.full
def test_an_absent_peer_is_the_reason(monkeypatch):
    monkeypatch.setattr(peer, "missing", lambda: "torch not installed")
    monkeypatch.setitem(sys.modules, "tokamax", None)
    (entry,) = measured("cross_entropy")
    row = check(entry)
    assert row["settings"]["reason"] == "torch not installed; tokamax not installed"
    assert not [name for name in row["peers"] if "tokamax" in name]


def test_a_child_that_fails_is_one_line(monkeypatch):
    monkeypatch.setattr(peer.sys, "executable", "/bin/false")
    with pytest.raises(peer.Failed, match="ended"):
        peer.Peer("step", {}, 1)


def test_a_setting_that_stops_answering_leaves_the_others_measured():
    calls = []

    def child(request, limit=600.0):
        calls.append(request["precision"])
        if request["precision"] == "slow" and calls.count("slow") == 3:
            raise peer.Failed("no answer within 600 s")
        return 1.5

    field = Field()
    requests = {name: (child, {"precision": name}) for name in ("fast", "slow")}
    rivals._try(field, requests, lambda: 1.0, 5, lambda line: None)
    assert field.failures == ["slow: no answer within 600 s"] and calls.count("slow") == 3
    assert field.seconds == {"fast": 1.5} and calls.count("fast") == 7
    assert "slow" not in field.meters


def test_a_child_that_was_ended_begins_anew(monkeypatch):
    echo = "import sys\nfor line in sys.stdin: print('{\"seconds\": 2.0}', flush=True)"
    monkeypatch.setattr(peer, "COMMAND", ("-c", echo))
    with peer.Peer("step", {}, 1) as child:
        assert child({}) == 2.0
        child.close()
        assert child({}) == 2.0


def test_the_command_lists_and_refuses(capsys):
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHMARKS)
    assert main(["stepp"]) == 1 and "'step'" in capsys.readouterr().err
