"""Q-BERT: few bits for the layers where the loss is flat (Shen et al. 2020, arXiv 1909.05840)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.compress.quantisation import sensitivity
from ptm_jax.compress.quantisation.quantisation import Q8BERT, check_bits
from ptm_jax.core import slots, towers
from ptm_jax.core.types import Params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class QBERT(Q8BERT):
    """Fine-tunes with group-wise uniform quantisation and mixed bits by the Hessian.

    Sections 3.2 and 3.1. A layer with a high score |mean| + std of its greatest eigenvalue, over
    parts of the training data, has more bits.

    layer_bits  bits of the layers of the encoder, first to last; (): measured before the
                fine-tuning
    choices     (bits, share of the layers) for measured layers: ((4, 0.5), (2, 0.5)) is the paper's
                2/4 MP, ((3, 0.5), (2, 0.5)) its 2/3 MP
    bits        of the other matrices (heads)
    groups      ranges of a matrix; 128 are 12 heads of BERT-base times six columns or so, by the
                paper's figure 2
    examples    training examples on which the eigenvalues are measured, in batches; the paper takes
                10% of them
    steps       maximal number of steps of the power iteration

    A range has 2^bits equal steps between the least and the greatest weight of its group. Inputs
    and tables have 8 bits. Integers of fewer than 8 bits take a byte each in files and in memory
    (`size_of` counts bits).
    """

    layer_bits: tuple[int, ...] = ()
    choices: tuple[tuple[int, float], ...] = ((4, 0.5), (2, 0.5))
    groups: int | None = 128
    examples: int = 512
    steps: int = 10

    symmetric = False

    def __post_init__(self):
        super().__post_init__()
        check_bits(layer_bits=self.layer_bits, choices=tuple(bits for bits, _ in self.choices))
        if abs(sum(share for _, share in self.choices) - 1) > 1e-6:
            raise ValueError(
                f"choices are {self.choices}; the shares of the layers must add up to 1"
            )

    @property
    def measures(self) -> int:
        return 0 if self.layer_bits else self.examples

    def bits_of(self, path: str, layers: tuple[int, ...]) -> Any:
        if not layers or not self.layer_bits:
            return self.bits
        if layers != (len(self.layer_bits),):
            raise ValueError(
                f"layer_bits are {len(self.layer_bits)} numbers; the encoder has {layers} layers"
            )
        return np.asarray(self.layer_bits)[:, None]

    def sensitivity(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> sensitivity.Sensitivity:
        """Returns the eigenvalues of each layer's matrices, by "layer n" from 0.

        Raises ValueError without examples, and for a model without a stack of layers.
        """
        shapes = {path: shape for path, shape in self.of(params).items() if len(shape) == 3}
        if not shapes:
            raise ValueError("its layers are no stack; give layer_bits")
        objective, count = slots.objective(system.objective), next(iter(shapes.values()))[0]

        def loss(params, batch):
            return objective(towers.bind(system.towers, params), batch, jax.random.key(0)).value()

        def mask(number):
            def of(path):
                if path not in shapes:
                    return 0.0
                return (
                    (np.arange(count) == number)
                    .astype(np.float32)
                    .reshape(-1, *(1,) * (len(shape_at[path]) - 1))
                )

            return of

        shape_at = {path: leaf.shape for path, leaf in sensitivity.flatten(params).items()}
        groups = {f"layer {number}": mask(number) for number in range(count)}
        return sensitivity.measure(loss, params, groups, batches(), steps=self.steps)

    def measured(self, system: System, params: Params, batches: Iterable[Batch]) -> QBERT:
        bits = self.sensitivity(system, params, batches).bits(dict(self.choices))
        return dataclasses.replace(
            self, layer_bits=tuple(bits[f"layer {number}"] for number in range(len(bits)))
        )

    def size_of(self, params: Params) -> int:
        """Returns the bits of the matrices of a model in their numbers of bits, without scales and
        other parameters."""
        total = 0
        for path, shape in self.of(params).items():
            each = np.broadcast_to(np.squeeze(self.bits_of(path, shape[:-2])), shape[:-2])
            total += int(each.sum() if each.ndim else each) * shape[-2] * shape[-1]
        return total
