"""Traits of encoders that the packages above read: conversion, training, inference, tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError


class ReadsMentions(slots.Encoder):
    """An encoder that reads a batch's entities, at the tokens `mention_places` [B, E, M]."""


def reads_mentions(encoder: slots.Encoder | None) -> bool:
    """Returns whether an encoder reads a batch's entities."""
    return isinstance(encoder, ReadsMentions)


class SelectsTask(slots.Encoder):
    """An encoder that was trained on several tasks and treats the rows of each task differently."""

    def of_task(self, number: int) -> slots.Encoder:
        """Returns the encoder that reads every batch as one of this task."""
        raise NotImplementedError


def of_task(encoder: slots.Encoder, number: int) -> slots.Encoder:
    """Returns the encoder for the rows of a task; one that treats all tasks alike is itself."""
    return encoder.of_task(number) if isinstance(encoder, SelectsTask) else encoder


class Reversible(slots.Encoder):
    """An encoder that can read a row from the other end."""

    def turned(self) -> slots.Encoder:
        """Returns the encoder that reads the other direction with the same parameters.

        Raises UserError if it reads both.
        """
        raise NotImplementedError


def turned(encoder: slots.Encoder) -> slots.Encoder:
    """Returns the encoder that reads the other direction. Raises UserError for one without."""
    if isinstance(encoder, Reversible):
        return encoder.turned()
    raise UserError(
        f"{type(encoder).__name__} has no other direction; a backward model is a recurrent one"
    )


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
