"""Detection of changed tokens: replaced token detection (survey 3.1.5) and added words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of
from ptm_jax.core.streams import named, uniform_bits
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import (
    OnePass,
    binary_loss,
    first_memory,
    gather,
    next_memory,
    real_tokens,
)
from ptm_jax.objectives.text.language import MLM

if TYPE_CHECKING:
    from ptm_jax.core.system import System


GENERATOR, JUDGE = "generator", "main"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RTD(slots.Objective):
    """ELECTRA: mean L_MLM(generator) + `weight` mean L_RTD(discriminator).

    Clark et al. 2020, arXiv 2003.10555, section 2.

    The tower "generator" fills the positions that the corruption chose (`mlm_*`) with words drawn
    from its softmax at `temperature`; the draw has no gradient. The tower "main" predicts for every
    token except padding whether it was replaced. A draw that equals the true word counts as
    original. Head "rtd": scores [B, L] or [B, L, 1].

    `convention` sets the meaning of a high score. "electra": replaced, as in
    google-research/electra and its checkpoints; "survey": unchanged (section 3.1.5). They differ
    only in the sign of the score.

    `frozen_generator` is the second stage of the survey's two-stage recipe, an ablation in the
    paper (section 3.3). The generator then has no dropout and no gradient, and its loss is only a
    metric. Tables tied to it would still change.
    """

    baseline = "mlm_nll"

    weight: float = 50.0
    temperature: float = 1.0
    frozen_generator: bool = False
    convention: Literal["electra", "survey"] = "electra"

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; it must be above 0")
        if self.convention not in ("electra", "survey"):
            raise ValueError(f"convention is {self.convention!r}; it must be 'electra' or 'survey'")

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        generator, judge = towers[GENERATOR], towers[JUDGE]
        if self.frozen_generator:
            generator = dataclasses.replace(
                generator, params=jax.lax.stop_gradient(generator.params)
            )
        noise = None if key is None or self.frozen_generator else named(key, GENERATOR)
        fields = _own_memory(batch, GENERATOR)
        encoded = generator(fields, noise)
        mlm = MLM().of(generator, encoded, fields)
        carry = {GENERATOR: next_memory(generator, encoded, fields)}

        filled = self.filled(generator, encoded, fields, key)
        fields = {**_own_memory(batch, JUDGE), "input_ids": filled}
        encoded = judge(fields, None if key is None else named(key, JUDGE))
        replaced = filled != filled_in(batch, batch["mlm_labels"])
        truth = replaced if self.convention == "electra" else ~replaced
        rtd = binary_loss(judge.head("rtd", encoded.hidden), truth, real_tokens(batch), "rtd_nll")
        carry[JUDGE] = next_memory(judge, encoded, fields)

        loss = add_losses(*([] if self.frozen_generator else [(1.0, mlm)]), (self.weight, rtd))
        carry = {name: memory for name, memory in carry.items() if memory is not None}
        return Loss(loss.sum, loss.weight, {**mlm.metrics, **loss.metrics}, carry or None)

    def filled(self, generator: Tower, encoded: Encoded, batch: Batch, key: Array | None) -> Array:
        """Returns the ids [B, L] with a word drawn at every chosen position.

        Seeds depend on row and position index.
        """
        places = gather(encoded.hidden, batch["mlm_positions"])
        seeds = uniform_bits(
            named(jax.random.key(0) if key is None else key, "draw"),
            rows_of(batch),
            places.shape[1:2],
        )
        drawn = generator.head("mlm", places).draw(seeds, temperature=self.temperature)
        return filled_in(batch, drawn)

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns {tower: memory} for towers with a memory, or None."""
        first = {name: first_memory(towers[name], batch) for name in (GENERATOR, JUDGE)}
        return {name: memory for name, memory in first.items() if memory is not None} or None

    def refusal(self, system: System) -> str | None:
        for name in (GENERATOR, JUDGE):
            if name not in system.towers:
                return (
                    f"RTD needs two towers, and there is no {name!r}; add one with the head "
                    f"{_HEADS[name]!r}"
                )
        return None


def changed_sign(objective: slots.Objective | None) -> float:
    """Returns the sign of the score of a replaced token; None: ELECTRA's."""
    return -1.0 if isinstance(objective, RTD) and objective.convention == "survey" else 1.0


_HEADS = {GENERATOR: "mlm", JUDGE: "rtd"}


def filled_in(batch: Batch, words: Array) -> Array:
    """Returns `input_ids` [B, L] with `words` [B, P] at the chosen positions."""
    return put(batch["input_ids"], batch["mlm_positions"], batch["mlm_weights"], words)


def _own_memory(batch: Batch, tower: str) -> Batch:
    """Returns the batch with only this tower's part of the carry."""
    carry = (batch.get("carry") or {}).get(tower)
    batch = {name: value for name, value in batch.items() if name != "carry"}
    return batch if carry is None else {**batch, "carry": carry}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddedWords(OnePass):
    """Predicts whether each token was inserted: the tagging task of noisy words.

    Wang et al. 2020, arXiv 1908.05378.

    Reads `noise_labels` [B, L] int32 (1 = added) and `noise_weights` [B, L] float32. Head "noise":
    [B, L] or [B, L, 1]. For the paper's other task, original against edited sentence, use
    `NSP(label="pair_label", name="original")`.
    """

    tower: str = "main"
    head: str = "noise"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.head, encoded.hidden)
        return binary_loss(scores, batch["noise_labels"], batch["noise_weights"], "noise_nll")
