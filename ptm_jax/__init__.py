"""Pre-trained language models of the BERT era in JAX.

import ptm_jax
model = ptm_jax.load("runs/mini")
model.fill_mask(["Paris is the [MASK] of France."])
ptm_jax.load("path/to/a/hugging-face/checkpoint").encode(["a sentence"])
ptm_jax.finetune("a/hugging-face/checkpoint", ["good", "bad"], ["positive", "negative"])
"""

from __future__ import annotations

from typing import Any

__all__ = ["Generation", "Pretrained", "evaluate", "finetune", "load", "mine", "pretrain", "train"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that importing the package costs nothing."""
    if name == "__version__":
        from importlib.metadata import version

        value = version("ptm_jax")
    elif name in __all__:
        value = _imported(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, value)


def _imported(name: str) -> Any:
    """Returns a public name from its module."""
    if name == "Pretrained":
        from ptm_jax.inference.pretrained import Pretrained

        return Pretrained
    if name == "Generation":
        from ptm_jax.inference.decoding.settings import Generation

        return Generation
    if name == "load":
        from ptm_jax.inference.loading import load

        return load
    if name == "mine":
        from ptm_jax.tasks.mining import mine

        return mine
    from ptm_jax import api

    return vars(api)["pretrain" if name == "train" else name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
