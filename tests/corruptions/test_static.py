"""Static masking: a row has as many corruptions as copies, wherever and whenever it is seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.static import Static, digest
from ptm_jax.corruptions.token import TokenMasking

VOCAB = Vocab(size=1000, pad=0, unk=1, cls=2, sep=3, mask=4)
MASKING = TokenMasking(vocab=VOCAB)
ROWS, STEPS = 32, 400


@pytest.fixture(scope="module")
def batch():
    ids = np.random.default_rng(0).integers(5, 1000, (ROWS, 64)).astype(np.int32)
    ids[:, 0], ids[:, 50:] = 2, 0
    return {"input_ids": jnp.asarray(ids), "segment_ids": jnp.asarray((ids > 0).astype(np.int32))}


def visits(corruption, batch, steps=STEPS, first=0):
    """The positions [steps, B, P] that a row is masked at over the steps."""
    keys = jax.vmap(lambda step: jax.random.fold_in(jax.random.key(3), step))(jnp.arange(first, first + steps))
    return np.asarray(jax.jit(jax.vmap(lambda key: corruption(key, batch)["mlm_positions"]))(keys))


def draws_of(seen, row):
    return {tuple(positions) for positions in seen[:, row].tolist()}


@pytest.fixture(scope="module")
def seen(batch):
    return visits(Static(corruption=MASKING, copies=4), {**batch, "rows": jnp.arange(ROWS)})


def test_a_row_has_as_many_draws_as_copies_each_as_often(seen):
    for row in range(ROWS):
        counts = np.unique(seen[:, row], axis=0, return_counts=True)[1]
        assert len(counts) == 4
        assert ((counts - STEPS / 4) ** 2 / (STEPS / 4)).sum() < 21.1  # 99.99% point of chi-square, 3 degrees of freedom


def test_rows_visit_their_copies_independently(seen):
    first = (seen[:, :1] == seen[:1, :1]).all(-1)[:, 0]
    second = (seen[:, 1:2] == seen[:1, 1:2]).all(-1)[:, 0]
    assert abs((first & second).mean() - first.mean() * second.mean()) < 3 * np.sqrt(1 / 16 / STEPS)


def test_the_draws_are_the_rows_own_wherever_and_whenever_it_is_seen(batch, seen):
    turned = {name: value[::-1] for name, value in batch.items()} | {"rows": 1000 + jnp.arange(ROWS)}
    later = visits(Static(corruption=MASKING, copies=4), turned, first=5000)
    assert [draws_of(later, ROWS - 1 - row) for row in range(ROWS)] == [draws_of(seen, row) for row in range(ROWS)]


def test_another_seed_gives_other_draws(batch, seen):
    other = visits(Static(corruption=MASKING, copies=4, seed=1), {**batch, "rows": jnp.arange(ROWS)})
    assert not any(draws_of(other, row) & draws_of(seen, row) for row in range(ROWS))


def test_everything_the_corruption_says_is_there_and_nothing_else(batch):
    static = Static(corruption=MASKING)
    out = static(jax.random.key(0), batch)
    assert out.keys() == MASKING(jax.random.key(0), batch).keys()
    hidden = np.take_along_axis(np.asarray(batch["input_ids"]), np.asarray(out["mlm_positions"]), 1)
    np.testing.assert_array_equal(out["mlm_labels"], hidden)
    rows = jnp.arange(7, 7 + ROWS)
    np.testing.assert_array_equal(static(jax.random.key(0), {**batch, "rows": rows})["rows"], rows)


def test_a_slice_of_the_batch_gives_a_slice_of_the_result(batch):
    static = Static(corruption=MASKING)
    whole = static(jax.random.key(0), {**batch, "rows": jnp.arange(ROWS)})
    part = {name: value[8:16] for name, value in batch.items()} | {"rows": jnp.arange(8, 16)}
    for name, value in static(jax.random.key(0), part).items():
        np.testing.assert_array_equal(whole[name][8:16], value)


def test_digests_tell_rows_apart():
    ids = np.random.default_rng(1).integers(0, 1000, (5000, 16))
    ids[1] = ids[0]
    ids[2, [0, 1]] = ids[0, [1, 0]]
    ids[2, 2:] = ids[0, 2:]
    ids[3] = ids[0]
    ids[3, 5] += 1
    numbers = np.asarray(digest(jnp.asarray(ids)))
    assert numbers[0] == numbers[1] and len(set(numbers.tolist())) == 4999


def test_the_objection_is_the_corruptions():
    class Objects:
        def refusal(self, system):
            return f"not with {system}"

    assert Static(corruption=Objects()).refusal("this") == "not with this"
    assert Static(corruption=MASKING).refusal("this") is None


def test_no_copies_are_refused():
    with pytest.raises(ValueError, match="copies"):
        Static(corruption=MASKING, copies=0)
