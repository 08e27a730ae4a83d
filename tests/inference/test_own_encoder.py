"""An encoder of a user's own file: trained, evaluated, loaded and predicted with, and
fine-tuned."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.tuning import finetuning
from support import tiny_checkpoint, tiny_runs


def forget(file):
    """As in another process: nothing has imported the file."""
    for name, module in list(sys.modules.items()):
        if vars(module).get("__file__") == str(file):
            del sys.modules[name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(config file, workdir)"""
    folder = tmp_path_factory.mktemp("own")
    file = Path(shutil.copy(Path(tiny_runs.FILE).with_name("own_encoder.py"), folder / "mine.py"))
    text = tiny_runs.write_text(folder / "text.txt")
    assert main(["train", str(file), "--data", text, "--workdir", str(folder / "run")]) == 0
    forget(file)
    return file, folder / "run"


@pytest.mark.full
def test_it_is_evaluated_and_predicts(trained, capsys):
    _, run = trained
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["mlm_nll"] > 0
    assert (
        main(
            [
                "predict",
                str(run),
                "--task",
                "fill-mask",
                "--text",
                "the old [MASK] sees",
                "--top",
                "2",
                "--json",
            ]
        )
        == 0
    )
    (found,) = json.loads(capsys.readouterr().out)
    model = ptm_jax.load(run)
    ((fillings,),) = model.fill_mask(["the old [MASK] sees"], top=2)
    assert [one["token"] for one in found["masks"][0]] == [one.token for one in fillings]
    assert type(model.module.encoder).__name__ == "Neighbours" and model.encode(
        ["the old"]
    ).shape == (1, 16)
    np.testing.assert_allclose(
        model.encode(["the old", "the old red heavy"])[0], model.encode(["the old"])[0], atol=1e-6
    )
    assert main(["predict", str(run), "--task", "generate", "--text", "the"]) == 1
    assert "does not generate text" in capsys.readouterr().err


@pytest.mark.full
def test_it_is_fine_tuned(trained, tmp_path):
    config = finetuning.experiment(
        "sst2", trained[1], [str(tiny_checkpoint.written(tmp_path / "sst2", 8, 4))]
    )
    assert type(config.system.towers["main"].encoder).__name__ == "Neighbours"


@pytest.mark.full
def test_a_file_that_is_gone_is_one_line(trained):
    file, run = trained
    forget(file)
    moved = file.rename(file.with_name("away.py"))
    with pytest.raises(UserError, match="mine.py") as caught:
        ptm_jax.load(run)
    assert "\n" not in str(caught.value)
    moved.rename(file)
