"""The score of two texts by the vectors of their tokens."""

from __future__ import annotations

import dataclasses

from ptm_jax.core.types import Array
from ptm_jax.kernels import maxsim
from ptm_jax.objectives.sentences.base import Vectors
from ptm_jax.objectives.sentences.similarities import Similarity


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaxSim(Similarity):
    """The sum over the tokens of the first text of the largest product with a token of the second
    (Khattab and Zaharia 2020, arXiv 2004.12832, Eq. 3).

    Vectors are trees {"tokens": [.., L, F], "real": [.., L]}, from the head `TokenVectors`.
    No array of all texts by all tokens of the others is kept, neither for the gradient.
    """

    def paired(self, a: Vectors, b: Vectors) -> Array:
        return maxsim.paired(a["tokens"], a["real"], b["tokens"], b["real"])

    def matrix(self, a: Vectors, b: Vectors) -> Array:
        return maxsim.matrix(a["tokens"], a["real"], b["tokens"], b["real"])
