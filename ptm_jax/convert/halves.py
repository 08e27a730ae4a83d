"""Shared parts of the encoder-decoder families. Some of their classes are only an encoder or only a decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family
from ptm_jax.convert.records import PROBLEMS, objective_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.seq2seq import EncoderDecoder
from ptm_jax.nn.heads.tasks import SequenceHead, SpanHead, Summary, TokenHead
from ptm_jax.objectives.seq2seq import Seq2Seq


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFamily(Family):
    """A family of encoder-decoders. `halves` are its classes with only an encoder or only a decoder."""

    halves: tuple[str, ...] = ()

    def architecture_of(self, system: System) -> str:
        """Returns the class with the heads and the halves of a system. Raises UserError if there is none."""
        pair, heads = is_pair(system), set(system.towers["main"].heads)
        for name, ours in self.heads.items():
            if set(ours) == heads and pair == (name not in self.halves):
                return name
        raise UserError(
            f"{self.model_type} has no class of {'an encoder with a decoder' if pair else 'one half'} with the heads "
            f"{', '.join(sorted(heads)) or 'none'}; choose other heads"
        )


def is_pair(system: System) -> bool:
    """Returns whether the main tower is an encoder-decoder."""
    return isinstance(system.towers["main"].encoder, EncoderDecoder)


def pair_objective(heads: Mapping[str, Any], config: Config, pair: bool) -> Any:
    """Returns the objective that trains the heads; None for the bare model."""
    if pair and "lm" in heads:
        return Seq2Seq()
    return objective_of(heads, kind=PROBLEMS.get(config("problem_type", str, None)))


def pair_heads(config: Config, init: Any, eos: int | None, classes: int) -> dict[str, Any]:
    """Returns the task heads of an encoder-decoder. The summary of a text is the decoder's state at its last `eos`."""
    rate = config("classifier_dropout", float, 0.0)
    summary = Summary(at="eos", eos=eos, dropout=rate, initializer=init)
    return {
        "classify": SequenceHead(classes, summary, dropout=rate, initializer=init),
        "tag": TokenHead(classes, dropout=rate, initializer=init),
        "span": SpanHead(initializer=init),
    }


def ends(config: Config, name: str, default: int | None) -> int | None:
    """Returns a special id of a config; the first one of a list."""
    value = config(name, None, default)
    return value[0] if isinstance(value, list) and value else config(name, int, default)
