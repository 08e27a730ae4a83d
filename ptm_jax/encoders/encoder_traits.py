"""Traits of encoders that the rooms above read: conversion, training, inference, tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptm_jax.core import slots


class ReadsMentions(slots.Encoder):
    """An encoder that reads a batch's entities, at the tokens `mention_places` [B, E, M]."""


class SelectsTask(slots.Encoder):
    """An encoder that was trained on several tasks and treats the rows of each task differently."""

    def of_task(self, number: int) -> slots.Encoder:
        """Returns the encoder that reads every batch as one of this task."""
        raise NotImplementedError


class Reversible(slots.Encoder):
    """An encoder that can read a row from the other end."""

    def turned(self) -> slots.Encoder:
        """Returns the encoder that reads the other direction with the same parameters.

        Raises UserError if it reads both.
        """
        raise NotImplementedError


class EntityTables(slots.Encoder):
    """An encoder with tables of entities.

    lexicons    {path of a table inside the encoder: the lexicon that numbers its rows}
    """

    lexicons: Mapping[str, Any]


class GrownTransformer(slots.Encoder):
    """A Transformer with further parts, which may begin with the parameters of a plain one.

    beyond    pattern of the paths of its further parameters
    """

    beyond: str

    def of_plain(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the parameters {path inside the encoder: array} of a plain Transformer at this
        encoder's paths. Parameters of such an encoder stay. Raises UserError for another number of
        layers."""
        return params
