"""GloVe against plain numpy: loss and gradients, and the updates of Stanford's loop over cells."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import Phase
from ptm_jax.core.types import Vocab
from ptm_jax.kernels import words
from ptm_jax.kernels.updates import Cells
from ptm_jax.mesh import rules
from ptm_jax.objectives.vectors.glove import GloVe
from ptm_jax.systems.word_vectors import glove
from ptm_jax.training.steps.step import program
from ptm_jax.training.updates import in_place
from support.plain_towers import B, L, check, states_of

WIDTH, VOCAB = 4, Vocab(size=15, pad=0, unk=2, eos=1)


def definition(p, b):
    states, total, cells = states_of(p, b), 0.0, 0
    for row in range(B):
        for t in range(L):
            if b["segment_ids"][row, t]:
                i, j, x = (
                    b[name][row, t] for name in ("input_ids", "context_ids", "cooccurrences")
                )
                score = states[row, t] @ p["words"][j] + p["word_bias"][i] + p["word_bias"][j]
                total += 0.5 * min(1, (x / 100) ** 0.75) * (score - np.log(x)) ** 2
                cells += 1
    return [(total, cells)]


def test_loss_and_gradient():
    check(GloVe(), definition)


def small(length, updates, each):
    """glove on 15 words of width 4, rows of `length` cells, `each` rows an update."""
    system = spec.with_field(
        spec.respell(systems.get("glove"), Vocab, lambda _: VOCAB), "width", WIDTH
    )
    recipe = glove.recipe(Phase(steps=9, batch=updates * each, length=length), each)
    return program(dataclasses.replace(system, recipe=recipe), 0)


def cells_of(updates, length):
    """Cells of an update have distinct words, so that a sum over them is Stanford's loop."""
    draw = np.random.default_rng(0)
    ids = [[draw.permutation(np.arange(3, 15))[:length] for _ in range(updates)] for _ in range(2)]
    batch = {"input_ids": ids[0], "context_ids": ids[1], "segment_ids": np.ones((updates, length))}
    batch = {name: jnp.asarray(value, jnp.int32) for name, value in batch.items()}
    batch["cooccurrences"] = jnp.asarray(draw.exponential(60.0, (updates, length)), jnp.float32)
    return {**batch, "rows": jnp.arange(updates, dtype=jnp.int32)}


def stanford(params, cells):
    """The parameters and sums after glove.c's loop, in float64."""
    tables = {path: np.asarray(value, np.float64) for path, value in params.items()}
    sums = {path: np.ones_like(value) for path, value in tables.items()}
    w, b, v, c = (
        f"main/{name}"
        for name in ("encoder/token", "encoder/bias", "heads_context/table", "heads_context/bias")
    )
    for i, j, x in cells:
        diff = tables[w][i] @ tables[v][j] + tables[b][i] + tables[c][j] - np.log(x)
        fdiff = diff if x > 100 else (x / 100) ** 0.75 * diff
        steps = {
            (w, i): 0.05 * fdiff * tables[v][j],
            (v, j): 0.05 * fdiff * tables[w][i],
            (b, i): fdiff,
            (c, j): fdiff,
        }
        for (path, row), step in steps.items():
            tables[path][row] -= step / np.sqrt(sums[path][row])
            sums[path][row] += step**2
    return tables, sums


def started(work, batch):
    draw, state = np.random.default_rng(1), work.init(batch)

    def fill(leaf):
        return jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32)

    return dataclasses.replace(state, params=jax.tree.map(fill, state.params))


@pytest.mark.full
def test_updates_are_those_of_stanfords_loop():
    work, batch = small(5, updates=4, each=1), cells_of(4, 5)
    state = started(work, batch)
    cells = zip(
        *(
            np.asarray(batch[name]).reshape(-1)
            for name in ("input_ids", "context_ids", "cooccurrences")
        ),
        strict=True,
    )
    expected, sums = stanford(flatten(state.params), cells)
    after, _ = jax.jit(work.step)(state, batch)
    found, squares = flatten(after.params), flatten(after.opt_state["nu"])
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-6, err_msg=path)
        np.testing.assert_allclose(squares[path], sums[path], rtol=1e-5, err_msg=path)


@pytest.mark.full
def test_the_native_step_is_the_plain_one_whatever_the_threads():
    """Cells that share words, and padding; one thread and three have the same bits."""
    if why := words.refusal("cells"):
        pytest.skip(f"no native kernel here: {why}")
    work = small(9, updates=2, each=2)
    draw = np.random.default_rng(2)
    ids = jnp.asarray(draw.integers(3, 8, (2, 4, 9)), jnp.int32)
    segments = jnp.ones((4, 9), jnp.int32).at[1, 5:].set(0).at[2].set(0)
    x = jnp.asarray(draw.exponential(60.0, (4, 9)), jnp.float32) * segments
    fields = {
        "input_ids": ids[0],
        "context_ids": ids[1],
        "segment_ids": segments,
        "cooccurrences": x,
    }
    batch = {**fields, "rows": jnp.arange(4, dtype=jnp.int32)}
    state = started(work, batch)
    plain, expected = jax.jit(work.step)(state, batch)
    native = dataclasses.replace(
        work, native=in_place.kernel_of(work.system, rules.make_mesh(devices=jax.devices()[:1]))
    )
    assert isinstance(native.native.settings, Cells)
    found, metrics = jax.jit(native.step)(state, batch)

    def close(a, b):
        return np.testing.assert_allclose(a, b, atol=2e-6, rtol=2e-5)

    jax.tree.map(close, (found.params, found.opt_state), (plain.params, plain.opt_state))
    np.testing.assert_allclose(metrics["grad_norm"], expected["grad_norm"], rtol=1e-4)
    for name, ratio in metrics.items():
        if name not in ("tokens", "grad_norm"):
            np.testing.assert_allclose(ratio.sum, expected[name].sum, rtol=1e-5)
            assert ratio.weight == expected[name].weight
    tables = tuple(flatten(state.params)[path] for path in native.native.paths)
    cells = (*ids, *work.system.objective.targets(batch))
    sums = jax.tree.map(jnp.ones_like, tables)

    def run(threads):
        return words.fit(
            tables, sums, cells, jnp.asarray([0.5, 1.0, 0.2, 0.3]), updates=2, threads=threads
        )

    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(run, static_argnums=0)(1),
        jax.jit(run, static_argnums=0)(3),
    )
