"""The sentence-transformers files of a folder; `sentence_export` writes them.
Reimers & Gurevych 2019, arXiv 1908.10084, section 3.

modules.json lists the steps: the model, one `Pooling`, any number of `Dense` layers, `Normalize`.
Each step has a folder with its config.json; a Dense layer has its tensors there.
sentence_bert_config.json holds the longest text, in version 6 tokenizer_config.json
(`model_max_length`), and config_sentence_transformers.json the prompts and the similarity.

A classifier on the mean of the states is written as such a folder, too: its last layer is a Dense
layer without activation, whose output is the logits of the classes in `id2label` of config.json.
`classifier` reads it back.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ptm_jax.convert.files import open_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Head
from ptm_jax.core.reading import read_bytes, shown
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.heads.text_vector import MODES, vector_head

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

ACTIVATIONS = {
    "Identity": "linear",
    **dict.fromkeys(("GELU", "ReLU", "SiLU", "Sigmoid", "Tanh"), "activation"),
}
"""Maps the class of a Dense layer's activation to its module in torch.nn.modules."""

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

_UNLIMITED = 10**9

_LENGTHS, _SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A layer on a text's vector.

    It has `kernel` [D, F] and `bias` [F] float32 (None: no bias), and a name of `ACTIVATIONS`.
    """

    kernel: np.ndarray
    bias: np.ndarray | None = None
    activation: str = "Tanh"


@dataclasses.dataclass(frozen=True)
class Sentence:
    """How a folder makes vectors of texts.

    It has pooling modes, whose vectors are concatenated, layers on the vector, and whether the
    length of the result is 1.

    refused         the reason why the folder's vectors cannot be computed here, or None
    prompts         {name: text before every text}; default_prompt: the name of the one that is used
                    if none is given
    include_prompt  whether the prompt's tokens are pooled
    max_length      the longest text in tokens with special ones; None: the model's own limit
    lower           whether texts are written in lower case first
    similarity      "cosine", "dot", or the negative distance "euclidean" or "manhattan"
    width           D of the states, as the folder's Pooling has it
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    refused: str | None = None
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    max_length: int | None = None
    lower: bool = False
    similarity: str = "cosine"
    width: int | None = None


def model_folder(folder: str | Path) -> Path:
    """Returns the folder of the model itself.

    The first step of modules.json, or `folder` without one. An old folder has 0_Transformer. Raises
    UserError for a damaged modules.json.
    """
    folder = Path(folder)
    steps = _steps(folder) if os.path.lexists(folder / "modules.json") else []
    return _place(folder, steps[0]) if steps else folder


def sentence_of(folder: str | Path, allow_pickle: bool = False) -> Sentence | None:
    """Returns the `Sentence` of a folder with a modules.json, or of the folder of its first step.
    None for another one. Raises UserError for a damaged file."""
    inner, folder = Path(folder), Path(folder)
    if not os.path.lexists(folder / "modules.json"):
        folder = folder.absolute().parent
        if not os.path.lexists(folder / "modules.json") or model_folder(folder) != inner.absolute():
            return None
    steps, modes, normalize, dense = _steps(folder), (), False, []
    facts = _settings(folder, inner if inner != folder else model_folder(folder))
    for step in steps[1:]:
        name, place = step["type"].rpartition(".")[2], _place(folder, step)
        if name == "Pooling" and not modes:
            fields = _json(place / "config.json", dict)
            modes, facts["include_prompt"] = (
                _modes(place / "config.json", fields),
                fields.get("include_prompt") is not False,
            )
            facts["width"] = fields.get(
                "word_embedding_dimension", fields.get("embedding_dimension")
            )
        elif name == "Dense" and modes and not normalize:
            try:
                dense.append(_dense(place, allow_pickle))
            except UserError as error:
                facts.setdefault("refused", str(error))
        elif name == "Normalize" and modes:
            normalize = True
        else:
            known = "supported are one Pooling, then Dense, then Normalize"
            facts.setdefault(
                "refused", f"{folder}/modules.json has the step {shown(name)[1:-1]}; {known}"
            )
    return Sentence(modes or ("mean",), normalize, dense=tuple(dense), **facts)


def settings_of(heads: Mapping[str, Head], sentence: Sentence | None) -> Sentence | None:
    """Returns the settings with the pooling of the head of vectors, where a tower has one."""
    head = vector_head(heads)
    if head is None:
        return sentence
    pooling = {"modes": head.modes, "normalize": head.normalize, "dense": ()}
    return dataclasses.replace(sentence or Sentence(), refused=None, **pooling)


def classifier(module: Model, params: Mapping[str, Any], sentence: Sentence, classes: int):
    """Returns (module, parameters, sentence) of a folder with a classifier.

    `parted` wrote it; for another folder the given ones are returned.
    """
    last = sentence.dense[-1] if sentence.dense else None
    if last is None or (last.activation, last.kernel.shape[1], sentence.modes) != (
        "Identity",
        classes,
        ("mean",),
    ):
        return module, params, sentence
    if len(sentence.dense) > 1 or sentence.normalize or set(module.heads) - {"pool"}:
        return module, params, sentence
    init, layer = module.encoder.embed.initializer, {"kernel": last.kernel, "bias": last.bias}
    head = SequenceHead(
        classes, Summary("none", at="mean"), bias=last.bias is not None, initializer=init
    )
    heads = {"classes": {name: value for name, value in layer.items() if value is not None}}
    params = {name: part for name, part in params.items() if name != "heads_pool"} | {
        "heads_classify": heads
    }
    return (
        dataclasses.replace(module, heads={"classify": head}),
        params,
        dataclasses.replace(sentence, dense=()),
    )


def _pooling(sentence: Sentence) -> dict[str, Any]:
    modes = {flag: mode in sentence.modes for flag, mode in _FLAGS.items()}
    if sentence.modes != tuple(
        mode for mode in MODES if mode in sentence.modes
    ):  # flags have one order only
        modes = {
            "pooling_mode": [
                "mean_sqrt_len_tokens" if mode == "mean_sqrt_len" else mode
                for mode in sentence.modes
            ]
        }
    return {
        "word_embedding_dimension": sentence.width,
        **modes,
        "include_prompt": sentence.include_prompt,
    }


def _steps(folder: Path) -> list[Mapping[str, Any]]:
    steps = _json(folder / "modules.json", list)
    if not all(isinstance(step, dict) and isinstance(step.get("type"), str) for step in steps):
        raise UserError(
            f"{folder}/modules.json is no list of modules with a type; copy the whole folder again"
        )
    return steps


def _place(folder: Path, step: Mapping[str, Any]) -> Path:
    path = PurePosixPath(str(step.get("path") or "")[:200])
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"{folder}/modules.json names the folder {str(path)!r}, outside its own; copy "
            "the whole folder again"
        )
    return folder / path


def _modes(file: Path, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the modes of a Pooling's config.json: flags, or since version 5.3 one name or a list
    of names."""
    named = fields.get("pooling_mode")
    if named is None:
        return tuple(mode for flag, mode in _FLAGS.items() if fields.get(flag)) or ("mean",)
    modes = tuple(
        str(name).removesuffix("_tokens")
        for name in (named if isinstance(named, list) else [named])
    )
    if wrong := [name for name in modes if name not in MODES]:
        raise UserError(
            f"{file}: pooling_mode is {shown(wrong[0])}; supported are {', '.join(MODES)}"
        )
    return modes


def _dense(place: Path, allow_pickle: bool) -> Dense:
    """Reads the layer of a step. Raises UserError for settings that are not supported."""
    fields = _json(place / "config.json", dict)
    named = str(fields.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation, feature = named.rpartition(".")[2], "sentence_embedding"
    if activation not in ACTIVATIONS or not named.startswith("torch."):
        raise UserError(
            f"{place} has the activation {shown(named)}; supported are torch.nn's "
            f"{', '.join(ACTIVATIONS)}"
        )
    for name, only in {
        "use_residual": False,
        "module_input_name": feature,
        "module_output_name": feature,
    }.items():
        if fields.get(name, only) not in (only, None):
            raise UserError(f"{place} has {name} {fields[name]!r}; supported is {only!r}")
    tensors = open_tensors(place, allow_pickle=allow_pickle)
    kernel = tensors.read("linear.weight").T
    bias = tensors.read("linear.bias") if "linear.bias" in tensors else None
    sizes = fields.get("in_features", -1), fields.get("out_features", -1)
    if kernel.shape != sizes or (bias is not None and bias.shape != sizes[1:]):
        raise UserError(
            f"{place} holds a layer {list(kernel.shape)}; its config.json has {list(sizes)}; "
            "copy the folder again"
        )
    return Dense(np.ascontiguousarray(kernel), bias, activation)


def _settings(folder: Path, inner: Path) -> dict[str, Any]:
    """Returns the fields of a `Sentence` that stand in the folder's settings, prompts and
    similarity, and in those of its model, the longest text."""
    file, settings = folder / _SETTINGS, {}
    fields = _json(file, dict) if file.is_file() else {}
    prompts, name = fields.get("prompts") or {}, fields.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise UserError(
            f"{file}: prompts is {str(prompts)[:80]}; expected an object of names and texts"
        )
    if name is not None and name not in (
        *prompts,
        "query",
        "document",
    ):  # these two are empty by default
        raise UserError(
            f"{file}: default_prompt_name is {name!r}; its prompts are "
            f"{', '.join(prompts) or 'none'}"
        )
    similarity = fields.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        raise UserError(
            f"{file}: similarity_fn_name is {similarity!r}; supported are {', '.join(SIMILARITIES)}"
        )
    lengths = next(iter(sorted(inner.glob("sentence_*_config.json"))), None)
    fields = _json(lengths, dict) if lengths is not None else {}
    longest = fields.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise UserError(
            f"{lengths}: max_seq_length is {longest!r}; expected a whole number above 0"
        )
    longest = _longest_of(inner) if longest is None else longest
    settings |= {"prompts": prompts, "default_prompt": name, "similarity": similarity}
    return settings | {"max_length": longest, "lower": fields.get("do_lower_case") is True}


def _longest_of(inner: Path) -> int | None:
    """Returns `model_max_length` of tokenizer_config.json, where sentence-transformers 6 writes the
    longest text; None for the huge number that means no limit."""
    file = inner / "tokenizer_config.json"
    longest = _json(file, dict).get("model_max_length") if file.is_file() else None
    if longest is None or (isinstance(longest, int | float) and longest > _UNLIMITED):
        return None
    if type(longest) not in (int, float) or longest != int(longest) or longest < 1:
        raise UserError(
            f"{file}: model_max_length is {shown(longest)}; expected a whole number above 0"
        )
    return int(longest)


def _json(file: Path, kind: type) -> Any:
    try:
        value = json.loads(read_bytes(file))
    except (UserError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}); copy the whole folder again") from None
    if not isinstance(value, kind):
        raise UserError(
            f"{file} holds a {type(value).__name__}; expected a JSON {kind.__name__}; copy "
            "the folder again"
        )
    return value
