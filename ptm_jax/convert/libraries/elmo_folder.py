"""AllenNLP's and allenai/bilm-tf's folder of ELMo: `options.json` and `lm_weights.hdf5`.
Peters et al. 2018.

The file names may have a beginning, as `elmo_2x4096_512_2048cnn_2xhighway_options.json`. The
softmax is not in the folder. Only numbers are read: links to other files are refused, and a shape
is compared before its numbers are read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.reading import broken, read_json, reading, shown, size_of
from ptm_jax.core.system import System
from ptm_jax.core.types import Params
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.tokenizers.words import OpenWords, spaced
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.readers import readers_of
from ptm_jax.encoders.recurrent.recurrent import BiLanguageLSTM
from ptm_jax.nn.embeddings.characters import CharacterCNN
from ptm_jax.systems.recurrent import elmo

if TYPE_CHECKING:
    from ptm_jax.core.networks import Encoder


OPTIONS, WEIGHTS = "*options.json", "*weights.hdf5"
LARGEST = 1 << 20
"""The largest size of one dimension."""
DEEPEST = 100
"""The most layers, and convolutions, of a network."""
EXPANSION = 64
"""The most bytes of numbers for each byte of the file, whose data sets may be compressed."""


def is_elmo(folder: str | os.PathLike) -> bool:
    """Returns whether a folder has options and weights of ELMo."""
    folder = Path(folder)
    return folder.is_dir() and any(folder.glob(OPTIONS)) and any(folder.glob(WEIGHTS))


def writes(encoder: Encoder) -> bool:
    """Returns whether the layout of an encoder's export is this one."""
    return isinstance(encoder, BiLanguageLSTM)


def read(folder: str | os.PathLike) -> tuple[System, Params, OpenWords]:
    """Returns (system without a head, {tower: parameters}, tokenizer).
    Raises UserError with the file and the place."""
    folder = Path(folder)
    options, weights = (_only(folder, pattern) for pattern in (OPTIONS, WEIGHTS))
    tokenizer = spaced()
    encoder, spelling = _encoder(options, tokenizer)
    system = elmo.elmo(folder.absolute().name, encoder, spelling=spelling)
    tower = Model(encoder=encoder, heads={})
    system = System(**{**vars(system), "towers": {"main": tower}, "rows": (), "ties": ()})
    batch = {
        "input_ids": np.zeros((1, 2), np.int32),
        "characters": np.zeros((1, 2, spelling), np.int32),
    }
    shapes = flatten(towers.abstract(system.towers, batch)["main"])
    params = dict(_parameters(weights, encoder))
    wrong = [
        path for path in shapes if path not in params or params[path].shape != shapes[path].shape
    ]
    if wrong or params.keys() - shapes.keys():
        raise broken(
            weights,
            "does not fill the parameters of its options: "
            f"{sorted(wrong or params.keys() - shapes.keys())}",
        )
    return system, {"main": jax.tree.map(np.asarray, unflatten(params))}, tokenizer


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) > 1:
        raise UserError(
            f"{folder} has {len(files)} files {pattern}: "
            f"{', '.join(path.name for path in files)}; keep one"
        )
    return files[0]


def _encoder(path: Path, tokenizer: OpenWords) -> tuple[BiLanguageLSTM, int]:
    """Returns (encoder, characters of a word) for the options."""
    options = read_json(path, "the file")

    def get(name, kinds, default=None):
        return _option(path, options, name, kinds, default)

    if not get("bidirectional", bool, True):
        raise broken(path, "bidirectional is false; a model of both directions is read")
    activation = get("char_cnn.activation", str)
    if activation not in ("relu", "tanh"):
        raise broken(path, f"char_cnn.activation is {shown(activation)}; it must be relu or tanh")
    if (characters := get("char_cnn.n_characters", int)) not in (261, 262):
        raise broken(
            path, f"char_cnn.n_characters is {characters}; the bytes and marks of ELMo are 262"
        )
    filters = get("char_cnn.filters", list)
    if not filters or not all(
        isinstance(one, list) and len(one) == 2 and all(map(_size, one)) for one in filters
    ):
        raise broken(path, f"char_cnn.filters is {shown(filters)}; expected [[width, number], ..]")
    sizes = {
        name: get(name, int)
        for name in ("lstm.dim", "lstm.projection_dim", "lstm.n_layers", "char_cnn.embedding.dim")
    }
    sizes["char_cnn.max_characters_per_token"] = get("char_cnn.max_characters_per_token", int)
    if wrong := [name for name, size in sizes.items() if not _size(size)]:
        raise broken(path, f"{wrong[0]} is {sizes[wrong[0]]}; expected a size of 1 to {LARGEST:,}")
    cells, width, layers, size, spelling = sizes.values()
    if max(layers, len(filters)) > DEEPEST:
        raise broken(
            path,
            f"has {layers:,} layers and {len(filters):,} convolutions; at most {DEEPEST} are read",
        )
    if (highway := get("char_cnn.n_highway", int, 0)) not in range(100):
        raise broken(path, f"char_cnn.n_highway is {highway}; expected a number of layers")
    encoder = elmo.network(
        tokenizer.vocab,
        width,
        cells,
        filters=tuple(tuple(one) for one in filters),
        size=size,
        layers=layers,
        highway=highway,
        activation=activation,
        clips=(_clip(path, get, "lstm.cell_clip"), _clip(path, get, "lstm.proj_clip")),
        residual=get("lstm.use_skip_connections", bool, False),
    )
    return encoder, spelling


def _option(path: Path, options: Any, name: str, kind: type, default: Any) -> Any:
    value = options
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    value = default if value is None else value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise broken(path, f"{name} is {shown(value)}; expected a value of type {kind.__name__}")
    return value


def _clip(path: Path, get: Any, name: str) -> float | None:
    value = get(name, object, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
        raise broken(
            path, f"{name} is {shown(value)}; expected a number of at least 0 (0: no clip)"
        )
    return float(value) or None


def _size(value: Any) -> bool:
    return type(value) is int and 0 < value <= LARGEST


Part = tuple[dict[str, tuple[int, ...]], tuple[str, ...], Callable[..., Any], Callable[..., Any]]
"""({data set: shape}, paths, arrays of the file -> arrays of the paths, and back)."""


def _layout(encoder: BiLanguageLSTM) -> Iterator[Part]:
    """Yields every part of the file.
    It has gates in the order i, g, f, o of TensorFlow, and highways with the gate of the new value,
    sigmoid(-x) = 1 - sigmoid(x). It has no character 0."""
    yield from _characters(encoder.embed)
    yield from _layers(encoder)


def _same(*arrays):
    return arrays


def _characters(embed: CharacterCNN) -> Iterator[Part]:
    """Yields the parts of the word vectors: characters, filters, highways and the projection."""
    place, same = "encoder/embed", _same
    shape = (embed.alphabet - 1, embed.size)

    def whole(x):
        return (np.concatenate([np.zeros_like(x[:1]), x]),)

    yield {"char_embed": shape}, (f"{place}/characters",), whole, lambda x: (x[1:],)
    for i, (width, number) in enumerate(embed.filters):
        shape = (1, width, embed.size, number)
        yield (
            {f"CNN/W_cnn_{i}": shape},
            (f"{place}/filter{i}/kernel",),
            lambda x: (x[0],),
            lambda x: (x[None],),
        )
        yield {f"CNN/b_cnn_{i}": (number,)}, (f"{place}/filter{i}/bias",), same, same
    total = sum(number for _, number in embed.filters)

    def both(new, carry):
        return (np.concatenate([new, -carry], -1),)

    def halves(x):
        return (x[..., :total], -x[..., total:])

    for i in range(embed.highway):
        for name, letter, shape in (("kernel", "W", (total, total)), ("bias", "b", (total,))):
            sets = {f"CNN_high_{i}/{letter}_{part}": shape for part in ("transform", "carry")}
            yield sets, (f"{place}/highway{i}/{name}",), both, halves
    yield {"CNN_proj/W_proj": (total, embed.width)}, (f"{place}/project/kernel",), same, same
    yield {"CNN_proj/b_proj": (embed.width,)}, (f"{place}/project/bias",), same, same


def _layers(encoder: BiLanguageLSTM) -> Iterator[Part]:
    """Yields the parts of the recurrent layers of both directions."""
    embed, same = encoder.embed, _same

    def split(x):
        return tuple(np.split(_gates(x), [embed.width]))

    def joined(*parts):
        return (_gates(np.concatenate(parts)),)

    for way, (name, stack) in enumerate((("right", encoder.right), ("left", encoder.left))):
        for number, layer in enumerate(stack):
            cell, here = (
                f"RNN_{way}/RNN/MultiRNNCell/Cell{number}/LSTMCell",
                f"encoder/{name}_{number}",
            )
            shape = (embed.width + layer.width, 4 * layer.hidden)
            yield {f"{cell}/W_0": shape}, (f"{here}/inputs/kernel", f"{here}/state"), split, joined

            def turn(x):
                return (_gates(x),)

            yield {f"{cell}/B": shape[1:]}, (f"{here}/inputs/bias",), turn, turn
            yield (
                {f"{cell}/W_P_0": (layer.hidden, layer.width)},
                (f"{here}/projection",),
                same,
                same,
            )


def _parameters(path: Path, encoder: BiLanguageLSTM) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, array)."""
    import h5py

    room = EXPANSION * size_of(path)
    with reading(path), h5py.File(path, "r") as file:
        for sets, places, read_, _ in _layout(encoder):
            room -= 4 * sum(map(math.prod, sets.values()))
            if room < 0:
                raise broken(
                    path,
                    f"has {size_of(path):,} bytes, too few for the sizes in its options; copy the "
                    "whole file",
                )
            yield from zip(
                places, read_(*(_array(path, file, *part) for part in sets.items())), strict=True
            )


def write(
    folder: Path, module: Model, params: Params, examples: Spelled, dtype: str = "float32"
) -> None:
    """Writes the encoder of a model as the folder that AllenNLP reads; `examples` are its rows.
    The softmax is left out, and the vector of character 0, for which the network reads 0.

    Raises UserError for another network than ELMo's (`systems.recurrent.elmo.network`), a task's
    head, and another type."""
    import h5py

    if dtype != "float32":
        raise UserError(f"--dtype is {dtype}; ELMo's folder has float32")

    options = _options(module, examples)
    folder.mkdir(parents=True, exist_ok=True)
    flat = flatten(params)
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        for sets, places, _, written in _layout(module.encoder):
            arrays = written(*(np.asarray(flat[place], np.float32) for place in places))
            for (name, shape), array in zip(sets.items(), arrays, strict=True):
                file.create_dataset(name, shape, np.float32, array)
    (folder / "options.json").write_text(json.dumps(options, indent=2) + "\n", encoding="utf8")


def _options(module: Model, examples: Spelled) -> dict[str, Any]:
    """Returns the options of a network. Raises UserError where they cannot describe it."""
    encoder, embed, layer = module.encoder, module.encoder.embed, module.encoder.right[0]
    if not isinstance(embed, CharacterCNN):
        raise UserError(
            "ELMo's folder is for words read by characters; this model reads "
            f"{type(embed).__name__}"
        )
    if more := [
        *readers_of(module),
        *(name for name in module.heads if name != "lm"),
    ]:
        raise UserError(
            f"ELMo's folder has no place for {more[0]!r}; export the run of the language model"
        )
    known = elmo.network(
        0, embed.width, layer.hidden, filters=embed.filters, size=embed.size,
        layers=len(encoder.right),
        highway=embed.highway, activation=embed.activation,
        clips=(layer.cell_clip, layer.project_clip),
        residual=encoder.residual,
    )  # fmt: skip
    free = ("vocab", "initializer", "character_init", "precision", "carry", "dropout", "stateful")
    for path, ours, theirs in spec.differences(encoder, known):
        if not any(name in path.split(".") for name in free):
            raise UserError(
                f"ELMo's folder describes no model with {path} = {shown(ours)}; expected "
                f"{shown(theirs)}"
            )
    return {
        "lstm": {
            "cell_clip": layer.cell_clip or 0, "use_skip_connections": encoder.residual,
            "n_layers": len(encoder.right),
            "proj_clip": layer.project_clip or 0, "projection_dim": embed.width,
            "dim": layer.hidden,
        },
        "char_cnn": {
            "embedding": {"dim": embed.size}, "filters": [list(one) for one in embed.filters],
            "n_highway": embed.highway, "n_characters": embed.alphabet,
            "max_characters_per_token": examples.length,
            "activation": embed.activation,
        },
    }  # fmt: skip


def _gates(array: np.ndarray) -> np.ndarray:
    i, g, f, o = np.split(array, 4, -1)
    return np.concatenate([i, f, g, o], -1)


def _array(path: Path, file: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a data set as float32.
    Raises UserError where it is absent, of another shape or type, or elsewhere."""
    import h5py

    node = file
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise broken(path, f"{name} is a link; only numbers inside the file are read")
        node = None if link is None else node[part]
    if not isinstance(node, h5py.Dataset):
        raise broken(
            path, f"has no data set {name}; its options need one of the shape {list(shape)}"
        )
    if node.shape != shape or node.dtype.kind != "f":
        description = f"{list(node.shape or ())} {node.dtype}"
        raise broken(
            path,
            f"{name} is {description}; its options need float numbers of the shape {list(shape)}",
        )
    if node.external or node.is_virtual:
        raise broken(path, f"{name} lies in another file; only numbers inside the file are read")
    description = node[()].astype(np.float32)
    if not np.isfinite(description).all():
        raise broken(path, f"{name} holds NaN or infinity; the file is damaged")
    return description
