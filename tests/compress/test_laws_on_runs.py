"""Laws of distillation on trained models: Theseus' rate in a run's record, FastBERT's threshold,
refusals in one line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.compress import catalogue, recipes
from ptm_jax.compress.matches.predictions import SoftTargets
from ptm_jax.compress.matches.states import Hidden, StateCosine
from ptm_jax.compress.students.distillation import Distillation
from ptm_jax.compress.students.from_teacher import Narrow
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text import exits
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.training.steps import step
from support import tiny_checkpoint
from support.classifier import VOCAB, classifier

TOLERANCE = 0.01
"""By which the accuracy of 1,024 rows may rise with the threshold: three times the standard error
of 12 rows that differ."""
SPEEDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@pytest.mark.full
def test_the_rate_in_the_record_of_a_run_follows_its_schedule(tmp_path):
    """min(1, 0.3 + t (1 - 0.3) / (0.5 T)) at step t of T, which metrics.jsonl has for every
    step."""
    model = str(tiny_checkpoint.write(tmp_path / "bert", num_hidden_layers=2))
    of = [
        "--task",
        "sst2",
        "--data",
        str(tiny_checkpoint.written(tmp_path / "data")),
        "--batch",
        "8",
        "--epochs",
        "2",
    ]
    assert main(["train", "--init", model, *of, "--workdir", str(tmp_path / "teacher")]) == 0
    words = [
        "compress",
        "theseus",
        str(tmp_path / "teacher"),
        *of,
        "--out",
        str(tmp_path / "out"),
        "--set",
        "log_every=1",
    ]
    assert main(words) == 0
    lines = map(json.loads, (tmp_path / "out.run" / "metrics.jsonl").read_text().splitlines())
    found = {
        line["step"]: line["values"]["replaced"] for line in lines if "replaced" in line["values"]
    }
    total = max(found)
    assert total >= 12 and sorted(found) == [*range(1, total + 1)]
    expected = [min(1.0, 0.3 + t * 0.7 / (0.5 * total)) for t in range(total)]
    np.testing.assert_allclose([found[number] for number in sorted(found)], expected, rtol=1e-5)


def rows(seed, count):
    """Rows of 6 words; the label is whether the last word of the vocabulary among them stands after
    the first one."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(4, VOCAB.size, (count, 6)).astype(np.int32)
    label = (ids.argmax(1) > ids.argmin(1)).astype(np.int32)
    fields = {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "rows": np.arange(count),
        "label": label,
    }
    return {name: jnp.asarray(value) for name, value in fields.items()}


def trained(system, params, steps, seed):
    """(program, parameters after so many steps on fresh rows)."""
    work = step.program(system, 0)
    state = jax.jit(work.init)(rows(0, 32))
    if params is not None:
        whole = {**state.params, "main": {**state.params["main"], **params["main"]}}
        state = dataclasses.replace(state, params=jax.tree.map(jnp.asarray, whole))
    update = jax.jit(work.step)
    for number in range(steps):
        state, _ = update(state, rows(seed + number, 32))
    return work, state.params


@pytest.mark.full
def test_fastberts_cost_and_score_fall_as_its_threshold_rises():
    """A trained classifier of three layers with trained branches. The cost never rises with the
    threshold; the accuracy never rises by more than the tolerance, at 0 it is the model's own, and
    the first branch alone is clearly worse."""
    plain = classifier(optimizer=AdamW(weight_decay=0.0), lr=1e-2, steps=300)
    work, params = trained(plain, None, 800, seed=1)
    _, params = trained(
        dataclasses.replace(plain, compress=(catalogue.read("fastbert(width=8)"),)),
        params,
        100,
        seed=1000,
    )
    branched = adapted(dataclasses.replace(plain, compress=(catalogue.read("fastbert(width=8)"),)))
    model, test = Pretrained(branched, params), rows(10**6, 1024)
    label = np.asarray(test.pop("label"))
    found = [exits.classify(model, test, speed) for speed in SPEEDS]
    cost = [one.layers.mean() for one in found]
    score = [(one.scores.argmax(-1) == label).mean() for one in found]
    print("cost", np.round(cost, 3), "accuracy", np.round(score, 4))
    own = work._bind(params, False)["main"]
    whole = np.asarray(own.read("classify", own(test), test)).argmax(-1)
    assert cost[0] == 3 and (found[0].scores.argmax(-1) == whole).all() and score[0] > 0.85
    assert all(a >= b for a, b in zip(cost, cost[1:], strict=False)) and cost[-1] < 1.5
    assert (
        all(b <= a + TOLERANCE for a, b in zip(score, score[1:], strict=False))
        and score[0] - score[-1] > 0.03
    ), score


def teacher_of(width=8, vocab=VOCAB):
    encoder = transformer(
        vocab=vocab, layers=3, width=width, heads=2, positions=LearnedPositions(8)
    )
    return Model(encoder=encoder, heads=classifier().towers["main"].heads)


REFUSED = {
    "a map that names no layer": (Distillation(matches=(Hidden(layers=((1, 7),)),)), None,
    "layer 7 of the teacher"),
    "a wider student, made": (
        Distillation(matches=(StateCosine(),), student=Narrow(layers=2, width=16, heads=2)), None,
        "the student has 2 layers of 16, and the teacher 3 of 8",
    ),
    "a deeper student, made": (dataclasses.replace(recipes.TINYBERT), None,
    "the student has 4 layers of 312"),
    "a wider student, given": (
        Distillation(matches=(Hidden(projection="shared"),)), teacher_of(4),
            "is 8 wide and its teacher 4",
    ),
    "another vocabulary, states": (
        Distillation(matches=(StateCosine(),)), teacher_of(vocab=Vocab(size=9, cls=1)),
            "24 tokens and teacher 9",
    ),
    "another vocabulary, predictions": (
        Distillation(matches=(SoftTargets(),)), teacher_of(vocab=Vocab(size=9, cls=1)),
            "24 tokens and teacher 9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_line(name):
    value, teacher, message = REFUSED[name]
    found = dataclasses.replace(classifier(), compress=(value,))
    if teacher is not None:
        found = dataclasses.replace(found, towers={**found.towers, "teacher": teacher})
    with pytest.raises(UserError, match=message) as error:
        adapted(found)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("int8(bits=9)", "bits is 9; whole numbers have 2 to 8 bits"),
        ("int8(rows=-1)", "rows is -1; it must be a number of training examples"),
        ("qbert(layer_bits=(4, 9))", "layer_bits is"),
        ("theseus(each=1)", "a module has 2 layers or more"),
    ],
)
def test_a_refused_method_is_one_line(words, message, capsys, tmp_path):
    assert (
        main(
            [
                "compress",
                words,
                "m",
                "--out",
                str(tmp_path / "out"),
                "--task",
                "sst2",
                "--data",
                "d",
            ]
        )
        == 1
    )
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1
