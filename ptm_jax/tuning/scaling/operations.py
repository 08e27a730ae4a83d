"""Parameters and operations of a Transformer language model in closed form.
The papers on scaling count them so.

The operations of a run of this library are counted in its own jaxpr (`training.steps.flops`), for
every task; these formulas define the published figures. A multiplication and an addition are two
operations.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """Sizes of a decoder.
    N layers, D width, H heads of K, F feed-forward, V vocabulary, L length."""

    layers: int
    width: int
    heads: int
    head_width: int
    hidden: int
    vocab: int
    length: int

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_width

    def parameters(self, embeddings: bool = True) -> int:
        """Weights of products: N D (4 H K + 2 F), and (V + L) D of embeddings.
        Kaplan et al. 2020, Table 1. Biases and norms are not counted."""
        weights = self.layers * self.width * (4 * self.attention_width + 2 * self.hidden)
        return weights + (self.vocab + self.length) * self.width * embeddings

    def kaplan(self, embeddings: bool = False) -> int:
        """Operations of a token's forward pass: 2 N + 2 N_layer L H K with non-embedding N.
        Kaplan et al. 2020, Table 1. `embeddings` adds the logits, 2 D V, which the paper leaves
        out. Causal attention counts half the pairs."""
        operations = (
            2 * self.parameters(embeddings=False)
            + 2 * self.layers * self.length * self.attention_width
        )
        return operations + 2 * self.width * self.vocab * embeddings

    def chinchilla(self, embeddings: bool = True) -> int:
        """Operations of a row's forward pass (Hoffmann et al. 2022, Appendix F): products of all
        pairs, 3 H L^2 for the softmax, and with `embeddings` the lookup as a product with one-hot
        rows, and the logits, 2 L V D each."""
        l, inner = self.length, self.attention_width  # noqa: E741
        attention = (
            6 * l * self.width * inner
            + 4 * l * l * inner
            + 3 * self.heads * l * l
            + 2 * l * inner * self.width
        )
        operations = self.layers * (attention + 4 * l * self.width * self.hidden)
        return operations + 4 * l * self.vocab * self.width * embeddings

    def products(self) -> int:
        """Operations of the products of a row's forward pass: Appendix F without the softmax and
        the lookup, which are no products here. A training step has three times as many."""
        lookup = 2 * self.length * self.vocab * self.width
        return self.chinchilla() - lookup - 3 * self.layers * self.heads * self.length**2


def training(parameters: float, tokens: float) -> float:
    """6 N D: operations of training, without attention (Kaplan et al. 2020, section 2.1)."""
    return 6.0 * parameters * tokens
