"""The compressions by name, for `--compress`, `ptm compress` and `ptm list --compressions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptm_jax.compress.magnitude import Magnitude
from ptm_jax.compress.qbert import QBERT
from ptm_jax.compress.quantisation import Q8BERT, Int8
from ptm_jax.core.spec.named import Named

NAMES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "magnitude": (Magnitude, (164,)),
    "int8": (Int8, (169,)),
    "q8bert": (Q8BERT, (169,)),
    "qbert": (QBERT, (168, 187)),
}
"""{name: (function that returns it with the defaults, rows of the survey's catalogue; no rows for newer methods)}."""

_NAMED = Named("compression", "--compress", "magnitude(share=0.7)", NAMES)
read, read_all, entries = _NAMED.read, _NAMED.read_all, _NAMED.entries
