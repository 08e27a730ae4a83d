"""Towers that begin with models (`init` for each), and a given tower, which is never trained."""

import dataclasses
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.cli.runs.train import _init
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import Phase
from ptm_jax.core.types import Loss
from ptm_jax.runs.run import Run
from ptm_jax.training import loop
from support import tiny_runs as tiny


@dataclasses.dataclass(frozen=True)
class Imitate(slots.Objective):
    """The squared distance of the student's states from the teacher's."""

    @property
    def given(self):
        return ("teacher",)

    def __call__(self, towers, batch, key):
        real = batch["segment_ids"][..., None] > 0
        apart = jnp.square(towers["student"](batch).hidden - towers["teacher"](batch).hidden)
        return Loss(jnp.where(real, apart, 0).sum(), real.sum().astype(jnp.float32), {})


def config(data, **changes):
    recipe = dataclasses.replace(tiny.system.recipe, phases=(Phase(steps=6, batch=8, length=16),))
    system = dataclasses.replace(tiny.system, recipe=recipe)
    whole = dataclasses.replace(
        tiny.config, system=system, data=(data,), eval_every=0, save_every=2
    )
    return dataclasses.replace(whole, **changes)


def pair(data, init, **changes):
    plain = config(data, init=init, **changes)
    (main,) = plain.system.towers.values()
    towers = {"teacher": main, "student": main}
    return dataclasses.replace(
        plain,
        system=dataclasses.replace(
            plain.system, towers=towers, objective=Imitate(), corruption=None
        ),
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """(workdir of a trained BERT, its prepared corpus)."""
    folder = tmp_path_factory.mktemp("teacher")
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled"):
        text = tiny.write_text(folder / "text.txt")
        loop.train(config(text), folder / "run", quiet=True)
        yield folder / "run", str(folder / "run" / "data")


def params(workdir, step=None, **options):
    return {
        path: np.asarray(leaf)
        for path, leaf in flatten(Run(workdir, step).restore(**options)[0]).items()
    }


@pytest.mark.full
def test_a_given_teacher_never_moves_and_the_student_learns_from_it(teacher, tmp_path):
    source, data = teacher
    there, given = params(source), pair(data, (("teacher", str(source)),))
    whole = tmp_path / "whole"
    loop.train(given, whole, quiet=True)
    for step in (2, 4, 6):
        here = params(whole, step)
        for path, leaf in there.items():
            assert here[path.replace("main/", "teacher/", 1)].tobytes() == leaf.tobytes(), path
    assert any(
        (params(whole, 2)[path] != leaf).any()
        for path, leaf in params(whole, 6).items()
        if "student/" in path
    )
    moments = params(whole, name="opt_state")
    assert any("student/" in path for path in moments) and not any(
        "teacher" in path for path in moments
    )
    losses = [line["values"]["loss"] for line in tiny.metrics(whole) if line["split"] == "train"]
    assert losses[-1] < 0.9 * losses[0]

    shutil.copytree(whole, tmp_path / "killed")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "killed" / "checkpoints" / f"step_{step:08d}")
    assert loop.train(given, tmp_path / "killed", quiet=True).resumed_from == 2
    tiny.assert_same_run(whole, tmp_path / "killed")


@pytest.mark.full
def test_every_tower_may_begin_with_a_model_of_its_own(teacher, tmp_path):
    """A student that is its teacher has nothing to learn at the first step; a path takes a part of
    a model."""
    source, data = teacher
    model = str(source)
    loop.train(
        pair(data, (("teacher", model), ("student/encoder", model))), tmp_path / "run", quiet=True
    )
    first = next(line for line in tiny.metrics(tmp_path / "run"))
    # The kernels of a step and of a prediction add in another order.
    assert 0.0 <= first["values"]["loss"] < 1e-12


@pytest.mark.full
@pytest.mark.parametrize(
    ("init", "words"),
    [
        (
            None,
            r"the tower 'teacher' of tiny is never trained; give its model \(--init "
            r"teacher=MODEL\)",
        ),
        ((("student", "{model}"),), "the tower 'teacher' of tiny is never trained"),
        (
            (("techer", "{model}"),),
            "init=techer=.* names no tower or part of tiny; it has: student, teacher.* 'teacher'",
        ),
        (
            (("teacher", "{model}"), ("student/encodr", "{model}")),
            "names no parameter of tiny.* 'student/encoder'",
        ),
    ],
)
def test_what_cannot_begin(teacher, tmp_path, init, words):
    source, data = teacher
    init = init and tuple((at, model.format(model=source)) for at, model in init)
    with pytest.raises(UserError, match=words):
        loop.train(pair(data, init), tmp_path / "run", quiet=True)


def test_the_command_line_takes_one_model_or_pairs(tmp_path):
    (tmp_path / "a=b").mkdir()
    assert _init(("runs/a",)) == "runs/a" and _init((str(tmp_path / "a=b"),)) == str(
        tmp_path / "a=b"
    )
    assert _init(("teacher=runs/a", "student/encoder=b")) == (
        ("teacher", "runs/a"),
        ("student/encoder", "b"),
    )
    assert _init(("teacher=runs/a",)) == (("teacher", "runs/a"),)
    with pytest.raises(UserError, match="or TOWER=MODEL each, given 'bert_mini'"):
        _init(("teacher=runs/a", "bert_mini"))
