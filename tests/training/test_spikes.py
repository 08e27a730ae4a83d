"""Updates that are left out: against a plain optimizer on the other gradients, and in runs with
planted faults."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe, SkipSpikes
from ptm_jax.training import loop
from ptm_jax.training.updates import optimizers, spikes
from support import tiny_runs as tiny

STEPS = 24
FAULTS = {3: np.inf, 7: np.nan, 16: 40.0}
"""{step: factor of its gradient}; the last one is finite."""


def recipe(clip):
    phases = (Phase(steps=STEPS, batch=4, length=8),)
    return Recipe(phases=phases, lr=0.1, optimizer=AdamW(), schedule=Constant(), clip=clip)


def equal(a, b):
    """To the rounding of programs that are compiled apart."""
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def run(clip, grads):
    params = {"a": jnp.ones((3, 2)), "b": jnp.zeros(4)}
    optimizer = optimizers.build(recipe(clip))
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(grad, state, params)
        params = optimizers.apply(params, updates)
    return params, state


def test_the_other_updates_are_those_of_a_plain_optimizer():
    rng = np.random.default_rng(5)
    grads = [
        {"a": rng.normal(size=(3, 2)).astype("f"), "b": rng.normal(size=4).astype("f")}
        for _ in range(STEPS)
    ]
    faulty = [
        jax.tree.map(lambda g, n=n: g * np.float32(FAULTS.get(n, 1.0)), grad)
        for n, grad in enumerate(grads)
    ]
    good = [grad for n, grad in enumerate(grads) if n not in FAULTS]
    settings = SkipSpikes(clip=1.0, ratio=5.0, memory=0.9, after=4)
    params, state = run(settings, faulty)
    expected, plain = run(1.0, good)
    jax.tree.map(equal, params, expected)
    for moment in ("mu", "nu"):
        jax.tree.map(equal, state[moment], plain[moment])
    assert int(state["count"]) == STEPS and int(state["spikes"]["taken"]) == len(good)
    mean = 0.0
    for number, grad in enumerate(good):
        norm = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in grad.values()))
        mean += max(1 - 0.9, 1 / (number + 1)) * (norm - mean)
    assert float(state["spikes"]["norm"]) == pytest.approx(mean, rel=1e-5)


def test_without_a_ratio_every_finite_gradient_is_taken():
    grads = [{"a": np.full((3, 2), 10.0**n, "f"), "b": np.ones(4, "f")} for n in range(6)]
    _, state = run(SkipSpikes(ratio=None, after=0), grads)
    assert int(state["spikes"]["taken"]) == 6


def test_one_update_between_two_lines_of_the_log_is_no_reason_to_end():
    """`skipped` of this line of the log, `barren` without one that was made."""
    alone, patient = SkipSpikes(), SkipSpikes(patience=3)
    assert [spikes.is_stuck(alone, 1, n) for n in (0, 1, 3, 4)] == [False, False, False, True]
    assert [spikes.is_stuck(patient, 1, n) for n in (0, 2, 3)] == [False, False, True]
    assert spikes.is_stuck(patient, 3, 0) and not spikes.is_stuck(alone, 50, 0)


@dataclasses.dataclass(frozen=True)
class Planted:
    """Masked words whose loss is NaN at some steps, and on batches whose text has a checksum, the
    metric "read"."""

    steps: tuple[int, ...] = ()
    reads: tuple[float, ...] = ()

    def __call__(self, towers, batch, key):
        ids = batch["input_ids"]
        places = jnp.where(batch["mlm_weights"] > 0, batch["mlm_positions"], ids.shape[1])
        text = ids.at[jnp.arange(len(ids))[:, None], places].set(batch["mlm_labels"], mode="drop")
        loss = tiny.watched_mlm(towers, batch | {"input_ids": text}, key)
        read = loss.metrics["read"]
        loss = tiny.MLM()(towers, batch, key)
        loss = dataclasses.replace(loss, metrics=loss.metrics | {"read": read})
        bad = jnp.isin(read.sum, jnp.array(self.reads, jnp.float32))
        bad |= jnp.isin(batch.get("step", -1), jnp.array(self.steps, jnp.int32))
        return dataclasses.replace(loss, sum=loss.sum * jnp.where(bad, jnp.nan, 1.0))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")


def experiment(text, clip, **planted):
    system = tiny.config.system
    own = dataclasses.replace(
        system.recipe, clip=clip, phases=(Phase(steps=40, batch=8, length=16),)
    )
    system = dataclasses.replace(system, objective=Planted(**planted), recipe=own)
    settings = {"data": (text,), "log_every": 4, "eval_every": 0, "save_every": 8}
    return dataclasses.replace(tiny.config, system=system, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """A run without a fault that leaves out nothing."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    loop.train(dataclasses.replace(experiment(text, SkipSpikes()), log_every=1), workdir)
    return workdir


@pytest.mark.full
def test_a_planted_fault_costs_one_update_and_the_run_resumes_to_the_bit(text, tmp_path, capsys):
    config = experiment(text, SkipSpikes(), steps=(18,))
    workdir = tmp_path / "run"
    assert loop.train(config, workdir).done
    line = "1 update was left out in the steps 17 to 20: the norm of the gradient is not finite"
    assert line in capsys.readouterr().err
    (values,) = [x["values"] for x in tiny.metrics(workdir) if x["values"].get("skipped")]
    assert values["skipped"] == 0.25 and np.isfinite(values["loss"])
    shutil.copytree(workdir, again := tmp_path / "again")
    for step in (24, 32, 40):
        shutil.rmtree(again / "checkpoints" / f"step_{step:08d}")
    (again / "report.md").unlink()
    assert loop.train(config, again).resumed_from == 16
    tiny.assert_same_run(workdir, again)


@pytest.mark.full
def test_a_run_returns_to_its_checkpoint_and_reads_the_next_rows(text, whole, tmp_path, capsys):
    reads = [x["values"]["read"] for x in tiny.metrics(whole) if x["split"] == "train"]
    config = experiment(text, SkipSpikes(patience=1), reads=(reads[17],))
    config = dataclasses.replace(config, log_every=1)
    assert loop.train(config, tmp_path / "run").done
    assert "going on from step 16 with the rows after step 18" in capsys.readouterr().err
    found = [x["values"]["read"] for x in tiny.metrics(tmp_path / "run") if x["split"] == "train"]
    assert found[:16] == reads[:16] and found[16:38] == reads[18:40]
    assert len(found) == 40 and not set(found) & set(reads[16:18])


@pytest.mark.full
def test_a_fault_of_the_step_itself_ends_in_one_line(text, tmp_path):
    config = experiment(text, SkipSpikes(patience=1), steps=(18,))
    with pytest.raises(UserError, match="the run has already returned to step 16"):
        loop.train(config, tmp_path / "run")
    config = experiment(text, SkipSpikes(), steps=tuple(range(16, 24)))
    with pytest.raises(UserError, match="4 of the updates 17 to 20 were left out, and none is"):
        loop.train(config, tmp_path / "all")
