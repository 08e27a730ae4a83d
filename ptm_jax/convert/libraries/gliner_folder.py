"""The folder of the package gliner: `gliner_config.json`, tensors, and the files of a tokenizer.
Zaratiana et al. 2023, arXiv 2311.08526.

The encoder is one of the families of Transformers, under `encoder_config`. Older releases name a
DeBERTa v3 instead, whose sizes the tensors have. Models of one encoder with spans of markers are
read (span_mode "markerV0"), as the releases named gliner_small, gliner_medium and gliner_large.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.convert.files import Tensors, open_tensors
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core import towers
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.reading import broken, read_json, shown
from ptm_jax.core.system import System
from ptm_jax.core.types import Params
from ptm_jax.data.tokenizers.published import write_published
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.knowledge.named_spans import NamedSpans, span_head
from ptm_jax.objectives.tasks.span_names import SpanNames

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer

FILE, HEAD = "gliner_config.json", "spans"
ROOT, PROJECTION = "token_rep_layer.bert_layer.model.", "token_rep_layer.projection"
MARKERS = {"ent_token": "<<ENT>>", "sep_token": "<<SEP>>"}
ONLY = {
    "span_mode": "markerV0", "subtoken_pooling": "first", "embed_ent_token": True,
    "fuse_layers": False, "post_fusion_schema": "", "words_splitter_type": "whitespace",
    "span_encoder_config": None, "labels_encoder": None, "labels_decoder": None,
}  # fmt: skip
"""Fields of the config with the only value that is read."""
NETWORKS = {
    "start": "span_rep_layer.span_rep_layer.project_start",
    "end": "span_rep_layer.span_rep_layer.project_end",
    "type": "prompt_rep_layer",
}
SPAN = "span_rep_layer.span_rep_layer.out_project"


def is_gliner(folder: str | os.PathLike) -> bool:
    """Returns whether a folder has the config of GLiNER."""
    return (Path(folder) / FILE).is_file()


def writes(module: Model) -> bool:
    """Returns whether the layout of a network's export is this one."""
    return span_head(module.heads) is not None


def read(
    folder: str | os.PathLike, allow_pickle: bool = False
) -> tuple[System, Params, Tokenizer | None]:
    """Returns (system, {tower: parameters}, tokenizer). Raises UserError with file and field."""
    folder = Path(folder)
    fields = read_json(folder / FILE, "the file")
    if not isinstance(fields, dict):
        raise broken(folder / FILE, "holds no object; copy the whole folder again")
    tensors = open_tensors(folder, allow_pickle=allow_pickle)
    tokenizer = checkpoint.tokenizer_of(folder)
    _check(folder / FILE, fields, tokenizer)
    encoder = _encoder(folder / FILE, fields, tensors).within(map(tensors.shape, tensors))
    family = family_of(encoder)
    vocab = None if tokenizer is None else tokenizer.vocab
    system, name = checkpoint.record_of(encoder, family.bare, vocab)
    if not any(".pooler." in tensor for tensor in tensors):
        system = checkpoint.without_pooler(system)
    main = system.towers["main"]
    width = towers.outlined(main).hidden.shape[-1]
    head = _head(Config(fields, str(folder / FILE)).within(map(tensors.shape, tensors)), width)
    main = dataclasses.replace(main, heads={**main.heads, HEAD: head})
    system = dataclasses.replace(
        system, name=folder.absolute().name, objective=SpanNames(), corruption=None,
        towers={"main": main},
    )  # fmt: skip
    shapes = dict(towers.abstract(system.towers, checkpoint.example(system))["main"])
    wanted = flatten(shapes.pop(f"heads_{HEAD}"))
    lines = family.lines(encoder, name)
    params, _ = engine.read(tensors.within(ROOT), shapes, family, lines)
    names = _names(head, width)
    arrays = {path: _array(tensors, names[path], leaf.shape) for path, leaf in wanted.items()}
    return system, {"main": {**params, f"heads_{HEAD}": unflatten(arrays)}}, tokenizer


def _check(file: Path, fields: Mapping[str, Any], tokenizer: Tokenizer | None) -> None:
    """Raises UserError for a model of another kind."""
    for name, only in ONLY.items():
        if fields.get(name, only) != only:
            raise broken(file, f"{name} is {shown(fields[name])}; {only!r} is read")
    for name, marker in MARKERS.items():
        piece = fields.get(name, marker)
        if tokenizer is not None and piece not in (marker, *_substitutes(tokenizer)):
            raise broken(file, f"{name} is {shown(piece)}; {marker} is read")
    index = fields.get("class_token_index", -1)
    marker = fields.get("ent_token", MARKERS["ent_token"])
    if tokenizer is not None and index not in (-1, tokenizer.id(marker)):
        raise broken(
            file,
            f"class_token_index is {shown(index)}, and the tokenizer has {marker} as "
            f"{tokenizer.id(marker)}; take the tokenizer of this model",
        )


def _substitutes(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the pieces that stand for markers, where a tokenizer has none."""
    if all(tokenizer.id(marker) is not None for marker in MARKERS.values()):
        return ()
    vocab = tokenizer.vocab
    ids = (vocab.mask, vocab.eos if vocab.sep is None else vocab.sep)
    return tuple(tokenizer.piece(one) for one in ids if one is not None)


def _encoder(file: Path, fields: Mapping[str, Any], tensors: Tensors) -> Config:
    """Returns the config of the encoder, with the vocabulary of its tensors."""
    config = fields.get("encoder_config")
    if isinstance(config, dict):
        return Config({"model_type": "deberta-v2", **config}, str(file))
    name = str(fields.get("model_name", ""))
    if not name.startswith("microsoft/deberta-v3-"):
        raise broken(file, f"has no encoder_config, and {shown(name)} is not read; add this field")

    def shape(part: str) -> tuple[int, ...]:
        return tensors.shape(f"{ROOT}{part}.weight")

    vocab, width = shape("embeddings.word_embeddings")
    layers = {one.split(".layer.")[1].split(".")[0] for one in tensors if ".layer." in one}
    return Config({
        "model_type": "deberta-v2", "vocab_size": vocab, "hidden_size": width,
        "num_hidden_layers": len(layers), "num_attention_heads": max(1, width // 64),
        "intermediate_size": shape("encoder.layer.0.intermediate.dense")[0],
        "position_buckets": shape("encoder.rel_embeddings")[0] // 2, "relative_attention": True,
        "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
        "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": -1,
        "max_position_embeddings": 512, "layer_norm_eps": 1e-7, "pad_token_id": 0,
    }, str(file))  # fmt: skip


def _head(config: Config, width: int) -> NamedSpans:
    features, layers = config.positive("hidden_size", 512), config("num_rnn_layers", int, 1)
    try:
        return NamedSpans(
            longest=config.positive("max_width", 12),
            features=None if features == width else features,
            recurrent=config.count("num_rnn_layers", 1) if layers else 0,
            dropout=config("dropout", float, 0.4),
        )
    except ValueError as error:
        raise broken(Path(config.file), f"does not fit: {error}") from None


def _names(head: NamedSpans, width: int) -> dict[str, tuple[str | slice, ...]]:
    """Returns {path below the head: its tensors}: names, of which several are stacked, or a name
    and the columns of its tensor."""
    features = head.features or width
    names: dict[str, tuple[str | slice, ...]] = {}
    dense = {f"{ours}_{part}": f"{theirs}.{number}" for ours, theirs in NETWORKS.items()
             for part, number in (("in", 0), ("out", 3))}  # fmt: skip
    if head.features is not None:
        dense["project"] = PROJECTION
    for ours, theirs in dense.items():
        names[f"{ours}/kernel"] = (f"{theirs}.weight",)
        names[f"{ours}/bias"] = (f"{theirs}.bias",)
    names["span_start"] = (f"{SPAN}.0.weight", slice(0, features))
    names["span_end"] = (f"{SPAN}.0.weight", slice(features, 2 * features))
    names |= {"span_bias": (f"{SPAN}.0.bias",), "span_out": (f"{SPAN}.3.weight",)}
    names["span_out_bias"] = (f"{SPAN}.3.bias",)
    for layer in range(head.recurrent):
        for side, ending in (("right", ""), ("left", "_reverse")):
            ours, end = f"lstm{layer}_{side}", f"_l{layer}{ending}"
            names[f"{ours}_inputs"] = (f"rnn.lstm.weight_ih{end}",)
            names[f"{ours}_state"] = (f"rnn.lstm.weight_hh{end}",)
            names[f"{ours}_bias"] = (f"rnn.lstm.bias_ih{end}", f"rnn.lstm.bias_hh{end}")
    return names


def _array(tensors: Tensors, names: tuple[str | slice, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Returns a parameter. Raises UserError for an absent tensor, another shape, or NaN."""
    several = [name for name in names if isinstance(name, str)]
    arrays = [np.asarray(tensors.read(name)).T for name in several]
    if len(several) > 1:
        array = np.stack(arrays) if len({part.shape for part in arrays}) == 1 else arrays[0]
    else:
        array = arrays[0][names[-1]] if isinstance(names[-1], slice) else arrays[0]
    file = tensors.file(several[0])
    if array.shape != shape:
        size = list(tensors.shape(several[0]))
        raise broken(file, f"{several[0]} has the shape {size}, which does not fit {FILE}")
    if not np.isfinite(array).all():
        raise broken(file, f"{several[0]} holds NaN or infinity; take another model")
    return np.ascontiguousarray(array)


def write(folder: Path, model, dtype: str = "float32") -> None:
    """Writes a model with the head of spans as the folder that the package gliner reads.
    Raises UserError for an encoder without a family in Transformers."""
    module, params, tokenizer = model.module, dict(model.params[model.tower]), model.tokenizer
    head = span_head(module.heads)
    arrays = flatten(params.pop(f"heads_{HEAD}"))
    heads = {name: part for name, part in module.heads.items() if name != HEAD}
    system = dataclasses.replace(
        model.system, towers={"main": dataclasses.replace(module, heads=heads)}
    )
    known = model.published if "model_type" in model.published else None
    family, encoder, architecture = checkpoint.published(system, known)
    inner = engine.write(params, family, family.lines(encoder, architecture), bare=True)
    tensors = {ROOT + name: np.asarray(value) for name, value in inner}
    tensors |= dict(_tensors(head, arrays))
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors.items(), dtype=dtype)
    width = towers.outlined(module).hidden.shape[-1]
    (folder / FILE).write_text(
        json.dumps(_config(head, dict(encoder), width, tokenizer), indent=2) + "\n",
        encoding="utf8",
    )
    if tokenizer is not None:
        write_published(tokenizer, folder)


def _tensors(
    head: NamedSpans, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of the head."""
    width = np.shape(arrays["span_start"])[0]
    both: dict[str, list[np.ndarray]] = {}
    for path, names in _names(head, width).items():
        value = np.asarray(arrays[path])
        if isinstance(names[-1], slice):
            both.setdefault(names[0], []).append(value)
        elif len(names) > 1:
            yield from zip(names, value, strict=True)
        else:
            yield names[0], np.ascontiguousarray(value.T)
    for name, parts in both.items():
        yield name, np.ascontiguousarray(np.concatenate(parts).T)


def _config(
    head: NamedSpans, encoder: Mapping[str, Any], width: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Returns the fields of the config."""
    pieces = _substitutes(tokenizer) if tokenizer is not None else ()
    markers = dict(zip(MARKERS, pieces or MARKERS.values(), strict=True))
    index = -1 if tokenizer is None else tokenizer.id(markers["ent_token"])
    fields = {
        name: only
        for name, only in ONLY.items()
        if name not in ("labels_encoder", "labels_decoder")
    }
    return {
        **fields, **markers, "model_name": str(encoder.get("_name_or_path") or "encoder"),
        "name": "gliner", "encoder_config": dict(encoder), "class_token_index": index,
        "vocab_size": encoder["vocab_size"], "hidden_size": head.features or width,
        "max_width": head.longest, "num_rnn_layers": head.recurrent, "dropout": head.dropout,
        "max_len": 384, "fine_tune": True,
    }  # fmt: skip
