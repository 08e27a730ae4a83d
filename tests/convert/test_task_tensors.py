"""The released layout of JinaEmbeddings-v3: a low-rank change of each weight for each task, of
which that of the config's task is added."""

import json

import jax
import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError

SIZES = dict(
    model_type="jina_embeddings_v3",
    architectures=["JinaEmbeddingsV3Model"],
    vocab_size=32,
    hidden_size=12,
    num_attention_heads=2,
    num_hidden_layers=2,
    intermediate_size=10,
    max_position_embeddings=16,
    pad_token_id=1,
    lora_adaptations=["separation", "text-matching"],
    lora_rank=2,
    lora_alpha=3,
)


@pytest.fixture
def folder(tmp_path):
    """(a folder in the released layout, {task: its weights})."""
    system = checkpoint.record_of(Config(SIZES))[0]
    params = towers.init(system.towers, jax.random.key(0), checkpoint.example(system))
    checkpoint.write(tmp_path / "plain", system, params)
    plain = checkpoint.open_tensors(tmp_path / "plain")
    draw, parts, tasks = np.random.default_rng(0), {}, ({}, {})
    for name in plain.names():
        value = np.array(plain.read(name))
        for task in tasks:
            task[name] = value
        if value.ndim < 2 or "token_type" in name:
            parts[name] = value
            continue
        out, width = value.shape
        first, second = ((out, 2), (2, width)) if "word" in name else ((2, width), (out, 2))
        a, b = (draw.normal(size=(2, *shape)).astype(np.float32) for shape in (first, second))
        stem = name.replace(".weight", ".parametrizations.weight.")
        parts |= {f"{stem}original": value, f"{stem}0.lora_A": a, f"{stem}0.lora_B": b}
        for number, task in enumerate(tasks):
            change = a[number] @ b[number] if "word" in name else b[number] @ a[number]
            task[name] = value + 1.5 * change
    write_tensors(tmp_path, parts.items(), dtype="float32", max_shard_bytes=1 << 30)
    return tmp_path, params["main"], tasks


def read(folder, **fields):
    (folder / "config.json").write_text(json.dumps(SIZES | fields))
    return checkpoint.read(folder)


def test_without_a_task_the_weights_are_the_originals(folder):
    path, params, _ = folder
    found = read(path)
    assert found.report.missing == () and all("lora_" in name for name in found.report.extra)
    jax.tree.map(np.testing.assert_array_equal, found.params["main"], params)


@pytest.mark.parametrize("number", [0, 1])
def test_each_task_has_its_weights(folder, number, tmp_path):
    path, _, tasks = folder
    found = read(path, lora_task=SIZES["lora_adaptations"][number])
    assert found.report.missing == found.report.extra == ()
    checkpoint.write(tmp_path / "out", found.system, found.params, config=found.config)
    written = checkpoint.open_tensors(tmp_path / "out")
    assert set(written.names()) == set(tasks[number])
    for name, value in tasks[number].items():
        np.testing.assert_allclose(written.read(name), value, atol=1e-6, err_msg=name)


def test_an_unknown_task_is_refused(folder):
    with pytest.raises(UserError, match="unknown lora_task 'search'.*separation") as error:
        read(folder[0], lora_task="search")
    assert "\n" not in str(error.value)
