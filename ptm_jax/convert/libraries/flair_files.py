"""Vectors of words from character language models: Flair's two saved models, or a run of ours.
Akbik et al. 2018.

Flair saves one direction a file, a torch pickle with the parameters and the dictionary of
characters. No code of it runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.convert.formats import torch_records
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.reading import Record, broken, shown
from ptm_jax.core.system import System
from ptm_jax.core.types import Params
from ptm_jax.data.tokenizers.words import OpenWords, spaced
from ptm_jax.encoders.recurrent.recurrent import BiLanguageLSTM
from ptm_jax.encoders.recurrent.strings import Strings
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.systems.recurrent import flair

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


FILES = {"right": "*forward*.pt", "left": "*backward*.pt"}
LONGEST = 50
"""Characters of a word; the end of a longer one is not read."""


def is_flair(folder: str | os.PathLike) -> bool:
    """Returns whether a folder has Flair's language models of both directions."""
    folder = Path(folder)
    return folder.is_dir() and all(any(folder.glob(pattern)) for pattern in FILES.values())


def read(folder: str | os.PathLike, allow_pickle: bool) -> tuple[System, Params, OpenWords]:
    """Returns (system without a head, {tower: parameters}, tokenizer) of a folder of Flair.

    It has one file of each direction, as news-forward-0.4.1.pt and news-backward-0.4.1.pt. Raises
    UserError with the file.
    """
    folder, states = Path(folder), {}
    for way, pattern in FILES.items():
        files = sorted(folder.glob(pattern))
        if len(files) > 1:
            raise UserError(f"{folder} has {len(files)} files {pattern}; keep one")
        if not allow_pickle:
            raise UserError(
                f"{files[0]} is a torch pickle; read one that you trust with "
                "allow_pickle=True (--allow-pickle)"
            )
        states[way] = files[0], _state(files[0], way)
    (path, right), (other, left) = states["right"], states["left"]
    letters, delimiter = right["letters"], right["delimiter"]
    if (left["letters"], left["delimiter"]) != (letters, delimiter):
        raise broken(
            other,
            f"has other characters, or another delimiter, than {path.name}; give two models "
            "of one dictionary",
        )
    params = {f"right/{name}": array for name, array in right["params"].items()}
    params |= {f"left/{name}": array for name, array in left["params"].items()}
    tables = [
        np.concatenate([np.zeros_like(one["table"][:1]), one["table"]]) for one in (right, left)
    ]
    encoder = Strings(
        alphabet=1 + len(letters),
        width=tables[0].shape[1],
        right=LSTM(right["hidden"], forget=0.0),
        left=LSTM(left["hidden"], backward=True, forget=0.0),
        blank=1 + _place(letters, " "),
        delimiter=1 + _place(letters, delimiter),
        tables=2,
    )
    params["characters"] = np.stack(tables)
    return _system(folder.absolute().name, encoder, params, letters)


def of_model(
    system: System, params: Params, tokenizer: Tokenizer, name: str
) -> tuple[System, Params, OpenWords]:
    """Returns the same of a run of `systems.recurrent.flair`, whose characters are bytes.
    Raises UserError for another model."""
    encoder = system.towers["main"].encoder
    one = isinstance(encoder, BiLanguageLSTM) and len(encoder.right) == len(encoder.left) == 1
    if (
        not one
        or tokenizer is None
        or tokenizer.kind != "bytebpe"
        or tokenizer.vocab.size != flair.BYTES.size
    ):
        raise UserError(
            f"{system.name} is no language model of bytes with one layer in each direction; "
            "take a run of flair"
        )
    flat = flatten(params["main"]["encoder"])
    table = np.asarray(flat["embed/token"])
    rows = [
        tokenizer.vocab.eos,
        *(tokenizer.pieces.index(letter) for letter in flair.byte_letters()),
    ]
    changed = {
        name.replace("_0/", "/", 1): np.asarray(leaf)
        for name, leaf in flat.items()
        if "_0/" in name
    }
    words = Strings(
        alphabet=257, width=table.shape[1], right=encoder.right[0], left=encoder.left[0]
    )
    return _system(name, words, {**changed, "characters": table[rows][None]}, ())


def _system(
    name: str, encoder: Strings, params: Mapping[str, np.ndarray], letters: tuple[str, ...]
) -> Any:
    system = flair.of_words(name, encoder, LONGEST, letters)
    batch = {
        "input_ids": np.zeros((1, 2), np.int32),
        "characters": np.zeros((1, 2, LONGEST), np.int32),
    }
    shapes = flatten(towers.abstract(system.towers, batch)["main"]["encoder"])
    wrong = [
        path for path in shapes if path not in params or params[path].shape != shapes[path].shape
    ]
    if wrong:
        raise UserError(f"{name}: the language models lack {wrong[0]}, or have it in another shape")
    return (
        system,
        {"main": {"encoder": jax.tree.map(np.asarray, unflatten(dict(params)))}},
        spaced(),
    )


def _place(letters: tuple[str, ...], letter: str) -> int:
    return letters.index(letter) if letter in letters else 0


def _state(path: Path, way: str) -> dict[str, Any]:
    """Returns letters, delimiter, hidden, table and the parameters of a layer. Raises UserError."""
    state, items, delimiter = _checked(path, torch_records.read(path), way)

    def array(name):
        return _array(path, state, name)

    hidden = array("rnn.weight_hh_l0").shape[-1]
    params = {
        "inputs/kernel": array("rnn.weight_ih_l0").T,
        "inputs/bias": array("rnn.bias_ih_l0") + array("rnn.bias_hh_l0"),
        "state": array("rnn.weight_hh_l0").T,
    }
    letters = tuple(item.decode("utf-8", "replace") for item in items)
    table = array("encoder.weight")
    if table.ndim != 2 or len(table) != len(letters):
        raise broken(path, f"has {len(letters)} characters and a table {list(table.shape)}")
    return {
        "letters": letters,
        "delimiter": delimiter,
        "hidden": hidden,
        "table": table,
        "params": params,
    }


def _checked(path: Path, content: Mapping[str, Any], way: str) -> tuple[Any, list[bytes], str]:
    """Returns the tensors, the characters and the delimiter of a model's file. Raises UserError if
    it is another model than one that `_state` can read."""
    state, dictionary, delimiter = (
        content.get("state_dict"),
        content.get("dictionary"),
        content.get("document_delimiter", "\n"),
    )
    items = vars(dictionary).get("idx2item") if isinstance(dictionary, Record) else None
    if (
        not isinstance(state, Mapping)
        or not isinstance(items, list)
        or not all(isinstance(x, bytes) for x in items)
    ):
        raise broken(
            path,
            "has no state_dict, or no dictionary of characters; expected a language model "
            "that Flair saved",
        )
    if content.get("is_forward_lm") is not (way == "right"):
        raise broken(
            path,
            f"is not the {'forward' if way == 'right' else 'backward'} model that its name "
            "promises",
        )
    kind, layers, out = (
        str(content.get("recurrent_type", "lstm")).lower(),
        content.get("nlayers"),
        content.get("nout"),
    )
    if (
        kind != "lstm"
        or layers != 1
        or out is not None
        or not isinstance(delimiter, str)
        or len(delimiter) != 1
    ):
        sizes = shown(
            {
                "recurrent_type": kind,
                "nlayers": layers,
                "nout": out,
                "document_delimiter": delimiter,
            }
        )
        raise broken(
            path,
            f"has {sizes}; one layer of LSTM without a projection and a delimiter of one "
            "character are read",
        )
    return state, items, delimiter


def _array(path: Path, state: Mapping[str, Any], name: str) -> np.ndarray:
    array = state.get(name)
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        raise broken(path, f"has no numbers {name}; expected a language model that Flair saved")
    if not np.isfinite(array).all():
        raise broken(path, f"{name} holds NaN or infinity; the file is damaged")
    return array.astype(np.float32)
