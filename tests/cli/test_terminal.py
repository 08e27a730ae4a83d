"""Ctrl-C at a real terminal: a training gets the key through a pseudo-terminal."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from support import tiny_runs as tiny

CONTROLLED = "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
CONTROLLED += (
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, "
    "[sys.executable, *sys.argv[1:]])"
)
"""A session leader whose terminal is its standard input, as a shell's child; tests in the
background ignore SIGINT."""


def interrupted(words, environment, ready):
    """(status, output) of a command that gets Ctrl-C at its terminal once `ready()`."""
    ours, theirs = pty.openpty()
    line = [sys.executable, "-c", CONTROLLED, *words]
    child = subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    found, pressed, end = b"", False, time.monotonic() + 240
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                found += (piece := os.read(ours, 1 << 16))
            except OSError:  # Linux: the other side is closed
                break
            if not piece:
                break
        if not pressed and ready():
            os.write(ours, b"\x03")
            pressed = True
    os.close(ours)
    child.kill() if time.monotonic() >= end else child.wait(60)
    return child.wait(), found.decode()


@pytest.mark.full
def test_ctrl_c_at_a_terminal_saves_and_the_same_command_goes_on(tmp_path):
    words = [*tiny.PTM[1:], "train", tiny.FILE, "--data", tiny.write_text(tmp_path / "text.txt")]
    words += [
        "--workdir",
        str(tmp_path / "run"),
        "--set",
        "recipe.phases=(Phase(steps=1_000_000, batch=8, length=16),)",
    ]
    words += ["eval_every=0", "save_every=0", "objective=MLM"]
    log, environment, reached = (
        tmp_path / "run" / "metrics.jsonl",
        tiny.environment(tmp_path / "compiled"),
        [0],
    )
    for number in range(2):
        count = 10 + 2 * reached[-1]
        status, out = interrupted(
            words,
            environment,
            lambda count=count: log.exists() and log.read_text().count("\n") >= count,
        )
        assert status == 130 and "Traceback" not in out, out
        step = int(
            re.search(
                r"stopped by SIGINT after step (\d+) of 1000000; the checkpoint is complete", out
            )[1]
        )
        assert "Ctrl-C again ends at once" in out and "run the same command again to go on" in out
        assert (f"resuming {tmp_path}/run from step {reached[-1]} of" in out) == bool(number), out
        assert tiny.checkpoint(tmp_path / "run")["step"] == step > reached[-1]
        reached.append(step)
    steps = [entry["step"] for entry in tiny.metrics(tmp_path / "run") if entry["split"] == "train"]
    assert steps == list(range(1, reached[-1] + 1))
