"""Vectors of texts from the states of their tokens, and the pooling of a sentence-transformers folder (Reimers & Gurevych
2019, arXiv 1908.10084, section 3).

Such a folder lists its steps in modules.json: the model, `Pooling` with a config.json of its own, and `Normalize`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ptm_jax.core.errors import UserError, unknown

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"]
MODES = get_args(Pooling)

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclasses.dataclass(frozen=True)
class Sentence:
    """How a folder makes vectors of texts: its pooling modes, whose vectors are concatenated, and whether their length is 1.

    `refused` is the reason why the folder's vectors cannot be computed here, or None.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    refused: str | None = None


def pooled(mode: str, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns vectors [B, D] of states [B, L, D] float32 where `mask` [B, L] is above 0. Rows are padded on the right.

    cls first token; lasttoken last token; max; mean; mean_sqrt_len: the sum over the square root of the number of tokens;
    weightedmean: the mean with weights 1, 2, .. (Muennighoff 2022, arXiv 2202.08904, equation 2). Raises UserError for
    another mode.
    """
    real = mask[..., None] > 0
    if mode == "cls":
        return hidden[:, 0]
    if mode == "lasttoken":
        return hidden[np.arange(len(hidden)), (mask > 0).sum(1) - 1]
    if mode == "max":
        return np.where(real, hidden, -np.inf).max(1)
    if mode in ("mean", "mean_sqrt_len"):
        count = real.sum(1).astype(np.float32)
        return np.where(real, hidden, 0).sum(1) / (count if mode == "mean" else np.sqrt(count))
    if mode == "weightedmean":
        weights = real * np.arange(1, mask.shape[1] + 1, dtype=np.float32)[None, :, None]
        return np.where(real, hidden * weights, 0).sum(1) / weights.sum(1)
    raise unknown("pooling", str(mode), MODES)


def sentence_of(folder: str | Path) -> Sentence | None:
    """Returns the `Sentence` of a folder with a modules.json, None for one without. Raises UserError for a damaged file."""
    folder = Path(folder)
    if not (folder / "modules.json").is_file():
        return None
    steps = _json(folder / "modules.json", list)
    if not all(isinstance(step, dict) and isinstance(step.get("type"), str) for step in steps):
        raise UserError(f"{folder}/modules.json is no list of modules with a type; copy the whole folder again")
    modes, normalize, refused = (), False, _prompt(folder)
    for step in steps[1:]:
        name = step["type"].rpartition(".")[2]
        if name == "Pooling" and not modes:
            modes = _modes(folder / str(step.get("path", "")) / "config.json")
        elif name == "Normalize" and modes:
            normalize = True
        else:
            refused = refused or f"{folder}/modules.json has the step {name}; supported are one Pooling, then Normalize"
    return Sentence(modes or ("mean",), normalize, refused)


def _modes(file: Path) -> tuple[str, ...]:
    """Returns the modes of a Pooling's config.json: flags, or since version 5.3 one name or a list of names."""
    fields = _json(file, dict)
    named = fields.get("pooling_mode")
    if named is None:
        return tuple(mode for flag, mode in _FLAGS.items() if fields.get(flag)) or ("mean",)
    found = tuple(str(name).removesuffix("_tokens") for name in (named if isinstance(named, list) else [named]))
    if wrong := [name for name in found if name not in MODES]:
        raise UserError(f"{file}: pooling_mode is {wrong[0]!r}; supported are {', '.join(MODES)}")
    return found


def _prompt(folder: Path) -> str | None:
    """Returns the refusal of a folder that puts a prompt before every text."""
    file = folder / "config_sentence_transformers.json"
    name = _json(file, dict).get("default_prompt_name") if file.is_file() else None
    return None if name is None else f"{file} puts the prompt {name!r} before every text, which is not supported"


def _json(file: Path, kind: type) -> Any:
    try:
        value = json.loads(file.read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}); copy the whole folder again") from None
    if not isinstance(value, kind):
        raise UserError(f"{file} holds a {type(value).__name__}; expected a JSON {kind.__name__}; copy the folder again")
    return value
