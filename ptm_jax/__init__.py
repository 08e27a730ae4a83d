"""Pre-trained language models of the BERT era in JAX.

import ptm_jax
model = ptm_jax.load("runs/mini")
model.fill_mask(["Paris is the [MASK] of France."])
ptm_jax.load("path/to/a/hugging-face/checkpoint").encode(["a sentence"])
ptm_jax.finetune("a/hugging-face/checkpoint", ["good", "bad"], ["positive", "negative"])
"""

from __future__ import annotations

import types
from typing import Any

_LAZY = {
    "Pretrained": "ptm_jax.inference.pretrained",
    "Generation": "ptm_jax.inference.decoding.settings",
    "load": "ptm_jax.inference.loading",
    "pretrain": "ptm_jax.api",
    "finetune": "ptm_jax.api",
    "evaluate": "ptm_jax.api",
}

__all__ = ["Generation", "Pretrained", "evaluate", "finetune", "load", "pretrain", "train"]


class Train(types.ModuleType):
    """The room `ptm_jax.train`, which is called as the command `ptm train`: `ptm_jax.train(config,
    workdir=...)`."""

    def __call__(self, *given: Any, **options: Any) -> Any:
        return __getattr__("pretrain")(*given, **options)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that importing the package costs nothing."""
    import importlib

    if name == "train":
        return importlib.import_module("ptm_jax.train")
    if name == "__version__":
        from importlib.metadata import version

        value = version("ptm_jax")
    elif name in _LAZY:
        value = vars(importlib.import_module(_LAZY[name]))[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "train", "__version__"})
