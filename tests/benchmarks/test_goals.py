"""The page of goals: it has all figures of the records, and shows which got worse."""

import json
import shutil

import pytest

from benchmarks import goals


@pytest.fixture
def folder(tmp_path):
    for name in ("goals.json", "students.json", "quantised.json", "device_nvidia_h200.json"):
        shutil.copy(goals.FOLDER / name, tmp_path)
    for file in goals.FOLDER.glob("*-cores.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_the_page_has_the_figures_of_all_records(folder):
    assert goals.main(["--folder", str(folder)]) == 0
    for name in ("goals.json", "goals.md"):
        written = (folder / name).read_text(encoding="utf8")
        assert written == (goals.FOLDER / name).read_text(encoding="utf8"), (
            "run python -m benchmarks.goals"
        )


def test_a_lower_figure_is_worse_on_its_machine_alone(folder, capsys):
    file = next(folder.glob("*-cores.json"))
    entries = json.loads(file.read_text(encoding="utf8"))
    step = next(entry for entry in entries if entry["name"] == "step")
    before = step["ratio"]
    step |= {"ratio": 0.9, "spread": {"pairs": 15, "low": 0.8, "high": 1.0}}
    step["settings"] |= {"date": "2999-01-01"}
    file.write_text(json.dumps(entries), encoding="utf8")
    assert goals.main(["--folder", str(folder)]) == 0
    assert "worse: step of BERT-base over torch's best setting: 0.9 (0.8 to 1)\n" in (
        capsys.readouterr().out
    )
    row = next(
        line
        for line in (folder / "goals.md").read_text(encoding="utf8").splitlines()
        if "| step of BERT-base over torch's best setting |" in line
    )
    assert "| 0.9 (0.8 to 1) | no, worse |" in row
    assert row.count(f"| {before:.4g} (") == 1
    step["settings"] |= {"device": "another machine", "date": "2999-01-02"}
    step["ratio"] = 0.7
    file.write_text(json.dumps(entries), encoding="utf8")
    assert goals.main(["--folder", str(folder)]) == 0
    assert "worse: step of BERT-base over" not in capsys.readouterr().out


def test_figures_by_hand(folder, capsys):
    words = ["--folder", str(folder), "--machine", "a machine", "--date", "2999-01-01"]
    assert goals.main([*words, "--figure", "skip-gram over gensim=6.5,6.1,7"]) == 0
    page = (folder / "goals.md").read_text(encoding="utf8")
    assert "| >= 6 | 6.5 (6.1 to 7) | yes | a machine, 2999-01-01 |" in page
    assert goals.main([*words, "--figure", "skip-gram=6.5"]) == 1
    assert "names: step of BERT-base over torch's best setting, " in capsys.readouterr().err


@pytest.mark.parametrize("asked,value,met", [(">= 2", 2, True), ("<= 1.1", 1.2, False)])
def test_bounds(asked, value, met):
    assert goals.met({"asked": asked}, value) is met
