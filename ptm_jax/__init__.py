"""Pre-trained language models of the BERT era in JAX.

import ptm_jax
model = ptm_jax.load("runs/mini")
model.fill_mask(["Paris is the [MASK] of France."])
ptm_jax.load("path/to/a/hugging-face/checkpoint").encode(["a sentence"])
"""

from __future__ import annotations

from typing import Any

_LAZY = {
    "Pretrained": "ptm_jax.inference.pretrained",
    "Generation": "ptm_jax.inference.decoding.settings",
    "load": "ptm_jax.inference.loading",
}

__all__ = ["Generation", "Pretrained", "load"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that importing the package costs nothing."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
