"""The recipe of a run in the folder that is exported from it, and further training from there."""

import dataclasses
import json

import pytest

from ptm_jax.cli.models.importing import recipe_lines
from ptm_jax.convert import checkpoint
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import SGD, Constant, Phase, Recipe
from support import tiny_checkpoint

SMALL = Recipe(
    phases=(Phase(steps=5, batch=4, length=16), Phase(steps=5, batch=2, length=32)), lr=0.25,
    optimizer=SGD(momentum=0.5), schedule=Constant(), clip=None,
)  # fmt: skip


def recipe_of(folder):
    return checkpoint.record_of(checkpoint.config_of(folder))[0].recipe


def test_a_folder_has_the_recipe_of_its_run_or_the_published_one(tmp_path):
    folder = tiny_checkpoint.write(tmp_path / "hf")
    published, path = recipe_of(folder), folder / checkpoint.RECIPE
    assert published.phases[-1].batch == 256  # BERT's
    checkpoint.keep_recipe(folder, published)
    assert not path.exists()
    (line,) = recipe_lines(published, str(folder / "config.json"))
    assert "256 rows of 512 tokens, lr 0.0001, as published" in line and "phases.1.batch" in line
    checkpoint.keep_recipe(folder, SMALL)
    assert recipe_of(folder) == SMALL
    (line,) = recipe_lines(SMALL, str(folder / "config.json"))
    assert "2 rows of 32 tokens, lr 0.25, as the run" in line
    record = json.loads(path.read_text())
    for odd, message in (
        ({**record, "phases": 3}, "phases is 3; expected a list"),
        ({**record, "speed": 3}, "unknown field of Recipe.*delete it"),
        ({**record, "optimizer": {"kind": "SGD", "speed": 1}}, "unknown field of SGD.*delete it"),
    ):
        path.write_text(json.dumps(odd))
        with pytest.raises(UserError, match=f"{checkpoint.RECIPE}.*{message}"):
            recipe_of(folder)


def test_a_phase_that_changes_the_system_stays_with_the_run(tmp_path):
    from ptm_jax.core.system import ChangedPhase

    folder = tiny_checkpoint.write(tmp_path / "hf")
    phases = (*SMALL.phases, ChangedPhase(steps=5, batch=2, length=32, continues=True))
    checkpoint.keep_recipe(folder, dataclasses.replace(SMALL, phases=phases))
    assert not (folder / checkpoint.RECIPE).exists()
