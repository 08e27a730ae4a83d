"""The training step: micro-batches, seeds, zero weights, precision, ties; and the count of FLOPs.

That draws do not depend on how rows lie on devices is tested in `tests/mesh/test_equality.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import bert
from ptm_jax.training.steps.flops import flops
from ptm_jax.training.steps.step import argument, jitted, jitted_init, program
from support.tiny_runs import compiling

VOCAB = Vocab(size=200, pad=0, unk=1, cls=2, sep=3, mask=4)
ROWS, LENGTH = 16, 32


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


def tiny():
    """A BERT of two layers with MLM, NSP and dropout."""
    phases = (Phase(steps=10, batch=ROWS, length=LENGTH),)
    recipe = Recipe(
        phases=phases, lr=1e-3, optimizer=AdamW(weight_decay=0.0), schedule=Constant(), clip=1.0
    )
    return dataclasses.replace(bert("tiny", 2, 16, 2, VOCAB), recipe=recipe)


def batch_of(seed=0, rows=ROWS, empty=()):
    """Rows of very different lengths; those in `empty` are padding alone."""
    rng = np.random.default_rng(seed)
    real = rng.integers(3, LENGTH + 1, rows)
    real[list(empty)] = 0
    segments = (np.arange(LENGTH) < real[:, None]).astype(np.int32)
    ids = rng.integers(5, VOCAB.size, (rows, LENGTH)) * segments
    return {
        "input_ids": ids.astype(np.int32),
        "segment_ids": segments,
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (rows, 1)),
        "token_type_ids": (np.arange(LENGTH) >= real[:, None] // 2).astype(np.int32),
        "next_label": rng.integers(0, 2, rows).astype(np.int32),
        "rows": np.arange(rows, dtype=np.int32),
    }


def steps(system, batches, seed=0, accumulate=1):
    """[(state, metrics)] before and after every batch."""
    work = program(system, seed)
    step = jax.jit(work.step, static_argnames="accumulate")
    found = [(jax.jit(work.init)(batches[0]), None)]
    for batch in batches:
        found.append(step(found[-1][0], batch, accumulate=accumulate))
    return found


def distance(a, b):
    """The greatest difference of two trees of parameters, and where it is."""
    a, b = flatten(a), flatten(b)
    return max((float(np.abs(np.asarray(a[path]) - np.asarray(b[path])).max()), path) for path in a)


def bits(tree):
    return {path: np.asarray(leaf).tobytes() for path, leaf in flatten(tree).items()}


# Micro-batch m of 8 has rows m and m + 8: the fourth has no token, the sixth few, so that weights
# differ greatly.
BATCHES = [batch_of(seed, empty=(3, 11, 5)) for seed in range(3)]


@pytest.fixture(scope="module")
def once():
    return steps(tiny(), BATCHES)


@pytest.mark.full
def test_eight_micro_batches_give_the_update_of_one_batch(once):
    weights = [jnp.asarray(b["segment_ids"].reshape(2, 8, -1).sum((0, 2))) for b in BATCHES]
    assert all(w.min() == 0 and w.max() > 40 for w in weights)
    eight = steps(tiny(), BATCHES, accumulate=8)
    for count in (1, 3):
        (a, metrics), (b, others) = once[count], eight[count]
        assert distance(a.params, b.params)[0] < 1e-6
        moved = distance(a.params, once[0][0].params)[0]
        assert moved > 1e-4
        for name in metrics:
            values = [
                x[name].value() if hasattr(x[name], "value") else x[name] for x in (metrics, others)
            ]
            np.testing.assert_allclose(*values, rtol=2e-6, err_msg=name)


@pytest.mark.full
def test_a_seed_gives_the_same_bits_and_another_one_does_not(once):
    again, other = steps(tiny(), BATCHES), steps(tiny(), BATCHES, seed=1)
    assert bits(again[3][0]) == bits(once[3][0])
    assert distance(other[0][0].params, once[0][0].params)[0] > 0.01
    assert float(other[1][1]["loss"].value().sum()) != float(once[1][1]["loss"].value().sum())


@pytest.mark.full
def test_a_seed_that_is_an_argument_draws_the_bits_of_a_constant():
    """For the largest seed too, whose number has a bit less than an int32."""
    for seed in (3, 2**31 - 1):
        state, constant = steps(tiny(), BATCHES[:1], seed=seed)
        work = program(tiny(), 0)  # the argument decides
        begun = jitted_init(dataclasses.replace(work, seed=seed), None)(BATCHES[0])
        assert bits(begun) == bits(state[0])
        after, metrics = jitted(work, None, None, 1)(begun, BATCHES[0], argument(seed))
        assert float(metrics["loss"].sum.sum()) == float(constant[1]["loss"].sum.sum())
        assert distance(after.params, constant[0].params)[0] < 1e-7  # a compiler fuses otherwise


@pytest.mark.full
def test_a_seed_decides_on_dropout_and_corruption_too(once):
    """From the same parameters, two seeds give different losses and different masked positions."""
    work, other = program(tiny(), 0), program(tiny(), 1)
    loss = jax.jit(other.step, static_argnames="accumulate")(once[0][0], BATCHES[0], accumulate=1)[
        1
    ]["loss"]
    assert abs(float(loss.value().sum()) - float(once[1][1]["loss"].value().sum())) > 1e-3
    draws = [
        w._corrupt(BATCHES[0], "train", step, None)["mlm_positions"]
        for w, step in ((work, 0), (other, 0), (work, 1))
    ]
    assert not (draws[0] == draws[1]).all() and not (draws[0] == draws[2]).all()


@pytest.mark.full
def test_a_batch_without_weight_changes_nothing():
    """Zero loss, zero gradient, no NaN; with weight decay off, not a bit of a parameter moves."""
    empty = batch_of(empty=range(ROWS))
    for accumulate in (1, 8):
        (before, _), (after, metrics) = steps(tiny(), [empty], accumulate=accumulate)
        assert float(metrics["grad_norm"]) == 0.0 and np.all(
            np.asarray(metrics["loss"].value()) == 0.0
        )
        assert bits(before.params) == bits(after.params)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.opt_state))


@pytest.mark.full
def test_bfloat16_trains_as_float32_does():
    system = tiny()
    low = dataclasses.replace(
        system, towers=spec.respell(system.towers, Precision, Precision("bfloat16"))
    )
    curves = []
    for each in (system, low):
        found = steps(each, BATCHES * 8)
        curves.append(np.array([float(m["loss"].value().sum()) for _, m in found[1:]]))
        kinds = {
            leaf.dtype for leaf in jax.tree.leaves((found[-1][0].params, found[-1][0].opt_state))
        }
        assert kinds <= {jnp.dtype("float32"), jnp.dtype("int32")}
    np.testing.assert_allclose(*curves, rtol=0.01)
    assert curves[1][-3:].mean() < curves[1][:3].mean() - 0.03 and not np.array_equal(*curves)


@pytest.mark.full
def test_the_gradient_of_a_tied_table_sums_both_uses():
    """The token table is read by the embedding and by the vocabulary head."""
    work = program(tiny(), 0)
    params = jax.jit(work.init)(BATCHES[0]).params["main"]
    batch = work._corrupt(BATCHES[0], "train", 0, None)
    module = work.towers["main"]

    def loss(encoding, reading):
        hidden = Tower(module, encoding)(batch).hidden
        return MLM().of(Tower(module, reading), Encoded(hidden), batch).value()

    @jax.jit
    def gradients(params):
        return jax.grad(lambda p: loss(p, p))(params), *jax.grad(loss, argnums=(0, 1))(
            params, params
        )

    (path,) = [path for path in flatten(params) if path.endswith("token")]
    both, embedded, read = (np.asarray(flatten(tree)[path]) for tree in gradients(params))
    np.testing.assert_allclose(both, embedded + read, atol=1e-7)
    absent = np.setdiff1d(np.arange(VOCAB.size), batch["input_ids"])
    assert (
        (embedded[absent] == 0).all()
        and (np.abs(read).max(1) > 0).all()
        and np.abs(embedded).max() > 1e-4
    )


def test_flops_are_counted_through_loops_and_gradients():
    a, b = jnp.zeros((3, 4, 5)), jnp.zeros((3, 5, 6))

    def product(a, b):
        return jnp.einsum("bij,bjk->bik", a, b)

    one = 2 * 3 * 4 * 5 * 6
    assert flops(product, a, b) == one
    assert flops(jax.jit(product), jax.eval_shape(lambda: a), jax.eval_shape(lambda: b)) == one

    def squared(a, b):
        return (product(a, b) ** 2).sum()

    assert flops(jax.grad(squared, argnums=(0, 1)), a, b) == 3 * one

    def loop(x, w):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, length=7)[0]

    assert flops(loop, jnp.zeros((2, 8)), jnp.zeros((8, 8))) == 7 * 2 * 2 * 8 * 8

    def branch(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert flops(branch, jnp.zeros((2, 8)), jnp.zeros((8, 8))) == 2 * 2 * 2 * 8 * 8
    assert (
        flops(lambda x, w: Precision("bfloat16").dense(x, w), jnp.zeros((2, 8)), jnp.zeros((8, 4)))
        == 2 * 2 * 8 * 4
    )


def test_flops_of_a_bert_step_are_those_of_the_paper_and_pencil():
    """Forward products of a layer: 4 D^2 + 2 D F for a token's weights, 2 L D for its attention;
    backward twice that."""
    system = tiny()
    work = program(system, 0)
    state = jax.eval_shape(work.init, BATCHES[0])
    predicted, width, hidden, layers = -(-LENGTH * 15 // 100), 16, 64, 2
    layer = 2 * ROWS * LENGTH * (4 * width**2 + 2 * width * hidden + 2 * LENGTH * width)
    heads = 2 * ROWS * (predicted * (width**2 + width * VOCAB.size) + width**2 + 2 * width)
    assert flops(work.defined().step, state, BATCHES[0]) == 3 * (layers * layer + heads)
