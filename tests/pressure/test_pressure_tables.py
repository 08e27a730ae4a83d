"""Tables of word vectors whose steps read a few rows: skip-gram and GloVe."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import SGD, Adagrad
from ptm_jax.core.streams import row_keys, stream
from ptm_jax.core.types import Encoded, Loss
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.nn.initializers import Uniform
from support.tiny_systems import (
    ROWS,
    VOCAB,
    WIDTH,
    bits,
    check,
    close,
    recipe,
    standing,
    start,
    system,
    towers,
)

PLAIN = recipe(1.0, SGD())


def renumber(ids):
    """The distinct ids of a batch (padded with V), and the ids as places among them."""
    unique = jnp.unique(ids, size=ids.size, fill_value=VOCAB.size)
    return unique, jnp.searchsorted(unique, ids).astype(jnp.int32)


class Centres(slots.Encoder, nn.Module):
    """No stack: a token is its vector."""

    def refusal(self, system) -> str | None:
        return (
            None
            if system.examples == "pairs"
            else "Centres reads batch['centre'], which these rows lack"
        )

    def setup(self):
        self.token = table_of(self, "token", Uniform(0.5), (VOCAB.size, WIDTH))

    def table(self):
        return self.token

    def __call__(self, batch, train=False):
        return Encoded(self.token[batch["centre"]])


class Contexts(slots.Head, nn.Module):
    """Scores [B, C] of centres [B, D] against context words [B, C], from a table of its own."""

    @staticmethod
    def example(encoded):
        return encoded.hidden, jnp.zeros((1, 1), jnp.int32)

    @nn.compact
    def __call__(self, centres, words, *, table, context=None):
        out = table_of(self, "table", Uniform(0.5), (VOCAB.size, WIDTH))
        return jnp.einsum("bd,bcd->bc", centres, out[words])


@dataclasses.dataclass(frozen=True)
class NoiseWords(slots.Corruption):
    """Corruption: `words` [B, 1 + K] are the true context and K draws of unigram^0.75; a draw of
    the truth counts 0."""

    counts: tuple[float, ...]
    noise: int = 5

    def __call__(self, key, batch):
        logits = 0.75 * jnp.log(jnp.asarray(self.counts))
        draw = jax.vmap(lambda k: jax.random.categorical(k, logits, shape=(self.noise,)))
        drawn = draw(row_keys(key, batch["rows"])).astype(jnp.int32)
        true = batch["context"][:, None]
        words = jnp.concatenate([true, drawn], 1)
        weights = jnp.concatenate([jnp.ones_like(true), drawn != true], 1).astype(jnp.float32)
        return {**batch, "words": words, "word_weights": weights}


def negative_sampling(towers, batch, key):
    """-log sigma(v'_o . v_i) - sum_n log sigma(-v'_n . v_i), summed over pairs."""
    tower = towers["main"]
    scores = tower.head("context", tower(batch).hidden, batch["words"])
    signs = jnp.where(jnp.arange(scores.shape[1]) == 0, 1.0, -1.0)
    return Loss(
        (jax.nn.softplus(-signs * scores) * batch["word_weights"]).sum(), jnp.float32(len(scores))
    )


class SparseSGNS(slots.Objective):
    """The same objective, with the rows that it reads."""

    def __call__(self, towers, batch, key):
        return negative_sampling(towers, batch, key)

    def select(self, system, batch):
        (centres, centre), (contexts, words) = renumber(batch["centre"]), renumber(batch["words"])
        selected = {"main/encoder/token": centres, "main/heads_context/table": contexts}
        return {**batch, "centre": centre, "words": words}, selected


def skipgram():
    return system(
        "skipgram",
        towers={"main": Model(encoder=Centres(), heads={"context": Contexts()})},
        corruption=NoiseWords(
            counts=(0.0,) * 4 + tuple(1.0 / n for n in range(1, 27)) + (0.0,) * (VOCAB.size - 30)
        ),
        objective=SparseSGNS(),
        examples="pairs",
        recipe=PLAIN,
    )


def pairs():
    centre = jnp.asarray([5, 6, 7, 5], jnp.int32)
    return {"centre": centre, "context": centre + 1, "rows": jnp.arange(ROWS, dtype=jnp.int32)}


@pytest.mark.full
def test_skipgram_touches_only_the_rows_it_reads():
    sparse, batch = skipgram(), pairs()
    run = check(sparse, batch, steps=20)
    after = run.second.params
    noisy = sparse.corruption(stream(0, "corruption-train", 0), batch)
    read = sparse.objective.select(sparse, noisy)[1]
    for path, ids in read.items():
        tower, part, name = path.split("/")
        old, new = run.first.params[tower][part][name], after[tower][part][name]
        moved = {row for row in range(VOCAB.size) if bits(old[row]) != bits(new[row])}
        assert moved == {int(i) for i in ids if i < VOCAB.size}
        assert len(moved) < VOCAB.size // 2


@pytest.mark.full
def test_skipgram_sparse_is_dense_under_sgd():
    batch, results = pairs(), []
    for objective in (SparseSGNS(), negative_sampling):
        program, state = start(dataclasses.replace(skipgram(), objective=objective), batch)
        update = jax.jit(program.step)
        for _ in range(5):
            state, _ = update(state, batch)
        results.append(state.params)
    close(*results, 1e-6)


class Misspelt(SparseSGNS):
    def select(self, system, batch):
        batch, selected = super().select(system, batch)
        return batch, {
            path.replace("context/table", "context/tables"): ids for path, ids in selected.items()
        }


def test_a_table_that_no_parameter_has_is_an_error():
    """Would have found: the path was ignored, and the renumbered ids trained other rows of the
    whole table."""
    program, state = start(dataclasses.replace(skipgram(), objective=Misspelt()), pairs())
    with pytest.raises(
        UserError, match="context/tables', which no tower has.*main/heads_context/table"
    ):
        jax.eval_shape(program.step, state, pairs())


def test_tasks_of_running_text_are_refused():
    assert all("centre" in reason for reason in standing(skipgram()).values())


class CoOccurrence(slots.Encoder, nn.Module):
    """w_i . w~_j + b_i + b~_j of a batch of pairs: [B]."""

    @nn.compact
    def __call__(self, batch, train=False):
        def look(name, shape, ids):
            return table_of(self, name, Uniform(0.5 / WIDTH), (VOCAB.size, *shape))[ids]

        i, j = batch["i"], batch["j"]
        product = (look("word", (WIDTH,), i) * look("context", (WIDTH,), j)).sum(-1)
        return Encoded(product + look("word_bias", (), i) + look("context_bias", (), j))


@dataclasses.dataclass(frozen=True)
class GloVe(slots.Objective):
    """sum f(x) (w_i . w~_j + b_i + b~_j - log x)^2, f(x) = min(1, (x / 100)^0.75)."""

    ceiling: float = 100.0
    power: float = 0.75

    def __call__(self, towers, batch, key):
        x = batch["x"]
        error = towers["main"](batch).hidden - jnp.log(x)
        return Loss(
            (jnp.minimum(1.0, (x / self.ceiling) ** self.power) * error**2).sum(),
            jnp.float32(len(x)),
        )

    def select(self, system, batch):
        (words, i), (contexts, j) = renumber(batch["i"]), renumber(batch["j"])
        tables = {"word": words, "word_bias": words, "context": contexts, "context_bias": contexts}
        return {**batch, "i": i, "j": j}, {
            f"main/encoder/{name}": ids for name, ids in tables.items()
        }


@pytest.mark.full
def test_glove_fits_logarithms_and_sparse_adagrad_is_dense():
    glove = system(
        "glove",
        towers={"main": Model(encoder=CoOccurrence(), heads={})},
        objective=GloVe(),
        recipe=recipe(0.5, Adagrad()),
    )
    i, j, x = (
        jnp.asarray([4, 5, 4, 7]),
        jnp.asarray([5, 4, 9, 4]),
        jnp.asarray([3.0, 200.0, 40.0, 1.0]),
    )
    batch = {"i": i, "j": j, "x": x, "rows": jnp.arange(ROWS)}
    run = check(glove, batch, steps=30)
    np.testing.assert_allclose(towers(run)["main"](batch).hidden, np.log(x), atol=0.1)
    objective = GloVe()
    dense = dataclasses.replace(
        glove, objective=lambda towers, batch, key: objective(towers, batch, key)
    )
    program, state = start(dense, batch)
    update = jax.jit(program.step)
    for _ in range(30):
        state, _ = update(state, batch)
    close(state, run.last, 1e-6)
