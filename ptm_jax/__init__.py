"""Pre-trained language models of the BERT era in JAX.

import ptm_jax
model = ptm_jax.load("runs/mini")
model.fill_mask(["Paris is the [MASK] of France."])
ptm_jax.load("path/to/a/hugging-face/checkpoint").encode(["a sentence"])
"""

from __future__ import annotations

from typing import Any

_LAZY = {
    "Pretrained": "ptm_jax.tasks.pretrained",
    "Generation": "ptm_jax.tasks.generation",
}

__all__ = ["Generation", "Pretrained", "load"]


def load(
    path,
    *,
    precision: str = "float32",
    tower: str | None = None,
    architecture: str | None = None,
    allow_pickle: bool = False,
    revision: str | None = None,
    adapter: str | None = None,
):
    """The `Pretrained` model of a training run, or of a published Hugging Face checkpoint.

    path          a workdir of `ptm train` or one checkpoint of it (WORKDIR/checkpoints/step_...): the newest whole one;
                  a directory with config.json and tensors; or a name on the Hugging Face Hub ("bert-base-uncased")
    precision     what matrix products are computed in: float32 or bfloat16
    tower         the network to use, where the system has several ("main", or the last)
    architecture  another class of the checkpoint's family, as "BertForMaskedLM"; a head that it lacks is made anew
    adapter       a file that `ptm export --adapter` wrote of a run on this very model: what was trained is put on it
    allow_pickle  read a torch pickle where there is nothing else (torch's weights_only); revision: on the Hub

    Raises UserError: no such model, no whole checkpoint, a tokenizer that is not the checkpoint's, a damaged file.
    """
    from ptm_jax.tasks import adapters, loading
    from ptm_jax.train.checkpoints import restore_params
    from ptm_jax.train.step import tied

    published = {"architecture": architecture, "allow_pickle": allow_pickle, "revision": revision}
    if adapter is not None:
        return adapters.load(path, adapter, restore_params, tied, precision=precision, **published)
    return loading.load(path, restore_params, tied, precision=precision, tower=tower, **published)


def __getattr__(name: str) -> Any:
    """What is offered at the top is imported when it is first used, so that importing the package costs nothing."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
