"""A config of a user's own: an encoder that mixes each token with its neighbours, trained to fill
masks."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.recipe import Constant, Phase
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.layers import Dense
from ptm_jax.systems import get

VOCAB = Vocab(size=200, pad=0, unk=1, cls=2, sep=3, mask=4)


class Words(slots.Embedding, nn.Module):
    """A token table."""

    vocab: Vocab
    width: int = 16

    def setup(self):
        self.rows = self.param("rows", nn.initializers.normal(0.3), (self.vocab.size, self.width))

    def __call__(self, batch):
        return self.rows[batch["input_ids"]]

    def table(self):
        return self.rows


class Neighbours(slots.Encoder, nn.Module):
    """A dense layer on each token and its two neighbours."""

    embed: Words

    @property
    def embeddings(self):
        return self.embed

    def table(self):
        return self.embed.table()

    @nn.compact
    def __call__(self, batch, train=False):
        real = batch["segment_ids"][..., None] > 0
        x = jnp.where(real, self.embed(batch), 0.0)
        beside = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
        near = jnp.concatenate([beside[:, :-2], x, beside[:, 2:]], -1)
        return Encoded(x + jnp.tanh(Dense(self.embed.width, name="mix")(near)))


system = dataclasses.replace(
    get("bert_tiny"),
    name="neighbours",
    towers={
        "main": Model(
            encoder=Neighbours(embed=Words(vocab=VOCAB)), heads={"mlm": MLMHead(vocab=VOCAB)}
        )
    },
)
system = dataclasses.replace(
    system,
    tokenizer=dataclasses.replace(system.tokenizer, vocab=200),
    recipe=dataclasses.replace(
        system.recipe, phases=(Phase(steps=6, batch=8, length=16),), lr=1e-2, schedule=Constant()
    ),
)
config = Experiment(system=system, heldout=0.2, precision="float32")
