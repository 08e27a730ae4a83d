"""The laws of every adaptation: what is frozen keeps its bits, what is its own is known by path,
the model comes back.

What an adaptation computes is tested against its paper in tests/adapt. Here the loss is linear in
every parameter: all have a gradient, so that only the adaptation can hold one back, and nothing of
the network is compiled.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt import catalogue
from ptm_jax.adapt.base import KeepsWords, OnFrozen, ReadsEvaluations
from ptm_jax.core import slots
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import adapted, in_effect, refusal
from ptm_jax.core.types import Loss
from ptm_jax.systems.survey import rows as survey
from ptm_jax.training.steps import step
from support import registered
from support.classifier import batch, classifier

SMALL = {
    "words": "size=9, width=3", "pooled": "size=9", "taglm": "hidden=2, letters=0, size=9, width=3",
    "bilstm": "hidden=2", "esim": "hidden=2", "bcn": "hidden=2, reductions=(2,), pieces=2",
    "houlsby": "width=2",
    "pfeiffer": "width=2", "k_adapter": "width=4, heads=2, layers=1", "pals": "width=4, heads=2",
    "lora": "rank=2",
    "prefix": "length=2", "vib": "width=2", "gradual": "steps=2", "chain_thaw": "steps=2",
    "sequential": "steps=2", "decoder_first": "steps=2",
    "concat": "hidden=2", "attentive": "width=2", "bpt3c": "tokens=2", "adversarial": "virtual=0.5",
    "rates": "table=(('/embed/', 0.5),)",
}  # fmt: skip
MORE = {
    "tags": "vib(code=discrete, width=2, tags=3)",
    "hidden prefix": "prefix(length=2, hidden=3)",
    "vote": "self_distillation(kind=vote, last=2)",
    "top": "mix(top=2)",
}
ELSEWHERE = {
    "bert_fused", "model_words", "target_words", "linkers", "matryoshka", "layer_matryoshka",
    "grad_cache", "taught",
}  # fmt: skip
"""Of encoder-decoders: tests/encoders/test_bert_fused.py and test_augmented.py; of linkers:
tests/adapt/test_linkers.py; of the losses of sentence encoders, which have no parameters:
tests/adapt/test_sentence_vectors.py."""
CASES = {
    name: f"{name}({SMALL.get(name, '')})" for name in catalogue.NAMES if name not in ELSEWHERE
} | MORE
PAIRS = 2
"""Token types: some adaptations read pairs of texts."""

_named = {part for row in survey.rows() for part in row.parts}


def claims(name):
    """`built` for an adaptation, and for its class where a row of the survey names that."""
    kind = type(catalogue.read(CASES[name])).__name__
    names = ({name} & {*catalogue.NAMES}) | ({kind} & _named)
    return [pytest.mark.status(each, "built") for each in sorted(names)]


each = registered.by_case([pytest.param(name, marks=claims(name)) for name in CASES])


def linear(towers, given, key):
    """A loss whose gradient is 1 and more everywhere."""
    leaves = [leaf for name in sorted(towers) for leaf in jax.tree.leaves(towers[name].params)]
    total = sum(((1.0 + n % 3) * leaf).sum() for n, leaf in enumerate(leaves, 1))
    return Loss(total, jnp.ones(()))


@functools.cache
def program(name):
    adapt = (CASES[name],) if name else ()
    found = step.program(classifier(*adapt, types=PAIRS), seed=0)
    return dataclasses.replace(found, system=dataclasses.replace(found.system, objective=linear))


@functools.cache
def begun(name):
    """The state before the first step, parameters drawn by numpy: nothing is compiled."""
    draw = np.random.default_rng(0)
    shapes = jax.eval_shape(program(name).init, batch(types=PAIRS))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), shapes.params
    )
    return dataclasses.replace(zeros, params=params)


def paths(name):
    return {path: leaf.shape for path, leaf in flatten(begun(name).params).items()}


def wrapper(name):
    (found,) = program(name).system.adapt
    return found


@each
def test_what_is_frozen_keeps_its_bits_and_the_rest_moves(name):
    """At the first step: gradual kinds hold layers back."""
    work, before = program(name), begun(name)
    after, known = (
        flatten(jax.jit(work.step)(before, batch(types=PAIRS))[0].params),
        work.freedom.places(before.params),
    )
    for path, old in flatten(before.params).items():
        if path.startswith("recent/"):
            continue  # written by `on_step`
        if work.freedom.observed(path):
            continue  # a sum over what the forward passes saw
        free = work.freedom.trains(known[path]) and work.freedom.live(known[path], jnp.int32(0))
        free = True if free is None else np.asarray(free)
        moved = np.asarray(old != after[path])
        stacked = moved.reshape(moved.shape[0], -1).all(1) if np.ndim(free) else moved.all()
        still = ~moved.reshape(moved.shape[0], -1).any(1) if np.ndim(free) else not moved.any()
        assert np.all(np.where(free, stacked, still)), path


@each
def test_its_parameters_are_known_by_their_paths(name):
    own, plain = paths(name), paths("")
    pattern = wrapper(name).owns
    owned = {path for path in own if pattern and re.search(pattern, path)}
    added = {path for path in own if path not in plain}
    if name == "auxiliary":  # a second head, which a model that a run begins with may have
        assert all("/heads_mlm/" in path for path in added) and not owned
    else:
        assert added <= owned and all("/heads_classify/" in path for path in owned - added)
    replaced = {path for path in plain if own.get(path) != plain[path]}
    assert all("/heads_classify/" in path for path in replaced), (
        "the model's parameters keep their paths and shapes"
    )


@each
def test_its_parameters_have_logical_axes(name):
    state, axes = program(name).abstract(batch(types=PAIRS))
    assert [path for path in flatten(state.params) if axes.find(path) is None] == []


@each
def test_the_beginning_is_the_same_however_often_and_the_end_is_the_model(name):
    value, params, plain = wrapper(name), begun(name).params, paths("")
    once = value.init(params, None)
    jax.tree.map(np.testing.assert_array_equal, value.init(once, params), once)
    finished = flatten(value.finish(params))
    kept = flatten(params).keys() - finished.keys()
    assert {*plain} - {*finished} == {*plain} - {*paths(name)}
    if slots.overrides(value, "finish"):
        assert {path: leaf.shape for path, leaf in finished.items()} == plain and all(
            re.search(value.owns, p) for p in kept
        )
    else:
        assert not kept
    assert {*in_effect(program(name).system, params)} == {
        *adapted(classifier(CASES[name], types=PAIRS)).towers
    }


@each
def test_the_record_gives_the_value_back(name):
    (value,) = classifier(CASES[name]).adapt
    assert registered.rebuilt(value) == value


@each
def test_a_refusal_is_one_clause(name):
    for types in (0, PAIRS):
        assert registered.one_clause(refusal(classifier(CASES[name], types=types)))
    assert refusal(classifier(CASES[name], types=PAIRS)) is None or name == "esim"


def test_every_wrapper_has_a_name():
    named = {type(make()) for make, _ in catalogue.NAMES.values()}
    bases = {KeepsWords, OnFrozen, ReadsEvaluations}
    assert registered.classes("ptm_jax.adapt", slots.Wrapper) - named == bases
