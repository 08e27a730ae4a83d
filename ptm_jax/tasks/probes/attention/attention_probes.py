"""The attention between two words as features of a linear probe (Coenen, Reif et al. 2019, arXiv
1906.02715, section 3.1): the weight of each head that the first word gives to the second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array
from ptm_jax.tasks.probes import word_states
from ptm_jax.tasks.probes.attention import word_maps

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


def features(
    model: Pretrained, sentences: Sequence[Sequence[str]], words: np.ndarray, *,
    batch: int = 32, memory: float = word_states.MEMORY,
) -> np.ndarray:  # fmt: skip
    """Returns the attention [n, N, H] of the first of two words to the second.

    sentences  words of sentences that fit into the model without special tokens
    words      [n, 2] numbers of words of one sentence, counted through all sentences

    Raises UserError for a model without attention.
    """
    starts = np.cumsum([0, *map(len, sentences)])
    homes = np.searchsorted(starts, words[:, 0], "right") - 1
    rows = [np.flatnonzero(homes == number) for number in range(len(sentences))]
    pairs = [words[some] - starts[number] for number, some in enumerate(rows)]
    records, _ = word_states.fitting_records(model, sentences, 0)
    result: np.ndarray | None = None
    for number, arrays in word_maps.of_sentences(
        model, records, REDUCTION, pairs, batch=batch, memory=memory
    ):
        if "weights" not in arrays:
            raise UserError(f"{model.system.name} has no attention; give an encoder with attention")
        weights = arrays["weights"]
        if result is None:
            result = np.zeros((len(words), *weights.shape[:2]), np.float32)
        result[rows[number]] = weights[..., : len(rows[number])].transpose(2, 0, 1)
    return np.zeros((0, 1, 1), np.float32) if result is None else result


def _of_maps(maps: Array, pairs: Array) -> dict[str, Array]:
    """Returns the weights [B, H, P] of pairs [B, P, 2] in the maps of a layer."""
    rows = maps[np.arange(len(maps))[:, None], :, pairs[..., 0], pairs[..., 1]]
    return {"weights": rows.transpose(0, 2, 1)}


def _of_states(states: Array) -> dict[str, Array]:
    return {}


REDUCTION = word_maps.Reduction(_of_states, _of_maps)
