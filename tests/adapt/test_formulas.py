"""What the papers' formulas give, against plain numpy: adapters, projected attention, low-rank
updates, mixtures of layers, means of parameters, teachers, fading losses."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt import catalogue
from ptm_jax.adapt.modules.lora import LoRA
from ptm_jax.adapt.parameters.averaging import (
    SelfDistillation,
    SelfEnsemble,
    ages,
    begin,
    mean,
    remember,
)
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Encoded, Visibility
from ptm_jax.nn.adapter_layers import BottleneckAdapter, ProjectedAttention
from ptm_jax.nn.heads.layer_mix import LayerMix
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context
from ptm_jax.nn.recurrent.lstm import BiLSTMReader
from ptm_jax.objectives.regularisation.auxiliary import FadingLanguage
from ptm_jax.objectives.regularisation.averaging import OwnTeacher
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.mixed import MixedTasks
from ptm_jax.training.steps import step
from support.by_hand import gelu, head_of, lstm, softmax
from support.classifier import WIDTH, batch, classifier, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, WIDTH)).astype(np.float32)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
CONTEXT = Context(visibility=Visibility(jnp.maximum(SEGMENTS, 1), SEGMENTS), rows=jnp.arange(2))


@pytest.mark.full
def test_an_adapter_is_a_bottleneck_with_a_skip():
    module = BottleneckAdapter(width=3, initializer=Normal(0.5))
    params = module.init(jax.random.key(0), X, CONTEXT)["params"]
    down, up = params["reduce"], params["expand"]
    assert down["kernel"].shape == (WIDTH, 3) and up["kernel"].shape == (3, WIDTH)
    expected = X + gelu(X @ down["kernel"] + down["bias"]) @ up["kernel"] + up["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, X, CONTEXT), expected, atol=1e-5)
    # As it begins the network is the one that was there, to the size of its weights.
    fresh = BottleneckAdapter(width=64)
    drawn = fresh.init(jax.random.key(0), X, CONTEXT)
    assert np.abs(drawn["params"]["reduce"]["kernel"]).max() <= 0.02
    np.testing.assert_allclose(fresh.apply(drawn, X, CONTEXT), X, atol=0.02)


@pytest.mark.full
def test_projected_attention():
    """gelu(V^D MH(V^E x)), no projection after the heads; padding is not seen."""
    module = ProjectedAttention(width=4, heads=2, initializer=Normal(0.5))
    p = module.init(jax.random.key(1), X, CONTEXT)["params"]
    assert set(p) == {"encode", "query", "key", "value", "decode"}
    inner = X @ p["encode"]["kernel"] + p["encode"]["bias"]
    q, k, v = (
        np.einsum("bld,dhk->bhlk", inner, p[n]["kernel"]) + p[n]["bias"][:, None]
        for n in ("query", "key", "value")
    )
    scores = np.where(
        np.asarray(SEGMENTS)[:, None, None] > 0,
        np.einsum("bhqk,bhjk->bhqj", q, k) / math.sqrt(2),
        -np.inf,
    )
    mixed = np.einsum("bhqj,bhjk->bqhk", softmax(scores), v).reshape(2, 5, 4)
    expected = gelu(mixed @ p["decode"]["kernel"] + p["decode"]["bias"])
    np.testing.assert_allclose(module.apply({"params": p}, X, CONTEXT), expected, atol=1e-5)


def test_pals_share_their_projections_over_layers():
    shapes = flatten(
        jax.eval_shape(step.program(classifier("pals(width=4, heads=2)"), 0).init, batch()).params
    )
    beside = {
        path.rpartition("beside/")[2]: leaf.shape
        for path, leaf in shapes.items()
        if "beside" in path
    }
    assert beside["encode/kernel"] == (WIDTH, 4) and beside["decode/kernel"] == (4, WIDTH)
    assert beside["query/kernel"] == (3, 4, 2, 2)


def test_tasks_are_sampled_nearer_to_equal_in_each_epoch():
    """p ~ N^alpha, alpha = 1 - 0.8 (e - 1) / (E - 1), by hand for E = 5 and e = 1, 3, 5."""
    mixed = MixedTasks(parts={"task": Labelled()}, kind="annealed", epochs=5)
    np.testing.assert_allclose([mixed.power(epoch) for epoch in (1, 3, 5)], [1.0, 0.6, 0.2])
    for kind, power in (("proportional", 1.0), ("root", 0.5), ("equal", 0.0)):
        assert dataclasses.replace(mixed, kind=kind).power(3) == power


def test_a_low_rank_update_is_added_to_its_weights():
    """W + alpha / r A B over the inner and outer sides of a kernel, of every layer of a stack."""
    kernels = {"query": (3, 8, 2, 4), "out": (3, 2, 4, 8)}
    params = {"main": {"stack": {"block": {"attention": {
        name: {"kernel": jnp.asarray(RNG.normal(size=shape), jnp.float32)} for name,
        shape in kernels.items()
    }}}}}  # fmt: skip
    lora = LoRA(rank=2, alpha=6.0, targets=r"/(query|out)/kernel$")
    begun = lora.init(params, None)
    assert lora.init(begun, params) is begun, "what was trained is not drawn again"
    flat = flatten(begun["lora"])
    assert {path.rpartition("attention/")[2]: leaf.shape for path, leaf in flat.items()} == {
        "query/kernel/a": (3, 8, 2), "query/kernel/b": (3, 2, 8), "out/kernel/a": (3, 8, 2),
        "out/kernel/b": (3, 2, 8),
    }  # fmt: skip
    assert not any(np.any(leaf) for path, leaf in flat.items() if path.endswith("/b"))
    tuned = unflatten(
        {path: jnp.asarray(RNG.normal(size=leaf.shape), jnp.float32) for path, leaf in flat.items()}
    )
    found, flat = flatten(lora.finish({**params, "lora": tuned})), flatten(tuned)
    for path, weight in flatten(params).items():
        change = 3.0 * np.einsum("nir,nro->nio", flat[f"{path}/a"], flat[f"{path}/b"])
        np.testing.assert_allclose(
            found[path], weight + change.reshape(weight.shape), rtol=1e-5, atol=1e-5
        )


def test_layers_are_mixed_by_equation_6():
    layers = RNG.normal(size=(4, 2, 5, WIDTH)).astype(np.float32)
    encoded = Encoded(jnp.asarray(layers[-1] * 2), layers=jnp.asarray(layers))
    alpha, gamma = np.array([0.3, -1.0, 0.5], np.float32), 1.7
    weights = softmax(alpha)
    read = [layers[1], layers[2], layers[3] * 2]  # the last has the norm after the stack

    def given(n):
        return {"params": {"alpha": jnp.asarray(alpha[-n:]), "gamma": jnp.float32(gamma)}}

    found = LayerMix().apply(given(3), encoded, None).hidden
    np.testing.assert_allclose(
        found, gamma * sum(w * h for w, h in zip(weights, read, strict=True)), rtol=1e-4, atol=1e-5
    )
    top = softmax(alpha[1:])
    unit = [(h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True) for h in read[1:]]
    found = LayerMix(top=2, normalise=True).apply(given(2), encoded, None).hidden
    np.testing.assert_allclose(
        found, gamma * (top[0] * unit[0] + top[1] * unit[1]), rtol=1e-4, atol=1e-4
    )


def test_a_bidirectional_lstm():
    module, rows = BiLSTMReader(hidden=3), {"segment_ids": SEGMENTS}
    params, found = head_of(module, Encoded(jnp.asarray(X)), rows)
    for row, length in ((0, 5), (1, 3)):
        np.testing.assert_allclose(
            found.hidden[row, :length], lstm(params, X[row, :length]), atol=1e-5
        )
        assert not np.any(found.hidden[row, length:])


def test_the_last_parameters():
    """Of a ring of three: which there are, how old, and their means."""

    def params(value):
        return {"main": {"w": jnp.full((2,), float(value))}}

    recent = begin(params(0), "main", 3)
    np.testing.assert_array_equal(ages(recent, "main"), [0, -1, -1])
    assert mean(recent, "main", ages(recent, "main") > 0)["w"][0] == 0, (
        "no past: the parameters themselves"
    )
    for value in (1, 2, 3, 4):
        recent = remember(recent, params(value), "main")
    np.testing.assert_array_equal(ages(recent, "main"), [1, 0, 2])
    age = ages(recent, "main")
    assert mean(recent, "main", age >= 0)["w"][0] == pytest.approx(3)
    assert mean(recent, "main", age > 0)["w"][0] == pytest.approx(2.5)


@pytest.mark.parametrize(("last", "every"), [(2, 3), (3, 2), (2, 1)])
def test_only_some_steps_count(last, every):
    """The mean of the last parameters after each `every`-th step; the first ones count too."""
    adaptation = SelfEnsemble(last=last, every=every)
    params = adaptation.init({"main": {"w": jnp.zeros(1)}}, None)
    values = np.random.default_rng(0).normal(size=9)
    counted = [0.0]
    for number, value in enumerate(values, 1):
        params = adaptation.on_step({**params, "main": {"w": jnp.full(1, value)}}, number - 1)
        counted += [value] if number % every == 0 else []
        mean_of_steps = adaptation.finish(params)["main"]["w"]
        np.testing.assert_allclose(mean_of_steps, np.mean(counted[-last:]), rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_a_self_ensemble_is_evaluated_as_the_mean_of_its_last_steps():
    trace = run(classifier("self_ensemble(last=2)"), steps=3)
    (adaptation,) = trace.program.system.adapt
    own = {
        path: (trace.params(2)[path] + trace.params(3)[path]) / 2
        for path in trace.params(0)
        if path.startswith("main/")
    }
    finished = flatten(adaptation.finish(trace.states[3].params))
    assert finished.keys() == own.keys()
    for path, value in own.items():
        np.testing.assert_allclose(finished[path], value, atol=1e-6)
    params = {"main": unflatten({path.removeprefix("main/"): leaf for path, leaf in own.items()})}
    plain = step.program(classifier(), 0)
    taught, _ = jax.jit(trace.program.evaluate)(trace.states[3].params, batch(), 0)
    expected, _ = jax.jit(plain.evaluate)(params, batch(), 0)
    np.testing.assert_allclose(taught["loss"].value(), expected["loss"].value(), rtol=1e-5)


@pytest.mark.full
def test_a_network_learns_from_its_own_past():
    """The loss of the third step: the task and lambda times the squared error to the mean of the
    two steps before."""
    trace = run(classifier("self_distillation(last=2, scale=0.5)"), steps=3)
    past = [trace.params(n) for n in (0, 1, 2)]
    plain = step.program(classifier(), 0)

    @jax.jit
    def scores_of(params):
        tower = plain._bind(params, False)["main"]
        return tower.read("classify", tower(batch()), batch())

    def scores(params):
        return np.asarray(
            scores_of(
                unflatten({path: leaf for path, leaf in params.items() if path.startswith("main/")})
            )
        )

    teacher = scores({path: (past[0][path] + past[1][path]) / 2 for path in past[0]})
    student = scores(past[2])
    labels = np.asarray(batch()["label"])
    nll = np.log(np.exp(student).sum(-1)) - student[np.arange(4), labels]
    expected = nll.mean() + 0.5 * np.square(student - teacher).mean()
    np.testing.assert_allclose(trace.metrics[2]["loss"].value().sum(), expected, rtol=1e-4)
    assert trace.metrics[2]["teacher_error"].value() > 0


def test_steps_of_the_past_vote():
    """One teacher for each of the last steps; while there are fewer, the oldest has the votes that
    are left."""
    voting = SelfDistillation(last=2, kind="vote")
    params = voting.init({"main": {"w": jnp.zeros(1)}, "teacher1": {}, "teacher2": {}}, None)
    assert voting.teachers == ("teacher1", "teacher2") and set(params) == {"main", "recent"}
    taught = []
    for value in (1.0, 2.0, 3.0):
        params = voting.on_step({**params, "main": {"w": jnp.full(1, value)}}, None)
        given = voting.effective(params, True)
        taught.append([float(given[name]["w"][0]) for name in voting.teachers])
    assert taught == [[0, 0], [1, 0], [2, 1]]


def test_means_stand_alone():
    why = refusal(classifier("lora", "self_ensemble"))
    assert why is not None and "LoRA" in why
    with pytest.raises(ValueError, match="no scores"):
        OwnTeacher(task=lambda towers, batch, key: None, teachers=("teacher",))


@pytest.mark.full
def test_the_language_model_fades():
    """gamma from 0.2 to 0.1: half-way at sqrt(0.02). The loss is the task's plus gamma times the
    language model's."""
    fading = FadingLanguage(task=None, language=None, first=0.2, last=0.1, steps=10)
    np.testing.assert_allclose(
        [fading.gamma(n) for n in (0, 5, 10)], [0.2, math.sqrt(0.02), 0.1], rtol=1e-6
    )
    trace = run(classifier("auxiliary", steps=10))
    taught = {
        name: float(value.value().sum())
        for name, value in trace.metrics[0].items()
        if hasattr(value, "value")
    }
    assert taught["mlm_nll"] > 1 and taught["loss"] == pytest.approx(
        taught["nll"] + 0.2 * taught["mlm_nll"], rel=1e-5
    )
    assert set(trace.program.towers["main"].heads) == {"classify", "mlm"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("houlsbi", "Did you mean 'houlsby'"),
        ("lora(8)", "name\\(field=value\\)"),
        ("lora(rang=8)", "Did you mean 'rank'"),
        ("lora(rank=0)", "at least 1"),
        ("layer_decay(decay=1.5)", "at most at 1"),
        ("adversarial(eps=0.0)", "eps is 0"),
        ("rdrop(scale=-1)", "scale is -1"),
        ("bcn(reductions=(4, 0))", "none may be below 1"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        catalogue.read(text)


def test_what_does_not_fit_a_network_is_refused():
    twice = classifier("houlsby", "pfeiffer")
    with pytest.raises(UserError, match="does not take Pfeiffer: .*already"):
        step.program(twice, 0)
    none = dataclasses.replace(classifier(), adapt=(LoRA(targets="nothing"),))
    with pytest.raises(ValueError, match="find no weight"):
        jax.eval_shape(step.program(none, 0).init, batch())


def test_every_name_is_read_and_listed():
    entries = catalogue.entries()
    assert len(entries) >= 18 and all(entry["what"] for entry in entries)
    younger = {"ema", "grad_cache", "layer_matryoshka", "matryoshka", "output_scale", "rdrop"}
    assert {entry["name"] for entry in entries if not entry["rows"]} == younger | {"taught"}
    assert all(
        catalogue.read(entry["name"]) == catalogue.NAMES[entry["name"]][0]() for entry in entries
    )
    assert isinstance(catalogue.read("self_ensemble(last=3)"), SelfEnsemble)
