"""SentEval's tasks, tensor products of words and roles, and the commands of probes of spans and
sentences."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.tasks.probes import (
    linear_probes,
    sentence_answers,
    tensor_products,
    word_states,
)
from ptm_jax.tasks.probes.probe_data import Sentence
from ptm_jax.tasks.probes.tensor_products import Products

LINE = "{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t_\n"


def test_files_of_senteval(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("tr\tPRES\tIt 's here .\r\nva\tPAST\tIt was .\n\nte\tPRES\tGo\n")
    rows = sentence_answers.read(file)
    assert rows == [
        ("tr", "PRES", "It 's here ."), ("va", "PAST", "It was ."), ("te", "PRES", "Go"),
    ]  # fmt: skip
    for text, message in (
        ("tr\tA\tx\nxx\tA\tb\n", "a.txt:2: expected tr, va or te"),
        ("tr\tA\n", "a.txt:1: expected tr, va or te"),
        ("te\tA\tx\n", "has no sentence of tr"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            sentence_answers.read(file)


def test_roles_of_schemes():
    """He eats (red apples): the binary tree joins the words on the right of a head first."""
    tree = Sentence(tuple("abcd"), (), (1, -1, 3, 1), "")
    roles = tensor_products.schemes([tree, tree._replace(words=("a",), heads=(-1,))])
    assert roles["left to right"] == [[0, 1, 2, 3], [0]]
    assert roles["right to left"] == [[3, 2, 1, 0], [0]]
    assert roles["bidirectional"] == [[(0, 4), (1, 3), (2, 2), (3, 1)], [(0, 1)]]
    assert roles["bag of words"] == [[0] * 4, [0]]
    assert roles["tree"] == [["L", "RL", "RRL", "RRR"], [""]]
    drawn = roles["drawn tree"][0]
    assert sorted(drawn) == drawn and sum(0.5 ** len(path) for path in drawn) == 1
    crossing = tree._replace(heads=(2, -1, 1, 0))  # d hangs on a, a on c, c on b
    assert tensor_products.schemes([crossing])["tree"] == [["RLL", "L", "RR", "RLR"]]
    assert "tree" not in tensor_products.schemes([tree._replace(heads=None)])


@pytest.mark.full
def test_a_hidden_layer_learns_what_a_linear_probe_does_not():
    """The label is whether two signs agree; the last rows choose the epoch."""
    draw = np.random.default_rng(1)
    signs = draw.choice([-1.0, 1.0], (1200, 2))
    states = (np.pad(signs, ((0, 0), (0, 2))) + draw.normal(size=(1200, 4)) / 5)[:, None]
    labels = (signs.prod(1) > 0).astype(np.int32)
    for hidden, least, most_accurate in ((0, 0.3, 0.7), (50, 0.95, 1.0)):
        probe = linear_probes.train(
            states[:1000], labels[:1000], 2, hidden=hidden, held=100, learning_rate=1e-2
        )
        (accuracy,) = linear_probes.accuracy(probe, states[1000:], labels[1000:])
        assert least <= accuracy <= most_accurate


@pytest.mark.status("ptm probe --by roles", "matches")
@pytest.mark.full
def test_a_planted_scheme_is_found():
    """States are sums of outer products of words and places from the left, through a random map;
    the approximation is compared with loops of numpy."""
    draw = np.random.default_rng(0)
    vectors, places = draw.normal(size=(6, 5)), draw.normal(size=(4, 2))
    words = draw.integers(0, 6, (500, 4)).astype(np.int32)
    kernel = draw.normal(size=(5, 2, 7)) / 3
    states = np.einsum("blf,lr,frd->bd", vectors[words], places, kernel)
    states = np.stack([states, draw.normal(size=states.shape)], 1).astype(np.float32)
    vectors, errors = vectors.astype(np.float32), {}
    for name, roles in (("left", np.arange(4)), ("bag", np.zeros(4))):
        roles = np.broadcast_to(roles.astype(np.int32), words.shape)
        every = Products(states, words, roles, np.ones(500, np.float32))
        train, test = (Products(*(part[rows] for part in every))
                       for rows in (slice(400), slice(400, None)))  # fmt: skip
        params = tensor_products.train(train, vectors, int(roles.max()) + 1)
        errors[name] = tensor_products.error(params, test, vectors) / test.states.var((0, 2))
    assert errors["left"][0] < 0.1 and errors["bag"][0] > 0.4 and errors["left"][1] > 0.9
    params = {name: np.asarray(value) for name, value in params.items()}
    batch = {"words": words[:1], "roles": np.array([[0, -1, 0, -1]]), "scale": np.array([0.5])}
    result = np.asarray(tensor_products.approximated(params, vectors, batch))
    for layer in range(2):
        wanted = params["bias"][layer].copy()
        for place in (0, 2):
            filler = vectors[words[0, place]] @ params["fillers"][layer]
            product = np.outer(filler, params["roles"][layer, 0])
            wanted += 0.5 * (product[..., None] * params["kernel"][layer]).sum((0, 1))
        np.testing.assert_allclose(result[layer, 0], wanted, atol=1e-4)


@pytest.mark.status("ptm probe --by sentences", "built")
@pytest.mark.full
def test_commands(published, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    names = draw.choice(["the", "film", "was", "bad", "plot"], (40, 5))
    lines = [
        {"text": " ".join(row), "targets": [{"span1": [i, i + 2], "label": row[i]} for i in (0, 2)]}
        for row in names
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = [[LINE.format(i + 1, w, "X", i, w if i else "root") for i, w in enumerate(row)]
            for row in names]  # fmt: skip
    (tmp_path / "a.conllu").write_text("\n".join(map("".join, rows)))
    splits = ["tr"] * 24 + ["va"] * 8 + ["te"] * 8
    tasks = [
        f"{split}\t{row[0]}\t{' '.join(row)}" for split, row in zip(splits, names, strict=True)
    ]
    (tmp_path / "a.txt").write_text("\n".join(tasks))
    (tmp_path / "b.txt").write_text(
        "\n\n".join("\n".join(f"{w} B-{w}" for w in row) for row in names)
    )
    printed = {}
    for by, file in (("spans", "a.jsonl"), ("phrases", "b.txt"), ("roles", "a.conllu"),
                     ("sentences", "a.txt"), ("labels", "b.txt")):  # fmt: skip
        command = ["probe", str(published), "--by", by, "--data", str(tmp_path / file)]
        assert main([*command, "--json"]) == 0
        printed[by] = json.loads(capsys.readouterr().out)
    assert printed["spans"]["label"] == "targets" and printed["phrases"]["label"] == "segment"
    assert set(printed["roles"]["layers"]) >= {"mean state", "tree", "bidirectional"}
    assert printed["sentences"]["counts"] == {
        "tr": 24, "va": 8, "te": 8, "too long": 0, "labels": 5,
    }  # fmt: skip
    assert printed["labels"]["label"] == "tag"
    assert printed["labels"]["layers"]["segment f1"] == printed["labels"]["layers"]["accuracy"]
    assert printed["spans"]["baselines"]["most frequent label"] < 0.5
    for more, message in (
        (["--pool", "first"], "--pool is for --by sentences and roles"),
        (["--by", "spans", "--hidden", "3"], "--hidden is for --by labels and sentences"),
        ([], "a.jsonl:1: a target has several words or labels; use --by spans"),
        (["--by", "structural"], "a.jsonl:1: there are no trees"),
        (["--by", "sentences"], "a.jsonl:1: expected tr, va or te"),
    ):
        assert main(["probe", str(published), "--data", str(tmp_path / "a.jsonl"), *more]) == 1
        assert message in (said := capsys.readouterr().err) and said.count("\n") == 1
    model = ptm_jax.load(published)
    states = word_states.of_sentences(model, [list(names[0])], None, first=True).states
    vectors = model.encode([" ".join(names[0])], pooling="cls", normalize=False)
    np.testing.assert_allclose(states[0, -1], vectors[0], atol=2e-3)
