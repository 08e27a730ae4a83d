"""Graphs for those who serve without this package: the numbers of StableHLO and ONNX are the
model's."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from ptm_jax.compress.quantisation.quantisation import Int8
from ptm_jax.convert.checkpoint import example
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import stream
from ptm_jax.core.types import Vocab
from ptm_jax.inference import serving
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.systems.transformers import transformer_xl as catalogue
from support import tiny_models


def _models():
    model = tiny_models.build("bert")
    return {
        "float32": model,
        "int8": Pretrained(model.system, Int8().whole(model.params), model.tokenizer),
    }


def _inputs(names, rows, length):
    ids = np.random.default_rng(1).integers(5, 50, (rows, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[-1, length - 2 :] = 0
    given = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": (np.arange(length) > 3).astype(np.int32) + 0 * ids,
    }
    return {name: given[name] for name in names}


def _compare(model, given, found, rounded):
    """Outputs of a graph and of the model, at tokens that are no padding. Whole numbers may differ
    by one where float32 rounds otherwise."""
    right, real = model(**given), given["attention_mask"] > 0
    for name, value in found.items():
        expected = {"hidden": right.hidden, "logits": right.logits, **right.scores}[name]
        if np.shape(value)[:2] == real.shape:
            value, expected = np.asarray(value)[real], np.asarray(expected)[real]
        np.testing.assert_allclose(
            value, expected, rtol=0, atol=(2e-2 if rounded else 1e-5) * np.abs(expected).max()
        )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_stablehlo_loads_without_the_package(kind, tmp_path):
    model = _models()[kind]
    serving.write(tmp_path / "served", model, "stablehlo")
    facts = json.loads((tmp_path / "served" / "graph.json").read_text())
    program = jax.export.deserialize((tmp_path / "served" / "model.stablehlo").read_bytes())
    assert program.platforms == ("cpu", "cuda", "tpu")
    for rows, length in ((1, 7), (3, 12)):
        given = _inputs(facts["inputs"], rows, length)
        found = dict(zip(facts["outputs"], program.call(*given.values()), strict=True))
        _compare(model, given, found, kind == "int8")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_onnx_gives_our_numbers_in_onnxruntime(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(sys.prefix) / "serving")  # Makefile: .serving
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = _models()[kind]
    serving.write(tmp_path / "served", model, "onnx")
    session = runtime.InferenceSession(
        tmp_path / "served" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    for rows, length in ((1, 7), (3, 12)):
        given = _inputs(names, rows, length)
        _compare(
            model, given, dict(zip(outputs, session.run(None, given), strict=True)), kind == "int8"
        )


def test_what_has_no_graph_is_one_line(monkeypatch):
    with pytest.raises(UserError, match="no encoder of tokens alone"):
        serving.graph(tiny_models.build("bart"))
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"needs jax2onnx; install it: pip install 'ptm_jax\[onnx\]'"
    ):
        serving.onnx(serving.graph(tiny_models.build("bert")))


def test_a_network_that_no_graph_of_free_axes_has_is_one_line(tmp_path):
    """XLNet's table of positions follows the length of a row."""
    vocab = tiny_models.build("bert").vocab
    system = catalogue.xlnet("xlnet_tiny", 1, 8, 2)
    system = spec.respell(system, Vocab, dataclasses.replace(vocab, size=60))
    params = towers.init(system.towers, stream(0, "init"), example(system))
    with pytest.raises(UserError, match="has no stablehlo graph of any batch and length") as error:
        serving.write(tmp_path / "served", Pretrained(system, params, None), "stablehlo")
    assert "\n" not in str(error.value) and not (tmp_path / "served").exists()
