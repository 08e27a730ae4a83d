"""Constituents from distances of neighbours: definitions, evaluation by hand, and the command."""

import json

import jax
import numpy as np
import pytest
from scipy.spatial.distance import cosine, jensenshannon

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.tasks.probes.attention import constituency
from support import tiny_checkpoint

BRACKETS = """( (S (NP-SBJ (DT the) (JJ funny) (NN film)) (VP (VBD was)
    (ADJP (ADJP (RB very) (JJ long)) (CC and) (ADJP (JJ sad)))) (. .)) )
(S (NP (-NONE- *)) (VP (VB end) (NP (DT the) (NN plot))) (. !))
(S (NP (NN story)))
(S (NP (DT a) (NN film)) (VP (VBD was) (ADJP (RB very) (JJ good))))
"""
SENTENCES = [
    (tuple("the funny film was very long and sad".split()), {(0, 2), (3, 7), (4, 7), (4, 5)}),
    (("end", "the", "plot"), {(1, 2)}),
    (("a", "film", "was", "very", "good"), {(0, 1), (2, 4), (3, 4)}),
]  # fmt: skip


def by_recursion(distances):
    """The spans of the tree, with the sentence."""
    if not len(distances):
        return set()
    at = int(np.argmax(distances))
    right = by_recursion(distances[at + 1 :])
    moved = {(first + at + 1, last + at + 1) for first, last in right}
    return {(0, len(distances))} | by_recursion(distances[:at]) | moved


def test_distances_are_their_definitions():
    """Against scipy, pair by pair; the bias and the split by hand and by recursion."""
    draw = np.random.default_rng(0)
    states = draw.normal(size=(3, 1, 5, 4)).astype(np.float32)
    maps = draw.dirichlet(np.full(5, 0.3), (1, 2, 5)).astype(np.float32)
    maps[0, 0, 1] = [0, 1, 0, 0, 0]
    of_states = jax.jit(constituency.of_states)(states)
    of_maps = jax.jit(constituency.of_maps)(maps, None)
    for word in range(4):
        for layer in (1, 2):
            a, b = states[layer, 0, word : word + 2].astype(float)
            wanted = {
                "cos": (2 - cosine(a, b)) / 2, "l1": abs(a - b).sum(),
                "l2": ((a - b) ** 2).sum() ** 0.5,
            }  # fmt: skip
            for name, value in wanted.items():
                assert of_states[name][layer - 1, 0, word] == pytest.approx(value, rel=1e-5)
        heads = [maps[0, head, word : word + 2].astype(float) for head in (0, 1)]
        hellinger = [((a**0.5 - b**0.5) ** 2).sum() ** 0.5 / 2**0.5 for a, b in heads]
        jsd = [jensenshannon(a, b) for a, b in heads]
        for name, values in (("hellinger", hellinger), ("jsd", jsd)):
            given = of_maps[name][0, :, word]
            np.testing.assert_allclose(given, [np.mean(values), *values], rtol=1e-4)
    biased = constituency.biased(np.array([[1.0, 2, 3], [0, 0, 3]]), 1.5)
    np.testing.assert_allclose(biased, [[4, 3.5, 3], [1.5, 0.75, 3]])
    assert constituency.split([2.0, 5.0, 1.0, 5.0]) == {(0, 1), (2, 4), (2, 3)}
    for count in (1, 2, 6, 9):
        row = draw.integers(0, 4, count).tolist()
        assert constituency.split(row) == by_recursion(row) - {(0, count)}


def test_gold_spans_and_figures_by_hand(tmp_path):
    """Punctuation, empty elements, single words and the sentence are no spans."""
    (tmp_path / "a.mrg").write_text(BRACKETS)
    sentences = constituency.sentences_of(tmp_path / "a.mrg")
    assert [(one.words, {*one.spans}) for one in sentences] == SENTENCES
    trees = [
        [{(0, 2), (3, 7), (4, 7), (5, 7), (6, 7), (0, 1)}, {(0, 6)}],
        [{(1, 2)}, set()],
        [{(0, 3), (0, 2), (0, 1)}, {(3, 4)}],
    ]
    pairs = [(one.spans, several) for one, several in zip(sentences, trees, strict=True)]
    (f1, all_spans), count = constituency.scores(pairs)
    assert count == 3
    np.testing.assert_allclose(f1, [(6 / 10 + 1 + 2 / 6) / 3, (0 + 0 + 2 / 4) / 3])
    np.testing.assert_allclose(all_spans, [2 * 5 / (10 + 8), 2 * 1 / (2 + 8)])
    (empty, _), _ = constituency.scores([(frozenset(), [set(), {(0, 1)}])])
    assert empty.tolist() == [1, 0]
    figures = constituency.baselines(sentences)
    # right: (i, end); left: (0, i)
    assert figures["right branching"] == pytest.approx((2 * 2 / 10 + 1 + 2 * 2 / 6) / 3)
    assert figures["left branching"] == pytest.approx((2 * 1 / 10 + 0 + 2 * 1 / 6) / 3)
    assert 0 < figures["random trees"] < 0.8
    words = [("dogs", 2, "nsubj"), ("see", 0, "root"), ("the", 4, "det"), ("cat", 2, "obj"),
             (".", 2, "punct")]  # fmt: skip
    rows = [f"{n}\t{w}\t_\tX\t_\t_\t{head}\t{label}\t_\t_" for n, (w, head, label) in
            enumerate(words, 1)]  # fmt: skip
    crossed = [row.replace("\t4\tdet", "\t1\tdet") for row in rows]
    (tmp_path / "a.conllu").write_text("\n".join([*rows, "", *crossed, ""]))
    (sentence,) = constituency.sentences_of(tmp_path / "a.conllu")
    assert sentence == (("dogs", "see", "the", "cat"), {(2, 3)})
    (tmp_path / "a.txt").write_text("the DT\nfilm NN\n")
    with pytest.raises(UserError, match=r"a.txt:1: 'the' stands outside of brackets; expected \("):
        constituency.sentences_of(tmp_path / "a.txt")


@pytest.mark.full
@pytest.mark.status("ptm probe --by constituency", "matches")
def test_the_command_equals_numpy_on_a_model(tmp_path, capsys):
    folder = tiny_checkpoint.write(tmp_path / "model", num_hidden_layers=2, scale=0.5)
    (tmp_path / "a.mrg").write_text(BRACKETS.replace("funny", "unfunny").replace("plot", "filmend"))
    sentences = constituency.sentences_of(tmp_path / "a.mrg")
    command = ["probe", str(folder), "--by", "constituency", "--bias", "0.5", "--data"]
    assert main([*command, *[str(tmp_path / "a.mrg")] * 2, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    model = ptm_jax.load(folder)
    wanted = {name: np.zeros((2, 3)) for name in ("cos", "l1", "l2", "hellinger", "jsd")}
    for one in sentences:
        pieces = [model.ids_of([word])[0] for word in one.words]
        pieces = [ids[ids > 4] for ids in pieces]
        output = model(np.concatenate(pieces)[None], layers=True, attention=True)
        ends = np.cumsum([len(ids) for ids in pieces])
        groups = [range(end - len(ids), end) for ids, end in zip(pieces, ends, strict=True)]
        for layer in (0, 1):
            states = [output.layers[layer + 1, 0, list(g)].mean(0) for g in groups]
            heads = [
                np.array([[head[np.ix_(a, b)].sum(1).mean() for b in groups] for a in groups])
                for head in output.attention[layer, 0]
            ]
            pairs = list(zip(states, states[1:], strict=False))
            distances = {
                "cos": [[(2 - cosine(a, b)) / 2 for a, b in pairs]],
                "l1": [[np.abs(a - b).sum() for a, b in pairs]],
                "l2": [[np.linalg.norm(a - b) for a, b in pairs]],
                "hellinger": [[np.linalg.norm(a**0.5 - b**0.5) / 2**0.5 for a, b in
                               zip(head, head[1:], strict=False)] for head in heads],
                "jsd": [[jensenshannon(a, b) for a, b in zip(head, head[1:], strict=False)]
                        for head in heads],
            }  # fmt: skip
            for name, rows in distances.items():
                rows = [np.mean(rows, 0), *rows]
                for place, row in enumerate(rows):
                    slope = 1 - np.arange(len(row)) / max(1, len(row) - 1)
                    row = row + 0.5 * np.mean(row) * slope * (len(row) > 1)
                    spans = by_recursion(row) - {(0, len(row))}
                    total = len(spans) + len(one.spans)
                    f1 = 2 * len(spans & one.spans) / total
                    if name in printed["heads"] or place == 0:
                        wanted[name][layer, place] += f1 / len(sentences)
    for name, values in wanted.items():
        np.testing.assert_allclose(printed["layers"][name], values[:, 0], atol=1e-5)
        if name in printed["heads"]:
            np.testing.assert_allclose(printed["heads"][name], values[:, 1:], atol=1e-5)
    assert printed["first layer"] == 1 and printed["counts"]["held out"] == 3
    assert main([*command, *[str(tmp_path / "a.mrg")] * 2, "--out", str(tmp_path / "out")]) == 0
    assert "right branching: 0.6889" in capsys.readouterr().out
    assert (tmp_path / "out" / "probe.png").stat().st_size > 1000
