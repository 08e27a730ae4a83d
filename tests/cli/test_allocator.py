"""`ptm` starts itself anew once, with the allocator's settings, where a command computes on
glibc."""

import os
import subprocess
import sys

import pytest

from ptm_jax.cli import allocator


@pytest.fixture()
def started(monkeypatch):
    """The calls of execve, on a machine with glibc and nothing set."""
    calls = []
    monkeypatch.setattr(os, "execve", lambda *given: calls.append(given))
    monkeypatch.setattr(allocator, "_glibc", lambda: True)
    for name in ("GLIBC_TUNABLES", "PTM_MALLOC"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_a_computing_command_starts_anew_with_its_own_words(started, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "/bin/ptm", "train", "bert_mini"])
    allocator.restart(["train", "bert_mini"])
    [(program, words, environment)] = started
    assert program == sys.executable and words == [
        sys.executable,
        "-X",
        "dev",
        "/bin/ptm",
        "train",
        "bert_mini",
    ]
    assert environment == {**os.environ, "GLIBC_TUNABLES": allocator.TUNABLES}


@pytest.mark.parametrize(
    "words", [[], ["list"], ["show", "bert_base"], ["--help"], ["train", "--help"], ["bench", "-h"]]
)
def test_a_command_that_computes_nothing_does_not(started, words):
    allocator.restart(words)
    assert not started


@pytest.mark.parametrize(
    "name, value",
    [("PTM_MALLOC", "off"), ("GLIBC_TUNABLES", ""), ("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
)
def test_what_the_user_has_set_is_left_alone(started, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    allocator.restart(["train"])
    assert not started


def test_another_library_or_a_refused_start_leaves_the_command_running(started, monkeypatch):
    monkeypatch.setattr(allocator, "_glibc", lambda: False)
    allocator.restart(["train"])
    assert not started
    monkeypatch.setattr(allocator, "_glibc", lambda: True)
    monkeypatch.setattr(
        os, "execve", lambda *given: (_ for _ in ()).throw(PermissionError("noexec"))
    )
    allocator.restart(["train"])


@pytest.mark.skipif(not allocator._glibc(), reason="the C library is not glibc")
def test_a_process_is_replaced_once_before_jax_is_imported():
    code = "import os, sys; from ptm_jax.cli import allocator; allocator.restart(['train'])\n"
    code += "print(os.environ['GLIBC_TUNABLES'], 'jax' in sys.modules, sys.argv[1:])"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GLIBC_TUNABLES", "PTM_MALLOC")
    }
    done = subprocess.run(
        [sys.executable, "-c", code, "a b"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{allocator.TUNABLES} False ['a b']\n"
