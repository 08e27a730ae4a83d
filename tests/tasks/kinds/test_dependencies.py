"""Dependency parsing: files, rows, the biaffine scores and loss in numpy, the best tree by brute
force, UAS and LAS."""

import itertools

import jax
import numpy as np
import pytest

from ptm_jax.inference.text.spanning import best_tree
from ptm_jax.nn.heads.biaffine import BiaffineHead
from ptm_jax.objectives.tasks.dependencies import Parsing
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.kinds.dependencies import attachment
from support import bare_layers
from support.plain_towers import check, nll, states_of

TREE = (
    "1\tdogs\t_\tX\t_\t_\t2\tnsubj:pass\t_\t_\n2\tbark\t_\tX\t_\t_\t0\troot\t_\t_\n"
    "3\tloud\t_\tX\t_\t_\t2\tadvmod\t_\t_\n\n"
)


def trees_of(count):
    """All trees over words 1 ... count with one root, as heads."""
    for heads in itertools.product(range(count + 1), repeat=count):
        path = list(heads)
        for _ in range(count):
            path = [heads[p - 1] if p else 0 for p in path]
        if not any(path) and heads.count(0) == 1:
            yield heads


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_best_tree_is_that_of_all_trees(count):
    draw, every = np.random.default_rng(count), list(trees_of(count))
    for _ in range(20):
        scores = draw.normal(size=(count + 1, count + 1))

        def total(heads, scores=scores):
            return sum(scores[word, head] for word, head in enumerate(heads, 1))

        assert tuple(best_tree(scores)) == max(every, key=total)


def test_scores_are_equations_4_to_9():
    head, x = (
        BiaffineHead(3, arcs=5, types=4),
        np.random.default_rng(0).normal(size=(2, 6, 7)).astype(np.float32),
    )
    p = bare_layers.drawn(head, x)
    arcs, labels = bare_layers.run(head, p, x)

    def layer(name):
        return (lambda y: np.where(y > 0, y, 0.01 * y))(bare_layers.dense(p[name], x[1]))

    h, d = layer("arc_head"), layer("arc_dependent")
    r, s = layer("label_head"), layer("label_dependent")
    for i, j in np.ndindex(6, 6):
        np.testing.assert_allclose(
            arcs[1, i, j], d[i] @ p["arc"] @ h[j] + p["arc_bias"] @ h[j], rtol=2e-4, atol=1e-4
        )
        pair = [s[i] @ p["label"][:, c] @ r[j] for c in range(3)]
        pair = pair + r[j] @ p["label_of_head"] + s[i] @ p["label_of_dependent"] + p["label_bias"]
        np.testing.assert_allclose(labels[1, i, j], pair, rtol=2e-4, atol=1e-4)


@pytest.mark.full
def test_the_loss_is_that_of_heads_and_of_labels_given_the_head():
    def definition(p, b):
        x, terms = states_of(p, b), ([], [])
        for row, word in np.argwhere(b["segment_ids"] > 0):
            others = [
                t
                for t in range(x.shape[1])
                if t != word and (t == 0 or b["segment_ids"][row, t] > 0)
            ]
            arcs = np.array([x[row, word] @ p["match"] @ x[row, t] for t in others])
            head = b["heads"][row, word]
            terms[0].append(nll(arcs, others.index(head)))
            terms[1].append(
                nll((x[row, word] * x[row, head]) @ p["tag"], b["token_labels"][row, word])
            )
        return [(sum(part), len(part)) for part in terms]

    check(Parsing(), definition)


def test_attachment_scores_count_words():
    examples = [type("One", (), {"heads": (1, -1, 1), "labels": ("nsubj", "root", "advmod")})]
    found = [((2, "nsubj"), (0, "root"), (1, "advmod"))]
    assert attachment(examples, found) == {"uas": 2 / 3, "las": 2 / 3}
    assert attachment(examples, [((2, "obj"), *found[0][1:])]) == {"uas": 2 / 3, "las": 1 / 3}


@pytest.mark.full
def test_predictions_are_the_best_trees_of_the_scores(tmp_path, models_of):
    task = catalogue.get("parsing")
    (tmp_path / "a.conllu").write_text(TREE * 12)
    (model,) = models_of(task.examples)
    result = evaluating.evaluate(model, task, Source(str(tmp_path / "a.conllu")))
    words = result.examples[0].words
    assert words == ("dogs", "bark", "loud") and result.examples[0].labels == (
        "nsubj",
        "root",
        "advmod",
    )
    record = task.examples.encode(model.tokenizer, result.examples[:1])
    ((row,),), _ = task.examples.features(model.tokenizer, record, 32)
    places = np.flatnonzero(row["token_weights"])
    assert row["heads"][places].tolist() == [places[1], 0, places[1]]
    parts, remarks = task.examples.features(model.tokenizer, record, 4)
    assert len(parts) > 1 and sum(remarks.values()) == 1, "a head in another part is the root"
    for (part,) in parts:
        words = np.flatnonzero(part["token_weights"])
        assert all(head == 0 or head in words for head in part["heads"][words])
    ids, types = row["input_ids"][None], row["token_type_ids"][None]
    arcs, labels = (
        np.asarray(part[0], np.float64)
        for part in model(ids, np.ones_like(ids), types).scores["parse"]
    )
    every = [0, *places]
    best = max(
        trees_of(3), key=lambda heads: sum(arcs[every[w], every[h]] for w, h in enumerate(heads, 1))
    )
    expected = tuple(
        (h, task.examples.labels[labels[every[w], every[h]].argmax()])
        for w, h in enumerate(best, 1)
    )
    assert result.predictions[0] == expected
    line = list(evaluating.lines(task, result.examples, result.predictions))[0].split("\t")
    assert (
        len(line) == 10
        and line[:2] == ["1", "dogs"]
        and line[6:8] == [str(expected[0][0]), expected[0][1]]
    )
    assert jax.tree.leaves(result.metrics)
