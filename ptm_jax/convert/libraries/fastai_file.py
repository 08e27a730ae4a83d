"""AWD-LSTM as fastai saves it: a `.pth` of `learner.save`, `save_encoder` or ULMFiT's lstm_fwd.pth.
Howard and Ruder 2018.

The file is a torch pickle of tensors, and the words, if they are there, a pickle of a list of texts
in the same folder (`itos*.pkl`). No code of either runs. fastai has two biases in a layer, of which
ours is the sum.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from ptm_jax.convert.formats import torch_records
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.reading import Unpickler, broken, read_bytes
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Params, Vocab
from ptm_jax.data.tokenizers.backends import HuggingFace
from ptm_jax.data.tokenizers.tokenizing import Tokenizer
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.systems.recurrent.ulmfit import ulmfit

WORDS = "itos*.pkl"
ROLES = {"xxunk": "<unk>", "xxpad": "<pad>", "xxbos": "<s>"}
"""Names of fastai's special words here."""
EXPECTED = "expected an AWD-LSTM that fastai saved"


def is_fastai(path: str | os.PathLike) -> bool:
    """Returns whether a path is a `.pth` file, or a folder with one and no config."""
    path = Path(path)
    if path.is_dir():
        return len(list(path.glob("*.pth"))) == 1 and not any(
            (path / name).exists() for name in ("config.json", "data")
        )
    return path.suffix == ".pth" and path.is_file()


def read(path: str | os.PathLike, allow_pickle: bool) -> tuple[System, Params, Tokenizer | None]:
    """Returns (system, {tower: parameters}, tokenizer) of a file of fastai.

    The tokenizer has the words between blanks, or is None without a file of words.

    Of a file without a decoder (`save_encoder`) the softmax has a bias of zeros. Raises UserError
    with the file.
    """
    path = Path(path)
    file = next(path.glob("*.pth")) if path.is_dir() else path
    if not allow_pickle:
        raise UserError(
            f"{file} is a torch pickle; read one that you trust with allow_pickle=True "
            "(--allow-pickle)"
        )
    content = torch_records.read(file)
    state = content["model"] if isinstance(content.get("model"), Mapping) else content
    place = "0." if "0.encoder.weight" in state else ""
    table, layers = _array(file, state, f"{place}encoder.weight"), []
    while _names(place, len(layers))["state"][0] in state:
        layers.append(
            {
                ours: _array(file, state, *names)
                for ours, names in _names(place, len(layers)).items()
            }
        )
    bias = (
        _array(file, state, "1.decoder.bias")
        if "1.decoder.bias" in state
        else np.zeros(len(table), np.float32)
    )
    if len(layers) < 2 or table.ndim != 2:
        raise broken(file, f"has {len(layers)} layers rnns.N; {EXPECTED}")
    params = {"encoder/embed/token": table, "heads_lm/bias": bias}
    for number, layer in enumerate(layers):
        kernels = {
            "inputs/kernel": layer["kernel"].T,
            "inputs/bias": layer["bias"],
            "state": layer["state"].T,
        }
        params |= {f"encoder/layers_{number}/{name}": array for name, array in kernels.items()}
    sizes = [table.shape[1], *(layer["state"].shape[-1] for layer in layers)]
    if sizes[0] != sizes[-1] or len({*sizes[1:-1]}) != 1:
        raise broken(
            file, f"has layers of the widths {sizes[1:]} over words of {sizes[0]}; {EXPECTED}"
        )
    tokenizer = _tokenizer(file, len(table))
    vocab = Vocab(size=len(table), unk=0, pad=1) if tokenizer is None else tokenizer.vocab
    system = _system(file.stem, vocab, sizes)
    _check(file, params, sizes)
    return system, {"main": unflatten(params)}, tokenizer


def write(path: str | os.PathLike, params: Params) -> None:
    """Writes the parameters of an AWD-LSTM with its softmax as fastai's `save_model` does.
    Needs torch. The bias of the state's product is 0."""
    import torch

    flat = flatten(params["main"])
    table, state = flat["encoder/embed/token"], {}
    for name in ("0.encoder.weight", "0.encoder_dp.emb.weight", "1.decoder.weight"):
        state[name] = table
    state["1.decoder.bias"] = flat["heads_lm/bias"]
    for number in range(sum(name.endswith("/state") for name in flat)):
        layer = {
            name: np.asarray(flat[f"encoder/layers_{number}/{name}"])
            for name in ("inputs/kernel", "inputs/bias", "state")
        }
        names = _names("0.", number)
        state[names["kernel"][0]], state[names["state"][0]] = (
            layer["inputs/kernel"].T,
            layer["state"].T,
        )
        first, second = names["bias"]
        state[first], state[second] = layer["inputs/bias"], np.zeros_like(layer["inputs/bias"])
    torch.save({name: torch.tensor(np.array(array)) for name, array in state.items()}, path)


def _names(place: str, layer: int) -> dict[str, tuple[str, ...]]:
    """Returns {kind: the tensors whose sum it is} of a layer."""
    inside = f"{place}rnns.{layer}"
    return {
        "state": (f"{inside}.weight_hh_l0_raw",),
        "kernel": (f"{inside}.module.weight_ih_l0",),
        "bias": (f"{inside}.module.bias_ih_l0", f"{inside}.module.bias_hh_l0"),
    }


def _system(name: str, vocab: Vocab, sizes: list[int]) -> System:
    """The language model in its sizes, with the dropout of ULMFiT: the file has none."""
    layers = tuple(LSTM(size, forget=0.0, weight_drop=0.5) for size in sizes[1:])
    return with_field(ulmfit(name, vocab, *sizes[:2]), "layers", layers)


def _array(path: Path, state: Mapping[str, Any], *names: str) -> np.ndarray:
    """Returns the sum of tensors."""
    for name in names:
        array = state.get(name)
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            raise broken(path, f"has no numbers {name}; {EXPECTED}")
        if not np.isfinite(array).all():
            raise broken(path, f"{name} holds NaN or infinity; the file is damaged")
    return sum(state[name].astype(np.float32) for name in names)


def _check(path: Path, params: Mapping[str, np.ndarray], sizes: list[int]) -> None:
    """Raises UserError for an array of another shape than the sizes ask for."""
    words = len(params["encoder/embed/token"])
    shapes = {"encoder/embed/token": (words, sizes[0]), "heads_lm/bias": (words,)}
    for number, (reads, size) in enumerate(zip(sizes, sizes[1:], strict=False)):
        inside = f"encoder/layers_{number}"
        shapes |= {
            f"{inside}/inputs/kernel": (reads, 4 * size),
            f"{inside}/inputs/bias": (4 * size,),
        }
        shapes[f"{inside}/state"] = (size, 4 * size)
    for name, shape in shapes.items():
        if params[name].shape != shape:
            raise broken(
                path,
                f"has {name} in the shape {list(params[name].shape)}, where its other "
                f"tensors ask for {list(shape)}",
            )


def _tokenizer(file: Path, size: int) -> Tokenizer | None:
    """Returns the tokenizer of the words that are stored next to a file. Raises UserError."""
    files = sorted(file.parent.glob(WORDS))
    if not files:
        return None
    try:
        words = Unpickler(io.BytesIO(read_bytes(files[0]))).load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may end in any of Python's errors
        raise broken(
            files[0],
            f"is no list of words ({type(error).__name__}); leave it out to read the weights",
        ) from None
    if (
        not isinstance(words, list)
        or not all(isinstance(word, str) for word in words)
        or len(words) != size
    ):
        count = len(words) if isinstance(words, list) else type(words).__name__
        raise broken(files[0], f"has {count} words, and {file.name} a table of {size}")
    known: dict[str, int] = {}
    for place, word in enumerate(words):
        word = ROLES.get(word, word)
        known[word if word not in known else f"{word}\0{place}"] = (
            place  # fastai fills a vocabulary with xxfake
        )
    backend = Backend(models.WordLevel(vocab=known, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(HuggingFace(backend), kind="word")
