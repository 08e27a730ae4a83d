"""Old text that a further pre-training mixes in (`ptm train --mix`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import codes
from ptm_jax.data.rows.languages.shares import shared
from ptm_jax.data.stores import fetched

if TYPE_CHECKING:
    from ptm_jax.core.system import Experiment

NEW, OLD = "new", "old"
"""Domains of the text of --data and of --mix."""


def mixed(config: Experiment, words: Sequence[str]) -> Experiment:
    """Returns the experiment with old text, SHARE=SOURCE each.

    The first source is the domain "old", the next ones "old_2", ...; the data without a domain are
    "new". Of a prepared corpus SOURCE is the name of one of its domains. Raises UserError.
    """
    if not words:
        return config
    system = config.system
    if system.examples.labelled:
        raise UserError("--mix adds text to pre-training; leave it out of a task")
    pairs = [parsed(word) for word in words]
    prepared = len(config.data) == 1 and fetched.is_corpus(config.data[0])
    if prepared:
        shares, data = tuple((name, share) for share, name in pairs), config.data
    else:
        names = [OLD if not number else f"{OLD}_{number + 1}" for number in range(len(pairs))]
        shares = tuple(zip(names, (share for share, _ in pairs), strict=True))
        new = codes.grouped(config.data)
        data = config.data if new else tuple(f"{codes.DOMAIN}{NEW}={one}" for one in config.data)
        old = zip(names, (source for _, source in pairs), strict=True)
        data = (*data, *(f"{codes.DOMAIN}{name}={source}" for name, source in old))
    system = dataclasses.replace(system, examples=shared(system.examples, shares))
    return dataclasses.replace(config, data=data, system=system)


def parsed(word: str) -> tuple[float, str]:
    """Returns (share, source) of SHARE=SOURCE. Raises UserError."""
    share, equals, source = word.partition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not (equals and source and 0 <= value < 1):
        raise UserError(
            f"--mix {word} is no share of a text; write SHARE=SOURCE, as 0.2=old.txt, with a share "
            "from 0 to below 1"
        )
    return value, source
