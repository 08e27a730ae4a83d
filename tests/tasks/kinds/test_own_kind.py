"""A kind of task of a user's own file: found by its registration, rebuilt from a record, and used
by command."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ptm_jax.cli import target
from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.tabular import Source


@pytest.fixture
def task(tmp_path):
    """FILE.py:NAME beside a table of texts with several labels."""
    file = shutil.copy(
        Path(__file__).parents[2] / "support" / "own_kind.py", tmp_path / "own_kind.py"
    )
    rows = [
        f"a {'good' if n % 2 else 'sad'} film\t{'cat,dog' if n % 2 else 'bird'}\n"
        for n in range(24)
    ]
    (tmp_path / "data.tsv").write_text("text\tlabels\n" + "".join(rows))
    return f"{file}:animals"


def test_a_kind_of_ones_own_file_is_found(task, tmp_path, models_of):
    found = catalogue.get("animals" if "animals" in catalogue else target.task_name(task))
    again = rebuild(json.loads(json.dumps(spec.to_json(found.examples))), kinds_of())
    assert again == found.examples
    (model,) = models_of(found.examples)
    result = evaluating.evaluate(model, found, Source(str(tmp_path / "data.tsv")))
    ids, types = model.tokenizer.frame("a sad film")
    scores = model(ids[None], np.ones_like(ids)[None], types[None]).scores["classify"][0]
    expected = {
        name for name, score in zip(found.examples.labels, scores, strict=True) if score > 0
    }
    assert result.predictions[0] == expected and set(result.metrics) == {"f1"}
    assert list(evaluating.lines(found, result.examples, result.predictions))[0] == ",".join(
        sorted(expected)
    )
    with pytest.raises(UserError, match="no such file"):
        target.task_name(f"{tmp_path}/other.py:animals")


@pytest.mark.full
def test_a_kind_of_ones_own_file_is_trained_by_command(task, published, tmp_path, capsys):
    run, data = str(tmp_path / "run"), str(tmp_path / "data.tsv")
    task = (
        "animals" if "animals" in catalogue else task
    )  # in this process the file may be imported already
    words = ["--epochs", "8", "--batch", "8", "--lr", "3e-2", "--workdir", run, "--json"]
    assert (
        main(["train", "--init", str(published), "--task", task, "--data", data, data, *words]) == 0
    )
    assert json.loads(capsys.readouterr().out)["metrics"] == {"f1": 1.0}
    predictions = tmp_path / "predictions.txt"
    assert (
        main(
            [
                "evaluate",
                run,
                "--task",
                task,
                "--data",
                data,
                "--predictions",
                str(predictions),
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["metrics"] == {"f1": 1.0}
    assert predictions.read_text().splitlines()[:2] == ["bird", "cat,dog"]
