"""The common types of ptm_jax and the letters of their shapes.

Dimension letters, used in every docstring of the project:

    B batch, L length, D width, H heads, K head width, F feed-forward width, V vocabulary, N layers,
    E entities or experts, P predicted positions of a row, M memory length.

A `Batch` is a plain dict of arrays. These fields have the same meaning everywhere:

    input_ids       [B, L] int32    token ids
    segment_ids     [B, L] int32    document of a packed row: 0 is padding, 1, 2, ... are documents
    positions       [B, L] int32    position inside the document
    token_type_ids  [B, L] int32    sentence A or B of a pair
    order           [B, L] int32    which tokens see which (see `Visibility`);
                                    absent: the encoder's own direction
    key_order       [B, L] int32    order of a token as a key, if it differs
    group           [B, L] int32    keys of a group above 0 are visible only in the group; absent: 0
    visible         [B, L, L] bool  additional mask: keys that each query may see (K-BERT's visible
                                    matrix); absent: all keys
    rows            [B]    int32    index of the row in the global batch, the seed of dropout and
                                    corruptions
    step            []     int32    training step
    carry           any             carry of the previous step's loss (a memory)

Other fields are documented in the modules that write them: the examples (`data.rows`,
`tasks.formats`), the corruptions (`corruptions`), `training.start.features` and
`objectives.regularisation.adversarial`. Embedding parts document the fields that they read
(`nn.embeddings.parts`). Predictions at P positions have `{name}_positions`, `{name}_labels` [B, P]
int32 and `{name}_weights` [B, P] float32. P is static; unused entries have weight 0 and position 0.
A decoder has `decoder_input_ids`, `decoder_labels`, `decoder_segment_ids`, `decoder_positions` [B,
T] int32 and `decoder_weights` [B, T] float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import Advised

Array = jax.Array
Batch = Mapping[str, Any]
Params = Mapping[str, Any]
Step = int | jax.Array  # the number of an update; traced inside a compiled step
Axes = tuple[str | None, ...]
"""A logical axis or None for each dimension of a parameter (`mesh.axes`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocab:
    """Size and special ids of a vocabulary.

    A trained tokenizer replaces the published values (`core.spec.walk.respell`).

    `pad` is never attended to, `mask` replaces hidden tokens, `cls`/`sep` frame BERT's inputs,
    `bos`/`eos` frame a decoder's inputs. `extra` lists further ids that corruptions must not choose
    or produce. An absent id is None.
    """

    size: int
    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None
    extra: tuple[int, ...] = ()

    def __post_init__(self):
        for name in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
            index = self.id(name)
            if index is not None and not 0 <= index < self.size:
                raise ValueError(f"vocab.{name} is {index}, outside a vocabulary of {self.size}")

    @property
    def specials(self) -> tuple[int, ...]:
        """The sorted ids that a corruption never chooses and never draws, without `unk`."""
        named = (self.pad, self.cls, self.sep, self.mask, self.bos, self.eos)
        return tuple(sorted({i for i in named if i is not None} | set(self.extra)))

    def id(self, name: str) -> int | None:
        """Returns the id of a named token ("cls", "eos", ...), or None."""
        return vars(self)[name]

    def need(self, *names: str) -> tuple[int, ...]:
        """Returns the ids of `names`. Raises `Advised` for a name that the vocabulary lacks."""
        for name in names:
            if self.id(name) is None:
                lacks = f"this vocabulary has no {name} token, which the system needs"
                raise Advised(lacks, "take a corpus with a tokenizer that has it")
        return tuple(self.id(name) for name in names)


def record(cls):
    """Decorator for a frozen dataclass that is a JAX tree.

    Fields are leaves, or structure if they are `static`.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)
    static = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if f.name not in static]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=static)


def static(default: Any = dataclasses.MISSING):
    """Declares a field of a record as part of the tree structure, not a leaf."""
    return dataclasses.field(default=default, metadata={"static": True})


@record
class Encoded:
    """The outputs of an encoder; `jit` drops the unused ones.

    hidden     [B, L, D]        last layer
    layers     [N+1, B, L, D]   embedding output and every layer, or None
    attention  [N, B, H, L, L]  probabilities of every layer (or scores: `Attention.expose`),
                                or None
    memory     any              state carried to the next batch of a training stream, with leaves
                                [B, ...]; or None
    cache      any              decoding state after these tokens, or None
    extra      {name: any}      further outputs, such as ViLBERT's image stream or XLNet's query
                                stream; or None
    """

    hidden: Any
    layers: Any = None
    attention: Any = None
    memory: Any = None
    cache: Any = None
    extra: Any = None


@record
class Ratio:
    """A metric as a sum and a weight.

    Both add up exactly over micro-batches, devices and hosts.
    """

    sum: Any
    weight: Any

    def value(self):
        """sum / weight; 0 where the weight is 0."""
        return jnp.where(self.weight > 0, self.sum / jnp.maximum(self.weight, 1e-30), 0.0)


@record
class Loss:
    """A loss as sums and weights instead of means.

    Accumulation and data parallelism are therefore exact.

    `sum` and `weight` are scalars, or vectors [T] for an objective that adds the means of T terms
    (BERT: the mean over masked tokens plus the mean over pairs). Weights must not depend on
    parameters. `metrics` maps names to `Ratio`. The next step receives `carry` as `batch["carry"]`
    (None: nothing).
    """

    sum: Any
    weight: Any
    metrics: Any = dataclasses.field(default_factory=dict)
    carry: Any = None

    def value(self, weight: Any = None):
        """Returns the sum of the means of the terms. A term of zero weight is 0, not NaN.

        `weight` replaces the weights of the terms, for example by the weights of the whole batch.
        """
        weight = jax.lax.stop_gradient(self.weight if weight is None else weight)
        return Ratio(self.sum, weight).value().sum()


def add_losses(*parts: tuple[float, Loss]) -> Loss:
    """Returns a weighted sum of losses: `add_losses((1.0, mlm), (1.0, nsp))`."""
    sums = jnp.concatenate([jnp.atleast_1d(scale * part.sum) for scale, part in parts])
    weights = jnp.concatenate(
        [jnp.atleast_1d(jnp.asarray(part.weight, jnp.float32)) for _, part in parts]
    )
    metrics: dict[str, Any] = {}
    for _, part in parts:
        metrics.update(part.metrics)
    carries = [part.carry for _, part in parts if part.carry is not None]
    if len(carries) > 1:
        raise ValueError("two of the losses have a carry; only one may")
    return Loss(sums, weights, metrics, carries[0] if carries else None)


@record
class Window:
    """A local window: query i sees the keys j with |place of j - place of i| <= `radius`.

    q_places [1 or B, Lq], k_places [1 or B, Lk] int32; radius [] int32, which may differ by layer.
    """

    q_places: Any
    k_places: Any
    radius: Any

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Returns {name: (of queries, of keys)}: a key is in the window where each number of the
        key is at most the query's."""
        return {
            "until": (self.q_places + self.radius, self.k_places),
            "since": (self.radius - self.q_places, -self.k_places),
        }


@record
class Visibility:
    """An attention mask as a function of positions, without an [L, L] tensor.

    Query i attends to key j if they are in the same segment (0 is padding, which is never attended
    to) and `k_order[j] <= q_order[i]` (`strict`: `<`). This rule covers every mask of the survey's
    Transformers:

        bidirectional   order is None (or constant)
        causal          order = position                 right to left: order = -position
        prefix, seq2seq order = 0 on the prefix, 1, 2, ... after it (UniLM, T5's prefix LM)
        permutation     order = rank under the permutation; XLNet's query stream is `strict`
        packed rows     segments = the document's number inside the row

    Only queries of the same group attend to a key of a group above 0 (UniLMv2: the pseudo masks of
    one block). A `window` leaves out the keys that are far away (ModernBERT's local layers).

    q_segments    [B, Lq]; k_segments [B, Lk]
    q_order       [B, Lq] or None; k_order [B, Lk] or None
    q_group       [B, Lq] or None; k_group [B, Lk] or None
    allow         [B or 1, H or 1, Lq, Lk] bool: an additional mask (K-BERT's visible matrix); or
                  None
    """

    q_segments: Any
    k_segments: Any
    q_order: Any = None
    k_order: Any = None
    allow: Any = None
    q_group: Any = None
    k_group: Any = None
    strict: bool = static(False)
    window: Window | None = None

    def dense(self):
        """Returns the mask as booleans [B, 1 or H, Lq, Lk], for tests and small inputs."""
        same = self.q_segments[:, :, None] == self.k_segments[:, None, :]
        seen = same & (self.k_segments[:, None, :] > 0)
        if self.q_order is not None:
            q, k = self.q_order[:, :, None], self.k_order[:, None, :]
            seen &= (k < q) if self.strict else (k <= q)
        if self.k_group is not None:
            group = self.k_group[:, None, :]
            seen &= (group == 0) | (group == self.q_group[:, :, None])
        if self.window is not None:
            for q, k in self.window.bounds().values():
                seen &= k[:, None, :] <= q[:, :, None]
        seen = seen[:, None]
        return seen if self.allow is None else seen & self.allow
