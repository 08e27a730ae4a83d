"""A base model with a saved adapter: `ptm_jax.load(base, adapter=FILE)`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.convert import adapterfile
from ptm_jax.convert.checkpoint import is_published
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.precision import Compute
from ptm_jax.core.system import in_effect
from ptm_jax.core.types import Params
from ptm_jax.tasks import loading
from ptm_jax.tasks.pretrained import Pretrained


def load(
    path: str | os.PathLike,
    adapter: str | os.PathLike,
    restore: Callable[..., tuple[Params, Mapping[str, Any], int]],
    tied: Callable[[Params, Any], Params],
    *,
    precision: Compute = "float32",
    **published: Any,
) -> Pretrained:
    """The adapted model. Raises UserError: no such model, no such file, an adapter of another model."""
    from ptm_jax.data import tokenizers

    file = adapterfile.read(adapter)
    system = loading.system_of(file.system, precision)
    path = Path(path)
    if not path.exists() or is_published(path):
        base, _ = loading.from_published(path, precision=precision, **published)
        params, tokenizer, said = base.params, base.tokenizer, base.published
    else:
        folder = loading._workdir(path) / "tokenizer"
        params, tokenizer = restore(path)[0], tokenizers.load(folder) if folder.is_dir() else None
        said = None
    params = unflatten(adapterfile.joined(file, flatten(params), str(path)))
    model = Pretrained(system, in_effect(system, tied(params, system.ties)), tokenizer)
    return model if said is None else dataclasses.replace(model, published=said)
