"""Traits of encoders that losses of text read."""

from __future__ import annotations

from collections.abc import Mapping

from ptm_jax.core import slots


class LastStates(slots.Encoder):
    """An encoder that returns the last states before dropout, `extra["last"]` [B, L, D]."""


class TwoDirections(slots.Encoder):
    """Trait: an encoder that returns the states of each direction alone.

    They are `extra["forward"]` and `extra["backward"]` [B, L, D].
    """


class QueryStream(slots.Encoder):
    """Trait: an encoder that may have a second stream, in which no token sees itself.

    It is `extra["query"]` [B, L, D].

    streams    2 with this stream, else 1
    """

    streams: int = 1


class AdaptiveDepth(slots.Encoder):
    """Trait: an encoder whose number of layers may depend on the token.

    The cost of the layers is in `extra["ponder"]` [B, L].

    ponders    whether it does
    """

    ponders: bool = False


class NeighbourDecoders(slots.Encoder):
    """An encoder that decodes the sentences before and after each sentence (skip-thought)."""


class BeginsWithLanguageModels(slots.Encoder):
    """An encoder with parts that may begin with a trained language model (`Experiment.init`).

    language_models    {name of the part: {prefix of paths in the language model's tower: prefix in
                       the tower of this encoder}}
    apart              pattern of the paths that only the part, or only the language model, may have
    """

    language_models: Mapping[str, Mapping[str, str]]
    apart: str = r"(?!)"


class SideModels(BeginsWithLanguageModels):
    """An encoder-decoder that returns the states of a language model on each side, in
    `extra["first"]` [B, L, P] and `extra["below"]` [B, T, P]."""
