"""A network of two inputs: text and float32 features of image regions, with co-attention (ViLBERT,
Lu et al. 2019)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Encoded, Visibility, add_losses
from ptm_jax.corruptions.base import Chain, choose
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense
from ptm_jax.objectives.base import binary_loss, gather, token_loss
from ptm_jax.objectives.text.language import MLM
from support.tiny_systems import (
    LENGTH,
    ROWS,
    VOCAB,
    WIDTH,
    check,
    encoder,
    evaluate,
    sees,
    sentences,
    standing,
    system,
    towers,
)

REGIONS, FEATURES, CLASSES, VISUAL = 4, 6, 3, 24


class CoAttention(slots.Encoder, nn.Module):
    """A text stream and an image stream of another width; then each attends to the other's keys and
    values."""

    text: nn.Module
    image: Block
    text_reads: Block
    image_reads: Block

    @property
    def embeddings(self):
        return self.text.embeddings

    def table(self):
        return self.text.table()

    def level_of(self, path):
        part, _, rest = path.removeprefix("encoder/").partition("/")
        return (
            self.text.level_of(f"encoder/{rest}")
            if part == "text"
            else {"regions": 0, "image": 1}.get(part, 2)
        )

    def refusal(self, system) -> str | None:
        return (
            None
            if system.examples == "regions"
            else "CoAttention reads batch['regions'], which these rows lack"
        )

    @nn.compact
    def __call__(self, batch, train=False):
        words, regions = batch["segment_ids"], batch["region_segments"]

        def context(queries, keys):
            return Context(
                visibility=Visibility(jnp.maximum(queries, 1), keys),
                rows=batch["rows"],
                train=train,
            )

        t = self.text(batch, train).hidden
        v = Dense(VISUAL, initializer=Normal(0.3), name="regions")(batch["regions"])
        v, _, _ = self.image(v, context(regions, regions))
        new_t, _, _ = self.text_reads(t, context(words, regions), source=v)
        new_v, _, _ = self.image_reads(v, context(regions, words), source=t)
        return Encoded(new_t, extra={"image": new_v})


class Align(slots.Head, nn.Module):
    """Whether text and image belong together: the product of both first tokens, each made as wide
    as the other."""

    @staticmethod
    def example(encoded):
        return encoded.hidden[:, 0], encoded.extra["image"][:, 0]

    @nn.compact
    def __call__(self, text, image, *, table=None, context=None):
        both = (Dense(WIDTH, initializer=Normal(0.3))(x) for x in (text, image))
        return Dense(1, initializer=Normal(0.3))(next(both) * next(both))[:, 0]


class RegionClasses(Classifier):
    @staticmethod
    def example(encoded):
        return (encoded.extra["image"],)


class RegionMasking(slots.Corruption):
    """Corruption: one region of each row is predicted; its features are zeroed nine times in
    ten."""

    def __call__(self, key, batch):
        rows, regions = batch["rows"], batch["regions"]
        allowed = batch["region_segments"] > 0
        at, weights = choose(named(key, "choose"), rows, allowed, jnp.ones_like(rows), 1)
        zero = jax.vmap(lambda k: jax.random.uniform(k, (1,)) < 0.9)(
            row_keys(named(key, "zero"), rows)
        )
        hide = (jnp.arange(regions.shape[1]) == at) & zero
        made = {
            "regions": jnp.where(hide[..., None], 0.0, regions),
            "region_positions": at,
            "region_weights": weights,
        }
        return {**batch, **made}


def multimodal(towers, batch, key):
    """Masked words, the class distribution of masked regions, and whether text and image belong
    together."""
    tower = towers["main"]
    encoded = tower(batch, key)
    image = encoded.extra["image"]
    scores = tower.head("regions", gather(image, batch["region_positions"]))
    soft = gather(batch["region_classes"], batch["region_positions"])
    kl = (soft * (jnp.log(soft) - jax.nn.log_softmax(scores))).sum(-1)
    aligned = tower.head("align", encoded.hidden[:, 0], image[:, 0])
    return add_losses(
        (1.0, MLM().of(tower, encoded, batch)),
        (1.0, token_loss(kl, batch["region_weights"], name="region_kl")),
        (1.0, binary_loss(aligned, batch["aligned"], jnp.ones_like(aligned), "align_nll")),
    )


def vilbert():
    def block(width):
        def attention():
            return Attention(heads=2, width=width, initializer=Normal(0.2))

        return Block(
            attention=attention(),
            ffn=FeedForward(hidden=width, initializer=Normal(0.2)),
            dropout=0.1,
        )

    network: dict[str, Any] = {"text": encoder(layers=1), "image": block(VISUAL)}
    network |= {"text_reads": block(WIDTH), "image_reads": block(VISUAL)}
    heads = {"mlm": MLMHead(vocab=VOCAB), "regions": RegionClasses(CLASSES), "align": Align()}
    return system(
        "vilbert",
        towers={"main": Model(encoder=CoAttention(**network), heads=heads)},
        corruption=Chain(parts=(TokenMasking(vocab=VOCAB, rate=0.25), RegionMasking())),
        objective=multimodal,
        examples="regions",
    )


@pytest.mark.full
def test_streams_read_each_other():
    """Would have found: layers outside of a stack had level 0, and rows without regions failed
    inside of the step."""
    draw = np.random.default_rng(1)
    batch = sentences(
        regions=jnp.asarray(draw.normal(size=(ROWS, REGIONS, FEATURES)), jnp.float32),
        region_segments=jnp.ones((ROWS, REGIONS), jnp.int32).at[:, -1].set(0),
        region_classes=jnp.asarray(draw.dirichlet(np.ones(CLASSES), (ROWS, REGIONS)), jnp.float32),
        aligned=jnp.asarray([1, 0, 1, 0]),
    )
    run = check(vilbert(), batch, steps=30)
    found = run.program.freedom.places(run.last.params)
    levels = {
        path.split("/")[2]: place.level
        for path, place in found.items()
        if path.startswith("main/encoder/")
    }
    assert (
        levels["regions"] == 0
        and levels["image"] == 1
        and levels["image_reads"] == levels["text_reads"] == 2
    )
    assert (
        found["main/encoder/text/stack/block/ffn/up/kernel"].level == 1
        and found["main/heads_mlm/bias"].level == 3
    )
    assert all("regions" in reason for reason in standing(vilbert()).values())
    tower = towers(run)["main"]
    mix = jax.random.normal(jax.random.key(3), (WIDTH,))

    def words(regions):
        return tower({**batch, "regions": regions}).hidden[0] @ mix

    slopes = evaluate(jax.jacrev(words), batch["regions"])[:, 0]
    real = np.asarray(batch["region_segments"])[0] > 0
    np.testing.assert_array_equal((slopes != 0).any(-1), np.broadcast_to(real, (LENGTH, REGIONS)))
    one = jax.tree.map(lambda leaf: leaf[:1], batch)
    assert sees(
        tower, "encoder/text/embed/token", lambda t: t(one).extra["image"][0], one["input_ids"][0]
    ).all()
