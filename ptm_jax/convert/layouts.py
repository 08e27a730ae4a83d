"""The layouts of libraries whose models have no class in Transformers.

To add one: a module in `convert.libraries`, and its entry in `LAYOUTS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.convert.libraries import (
    elmo_folder,
    fastai_file,
    flair_files,
    gliner_folder,
    retrieval_folders,
)
from ptm_jax.core.networks import Network
from ptm_jax.core.system import System
from ptm_jax.data.tokenizers.tokenizing import Tokenizer

Loaded = tuple[System, Mapping[str, Any], Tokenizer | None]
"""(system, {tower: parameters}, tokenizer)."""


def _writes_nothing(module: Network) -> bool:
    return False


def _write_elmo(folder: Path, model, dtype: str) -> None:
    params = model.params[model.tower]
    elmo_folder.write(folder, model.module, params, model.examples, dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A library's layout of files.

    detect  path -> whether it has the layout
    read    (path, allow_pickle) -> the model. Raises UserError
    writes  network -> whether `write` writes it
    write   (folder, a loaded model, dtype) -> None
    loads   line of Python that loads a folder, with a field {folder}
    pipeline  the Hub's name of the task
    """

    library: str
    detect: Callable[[Path], bool]
    read: Callable[[Path, bool], Loaded]
    writes: Callable[[Network], bool] = _writes_nothing
    write: Callable[..., None] | None = None
    loads: str = ""
    pipeline: str = "feature-extraction"

    @property
    def config(self) -> dict[str, Any]:
        """The fields of config.json that a model card names, which such a folder has not."""
        return {"model_type": self.library.lower(), "architectures": [self.library]}


LAYOUTS = (
    Layout(library="fastai", detect=fastai_file.is_fastai, read=fastai_file.read),
    Layout(
        library="AllenNLP",
        detect=elmo_folder.is_elmo,
        read=lambda path, allow_pickle: elmo_folder.read(path),
        writes=lambda module: elmo_folder.writes(module.encoder),
        write=_write_elmo,
        loads="import ptm_jax; model = ptm_jax.load({folder!r})  # and AllenNLP's Elmo",
    ),
    Layout(library="ColBERT", detect=retrieval_folders.is_late, read=retrieval_folders.read_late),
    Layout(library="Flair", detect=flair_files.is_flair, read=flair_files.read),
    Layout(
        library="GLiNER",
        detect=gliner_folder.is_gliner,
        read=gliner_folder.read,
        writes=gliner_folder.writes,
        write=gliner_folder.write,
        loads="from gliner import GLiNER; model = GLiNER.from_pretrained({folder!r})",
        pipeline="token-classification",
    ),
)


def writer_of(module: Network) -> Layout | None:
    """Returns the layout in which a network is written, or None."""
    return next((layout for layout in LAYOUTS if layout.writes(module)), None)
