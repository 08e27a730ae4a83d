"""tests/run.py: every part runs, and the status is the status of all."""

import sys

import pytest
import run


def part(name, code, **environment):
    return run.Part(name=name, words=(code,), environment=environment)


def test_every_part_runs_and_the_status_is_that_of_all(capsys):
    parts = [
        part("a", "import os; print('3 passed, 1 skipped in 2s', os.environ['WORD'])", WORD="here"),
        part("b", "print('1 failed in 1s'); raise SystemExit(1)"),
        part("c", "import os; os.kill(os.getpid(), 11)"),
        part("d", "print('memory maps: at most 1,234 in one process'); raise SystemExit(5)"),
    ]
    command = [sys.executable, "-c"]
    assert run.run_all(parts, command, jobs=2) == 1
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert [line.split()[0] for line in lines[:4]] == ["ok", "FAILED", "FAILED", "ok"]
    assert "3 passed, 1 skipped in 2s here" in lines[0] and "(-11)" in lines[2]
    assert "1,234 maps" in lines[3] and lines[4].endswith("failed: b c")
    assert run.run_all(parts[:1] + parts[3:], command, jobs=1) == 0


def test_a_part_that_hangs_is_killed(monkeypatch, capsys):
    monkeypatch.setattr(run, "LIMIT", 4)  # a busy machine starts Python in a second
    parts = [part("hung", "import time; time.sleep(60)"), part("good", "print('1 passed')")]
    assert run.run_all(parts, [sys.executable, "-c"], jobs=2) == 1
    assert capsys.readouterr().out.endswith("failed: hung\n")


def test_parts_that_begin_too_late_are_named(monkeypatch, capsys):
    monkeypatch.setenv(run.LAST, "0.01")
    first = part("slow", "import time; time.sleep(1); print('1 passed')")
    assert run.run_all([first, part("late", "raise SystemExit(1)")], [sys.executable, "-c"], 1) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].startswith("ok") and lines[1].startswith("NOT RUN")
    assert lines[2] == "NOT RUN, as PTM_TEST_MINUTES=0.01 was over: late"


@pytest.mark.parametrize("together", [(), run.TOGETHER])
def test_each_test_file_is_in_one_part(together):
    files = {
        path.relative_to(run.ROOT).as_posix() for path in (run.ROOT / "tests").rglob("test_*.py")
    }
    seen = []
    for one in run.parts(together):
        ignored = {one.words[n + 1] for n, word in enumerate(one.words) if word == "--ignore"}
        words = {word for word in one.words if word != "--ignore"} - ignored
        if one.name in ignored:
            words.add(one.name)
        inside = [
            file
            for file in files
            if any(file == word or file.startswith(f"{word}/") for word in words)
        ]
        seen += [file for file in inside if file not in ignored or file in words]
    assert sorted(seen) == sorted(files)


def test_an_unknown_part_is_an_error(capsys):
    with pytest.raises(SystemExit):
        run.main(["tests/nowhere"])
    assert "no such part: tests/nowhere" in capsys.readouterr().err
