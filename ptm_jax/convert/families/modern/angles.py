"""Fields of a config.json that today's encoders share: angles of rotary positions, and the pattern
of full and local layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.nn.attention.rotary import LocalLayers

KINDS = ("sliding_attention", "full_attention")
SCALED = "scaled rotary positions are not supported"


def theta(config: Config, default: float, kind: str = "", old: str = "rope_theta") -> float:
    """Returns theta of a config, of layers of a `kind` if their angles differ.

    It is read from `rope_parameters` (version 5 of Transformers) or from the field `old` (version
    4). Raises UserError for scaled angles, and for features that do not turn.
    """
    config.refuse("rope_scaling", None, SCALED)
    parameters = config("rope_parameters", dict, None) or {}
    if kind:
        parameters = Config(parameters, config.file)(kind, dict, None) or {}
    fields = Config(parameters, config.file)
    fields.refuse("rope_type", "default", SCALED)
    for name in ("partial_rotary_factor", "rotary_emb_fraction"):
        for one in (config, fields):
            one.refuse(name, 1.0, "features without rotary positions are not supported")
    value = fields("rope_theta", float, None)
    value = config(old, float, default) if value is None else value
    if value <= 0:
        raise UserError(f"{config.file}: {old} is {value}; it must be above 0")
    return float(value)


def angles(value: float) -> dict[str, Any]:
    """Returns the object of `rope_parameters` of a theta."""
    return {"rope_type": "default", "rope_theta": value}


def pattern(config: Config, layers: int, radius: int, default: Sequence[str]) -> LocalLayers:
    """Returns the pattern of full and local layers of `layer_types`.

    Raises UserError for one that does not repeat.
    """
    kinds = config("layer_types", list, list(default))
    if len(kinds) != layers or not set(map(str, kinds)) <= set(KINDS):
        raise UserError(
            f"{config.file}: layer_types has {len(kinds)} entries; expected {layers}, each "
            f"{' or '.join(KINDS)}"
        )
    for period in range(1, layers + 2):
        for phase in range(period):
            local = LocalLayers(radius=radius, every=period, phase=phase)
            if types_of(local, layers) == list(kinds):
                return local
    raise UserError(
        f"{config.file}: the full layers of layer_types do not repeat; expected every n-th layer"
    )


def types_of(local: LocalLayers, layers: int) -> list[str]:
    """Returns the `layer_types` of a config."""
    return [KINDS[bool(local.full(i))] for i in range(layers)]
