"""Pre-trained language models of the BERT era in JAX.

import ptm_jax
model = ptm_jax.load("runs/mini")
model.fill_mask(["Paris is the [MASK] of France."])
"""

from __future__ import annotations

from typing import Any

_LAZY = {
    "Pretrained": "ptm_jax.tasks.pretrained",
    "Generation": "ptm_jax.tasks.generation",
}

__all__ = ["Generation", "Pretrained", "load"]


def load(path, *, precision: str = "float32", tower: str | None = None):
    """The `Pretrained` model of a training run, from its newest whole checkpoint.

    path       a workdir of `ptm train`, or one checkpoint of it (WORKDIR/checkpoints/step_...)
    precision  what matrix products are computed in: float32 or bfloat16
    tower      the network to use, where the system has several ("main", or the last)

    Raises UserError: no such workdir, no whole checkpoint, a tokenizer that is not the checkpoint's.
    """
    from ptm_jax.tasks import loading
    from ptm_jax.train.checkpoints import restore_params
    from ptm_jax.train.step import tied

    return loading.load(path, restore_params, tied, precision=precision, tower=tower)


def __getattr__(name: str) -> Any:
    """What is offered at the top is imported when it is first used, so that importing the package costs nothing."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
