"""Pre-trained language models of the BERT era in JAX.

import ptm_jax
model = ptm_jax.load("runs/mini")
model.fill_mask(["Paris is the [MASK] of France."])
ptm_jax.load("path/to/a/hugging-face/checkpoint").encode(["a sentence"])
ptm_jax.finetune("a/hugging-face/checkpoint", ["good", "bad"], ["positive", "negative"])
"""

from __future__ import annotations

from typing import Any

_LAZY = {
    "Pretrained": "ptm_jax.inference.pretrained:Pretrained",
    "Generation": "ptm_jax.inference.decoding.settings:Generation",
    "load": "ptm_jax.inference.loading:load",
    "train": "ptm_jax.api:pretrain",
    "pretrain": "ptm_jax.api:pretrain",
    "finetune": "ptm_jax.api:finetune",
    "evaluate": "ptm_jax.api:evaluate",
}

__all__ = ["Generation", "Pretrained", "evaluate", "finetune", "load", "pretrain", "train"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that importing the package costs nothing."""
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        value = version("ptm_jax")
    elif name in _LAZY:
        module, _, attribute = _LAZY[name].partition(":")
        value = vars(importlib.import_module(module))[attribute]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "__version__"})
