"""Word vectors plus a perturbation, for adversarial training and for saliency."""

from __future__ import annotations

import flax.linen as nn

from ptm_jax.nn.layers import Identity, Module


def shifted(expand: nn.Module, width: int) -> ShiftedWords:
    """Returns the module of the slot `expand` with a perturbation of its word vectors."""
    return expand if isinstance(expand, ShiftedWords) else ShiftedWords(width, expand)


class ShiftedWords(Module):
    """Adds `batch["perturbation"]` [B, L, D], if the batch has one, to the word vectors.

    For `Embeddings.expand`, x [B, L, D]. `before` is the module that the slot held; its parameters
    keep their paths. `width` is the width of its vectors. The vectors are sown as the intermediate
    "words".
    """

    width: int
    before: nn.Module = Identity()

    @property
    def reads_neighbours(self) -> bool:
        return self.before.reads_neighbours

    def setup(self):
        nn.share_scope(self, self.before)

    def __call__(self, x, batch):
        x = self.before(x, batch)
        self.sow("intermediates", "words", x)
        return x + batch["perturbation"].astype(x.dtype) if "perturbation" in batch else x
