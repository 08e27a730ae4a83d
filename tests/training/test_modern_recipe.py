"""The recipes of today together, at a tiny width: phases that change length, batch, theta, masking
and objective, Muon, the z-loss and an average, resumed to the bit."""

import dataclasses
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from ptm_jax.adapt.parameters.averaging import EMA
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Muon, Phase, Recipe, WarmupStableDecay
from ptm_jax.core.system import ChangedPhase, batch_warmup, in_phase
from ptm_jax.corruptions.masking.orders import LeftToRight
from ptm_jax.corruptions.masking.token import LinearRate, ScheduledMasking
from ptm_jax.data.corpora import prepare
from ptm_jax.encoders.model import Model
from ptm_jax.mesh.rules import make_mesh
from ptm_jax.nn.attention.rotary import LocalLayers
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.objectives.text.z_loss import ZLossLM, ZLossMLM
from ptm_jax.systems.transformers.modern import modernbert
from ptm_jax.training.loop import train
from ptm_jax.training.start import setup
from ptm_jax.training.steps.phase_work import Phases
from support import tiny_runs as tiny

THETA = "towers.main.encoder.stack.block.attention.rotary.theta"
CAUSAL = (("corruption", LeftToRight()), ("objective", ZLossLM(head="mlm")), (THETA, 50.0))
BLOCK = modernbert.block(layers=2, width=16, heads=2, hidden=24, local=LocalLayers(radius=3))
STEPS = 12
system = dataclasses.replace(
    tiny.system,
    towers={
        "main": Model(
            encoder=modernbert.encoder(BLOCK, vocab=tiny.VOCAB, layers=2, limit=32),
            heads={"mlm": MLMHead(vocab=tiny.VOCAB)},
        )
    },
    corruption=ScheduledMasking(
        vocab=tiny.VOCAB, training_rate=LinearRate(first=0.4, last=0.2, steps=STEPS)
    ),
    objective=ZLossMLM(),
    adapt=(EMA(decay=0.5),),
    recipe=Recipe(
        phases=(
            ChangedPhase(steps=3, batch=4, length=16, changes=CAUSAL),
            ChangedPhase(steps=3, batch=8, length=16, changes=CAUSAL, continues=True),
            ChangedPhase(steps=2, batch=8, length=16, continues=True),
            Phase(steps=4, batch=4, length=32),
        ),
        lr=1e-3,
        optimizer=Muon(iterations=1),
        schedule=WarmupStableDecay(warmup=2, decay=3),
        clip=None,
    ),
)
config = dataclasses.replace(tiny.config, system=system, save_every=2, eval_every=8)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(workdir, text) of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("modern")
    text = tiny.write_text(folder / "text.txt")
    train(dataclasses.replace(config, data=(text,)), folder / "run", quiet=True)
    return folder / "run", text


@pytest.mark.full
def test_a_run_with_all_of_them_is_resumed_to_the_bit(whole, tmp_path):
    """In a changed phase that continues another, and in the last phase."""
    workdir, text = whole
    for step in (4, 10):
        copy = shutil.copytree(workdir, tmp_path / str(step))
        for path in (copy / "checkpoints").iterdir():
            if int(path.name.removeprefix("step_")) > step:
                shutil.rmtree(path)
        (copy / "report.md").unlink()
        result = train(dataclasses.replace(config, data=(text,)), copy, quiet=True)
        assert result.resumed_from == step
        tiny.assert_same_run(workdir, copy)


@pytest.mark.full
def test_the_log_shows_what_each_phase_trained(whole):
    lines = {(line["step"], line["split"]): line["values"] for line in tiny.metrics(whole[0])}
    causal = [step for step in range(1, STEPS + 1) if "nll" in lines[step, "train"]]
    assert causal == [1, 2, 3, 4, 5, 6]
    assert all("mlm_nll" in lines[step, "heldout"] for step in (8, STEPS))


def test_a_batch_that_grows_reads_on_in_one_order(tmp_path):
    """3 batches of 4 rows and 3 of 8 are the 36 rows of 9 batches of 4; the new phase reads none
    of them again."""
    text = tiny.write_text(tmp_path / "text.txt")
    corpus = prepare.prepare([text], tmp_path / "data", tokenizer=system.tokenizer, heldout=0.2)
    grown = dataclasses.replace(config, data=(text,))

    def rows(stream, count):
        return [row.tobytes() for _ in range(count) for row in next(stream)["input_ids"]]

    first, second = (setup.stream(grown, corpus, phase) for phase in (0, 1))
    read = rows(first, 3)
    second.follow(first.state())
    read += rows(second, 3)
    phases = (ChangedPhase(steps=9, batch=4, length=16), *system.recipe.phases[1:])
    recipe = dataclasses.replace(system.recipe, phases=phases)
    plain = dataclasses.replace(grown, system=dataclasses.replace(system, recipe=recipe))
    assert sorted(read) == sorted(rows(setup.stream(plain, corpus, 0), 9)) and len({*read}) == 36


def test_a_warm_up_is_counted_in_rows():
    """ModernBERT's, in eight stages: each reads an eighth of the rows, to within a batch."""
    phases = batch_warmup(768, 4608, rows=10**7, length=1024, stages=8, multiple=64)
    assert [phase.batch for phase in phases] == [768, 1280, 1728, 2176, 2688, 3200, 3648, 4096]
    for phase in phases:
        assert abs(phase.steps * phase.batch - 10**7 / 8) <= phase.batch / 2
    assert [phase.continues for phase in phases] == [False] + [True] * 7


def test_the_file_of_the_page_builds_in_each_phase():
    """docs/modern_encoder.md: its Python is a config whose phases have the same parameters."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "modern_encoder.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    names = {}
    exec(compile(code, "modern.py", "exec"), names)
    own = names["config"]

    def batch_of(phase):
        part = own.system if phase is None else in_phase(own.system, phase)
        vocab = own.system.corruption.vocab
        fields = part.examples.batch_spec(16, vocab)
        batch = {name: jnp.zeros((4, *dims), kind) for name, (dims, kind) in fields.items()}
        return batch | {"rows": jnp.arange(4)}

    phases = Phases(own, make_mesh({"data": 1}), batch_of)
    works = [phases.at(number) for number in range(len(own.system.recipe.phases))]
    kinds = [type(work.program.system.objective).__name__ for work in works]
    assert kinds == ["ZLossLM"] * 3 + ["ZLossMLM"] * 3


def test_what_a_phase_cannot_change():
    def changed(*changes, **options):
        phase = ChangedPhase(steps=1, batch=4, length=16, changes=changes, **options)
        recipe = dataclasses.replace(system.recipe, phases=(phase, *system.recipe.phases[3:]))
        return dataclasses.replace(system, recipe=recipe)

    assert in_phase(system, 0).towers["main"].encoder.stack.block.attention.rotary.theta == 50.0
    assert in_phase(system, 3) is system
    with pytest.raises(UserError, match="recipe.phases.0.changes: .*'rotten'"):
        in_phase(changed(("towers.main.encoder.rotten", 1)), 0)
    with pytest.raises(ValueError, match="a phase cannot change recipe.lr"):
        changed(("recipe.lr", 1.0))
    with pytest.raises(ValueError, match="a phase continues the rows of a phase of the same"):
        changed(continues=True)
    other = changed(("towers.main.encoder.stack.block.ffn.hidden", 32))
    batch = {
        name: jnp.zeros((4, *dims), kind)
        for name, (dims, kind) in system.examples.batch_spec(16, tiny.VOCAB).items()
    } | {"rows": jnp.arange(4)}
    phases = Phases(
        dataclasses.replace(config, system=other), make_mesh({"data": 1}), lambda phase: batch
    )
    with pytest.raises(UserError, match="recipe.phases.0.changes give another model: the param"):
        phases.at(0)
