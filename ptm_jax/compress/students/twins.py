"""TwinBERT: a student that reads the two texts of a pair apart.

Lu et al. 2020, arXiv 2002.06275.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.compress.students.from_teacher import Student
from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Batch, Encoded
from ptm_jax.corruptions.compact import in_document
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.task_heads import text_classes
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Module
from ptm_jax.nn.parallel import table_of
from ptm_jax.statistics.tri_letters import ROWS, TriLetters

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Vocab


Pooling = Literal["weighted", "first"]
Crossing = Literal["cosine", "residual"]


class TriLetterEmbeddings(Embeddings):
    """Maps ids [B, L] to the sum of letter trigrams' vectors and of the position's [B, L, D].

    Section 3.1.
    """

    logical_axes = {"trigrams": (None, None)}

    letters: TriLetters = TriLetters()

    def setup(self):
        self.trigrams = table_of(self, "trigrams", self.initializer, (ROWS, self.width))

    def table(self):
        return None

    def __call__(self, batch, context: Context, table=None):
        codes = jnp.asarray(self.letters.values)[batch["input_ids"]]
        rows = jnp.where(codes[..., None] > 0, jnp.asarray(self.trigrams)[codes], 0.0)
        x = rows.sum(-2) + self.position(context.positions, self.width)
        return x.astype(self.precision.dtype)


class TwinEncoder(Transformer):
    """One Transformer for both texts of a row [CLS] a [SEP] b [SEP].

    [CLS] a, and [CLS] b in the place of the [SEP] between them, do not see each other, and
    positions begin anew. The vector of a text is therefore the same in any pair and alone.

    `extra["vectors"]` [B, L, D] is the vector of each token's text, of the first text on padding.
    `pooling`: the mean with the softmax of a learned score of each token ("weighted"), or the first
    state ("first") (section 3.2).
    """

    pooling: Pooling = "weighted"

    gives_vectors = True

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        ids, sides = twins(batch, self.embed.vocab)
        apart = {**batch, "input_ids": ids, "segment_ids": sides, "positions": in_document(sides)}
        encoded = super().__call__(apart, train)
        states, side = encoded.hidden.astype(jnp.float32), jnp.maximum(sides, 1)
        seen = (side[:, :, None] == side[:, None]) & (sides > 0)[:, None]
        if self.pooling == "first":
            shares = seen & (in_document(sides) == 0)[:, None]
            shares = shares.astype(jnp.float32)
        else:
            scores = Dense(1, precision=Precision(), name="weighting")(states)[..., 0]
            shares = jnp.where(
                seen, jax.nn.softmax(jnp.where(seen, scores[:, None], -1e30), -1), 0.0
            )
        vectors = jnp.einsum("bqk,bkd->bqd", shares, states, precision="highest")
        extra = {**(encoded.extra or {}), "vectors": vectors, "sides": sides}
        return dataclasses.replace(encoded, extra=extra)


def twins(batch: Batch, vocab: Vocab) -> tuple[Array, Array]:
    """Returns (ids, text of each token from 1) [B, L] of rows of two texts.

    The first [SEP] of a row is the second text's [CLS], and a later one is padding.
    """
    cls, sep = vocab.need("cls", "sep")
    ids, real = batch["input_ids"], segments_of(batch) > 0
    ends = (ids == sep) & real
    count = jnp.cumsum(ends, 1)
    later = (ends & (count > 1)) | ~real
    return jnp.where(ends, cls, ids), jnp.where(later, 0, 1 + jnp.minimum(count, 1)).astype(
        jnp.int32
    )


class CrossingHead(slots.ClassHead, Module):
    """Returns the logits [B, 2] of a pair of vectors [B, D].

    They are [0, a cos(q, k) + b] ("cosine"), or [0, w . (F(x) + x) + b], x = max(q, k) and F two
    dense layers with a ReLU between them ("residual") (section 3.3).
    """

    logical_axes = {
        "up/kernel": ("width", "hidden"),
        "up/bias": ("hidden",),
        "down/kernel": ("hidden", "width"),
        "down/bias": ("width",),
        "scale": (),
        "bias": (),
    }

    crossing: Crossing = "cosine"
    classes: int = 2
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def reads(self, encoded, batch):
        vectors, sides = encoded.extra["vectors"], encoded.extra["sides"]
        second = jnp.argmax(sides == 2, 1)
        return vectors[:, 0], jnp.take_along_axis(vectors, second[:, None, None], 1)[:, 0]

    def example(self, encoded):
        return (encoded.extra["vectors"][:, 0],) * 2

    @nn.compact
    def __call__(self, query, keyword, *, table=None, context=None):
        query, keyword = (x.astype(jnp.float32) for x in (query, keyword))

        def dense(width, name):
            return Dense(width, initializer=self.initializer, precision=Precision(), name=name)

        if self.crossing == "cosine":
            scale = self.param("scale", nn.initializers.ones, ())
            score = scale * (unit(query) * unit(keyword)).sum(-1) + self.param(
                "bias", nn.initializers.zeros, ()
            )
        else:
            x = jnp.maximum(query, keyword)
            x = x + dense(x.shape[-1], "down")(jax.nn.relu(dense(x.shape[-1], "up")(x)))
            score = dense(1, "score")(x)[..., 0]
        return jnp.stack([jnp.zeros_like(score), score], -1)


def unit(x: Array) -> Array:
    """Returns x / |x|; 0 for 0."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-24))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinBERT(Student):
    """A randomly initialised student: 6 layers of width 512, 8 heads, feed-forward width 512.

    The sizes come from the sample configuration that Microsoft's DeepGNN publishes with the
    authors' layers.

    Deviations: trigrams are taken from the teacher's pieces instead of whole words; all 37^3
    trigrams have rows instead of a list of 49,292; special tokens have vectors of their own.
    """

    layers: int = 6
    width: int = 512
    heads: int = 8
    hidden: int = 512
    pooling: Pooling = "weighted"
    crossing: Crossing = "cosine"
    letters: TriLetters = TriLetters()

    def __post_init__(self):
        if self.pooling not in ("weighted", "first") or self.crossing not in ("cosine", "residual"):
            raise ValueError(
                f"pooling is {self.pooling!r} and crossing {self.crossing!r}; take weighted "
                "or first, and cosine or residual"
            )

    def tower(self, teacher: Network) -> Any:
        encoder = slots.encoder_in(teacher)
        head = teacher.heads.get("classify") if isinstance(teacher, slots.Network) else None
        if encoder is None or encoder.embeddings is None or text_classes(head) != 2:
            raise ValueError(
                "TwinBERT separates two classes of pairs; its teacher has no such head"
            )
        vocab, embed = encoder.embeddings.vocab, None
        if None in (vocab.cls, vocab.sep) or vocab.cls == vocab.sep:
            raise ValueError(
                "TwinBERT reads [CLS] a [SEP] b [SEP], and the teacher's vocabulary has no "
                "such tokens"
            )
        plain = transformer(
            vocab=vocab, layers=self.layers, width=self.width, heads=self.heads, hidden=self.hidden,
            positions=LearnedPositions(512),
        )  # fmt: skip
        embed = TriLetterEmbeddings(
            vocab=vocab, width=self.width, position=plain.embed.position, letters=self.letters
        )
        encoder = TwinEncoder(embed=embed, stack=plain.stack, pooling=self.pooling)
        return Model(encoder=encoder, heads={"classify": CrossingHead(self.crossing)})


def check_twins(module: Network) -> CrossingHead:
    """Returns the head that crosses two vectors. Raises UserError for another model."""
    head = module.heads.get("classify") if isinstance(module, slots.Network) else None
    if not isinstance(head, CrossingHead):
        raise UserError(
            "this model has no vectors of single texts to cross; compress one with twinbert"
        )
    return head
