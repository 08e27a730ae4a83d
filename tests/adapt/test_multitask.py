"""Several tasks over one encoder: the answer network, the draw of a task, the objective of a
batch's task; many runs."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Encoded, Loss, Ratio
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.heads.questions.san import AnswerNetwork
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.task_of_batch import NamedTask, TaskOfBatch
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.mixed import MixedStream, MixedTasks
from ptm_jax.tuning import multitask
from support.by_hand import softmax

RNG = np.random.default_rng(0)


@pytest.mark.full
@pytest.mark.status("AnswerNetwork", "built")
def test_an_answer_network_reasons_in_steps():
    """Section 3.1 row by row: what is asked of the premise, the gated unit, the mean of the steps'
    predictions."""
    rows, length, width = 2, 6, 4
    h = RNG.normal(size=(rows, length, width)).astype(np.float32)
    segments = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    types = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])
    head = AnswerNetwork(classes=3, steps=5, initializer=Normal(0.7))
    inputs = head.reads(Encoded(jnp.asarray(h)), {"segment_ids": segments, "token_type_ids": types})
    p = head.init(jax.random.key(0), *inputs)["params"]
    found = head.apply({"params": p}, *inputs)
    for row in range(rows):
        real = segments[row] > 0
        premise, hypothesis = h[row][real & (types[row] == 0)], h[row][real & (types[row] == 1)]
        s = softmax(hypothesis @ p["begin"]["kernel"][:, 0]) @ hypothesis
        chances = []
        for _ in range(5):
            x = softmax(premise @ (s @ np.asarray(p["ask"]["kernel"]))) @ premise
            xr, xz, xn = np.split(x @ p["gru_x"]["kernel"] + p["gru_x"]["bias"], 3)
            sr, sz, sn = np.split(s @ p["gru_s"]["kernel"] + p["gru_s"]["bias"], 3)
            r, z = expit(xr + sr), expit(xz + sz)
            s = (1 - z) * np.tanh(xn + r * sn) + z * s
            joined = np.concatenate([s, x, np.abs(s - x), s * x])
            chances.append(softmax(joined @ p["classes"]["kernel"] + p["classes"]["bias"]))
        np.testing.assert_allclose(np.exp(found[row]), np.mean(chances, 0), atol=1e-5)
    # In training some of the predictions are left out, not all, for each row by itself.
    context = Context(visibility=None, rows=jnp.arange(rows), train=True)
    noisy = AnswerNetwork(classes=3, dropout=0.0, prediction_dropout=0.6)
    noisy_scores = noisy.apply(
        {"params": p}, *inputs, context=context, rngs={"dropout": jax.random.key(1)}
    )
    assert np.isfinite(noisy_scores).all() and not np.allclose(noisy_scores, found, atol=1e-4)
    np.testing.assert_allclose(np.exp(noisy_scores).sum(-1), 1, atol=1e-5)


class Fixed(OnePass):
    """A loss whose value is the number of its task, without a forward pass."""

    def __init__(self, value, kind):
        self.value, self.kind = value, kind

    def of(self, tower, encoded, batch):
        assert batch["label"].dtype == {"classes": jnp.int32, "number": jnp.float32}[self.kind]
        value = Ratio(jnp.float32(self.value), jnp.float32(1))
        return Loss(value.sum, value.weight, {"nll": value})


def test_a_batch_has_the_objective_of_its_task(monkeypatch):
    monkeypatch.setattr(
        OnePass, "__call__", lambda self, towers, batch, key: self.of(None, None, batch)
    )
    kinds = {"a": Fixed(1.0, "classes"), "b": Fixed(2.0, "number")}
    tasks = [NamedTask(name=name, task=task) for name, task in kinds.items()]
    for number in (0, 1):
        rows = {"task": jnp.full((4,), number), "label": jnp.zeros(4), "step": 0}
        loss = TaskOfBatch(tasks=tuple(tasks))({}, rows, jax.random.key(0))
        assert float(loss.value()) == number + 1
        assert [float(loss.metrics[f"{name}_nll"].weight) for name in "ab"] == [1 - number, number]


class Part:
    """A corpus of so many examples, ten to a batch."""

    def __init__(self, examples):
        self.examples = examples

    def size(self, split):
        return {"examples": self.examples}

    def stream(self, split, part, *, seed, epochs, **options):
        return PartStream(self.examples // 10, epochs)


class PartStream:
    cut, remarks = 2, {"rows are remarkable": 3}

    def __init__(self, per_epoch, epochs):
        self.per_epoch, self.epochs, self.done = per_epoch, epochs, 0

    def __next__(self):
        if self.epochs is not None and self.done >= self.epochs * self.per_epoch:
            raise StopIteration
        self.done += 1
        rows = np.full((10, 4), self.done, np.int32)
        return {
            "input_ids": rows,
            "rows": np.arange(10, dtype=np.int32),
            "label": np.arange(10, dtype=np.int32),
        }

    def state(self):
        return {"done": self.done}

    def restore(self, state):
        self.done = state["done"]


def mixture(kind):
    parts = {"big": Labelled(first=("a",)), "small": Labelled(first=("a",), labels=())}
    examples = MixedTasks(parts=parts, kind=kind, epochs=3)
    corpus = types.SimpleNamespace(parts={"big": Part(4000), "small": Part(1000)}, vocab=None)
    return lambda epochs=None: MixedStream(
        corpus, "train", examples, seed=3, epochs=epochs, length=4, batch=10
    )


@pytest.mark.status("MixedTasks", "built")
def test_tasks_are_drawn_by_their_size():
    """alpha = 1, 0.6, 0.2 in the epochs 1, 2, 3 of 3: rates 4^alpha / (4^alpha + 1)."""
    stream = mixture("annealed")()
    for epoch, alpha in enumerate((1.0, 0.6, 0.2)):
        np.testing.assert_allclose(
            stream.rates(epoch * stream.per_epoch)[0], 4**alpha / (4**alpha + 1)
        )
    stream = mixture("proportional")()
    drawn = [next(stream) for _ in range(2000)]
    share = np.mean([batch["task"][0] == 0 for batch in drawn])
    assert abs(share - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 2000)
    assert all(
        (batch["task"] == batch["task"][0]).all() and batch["label"].dtype == np.float32
        for batch in drawn[:20]
    )
    assert drawn[0]["label_weights"].shape == (10,)
    assert (stream.cut, stream.remarks) == (4, {"rows are remarkable": 6})


def test_a_mixture_goes_on_where_it_stopped_and_ends():
    stream = mixture("root")()
    for _ in range(7):
        next(stream)
    position, after = stream.state(), [next(stream) for _ in range(5)]
    again = mixture("root")()
    again.restore(position)
    for one, other in zip(after, [next(again) for _ in range(5)], strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert sum(1 for _ in mixture("root")(epochs=1)) == stream.per_epoch == 500
    with pytest.raises(UserError, match="name=PATH for each of big, small"):
        stream._examples.files(["big"])
    with pytest.raises(UserError, match="no data for small"):
        stream._examples.files(["big=x"])


def test_a_network_of_the_catalogue_learns_several_tasks(tmp_path):
    """Liu et al. 2016: each task has a head on the last state, and a model of all tasks reads a
    text as one of them."""
    data, parent = {}, systems.get("liu_coupled_mini")
    for task, labels in {"sst2": "01", "classify": "ab"}.items():
        files = [tmp_path / f"{task}_{split}.tsv" for split in ("train", "dev")]
        for file in files:
            file.write_text(
                "text\tlabel\n" + "".join(f"a text {label}\t{label}\n" for label in labels)
            )
        data[task] = tuple(map(str, files))
    config = multitask.experiment(data, None, parent=parent, epochs=1)
    tower = config.system.towers["main"]
    assert config.init is None and tower.encoder == parent.towers["main"].encoder
    assert {name: head.summary.at for name, head in tower.heads.items()} == dict.fromkeys(
        ("classify_sst2", "classify_classify"), "last"
    )
    assert config.system.recipe.steps == 2
    model = Pretrained(config.system, {"main": {"encoder": {}, "heads_classify_sst2": {}}}, None)
    assert [multitask.of_task(model, task).system.towers["main"].encoder.task for task in data] == [
        0,
        1,
    ]
