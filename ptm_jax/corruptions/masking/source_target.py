"""Source and target in one row for a single network.

UniLM's sequence-to-sequence rows and T5's prefix LM.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ptm_jax.core import fields, slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.compact import in_document, per_document, take, without

READ = ("decoder_input_ids", "decoder_segment_ids", "decoder_positions", "source_segments")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleStream(slots.OneRow):
    """Joins the encoder and decoder inputs that `part` writes into one row [B, L + T].

    Dong et al. 2019, section 2.3; Raffel et al. 2020, section 3.2.1.

    The source sees the whole source of its document (`order` 0). The target also sees the target to
    its left (`order` 1, 2, ..). Target positions continue after the source of the document.
    `decoder_labels` and `decoder_weights` stay: the objective reads the last T hidden states. Other
    per-token fields are dropped.
    """

    part: Any

    def __call__(self, key: Array, batch: Batch) -> Batch:
        out = self.part(key, batch)
        if "decoder_input_ids" not in out:
            raise ValueError(
                f"{type(self.part).__name__} writes no decoder_input_ids; a stream has a "
                "source and a target"
            )
        source, target = segments_of(out), out["decoder_segment_ids"]
        sizes = jnp.pad(per_document(source > 0, source), ((0, 0), (0, target.shape[1])))
        positions = out["positions"] if "positions" in out else in_document(source)
        after = jnp.where(target > 0, take(sizes, target) + in_document(target), 0)
        steps = jnp.arange(1, target.shape[1] + 1, dtype=jnp.int32)
        order = jnp.concatenate([jnp.zeros_like(source), jnp.broadcast_to(steps, target.shape)], 1)
        return {
            **without(out, (*READ, *fields.moving(out))),
            "input_ids": jnp.concatenate([out["input_ids"], out["decoder_input_ids"]], 1),
            "segment_ids": jnp.concatenate([source, target], 1),
            "positions": jnp.concatenate([positions, after], 1),
            "order": order,
        }

    def refusal(self, system) -> str | None:
        """Refuses an encoder that ignores `order`: its source would see the target."""
        encoder = slots.encoder_of(system)
        if encoder is None or not encoder.obeys_order:
            return (
                "source and target in one row need an encoder that reads who sees whom from "
                "the batch, which "
                f"{type(encoder).__name__} does not; take a Transformer, or an encoder with "
                "a decoder"
            )
        return slots.corruption(self.part).refusal(system)
