"""No command prints the control characters of a name, which a terminal would obey."""

import io
import sys

from ptm_jax.cli import main as command_line
from ptm_jax.cli import terminal
from ptm_jax.cli.main import main

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\rb\x7f"


def test_names_of_a_command_and_of_its_error_are_printed_without_commands(monkeypatch, capfd):
    from ptm_jax.cli import listing

    def run(args):
        print(EVIL, "plain ä 語\t")
        print(EVIL, file=sys.stderr)
        print(f"{terminal.LINE}{EVIL}", file=sys.stderr)
        raise RuntimeError(EVIL)

    monkeypatch.setattr(listing, "run", run)
    assert main(["list"]) == 1
    out, err = capfd.readouterr()
    shown = r"a\x1b]0;owned\x07\x1b[2J\x9b31m\x0db\x7f"
    assert out == f"{shown} plain ä 語\t\n"
    first, second, third = err.split("\n")[:3]
    assert first == shown and second == terminal.LINE + shown
    assert third.startswith(r"ptm: RuntimeError: a\x1b]0;owned\x07\x1b[2J\x9b31m b\x7f")
    assert sys.stdout.write("") == 0  # the streams are as before


def test_a_workdir_of_an_odd_name(tmp_path, capfd):
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / "config.json").write_text('{"config": "\\u001b[2J"}')
    for words in (["show", str(folder)], ["evaluate", str(folder)], ["show", EVIL]):
        assert main(words) == 1
        out, err = capfd.readouterr()
        assert "\x1b" not in out + err and "\x9b" not in out + err and err.startswith("ptm: ")


def test_a_stream_of_text_alone_is_left_as_it_is(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with terminal.only_printable():
        print("a")
    assert stream.getvalue() == "a\n"


def test_a_panic_is_one_line(monkeypatch, capsys):
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    def command(*words):
        raise panic("a rule\nfailed")

    monkeypatch.setattr(command_line, "_command", command)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith("ptm: PanicException: a rule failed")
