"""Describes, overrides, compares, parses and rebuilds specs, which are frozen dataclasses."""

from ptm_jax.core.spec.describe import (
    differences,
    field_names,
    fingerprint,
    is_spec,
    to_json,
    to_line,
    to_text,
    values_of,
)
from ptm_jax.core.spec.overriding import override, parse_pairs
from ptm_jax.core.spec.walk import children, respell, walk, with_field

__all__ = [
    "children",
    "differences",
    "field_names",
    "fingerprint",
    "is_spec",
    "override",
    "parse_pairs",
    "respell",
]
__all__ += ["to_json", "to_line", "to_text", "values_of", "walk", "with_field"]
