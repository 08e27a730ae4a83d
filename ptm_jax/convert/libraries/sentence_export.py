"""A model as a sentence-transformers folder: its settings, and the modules after the encoder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert.libraries.sentence_folder import (
    _LENGTHS,
    _SETTINGS,
    ACTIVATIONS,
    Dense,
    Sentence,
    _pooling,
    settings_of,
)
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import outlined
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.task_heads import summary_of
from ptm_jax.nn.heads.text_vector import vector_head
from ptm_jax.objectives.sentences.base import HEAD


def write(folder: str | Path, sentence: Sentence) -> None:
    """Writes the files of a `Sentence` into the folder of a model.

    `sentence_of` and sentence-transformers read them.
    """
    folder, parts = Path(folder), [("Pooling", _pooling(sentence))]
    for layer in sentence.dense:
        kind = f"torch.nn.modules.{ACTIVATIONS[layer.activation]}.{layer.activation}"
        sizes = dict(zip(("in_features", "out_features"), layer.kernel.shape, strict=True))
        parts.append(
            ("Dense", {**sizes, "bias": layer.bias is not None, "activation_function": kind})
        )
    parts += [("Normalize", {})] * sentence.normalize
    steps, layers = [], iter(sentence.dense)
    for number, (name, fields) in enumerate([("Transformer", None), *parts]):
        path = f"{number}_{name}" if number else ""
        steps.append(
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
        )
        if number:
            (folder / path).mkdir(parents=True, exist_ok=True)
            _write(folder / path / "config.json", fields)
        if name == "Dense":
            layer = next(layers)
            named = {"linear.weight": layer.kernel.T, "linear.bias": layer.bias}
            write_tensors(
                folder / path, [(key, value) for key, value in named.items() if value is not None]
            )
    _write(folder / "modules.json", steps)
    _write(
        folder / _LENGTHS, {"max_seq_length": sentence.max_length, "do_lower_case": sentence.lower}
    )
    names = ("prompts", sentence.prompts), ("default_prompt_name", sentence.default_prompt)
    _write(folder / _SETTINGS, {**dict(names), "similarity_fn_name": sentence.similarity})


def settings(sentence: Sentence) -> dict[str, Any]:
    """Returns the fields of a `Sentence` in a form that compares.

    The arrays of its layers as bytes.
    """
    arrays = [(layer.kernel, layer.bias) for layer in sentence.dense]
    dense = [[None if part is None else part.tobytes() for part in pair] for pair in arrays]
    return {
        **vars(sentence),
        "dense": dense,
        "activations": [layer.activation for layer in sentence.dense],
    }


def parted(
    module: Model, params: Mapping[str, Any]
) -> tuple[Model, Mapping[str, Any], Dense | None]:
    """Returns (module, parameters, last layer), with None in the place of the last layer.

    A head of vectors has no parameters and is left out. For a classifier on the mean of the states,
    module and parameters are without its head, which is its last layer.
    """
    if vector_head(module.heads) is not None:
        return dataclasses.replace(module, heads={}), params, None
    if HEAD in module.heads:  # sparse vectors, or a vector for each token
        heads = {name: head for name, head in module.heads.items() if name != HEAD}
        others = {name: part for name, part in params.items() if name != f"heads_{HEAD}"}
        return dataclasses.replace(module, heads=heads), others, None
    summary = summary_of(module.heads.get("classify"))
    if (
        summary is None
        or (summary.at, summary.activation) != ("mean", "none")
        or len(module.heads) > 1
    ):
        return module, params, None
    last = {name: np.asarray(value) for name, value in params["heads_classify"]["classes"].items()}
    others = {name: part for name, part in params.items() if name != "heads_classify"}
    return (
        dataclasses.replace(module, heads={}),
        others,
        Dense(last["kernel"], last.get("bias"), "Identity"),
    )


def around(model: Any, last: Dense | None, layout: str | None) -> Sentence | None:
    """Returns the settings of sentence-transformers that an export writes beside a model.
    None for a folder of transformers alone. `last` is the layer of a classifier on the mean. Raises
    UserError."""
    sentence = settings_of(model.module.heads, model.sentence)
    if vector_head(model.module.heads) is not None:
        sizes = {"width": _width(model.module)}
        return None if layout == "transformers" else dataclasses.replace(sentence, **sizes)
    if HEAD in model.module.heads:
        return None
    heads = sorted(set(model.module.heads) - {"pool"})
    if last is not None:
        if layout == "transformers":
            raise UserError(
                f"{model.system.name} classifies the mean of the states, of which transformers has "
                "no class; take --layout sentence-transformers, or fine-tune the model again"
            )
        limits = {} if sentence is None else {"max_length": sentence.max_length}
        limits |= {} if sentence is None else {"lower": sentence.lower}
        return Sentence(dense=(last,), width=len(last.kernel), **limits)
    if layout == "sentence-transformers" and heads:
        raise UserError(
            f"{model.system.name} has the head {heads[0]!r}, which sentence-transformers does not "
            "read; leave --layout out"
        )
    if layout == "sentence-transformers" and sentence is None:
        return Sentence(width=_width(model.module))
    if sentence is None or sentence.refused or heads or layout == "transformers":
        return None
    return sentence


def _width(module: Model) -> int:
    """Returns the width of the states of a tower."""
    return outlined(module).hidden.shape[-1]


def _write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
