"""Edge probes and clusters of phrases: their definition in torch, figures of scikit-learn, planted
labels, and files."""

import json

import numpy as np
import pytest
from sklearn.metrics import f1_score, mutual_info_score

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.probes import probe_data, span_answers, span_probes, span_targets
from ptm_jax.tasks.probes.probe_data import Sentence
from ptm_jax.tasks.probes.questions import Part, Question
from ptm_jax.tasks.probes.span_probes import Edges


def json_lines(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_targets_of_files(tmp_path):
    file = json_lines(
        tmp_path / "a.jsonl",
        {"text": "a b c", "targets": [{"span1": [0, 2], "span2": [2, 3], "label": "X"}]},
        {"text": "d e", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": ["Y", "Z"]}]},
    )
    sentences = probe_data.sentences_of(file)
    targets = span_targets.targets_of(sentences, "targets")
    assert targets.spans.tolist() == [[[0, 2], [2, 3]], [[4, 5], [3, 4]]]
    assert targets.labels == [("X",), ("Y", "Z")]
    with pytest.raises(UserError, match="a.jsonl:1: a target has several words"):
        probe_data.labelled(sentences, "targets")
    words = sentences[1]._replace(targets=(sentences[1].targets[0]._replace(labels=("Y",)),))
    assert probe_data.labelled([words], "targets").words.tolist() == [[1, 0]]
    (tmp_path / "b.txt").write_text("x O\ny B-A\nz I-A\n\nu B-B\nv O\n")
    segments = span_targets.targets_of(probe_data.sentences_of(tmp_path / "b.txt"), "segment")
    assert segments.spans.tolist() == [[[1, 3]], [[3, 4]]] and segments.labels == [("A",), ("B",)]
    # the dog of mine barks: "of mine" and "the dog of mine" are subtrees without a gap
    rows = [("",) * 7 + (name,) for name in ("det", "nsubj", "case", "nmod:poss", "root")]
    tree = Sentence(tuple("tdomb"), tuple(rows), (1, 4, 3, 1, -1), "")
    phrases = span_targets.targets_of([tree], "phrase")
    assert phrases.spans.tolist() == [[[0, 4]], [[2, 4]]]
    assert phrases.labels == [("nsubj",), ("nmod",)]
    gap = tree._replace(heads=(1, 4, 1, 0, -1))  # mine hangs on the: its subtree has a gap
    assert span_targets.targets_of([gap], "phrase").spans.tolist() == [[[0, 4]]]
    pairs = span_targets.targets_of([tree], "deprel")
    assert pairs.spans[:2].tolist() == [[[0, 1], [1, 2]], [[1, 2], [4, 5]]]


def test_phrases_and_ancestors_of_brackets(tmp_path):
    file = tmp_path / "a.mrg"
    file.write_text(
        "( (S (NP-SBJ=2 (DT the) (NN dog)) (VP (VBZ barks) (NP (-NONE- *T*-1))) (. .)) )\n(X (Y y))"
    )
    sentences = probe_data.sentences_of(file)
    assert [one.words for one in sentences] == [("the", "dog", "barks", "."), ("y",)]
    targets = span_targets.targets_of(sentences, "targets")
    assert targets.spans[:, 0].tolist() == [[0, 2], [2, 3], [0, 4], [4, 5]]
    assert targets.labels == [("NP",), ("VP",), ("S",), ("X",)]
    tags = probe_data.labelled(sentences, "tag").labels.tolist()
    assert tags == ["DT", "NN", "VBZ", ".", "Y"]
    parents = probe_data.labelled(sentences, "parent")
    assert parents.labels.tolist() == ["NP", "NP", "VP", "S", "X"]
    assert probe_data.labelled(sentences, "grandparent").words[:, 0].tolist() == [0, 1, 2]
    assert probe_data.usual_label(sentences, ("upos", "tag")) == "tag"
    assert probe_data.usual_label(sentences, ("deprel", "segment")) == "targets"
    with pytest.raises(UserError, match="unknown label 'uncle'; there are: grandparent"):
        probe_data.labelled(sentences, "uncle")


def test_f1_of_segments_is_seqevals():
    seqeval = pytest.importorskip("seqeval.metrics")
    draw = np.random.default_rng(3)
    names = np.array(["O", "B-A", "I-A", "B-B", "I-B"])
    gold = [draw.choice(names, count) for count in (1, 5, 30, 20)]
    sentences = [Sentence(("w",) * len(row), tuple((t,) for t in row), None, "") for row in gold]
    predicted = draw.choice(names, (3, 56))
    words = np.sort(draw.permutation(56)[:50])
    scores = span_targets.segment_f1(sentences, words, predicted[:, words])
    hidden = np.setdiff1d(np.arange(56), words)
    predicted[:, hidden] = "O"
    for row, score in zip(predicted, scores, strict=True):
        parts = [part.tolist() for part in np.split(row, [1, 6, 36])]
        wanted = seqeval.f1_score([part.tolist() for part in gold], parts)
        assert score == pytest.approx(wanted) and score > 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "a b", "targets": [{"span1": [0, 3], "label": "X"}]}, "does not fit 2 words"),
        ({"text": "a b", "targets": [{"span1": [1, 1], "label": "X"}]}, "does not fit 2 words"),
        ({"text": "a b", "targets": [{"span1": [0, 1], "label": 3}]}, "the label 3 is no text"),
        ({"text": "a b", "targets": [{"span1": [0, 1]}]}, "no field label"),
        ({"text": " ", "targets": []}, "expected words in text"),
        ({"text": "a b", "targets": {}}, "expected words in text, and a list"),
    ],
)
def test_wrong_lines_have_one_message(tmp_path, line, message):
    file = json_lines(tmp_path / "a.jsonl", {"text": "a", "targets": []}, line)
    with pytest.raises(UserError, match=f"a.jsonl:2.*{message}"):
        probe_data.sentences_of(file)
    one, two = {"span1": [0, 1], "label": "X"}, {"span1": [0, 1], "span2": [0, 1], "label": "X"}
    with pytest.raises(UserError, match="c.jsonl: no line has a target"):
        probe_data.sentences_of(json_lines(tmp_path / "c.jsonl", {"text": "a", "targets": []}))
    file = json_lines(tmp_path / "b.jsonl", {"text": "a", "targets": [one, two]})
    with pytest.raises(UserError, match="some targets have one span and others two"):
        span_targets.targets_of(probe_data.sentences_of(file), "targets")


def planted(draw, count, layers=3, width=12, layer=1):
    """Spans of three words. One word, anywhere in the span, has a mark, and the label beside it;
    the other words have labels without the mark."""
    states = draw.normal(size=(3 * count, layers, width)).astype(np.float32)
    labels = draw.integers(0, 3, count)
    noise = draw.integers(0, 3, 3 * count)
    marked = 3 * np.arange(count) + draw.integers(0, 3, count)
    noise[marked] = labels
    states[:, layer, :3] = 4 * np.eye(3)[noise]
    states[:, layer, 3] = 0
    states[marked, layer, 3] = 6
    spans = 3 * np.arange(count)[:, None] + np.array([0, 3])
    return Edges(states, spans[:, None], np.eye(3, dtype=np.float32)[labels])


@pytest.mark.full
def test_an_edge_probe_finds_a_label_by_attention():
    draw = np.random.default_rng(0)
    edges = planted(draw, 900)
    train, test = (Edges(edges.states, *(x[rows] for x in edges[1:])) for rows in
                   (slice(700), slice(700, None)))  # fmt: skip
    params = span_probes.train(train, epochs=12)
    scores = span_probes.f1(params, test)
    assert scores[0] < 0.6 and all(scores[1:] > 0.9)
    weights = np.exp(params["mix"][2]) / np.exp(params["mix"][2]).sum()
    assert weights.argmax() == 1
    drawn = test._replace(targets=draw.permutation(test.targets))
    assert all(span_probes.f1(params, drawn) < 0.55)
    batch = span_probes._batch(test, np.arange(200), 4, 200)
    chosen = np.asarray(span_probes.logits(params, batch)) >= 0
    for layer in range(3):
        wanted = f1_score(test.targets, chosen[layer], average="micro")
        assert scores[layer] == pytest.approx(wanted)
    missed = f1_score(
        np.pad(test.targets, ((0, 0), (0, 1))) + np.eye(4)[3] * (np.arange(200) < 50)[:, None],
        np.pad(chosen[1], ((0, 0), (0, 1))), average="micro",
    )  # fmt: skip
    assert span_probes.f1(params, test, unseen=50)[1] == pytest.approx(missed)


@pytest.mark.status("ptm probe --by spans", "matches")
@pytest.mark.full
def test_logits_are_those_of_torch():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    states = draw.normal(size=(20, 3, 10)).astype(np.float16)
    spans = np.array([[[0, 1], [5, 9]], [[2, 6], [6, 7]], [[15, 20], [3, 8]]])
    edges = Edges(states, spans, np.zeros((3, 4), np.float32))
    params = span_probes._initial(edges, draw)
    params["mix"] += draw.normal(size=(3, 3)).astype(np.float32)
    params["scale"] += np.float32([0.5, -0.3, 1.0])
    logits = span_probes.logits(params, span_probes._batch(edges, np.arange(3), 16, 3))
    tensors = {name: torch.tensor(np.asarray(value)) for name, value in params.items()}
    words = torch.tensor(states.astype(np.float32))
    for probe in range(3):
        p = {name: value[probe] for name, value in tensors.items()}
        weights = torch.softmax(p["mix"][: probe + 1], 0)
        mixed = p["scale"] * (weights[:, None] * words[:, : probe + 1]).sum(1)
        for row in range(3):
            vectors = []
            for side in (0, 1):
                begin, end = spans[row, side]
                projected = mixed[begin:end] @ p["project"][side] + p["project_bias"][side]
                attention = torch.softmax(projected @ p["attend"][side], 0)
                vectors.append(attention @ projected)
            inner = torch.cat(vectors) @ p["inner"].reshape(-1, span_probes.WIDTH)
            hidden = torch.nn.functional.layer_norm(
                torch.tanh(inner + p["inner_bias"]), (span_probes.WIDTH,), p["norm"], p["norm_bias"]
            )
            wanted = hidden @ p["kernel"] + p["bias"]
            np.testing.assert_allclose(logits[probe, row], wanted.numpy(), atol=2e-4)


@pytest.mark.status("ptm probe --by phrases", "matches")
def test_clusters_of_phrases_follow_the_labels():
    """The first layer has noise, the second the labels. Normalised mutual information: the mutual
    information over the mean of both entropies."""
    draw, parts = np.random.default_rng(2), []
    for count in (60, 40):
        kinds = draw.integers(0, 3, count)
        sentences = [
            Sentence(("a", "b"), (("a", f"B-{kind}"), ("b", f"I-{kind}")), None, "")
            for kind in kinds
        ]
        states = draw.normal(size=(2 * count, 2, 4)).astype(np.float32)
        states[:, 1] += 20 * np.eye(4)[np.repeat(kinds, 2)]
        parts.append(Part(None, sentences, states))
    answer = span_answers.phrases(Question(by="phrases", data=(), label="segment"), *parts, {})
    assert answer.layers["nmi"][1] == 1 and answer.layers["nmi"][0] < 0.3
    labels = [sentence.rows[0][1] for sentence in parts[1].sentences]
    draw = np.random.default_rng(0)
    draw.permutation(60), draw.permutation(40)
    drawn = draw.integers(0, 3, 40)
    entropies = [mutual_info_score(one, one) for one in (labels, drawn)]
    wanted = mutual_info_score(labels, drawn) / np.mean(entropies)
    assert answer.baselines["nmi of drawn clusters"] == pytest.approx(wanted)
    several = {sentence.rows: sentence for sentence in parts[0].sentences}
    few = Part(None, list(several.values()), parts[0].states[:6])
    with pytest.raises(UserError, match="there are 3 phrases for 3 clusters"):
        span_answers.phrases(Question(by="phrases", data=(), label="segment"), few, parts[1], {})
    pairs = Question(by="phrases", data=(), label="deprel")
    tree = Sentence(("a", "b"), (("",) * 7 + ("det",), ("",) * 7 + ("root",)), (1, -1), "")
    both = Part(None, [tree], np.zeros((2, 2, 4)))
    with pytest.raises(UserError, match="deprel has pairs of spans; take --by spans"):
        span_answers.phrases(pairs, both, both, {})
