"""Encoders that read other fields than tokens: what the examples declare is what a request may
give."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.core.types import Encoded
from ptm_jax.encoders.model import Model
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.layers import Dense
from support.tiny_models import drawn
from support.tiny_systems import VOCAB, encoder, system


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured(slots.Examples):
    """Rows of tokens with three measurements each and an image of two; without tokens where `words`
    is False."""

    words: bool = True

    def spec(self, length, vocab):
        own = {"measured": Field((length, 3), np.float32), "image": Field((2,), np.float32)}
        tokens = {"input_ids": Field((length,))} if self.words else {}
        return {**tokens, "segment_ids": Field((length,)), **own}


class Mixed(slots.Encoder, nn.Module):
    """The states of a text with what is measured at its tokens."""

    text: nn.Module | None = None

    @property
    def embeddings(self):
        return self.text.embeddings if self.text is not None else None

    @nn.compact
    def __call__(self, batch, train=False):
        hidden = (
            Dense(16, name="measured")(batch["measured"])
            + Dense(16, name="image")(batch["image"])[:, None]
        )
        if self.text is not None:
            hidden = hidden + self.text(batch, train).hidden
        return Encoded(jnp.where(batch["segment_ids"][..., None] > 0, hidden, 0.0))


def model_of(words):
    network = Model(encoder=Mixed(text=encoder(layers=1) if words else None), heads={
        "classify": SequenceHead(2, Summary("none", at="first")),
    })  # fmt: skip
    record = system(
        "mixed", towers={"main": network}, examples=Measured(words=words), objective=None
    )
    ids = np.ones((2, 16), np.int32)
    batch = {
        "input_ids": ids,
        "segment_ids": ids,
        "measured": np.zeros((2, 16, 3)),
        "image": np.zeros((2, 2)),
    }
    return Pretrained(record, drawn(record, batch=batch))


def given(rows=3, length=5):
    draw = np.random.default_rng(0)
    return {"measured": draw.normal(size=(rows, length, 3)), "image": draw.normal(size=(rows, 2))}


@pytest.mark.full
def test_float_features_reach_the_encoder_and_are_padded_as_the_tokens():
    model, fields = model_of(True), given()
    ids = np.random.default_rng(1).integers(4, VOCAB.size, (3, 5))
    found = model(ids, fields=fields)
    assert found.hidden.shape == (3, 5, 16) and found.scores["classify"].shape == (3, 2)
    other = model(ids, fields={**fields, "measured": 2 * fields["measured"]}).hidden - found.hidden
    kernel = model.params["main"]["encoder"]["measured"]["kernel"]
    np.testing.assert_allclose(other, fields["measured"] @ kernel, atol=1e-4)
    alone = model(ids[:1], fields={name: value[:1] for name, value in fields.items()})
    np.testing.assert_allclose(alone.scores["classify"][0], found.scores["classify"][0], atol=1e-5)


def test_an_encoder_without_tokens_takes_its_fields_alone():
    model, fields = model_of(False), given()
    found = model(fields=fields).hidden
    own = model.params["main"]["encoder"]
    expected = (
        fields["measured"] @ own["measured"]["kernel"]
        + (fields["image"] @ own["image"]["kernel"])[:, None]
    )
    np.testing.assert_allclose(
        found, expected + own["measured"]["bias"] + own["image"]["bias"], atol=1e-4
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measurd": np.zeros((3, 5, 3))}, "unknown field 'measurd'.*Did you mean 'measured'"),
        (
            {"measured": np.zeros((3, 5, 2))},
            r"measured has the shape \(3, 5, 2\) .*expected \(3, 5, 3\) and float32",
        ),
        ({"image": np.zeros((2, 2))}, r"image has the shape \(2, 2\)"),
        ({"image": np.full((3, 2), "a")}, "type <U1"),
        (None, "reads the field 'measured' of a batch; give it in fields"),
    ],
)
def test_fields_that_do_not_fit_are_one_line(change, message):
    ids = np.full((3, 5), 4)
    with pytest.raises(UserError, match=message):
        model_of(True)(ids, fields=None if change is None else {**given(), **change})
    with pytest.raises(UserError, match="give input_ids"):
        model_of(False)()
