"""Networks whose word vectors a batch can move."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.core import spec
from ptm_jax.nn.embeddings.perturbation import shifted
from ptm_jax.nn.embeddings.summed import Embeddings

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network


def movable(module: Network) -> Any:
    """Returns a network that adds `batch["perturbation"]` [B, L, D] to the word vectors of its
    encoder, before positions are added. The parameters keep their paths."""
    mine = module.encoder.embeddings  # not the decoder's: its rows have another length

    def moved(embed: Embeddings) -> Embeddings:
        if embed is not mine:
            return embed
        return dataclasses.replace(embed, expand=shifted(embed.expand, embed.summed_width))

    return spec.respell(module, Embeddings, moved)
