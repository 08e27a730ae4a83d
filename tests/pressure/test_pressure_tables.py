"""Systems without a Transformer: skip-gram, GloVe, ELMo."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tiny import ROWS, VOCAB, WIDTH, Freeze, bits, check, close, recipe, sees, sentences, start, system, towers

from ptm_jax.core.recipe import SGD, Adagrad
from ptm_jax.core.streams import row_keys, stream
from ptm_jax.core.system import Tie
from ptm_jax.core.types import Encoded, Loss, add_losses
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings import Embeddings, table_of
from ptm_jax.nn.heads import Classifier, Readout
from ptm_jax.nn.initializers import Normal, Uniform
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.language import token_loss

PLAIN = recipe(1.0, SGD())


def renumber(ids):
    """The distinct ids of a batch (padded with V), and the ids as places among them."""
    unique = jnp.unique(ids, size=ids.size, fill_value=VOCAB.size)
    return unique, jnp.searchsorted(unique, ids).astype(jnp.int32)


class Centres(nn.Module):
    """No stack: a token is its vector."""

    def setup(self):
        self.token = table_of(self, "token", Uniform(0.5), (VOCAB.size, WIDTH))

    def table(self):
        return self.token

    def __call__(self, batch, train=False):
        return Encoded(self.token[batch["centre"]])


class Contexts(nn.Module):
    """Scores [B, C] of centres [B, D] against context words [B, C], from a table of its own."""

    @staticmethod
    def example(encoded):
        return encoded.hidden, jnp.zeros((1, 1), jnp.int32)

    @nn.compact
    def __call__(self, centres, words, *, table):
        out = table_of(self, "table", Uniform(0.5), (VOCAB.size, WIDTH))
        return jnp.einsum("bd,bcd->bc", centres, out[words])


@dataclasses.dataclass(frozen=True)
class NoiseWords:
    """Corruption: `words` [B, 1 + K] are the true context and K draws of unigram^0.75; a draw of the truth counts 0."""

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
    return Loss((jax.nn.softplus(-signs * scores) * batch["word_weights"]).sum(), jnp.float32(len(scores)))


class SparseSGNS:
    """The same objective, which also says which rows it reads."""

    def __call__(self, towers, batch, key):
        return negative_sampling(towers, batch, key)

    def rows(self, batch):
        (centres, centre), (contexts, words) = renumber(batch["centre"]), renumber(batch["words"])
        selected = {"main/encoder/token": centres, "main/heads_context/table": contexts}
        return {**batch, "centre": centre, "words": words}, selected


def skipgram():
    return system(
        "skipgram",
        towers={"main": Model(encoder=Centres(), heads={"context": Contexts()})},
        corruption=NoiseWords(counts=(0.0,) * 4 + tuple(1.0 / n for n in range(1, 27)) + (0.0,) * (VOCAB.size - 30)),
        objective=SparseSGNS(),
        recipe=PLAIN,
    )


def pairs():
    centre = jnp.asarray([5, 6, 7, 5], jnp.int32)
    return {"centre": centre, "context": centre + 1, "rows": jnp.arange(ROWS, dtype=jnp.int32)}


def test_skipgram_touches_only_the_rows_it_reads():
    sparse, batch = skipgram(), pairs()
    run = check(sparse, batch, steps=20)
    after = run.second.params
    read = sparse.objective.rows(sparse.corruption(stream(0, "corruption-train", 0), batch))[1]
    for path, ids in read.items():
        tower, part, name = path.split("/")
        old, new = run.first.params[tower][part][name], after[tower][part][name]
        moved = {row for row in range(VOCAB.size) if bits(old[row]) != bits(new[row])}
        assert moved == {int(i) for i in ids if i < VOCAB.size}
        assert len(moved) < VOCAB.size // 2


def test_skipgram_sparse_is_dense_under_sgd():
    batch, results = pairs(), []
    for objective in (SparseSGNS(), negative_sampling):
        program, state = start(dataclasses.replace(skipgram(), objective=objective), batch)
        update = jax.jit(program.step)
        for _ in range(5):
            state, _ = update(state, batch)
        results.append(state.params)
    close(*results, 1e-6)


class CoOccurrence(nn.Module):
    """w_i . w~_j + b_i + b~_j of a batch of pairs: [B]."""

    @nn.compact
    def __call__(self, batch, train=False):
        def look(name, shape, ids):
            return table_of(self, name, Uniform(0.5 / WIDTH), (VOCAB.size, *shape))[ids]

        i, j = batch["i"], batch["j"]
        product = (look("word", (WIDTH,), i) * look("context", (WIDTH,), j)).sum(-1)
        return Encoded(product + look("word_bias", (), i) + look("context_bias", (), j))


@dataclasses.dataclass(frozen=True)
class GloVe:
    """sum f(x) (w_i . w~_j + b_i + b~_j - log x)^2, f(x) = min(1, (x / 100)^0.75)."""

    most: float = 100.0
    power: float = 0.75

    def __call__(self, towers, batch, key):
        x = batch["x"]
        error = towers["main"](batch).hidden - jnp.log(x)
        return Loss((jnp.minimum(1.0, (x / self.most) ** self.power) * error**2).sum(), jnp.float32(len(x)))

    def rows(self, batch):
        (words, i), (contexts, j) = renumber(batch["i"]), renumber(batch["j"])
        tables = {"word": words, "word_bias": words, "context": contexts, "context_bias": contexts}
        return {**batch, "i": i, "j": j}, {f"main/encoder/{name}": ids for name, ids in tables.items()}


def test_glove_fits_logarithms_and_sparse_adagrad_is_dense():
    glove = system(
        "glove",
        towers={"main": Model(encoder=CoOccurrence(), heads={})},
        objective=GloVe(),
        recipe=recipe(0.5, Adagrad()),
    )
    i, j, x = jnp.asarray([4, 5, 4, 7]), jnp.asarray([5, 4, 9, 4]), jnp.asarray([3.0, 200.0, 40.0, 1.0])
    batch = {"i": i, "j": j, "x": x, "rows": jnp.arange(ROWS)}
    run = check(glove, batch, steps=30)
    np.testing.assert_allclose(towers(run)["main"](batch).hidden, np.log(x), atol=0.1)
    objective = GloVe()
    dense = dataclasses.replace(glove, objective=lambda towers, batch, key: objective(towers, batch, key))
    program, state = start(dense, batch)
    update = jax.jit(program.step)
    for _ in range(30):
        state, _ = update(state, batch)
    close(state, run.last, 1e-6)


class Directional(nn.Module):
    """LSTM layers in one direction, a residual between layers. `layers[0]` is the token layer."""

    embed: Embeddings
    reverse: bool
    layers: int = 2

    def table(self):
        return self.embed.table()

    @nn.compact
    def __call__(self, batch, train=False):
        x = self.embed(batch, Context(visibility=None, rows=batch["rows"], train=train))
        states = [x]
        for n in range(self.layers):
            cell = nn.OptimizedLSTMCell(WIDTH)
            h = nn.RNN(cell, reverse=self.reverse, keep_order=True, name=f"lstm{n}")(x)
            x = h + x if n else h
            states.append(x)
        return Encoded(x, jnp.stack(states))


class Softmax(nn.Module):
    """A vocabulary head with a table of its own."""

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table):
        return Readout(hidden, self.param("table", Normal(0.1), table.shape), None)


class LayerMix(nn.Module):
    """gamma * sum_l softmax(w)_l h_l over the layers [N+1, B, L, 2 D] of both directions (ELMo, Eq. 1)."""

    @staticmethod
    def example(encoded):
        return (jnp.concatenate([encoded.layers, encoded.layers], -1),)

    @nn.compact
    def __call__(self, layers, *, table=None):
        shares = jax.nn.softmax(self.param("weights", nn.initializers.zeros, layers.shape[:1]))
        return self.param("gamma", nn.initializers.ones, ()) * jnp.einsum("n,nbld->bld", shares, layers)


class Tags(Classifier):
    """A class for every token, of features twice as wide as the encoder's."""

    @staticmethod
    def example(encoded):
        return (jnp.concatenate([encoded.hidden, encoded.hidden], -1),)


def bilm(towers, batch, key):
    """log p(x_t | x_<t) + log p(x_t | x_>t), one softmax."""
    ids, ahead, back = batch["input_ids"], towers["forward"], towers["backward"]
    ones = jnp.ones_like(ids[:, 1:], jnp.float32)
    after = ahead.head("lm", ahead(batch, key).hidden[:, :-1]).nll(ids[:, 1:])
    before = back.head("lm", back(batch, key).hidden[:, 1:]).nll(ids[:, :-1])
    losses = token_loss(after, ones, name="forward_nll"), token_loss(before, ones, name="backward_nll")
    return add_losses((1.0, losses[0]), (1.0, losses[1]))


def tagging(towers, batch, key):
    """A downstream task on the mixed layers of both directions."""
    head = towers["forward"].head
    layers = jnp.concatenate([towers[name](batch).layers for name in ("forward", "backward")], -1)
    scores = jax.nn.log_softmax(head("tags", head("mix", layers)))
    nll = -jnp.take_along_axis(scores, batch["tags"][..., None], -1)[..., 0]
    return token_loss(nll, jnp.ones_like(nll))


def elmo():
    embed = Embeddings(vocab=VOCAB, width=WIDTH, initializer=Normal(0.1), dropout=0.1)
    shared = ("encoder/embed/token", "heads_lm/table")
    return system(
        "elmo",
        towers={
            name: Model(encoder=Directional(embed=embed, reverse=name == "backward"), heads={"lm": Softmax()})
            for name in ("forward", "backward")
        },
        objective=bilm,
        ties=tuple(Tie(path=f"backward/{path}", source=f"forward/{path}") for path in shared),
    )


def elmo_tagger():
    parent = elmo()
    ahead = parent.towers["forward"]
    ahead = dataclasses.replace(ahead, heads={**ahead.heads, "mix": LayerMix(), "tags": Tags(2)})
    return dataclasses.replace(
        parent,
        towers={**parent.towers, "forward": ahead},
        objective=tagging,
        adapt=(Freeze(r"encoder/|heads_lm/"),),
        recipe=recipe(0.1),
    )


def test_elmo_directions_share_the_token_layer_and_the_softmax():
    batch = sentences()
    run = check(elmo(), batch)
    assert "token" not in run.last.params["backward"]["encoder"].get("embed", {})
    both = towers(run)
    tables = [both[name].params["heads_lm"]["table"] for name in ("forward", "backward")]
    assert tables[0] is tables[1]
    one = {name: leaf[:1] for name, leaf in batch.items()}
    for name, order in (("forward", np.tril), ("backward", np.triu)):
        seen = sees(both[name], "encoder/embed/token", lambda t: t(one).hidden[0], one["input_ids"][0])
        np.testing.assert_array_equal(seen, order(np.ones_like(seen)))


def test_elmo_layers_mix_in_a_downstream_head():
    run = check(elmo_tagger(), sentences(tags=sentences()["input_ids"] % 2), splits=False)
    assert {path for path in run.last.params["forward"]} == {"encoder", "heads_lm", "heads_mix", "heads_tags"}
    assert float(run.last.params["forward"]["heads_mix"]["gamma"]) != 1.0
