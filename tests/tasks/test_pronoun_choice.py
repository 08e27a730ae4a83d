"""die or dat: items of a text, and accuracies by hand."""

import pytest

from ptm_jax.cli.main import main
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks.clozes import pronoun_choice
from support import tiny_checkpoint
from support.planned_model import planned

TEXT = "Het huis dat ik zag, was groot. De man die liep.\nDie man zingt. Een diepe zucht.\n"


def test_each_pronoun_is_an_item(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    items = pronoun_choice.items_of(tmp_path / "a.txt")
    assert [item[:5] for item in items] == [
        ("Het huis", "ik zag, was groot.", "dat", "die", "dat"),
        ("De man", "liep.", "die", "dat", "die"),
        ("", "man zingt.", "Die", "Dat", "die"),
    ]


def test_accuracies_by_hand(monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    model = planned(monkeypatch, {
        "Het huis [MASK] ik zag, was groot.": {"dat": 0.3, "die": 0.2},
        "De man [MASK] liep.": {"die": 0.1, "dat": 0.4},
        "[MASK] man zingt.": {"Die": 0.5, "Dat": 0.1},
    })  # fmt: skip
    items = pronoun_choice.items_of(tmp_path / "a.txt")
    verdicts = pronoun_choice.preferred(model, items, 2)
    assert verdicts == [True, False, True]
    monkeypatch.setattr(pronoun_choice, "load", lambda *args, **options: model)
    monkeypatch.setattr(pronoun_choice, "best_checkpoint", lambda name: name)
    metrics = pronoun_choice.report(
        Request(task="die_dat", model="m", data=[tmp_path / "a.txt"])
    ).document["metrics"]
    assert metrics == {"accuracy": 2 / 3, "commoner form": 2 / 3, "dat": 1.0, "die": 0.5}


@pytest.mark.full
def test_the_command(tmp_path, capsys):
    folder = tiny_checkpoint.write(tmp_path / "m", architectures=["BertForMaskedLM"])
    (tmp_path / "a.txt").write_text("geen voornaamwoord\n")
    command = ["evaluate", str(folder), "--task", "die_dat", "--data", str(tmp_path / "a.txt")]
    assert main(command) == 1 and 'has "die" or "dat"' in capsys.readouterr().err
    (tmp_path / "a.txt").write_text(TEXT)
    assert main(command) == 1 and "no single tokens" in capsys.readouterr().err
