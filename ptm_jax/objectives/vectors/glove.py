"""GloVe: products of word vectors fit logarithms of co-occurrences (Pennington et al. 2014)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import renumbered, segments_of
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio
from ptm_jax.kernels.updates import Cells, Native
from ptm_jax.objectives.row_updates import InPlace, with_encoder_rows
from ptm_jax.objectives.vectors.vector_traits import WordTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class GloVe(InPlace):
    """GloVe's weighted squared error of log co-occurrences (2014, Eq. 8 and 9).

    1/2 f(X_ij) (w_i . w~_j + b_i + b~_j - log X_ij)^2, f(x) = min(1, (x / most) ** power).

    The states are the w_i, `extra["bias"]` the b_i; the head has w~ and b~. `data.rows.cells.Cells`
    writes `context_ids` j and `cooccurrences` X [B, L]; segment 0 is no cell.

    The factor 1/2 gives the gradient of Stanford's code; the paper has no factor. The code also
    clips each element of a cell's gradient at 100, which cells do not reach. The loss is a mean
    over cells: the code's rate r for every cell equals r times the number of cells in an update.

    impl        implementation of the updates of scaled Adagrad on a CPU. "native": `kernels.words`;
                "plain": XLA; "auto": native if the host has a C++ compiler. They differ by rounding
    """

    ceiling: float = 100.0
    power: float = 0.75
    head: str = "context"
    impl: Literal["auto", "plain", "native"] = "auto"

    def refusal(self, system: System) -> str | None:
        head = slots.heads_of(system, self.tower).get(self.head)
        if head is None or not head.gives_rows or not head.bias:
            return (
                f"GloVe needs a head of word vectors with biases named {self.head!r}; add "
                "nn.heads.word_rows.WordRows"
            )
        encoder = slots.encoder_of(system, self.tower)
        if not (isinstance(encoder, WordTable) and encoder.biased):
            return (
                "GloVe needs an encoder whose words have biases; set "
                "encoders.words.static.WordVectors(biased=True)"
            )
        return None

    @property
    def _tables(self) -> tuple[list[str], list[str]]:
        """The paths of vectors and biases of words and of contexts."""
        words = [f"{self.tower}/encoder/{name}" for name in ("token", "bias")]
        return words, [f"{self.tower}/heads_{self.head}/{name}" for name in ("table", "bias")]

    def native(self, system: System) -> Native | None:
        if self.impl == "plain":
            return None
        words, contexts = self._tables
        return Native(Cells(targets=self.targets), (*words, *contexts))

    def select(self, system: System, batch: Batch) -> tuple[Batch, Mapping[str, Array]]:
        words, i = renumbered(batch["input_ids"])
        contexts, j = renumbered(batch["context_ids"])
        ours, theirs = self._tables
        tables = dict.fromkeys(ours, words) | dict.fromkeys(theirs, contexts)
        batch = {**batch, "input_ids": i, "context_ids": j}
        return with_encoder_rows(system, self.tower, batch, tables)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, real = towers[self.tower], segments_of(batch) > 0
        encoded = tower(batch, key)
        rows, bias = tower.head(self.head, batch["context_ids"])
        logs, shares = self.targets(batch)
        products = (encoded.hidden.astype(jnp.float32) * rows).sum(-1)
        error = products + encoded.extra["bias"] + bias - logs
        total = jnp.where(real, 0.5 * shares * jnp.square(error), 0.0).sum()
        cells = real.sum().astype(jnp.float32)
        return Loss(total, cells, {"cell_loss": Ratio(total, cells)})

    def targets(self, batch: Batch) -> tuple[Array, Array]:
        """Returns log X and f(X), [B, L]; 0 where there is no cell."""
        real = segments_of(batch) > 0
        x = jnp.where(real, batch["cooccurrences"], 1.0)
        return jnp.log(x), jnp.where(real, jnp.minimum(1.0, (x / self.ceiling) ** self.power), 0.0)
