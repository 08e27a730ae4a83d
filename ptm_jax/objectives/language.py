"""Language modelling objectives: left to right, masked, and next sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio, add_losses


def gather(hidden: Array, positions: Array) -> Array:
    """Features [B, P, D] at positions [B, P] of hidden [B, L, D]."""
    return jnp.take_along_axis(hidden, positions[..., None], 1)


def token_loss(nll: Array, weights: Array, right: Array | None = None, name: str = "nll") -> Loss:
    """The sum of weighted token losses in nats, with their mean as a metric, and the share of hits `right`."""
    weight = weights.sum()
    total = (nll * weights).sum()
    metrics = {name: Ratio(total, weight)}
    if right is not None:
        metrics[f"{name.removesuffix('nll')}accuracy"] = Ratio((right * weights).sum(), weight)
    return Loss(total, weight, metrics)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLM:
    """Masked language modelling: -log p(x_i | corrupted x) at the chosen positions only (survey Table 1, row MLM).

    Reads what `corruptions` wrote: `mlm_positions`, `mlm_labels`, `mlm_weights`, all [B, P]. The vocabulary head runs
    on the gathered positions.
    """

    tower: str = "main"
    head: str = "mlm"

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.tower]
        return self.of(tower, tower(batch, key).hidden, batch)

    def of(self, tower: Tower, hidden: Array, batch: Batch) -> Loss:
        """The loss of hidden states that are already there."""
        readout = tower.head(self.head, gather(hidden, batch["mlm_positions"]))
        logits = readout.logits()
        labels, weights = batch["mlm_labels"], batch["mlm_weights"]
        right = logits.argmax(-1) == labels
        return token_loss(readout.nll(labels), weights, right, "mlm_nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSP:
    """Next sentence prediction: two classes on the pooled first token; label 0 = is next, 1 = random (survey 3.1.5).

    Reads `next_label` [B] int32; a row of padding only has no weight.
    """

    tower: str = "main"
    pool: str = "pool"
    head: str = "nsp"

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.tower]
        return self.of(tower, tower(batch, key).hidden, batch)

    def of(self, tower: Tower, hidden: Array, batch: Batch) -> Loss:
        """The loss of hidden states that are already there."""
        scores = tower.head(self.head, tower.head(self.pool, hidden))
        labels = batch["next_label"]
        nll = jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]
        return token_loss(nll, real_rows(batch), scores.argmax(-1) == labels, "nsp_nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BERTPretraining:
    """The mean MLM loss plus the mean NSP loss over one forward pass (Devlin et al. 2019, appendix A.2)."""

    mlm: MLM = MLM()
    nsp: NSP = NSP()

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.mlm.tower]
        hidden = tower(batch, key).hidden
        return add_losses((1.0, self.mlm.of(tower, hidden, batch)), (1.0, self.nsp.of(tower, hidden, batch)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LM:
    """Left-to-right language modelling: -log p(x_t | x_<t), shifted here (survey Table 1, row LM).

    A token is a target when its predecessor lies in the same segment; padding never is.
    """

    tower: str = "main"
    head: str = "lm"

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.tower]
        hidden = tower(batch, key).hidden
        ids = batch["input_ids"]
        segments = batch["segment_ids"] if "segment_ids" in batch else jnp.ones_like(ids)
        labels, weights = ids[:, 1:], (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        readout = tower.head(self.head, hidden[:, :-1])
        return token_loss(readout.nll(labels), weights.astype(jnp.float32), name="nll")


def real_rows(batch: Batch) -> Array:
    """1.0 for rows that hold a token, 0.0 for rows of padding [B]."""
    if "segment_ids" not in batch:
        return jnp.ones(batch["input_ids"].shape[0], jnp.float32)
    return (batch["segment_ids"] > 0).any(1).astype(jnp.float32)
