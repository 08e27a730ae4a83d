"""Probes: planted knowledge is read back, figures against scipy, scikit-learn and by hand, and the
command."""

import json

import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path
from scipy.stats import spearmanr
from sklearn.metrics import log_loss

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.tasks.probes import linear_probes, probe_data, probing, tree_probes, word_states
from ptm_jax.tasks.probes.tree_probes import ParsedStates

LINE = "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t_\t_"


def heads_of(draw, count):
    """A random tree: each word hangs on one that was there before; the words are shuffled."""
    order = draw.permutation(count)
    heads = [-1] * count
    for n in range(1, count):
        heads[order[n]] = int(order[draw.integers(0, n)])
    return tuple(heads)


def planted(draw, heads, width=40, strength=1.0):
    """States whose squared distances in 20 directions are those of the tree: a word is the sum of
    a direction for each edge up to the root. Two layers: noise alone, and noise beside it."""
    count = len(heads)
    paths = np.zeros((count, 20))
    for word in range(count):
        node = word
        while heads[node] >= 0:
            paths[word, node] = 1
            node = heads[node]
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(width, width)))[0]
    noise = draw.normal(size=(2, count, width - 20))
    parts = np.stack([np.concatenate([on * strength * paths, noise[on]], 1) for on in (0, 1)])
    return ParsedStates((parts @ turn).transpose(1, 0, 2), heads, np.zeros(count, bool))


def conllu(path, sentences):
    rows = []
    for words in sentences:
        for number, (word, tag, head) in enumerate(words, 1):
            feats = "Number=Sing" if tag == "NOUN" else "_"
            rows.append(
                LINE.format(number, word, word, tag, tag, feats, head, "dep" if head else "root")
            )
        rows.append("")
    path.write_text("\n".join(rows))
    return path


@pytest.mark.full
def test_the_structural_probe_reads_a_planted_tree():
    draw = np.random.default_rng(0)
    several = [
        planted(draw, heads_of(draw, int(n)), strength=3.0) for n in draw.integers(5, 16, 440)
    ]
    b = tree_probes.train(several[40:], several[20:40], rank=24)
    scores = tree_probes.distance_scores(several[:20], b)
    assert scores["uuas"][1] > 0.95 and scores["dspr"][1] > 0.95
    assert scores["uuas"][0] < 0.45 and abs(scores["dspr"][0]) < 0.3
    b = tree_probes.train(several[40:], several[20:40], depth=True, rank=24)
    scores = tree_probes.depth_scores(several[:20], b)
    assert scores["root"][1] > 0.9 and scores["nspr"][1] > 0.9 and scores["root"][0] < 0.5


def test_distances_edges_and_correlations():
    """Scipy's shortest paths; the tree of a table by hand; a chain."""
    draw = np.random.default_rng(1)
    for count in (1, 2, 9, 17):
        heads = heads_of(draw, count)
        table = np.zeros((count, count))
        for word, head in enumerate(heads):
            if head >= 0:
                table[word, head] = 1
        wanted = shortest_path(table, directed=False, unweighted=True)
        np.testing.assert_array_equal(tree_probes.distances(heads), wanted)
        np.testing.assert_array_equal(tree_probes.depths(heads), wanted[heads.index(-1)])
    words = np.array([0, 1, 3])
    table = np.array([[0, 4, 0, 1], [4, 0, 0, 2], [0, 0, 0, 0], [1, 2, 0, 0.0]])
    assert tree_probes.spanning_edges(table, words) == {(0, 3), (1, 3)}
    marks = np.array([False, False, True, False])
    sentence = ParsedStates(np.zeros((4, 1, 2)), (3, 3, 3, -1), marks)
    assert tree_probes.chain_uuas([sentence]) == 0.5
    exact = ParsedStates(
        np.array([[[0.0]], [[1.0]], [[2.0]], [[3.0]]]), (-1, 0, 1, 2), marks & False
    )
    rows = draw.integers(0, 5, (2, 6, 7)).astype(float)
    wanted = [
        [spearmanr(row, gold).statistic for row, gold in zip(t, rows[0], strict=True)] for t in rows
    ]
    np.testing.assert_allclose(tree_probes._spearman(rows, rows[0]), wanted, rtol=1e-12)
    scores = tree_probes.distance_scores([exact], np.ones((1, 1, 1)))
    assert scores["uuas"][0] == 1.0 and np.isnan(scores["dspr"][0])  # shorter than five words


TREES = [
    ((1, -1, 1), "..."), ((-1, 0, 1, 2, 3), "....p"), ((4, 4, 4, 4, -1), "....."),
    ((1, 2, -1, 2, 3, 4), ".....p"), ((2, 2, 3, -1, 3, 4, 4), "p......"),
    ((3, 0, 3, -1, 5, 3), "......"), ((-1, 0), ".."), ((5, 0, 5, 2, 5, -1, 5), "......."),
    ((1, -1, 1, 2, 2), "..p.."), ((6, 0, 0, 4, 6, 4, -1, 6), ".......p"),
]  # fmt: skip
"""Heads, and which words are punctuation (p)."""


def of_tree(heads):
    """Edges between words, by walking up to the root from both."""

    def above(word):
        return [word] if heads[word] < 0 else [word, *above(heads[word])]

    count = len(heads)
    table = np.zeros((count, count))
    for a, b in np.ndindex(count, count):
        up, other = above(a), above(b)
        meeting = next(word for word in up if word in other)
        table[a, b] = up.index(meeting) + other.index(meeting)
    return table


def ranks(values):
    return [np.mean(np.flatnonzero(np.sort(values) == value)) for value in values]


def spanning(table, words):
    """Edges of the minimum spanning tree by Kruskal's rule."""
    group, edges = {word: word for word in words}, set()
    for _, a, b in sorted((table[a, b], a, b) for a in words for b in words if a < b):
        if group[a] != group[b]:
            edges.add((a, b))
            group = {word: group[a] if of == group[b] else of for word, of in group.items()}
    return edges


@pytest.mark.status("ptm probe --by structural", "matches")
def test_the_structural_probe_on_ten_trees_by_hand():
    """Losses, edges, correlations, roots and fits, pair by pair (Hewitt and Manning 2019)."""
    draw = np.random.default_rng(3)
    b = draw.normal(size=(2, 4, 3)).astype(np.float32)
    several = [
        ParsedStates(draw.normal(size=(len(heads), 2, 4)).astype(np.float32), heads,
                     np.array([mark == "p" for mark in marks]))
        for heads, marks in TREES
    ]  # fmt: skip
    batch = next(iter(tree_probes._batches(several, False, None)))
    levels = next(iter(tree_probes._batches(several, True, None)))
    loss, depth_loss = tree_probes._loss(b, *batch, False), tree_probes._loss(b, *levels, True)
    scores = tree_probes.distance_scores(several, b) | tree_probes.depth_scores(several, b)
    for layer in (0, 1):
        losses, depth_losses, edges, right, roots = [], [], 0, 0, []
        by_length, depths_by_length, pairs = {}, {}, []
        for one in several:
            points, gold = one.states[:, layer] @ b[layer], of_tree(one.heads)
            squares = ((points[:, None] - points[None]) ** 2).sum(-1)
            norms, depth = (points**2).sum(-1), gold[one.heads.index(-1)]
            count = len(one.heads)
            losses.append(np.abs(squares - gold).sum() / count**2)
            depth_losses.append(np.abs(norms - depth).sum() / count)
            words = [i for i in range(count) if not one.punctuation[i]]
            wanted = {(min(i, h), max(i, h)) for i, h in enumerate(one.heads)
                      if i in words and h in words}  # fmt: skip
            edges, right = edges + len(wanted), right + len(wanted & spanning(squares, words))
            roots.append(min(words, key=norms.__getitem__) == one.heads.index(-1))
            rows = zip(squares, gold, strict=True)
            spearman = [np.corrcoef(ranks(row), ranks(true))[0, 1] for row, true in rows]
            by_length.setdefault(count, []).append(np.mean(spearman))
            levels = np.corrcoef(ranks(norms), ranks(depth))[0, 1]
            depths_by_length.setdefault(count, []).append(levels)
            pairs += [(squares[i, j], gold[i, j]) for i in range(count) for j in range(i)]
        wanted = {
            "uuas": right / edges, "root": np.mean(roots),
            "dspr": np.mean([np.mean(row) for size, row in by_length.items() if size >= 5]),
            "nspr": np.mean([np.mean(row) for size, row in depths_by_length.items() if size >= 5]),
        }  # fmt: skip
        squares, gold = np.array(pairs).T
        for name, values in (("fit of squares", squares), ("fit of roots", squares**0.5)):
            factor = np.linalg.lstsq(values[:, None], gold, rcond=None)[0]
            wanted[name] = 1 - ((gold - factor * values) ** 2).sum() / gold.var() / len(gold)
        for name, value in wanted.items():
            assert scores[name][layer] == pytest.approx(value, abs=1e-5), name
        assert loss[layer] == pytest.approx(np.mean(losses), rel=1e-5)
        assert depth_loss[layer] == pytest.approx(np.mean(depth_losses), rel=1e-5)


@pytest.mark.status("ptm probe --by labels", "matches")
@pytest.mark.full
def test_linear_probes_find_the_layer_with_the_labels():
    draw = np.random.default_rng(2)
    labels = draw.integers(0, 3, 600).astype(np.int32)
    states = draw.normal(size=(600, 4, 8)).astype(np.float32)
    states[:, 2, :3] += 3 * np.eye(3)[labels]
    probe = linear_probes.train(states[:500], labels[:500], 3)
    accuracy = linear_probes.accuracy(probe, states[500:], labels[500:])
    assert accuracy[2] > 0.9 and all(accuracy[[0, 1, 3]] < 0.5)
    rows = np.arange(500, 600)
    bits = linear_probes.bits(probe, states, labels, rows)
    logits = np.asarray(linear_probes._logits(*probe, states[rows].transpose(1, 0, 2)))
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for layer in range(4):
        wanted = log_loss(labels[rows], chances[layer], labels=[0, 1, 2]) / np.log(2)
        assert bits[layer] == pytest.approx(wanted, rel=1e-4)
    mixed = linear_probes.train(states[:500], labels[:500], 3, mixed=True)
    scores = linear_probes.accuracy(mixed, states[500:], labels[500:])
    assert 1.7 < linear_probes.expected_layer(scores) < 2.4
    assert 1.5 < linear_probes.centre_of_gravity(mixed.params["mix"]) < 2.5
    length = linear_probes.description_length(states[:300], labels[:300], 3)
    assert length[2] < 0.7 * 300 * np.log2(3) < length[0]


def test_the_online_code_adds_its_blocks(monkeypatch):
    """Voita and Titov 2020, Eq. 3: log2 K bits in the first block, those of the probe in others."""
    seen = []

    def train(states, labels, classes, seed=0):
        seen.append(len(states))
        return len(states)

    monkeypatch.setattr(linear_probes, "train", train)
    monkeypatch.setattr(
        linear_probes, "bits", lambda probe, states, labels, rows: np.full(2, 1 / probe)
    )
    total = linear_probes.description_length(np.zeros((1000, 2, 1)), np.zeros(1000, int), 4)
    assert seen == [1, 2, 4, 8, 16, 32, 62, 125, 250, 500]
    ends = [*seen, 1000]
    wanted = 2.0 + sum((b - a) / a for a, b in zip(ends, ends[1:], strict=False))
    np.testing.assert_allclose(total, wanted)


def test_a_control_task_has_a_label_for_each_word():
    words = ["a", "b", "a", "c", "b", "a"] * 50
    labels = np.array([0, 0, 0, 0, 0, 1] * 50)
    drawn = linear_probes.control(words, labels, seed=3)
    assert all(len({*drawn[np.array(words) == word]}) == 1 for word in "abc")
    many = linear_probes.control([f"w{i}" for i in range(2000)], labels)
    assert abs(many.mean() - 1 / 6) < 0.03
    assert linear_probes.expected_layer(np.array([0.5, 0.7, 0.8, 0.8])) == pytest.approx(4 / 3)
    falling = np.array([0.5, 0.4, 0.52])  # (-0.1 + 0.24) / 0.02 is 7
    assert np.isnan(linear_probes.expected_layer(falling))
    mix = np.log([[1, 1, 1], [1, 1, 1], [1, 1, 2.0]])
    assert linear_probes.centre_of_gravity(mix) == pytest.approx((1 + 2 * 2) / 4)
    weights = np.asarray(linear_probes.layer_weights(mix))
    np.testing.assert_allclose(weights, [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], atol=1e-6)


def test_labels_of_conllu(tmp_path):
    file = conllu(tmp_path / "a.conllu", [
        [("the", "DET", 2), ("dogs", "NOUN", 3), ("bark", "VERB", 0)], [("go", "VERB", 0)],
    ])  # fmt: skip
    sentences = probe_data.sentences_of(file)
    assert [one.heads for one in sentences] == [(1, 2, -1), (-1,)]
    tags = probe_data.labelled(sentences, "upos")
    assert tags.labels.tolist() == ["DET", "NOUN", "VERB", "VERB"]
    assert tags.words[:, 0].tolist() == [0, 1, 2, 3]
    assert probe_data.labelled(sentences, "Number").words.tolist() == [[1]]
    assert probe_data.labelled(sentences, "arc-label").words.tolist() == [[0, 1], [1, 2]]
    arcs = probe_data.labelled(sentences, "arc")
    assert arcs.labels.tolist() == ["head", "none"] * 2
    assert arcs.words.tolist() == [[0, 1], [0, 2], [1, 2], [1, 0]]
    with pytest.raises(UserError, match="'upso'.*Did you mean 'upos'"):
        probe_data.labelled(sentences, "upso")
    (tmp_path / "b.txt").write_text("-DOCSTART- O\n\nParis B-LOC\nis O\n\n")
    (sentence,) = probe_data.sentences_of(tmp_path / "b.txt")
    assert probe_data.labelled([sentence], "tag").labels.tolist() == ["B-LOC", "O"]
    with pytest.raises(UserError, match="b.txt:3: there are no heads"):
        probe_data.labelled([sentence], "arc")


@pytest.mark.full
def test_states_of_words_and_the_command(published, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    model = ptm_jax.load(published)
    words = ["the", "film", "was", "very", "funny"]
    states = word_states.of_sentences(model, [words, ["a"] * 200], tmp_path / "kept")
    assert states.fitting == (0,)
    (layers,) = model.encode([" ".join(words)], layers=True)
    sizes = [len(row) for row in model.tokenizer.encode_batch(words)]
    ends = np.cumsum(sizes)
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        wanted = layers[:, end - size : end].mean(1)
        np.testing.assert_allclose(states.states[number], wanted, atol=2e-3)
    draw = np.random.default_rng(0)
    sentences = []
    for _ in range(30):
        heads = heads_of(draw, 6)
        names = draw.choice(["the", "film", "was", "bad", "plot"], 6)
        sentences.append([(w, "NOUN" if w in ("film", "plot") else "X", h + 1)
                          for w, h in zip(names, heads, strict=True)])  # fmt: skip
    file = conllu(tmp_path / "a.conllu", sentences)
    command = ["probe", str(published), "--data", str(file)]
    assert main([*command, "--json", "--out", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["layers"]["accuracy"][0] > 0.9 > printed["baselines"]["most frequent label"]
    assert json.loads((tmp_path / "out" / "probe.json").read_text()) == printed
    assert (tmp_path / "out" / "probe.png").stat().st_size > 1000
    assert main([*command, "--by", "structural"]) == 0
    assert "uuas of a chain" in capsys.readouterr().out
    assert len(list((tmp_path / "cache" / "probes").glob("*.npy"))) == 2
    for more, wanted in (
        (["--label", "Tense"], "unknown label 'Tense'"),
        (["--rank", "2"], "--rank is for --by structural"),
        (["--by", "structural", "--bits"], "--bits is for --by labels"),
    ):
        assert main([*command, *more]) == 1
        said = capsys.readouterr().err
        assert wanted in said and said.count("\n") == 1
    with pytest.raises(UserError, match="unknown probe"):
        probing.answered(model, probing.Question(by="trees", data=(str(file),)))
