"""Source and target as one row for one network: UniLM's sequence-to-sequence rows, T5's prefix LM."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.base import segments_of
from ptm_jax.corruptions.compact import TOKEN_FIELDS, in_document, per_document, take, without

READ = ("decoder_input_ids", "decoder_segment_ids", "decoder_positions", "source_segments")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleStream:
    """What `part` gives an encoder and a decoder, as one row [B, L + T] (Dong et al. 2019, section 2.3; Raffel et al.
    2020, section 3.2.1).

    The source sees itself both ways (`order` 0), the target the source of its document and itself to the left (`order`
    1, 2, ..). Positions go on where the source of the document ends. `decoder_labels` and `decoder_weights` stay: the
    objective reads the last T hidden states. Fields of tokens other than ids are left out.
    """

    part: Any

    @property
    def single_stream(self) -> bool:
        """Source and target are one row: `objectives.seq2seq.Seq2Seq` asks for this."""
        return True

    def __call__(self, key: Array, batch: Batch) -> Batch:
        out = self.part(key, batch)
        if "decoder_input_ids" not in out:
            raise ValueError(f"{type(self.part).__name__} writes no decoder_input_ids; a stream has a source and a target")
        source, target = segments_of(out), out["decoder_segment_ids"]
        sizes = jnp.pad(per_document(source > 0, source), ((0, 0), (0, target.shape[1])))
        positions = out["positions"] if "positions" in out else in_document(source)
        after = jnp.where(target > 0, take(sizes, target) + in_document(target), 0)
        steps = jnp.arange(1, target.shape[1] + 1, dtype=jnp.int32)
        order = jnp.concatenate([jnp.zeros_like(source), jnp.broadcast_to(steps, target.shape)], 1)
        return {
            **without(out, (*READ, *TOKEN_FIELDS)),
            "input_ids": jnp.concatenate([out["input_ids"], out["decoder_input_ids"]], 1),
            "segment_ids": jnp.concatenate([source, target], 1),
            "positions": jnp.concatenate([positions, after], 1),
            "order": order,
        }

    def refusal(self, system) -> str | None:
        """An encoder that does not obey `order` would let the source see the target."""
        encoder = getattr(system.towers.get("main"), "encoder", None)
        if not getattr(encoder, "obeys_order", False):
            return (
                "source and target in one row need an encoder that reads who sees whom from the batch, which "
                f"{type(encoder).__name__} does not; take a Transformer, or an encoder with a decoder"
            )
        return getattr(self.part, "refusal", lambda _: None)(system)
