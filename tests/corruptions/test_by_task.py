"""A corruption for each task of the rows, against the corruptions by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.streams import named
from ptm_jax.corruptions.by_task import ByTask
from ptm_jax.corruptions.masking.noise import TokenDeletion
from ptm_jax.corruptions.masking.token import TokenMasking
from support import corrupting
from support.corrupting import VOCAB

PARTS = (
    TokenMasking(vocab=VOCAB, rate=0.15),
    None,
    TokenMasking(vocab=VOCAB, rate=0.5),
    TokenDeletion(vocab=VOCAB, rate=0.3),
)


@pytest.mark.full
def test_every_row_has_the_fields_of_its_task():
    batch = corrupting.documents(rows=12)
    tasks = np.arange(12) % 4
    batch = {**batch, "task": jnp.asarray(tasks, jnp.int32)}
    key = jax.random.key(3)

    def both(key, batch):
        alone = [
            batch if part is None else part(named(key, f"part{number}"), batch)
            for number, part in enumerate(PARTS)
        ]
        return ByTask(parts=PARTS)(key, batch), alone

    out, alone = jax.tree.map(np.asarray, jax.jit(both)(key, batch))
    assert out["mlm_labels"].shape == alone[2]["mlm_labels"].shape
    for row, task in enumerate(tasks):
        for name, values in out.items():
            wanted = alone[task].get(name, np.zeros(1))[row : row + 1].reshape(-1)
            padded = np.zeros(values[row].size)
            padded[: wanted.size] = wanted
            np.testing.assert_array_equal(values[row].reshape(-1), padded, err_msg=name)
    masked, masks = out["mlm_weights"].sum(1) > 0, np.isin(tasks, (0, 2))
    assert masked[masks].any() and not masked[~masks].any()
