"""Tasks on the text of a domain: stays in hospital, patents, names of a dictionary, repairs."""

import json
import math

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.inference.retrieval.bm25 import BM25, words_of
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.labelled import Example
from ptm_jax.tasks.formats.tagged import Sentence
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.text_groups import Group
from ptm_jax.tasks.kinds.domains import clinical_notes, disfluencies, normalisation, patents
from ptm_jax.tasks.kinds.domains.clinical_notes import Notes
from ptm_jax.tasks.kinds.domains.disfluencies import Repairs
from ptm_jax.tasks.kinds.domains.normalisation import Candidates
from ptm_jax.tasks.kinds.domains.patents import Patents
from ptm_jax.tasks.kinds.several_labels import Chosen
from ptm_jax.tasks.tables.own_tables import Several

NOTES = "TEXT,ID,Label\nsevere pain,7,1\nno fever,8,0\nwent home,7,1\n"


def written(path, text):
    path.write_text(text, encoding="utf8")
    return path


@pytest.mark.status("readmission", "built")
def test_pieces_of_notes_have_their_stay(tmp_path):
    found = list(Notes().read(written(tmp_path / "train.csv", NOTES)))
    assert [(e.first, e.label, e.group) for e in found][1:] == [
        ("no fever", "0", "8"),
        ("went home", "1", "7"),
    ]
    with pytest.raises(UserError, match=r"b\.csv.*ID"):
        list(Notes().read(written(tmp_path / "b.csv", "TEXT,Label\na,1\n")))
    with pytest.raises(ValueError, match="above 0"):
        Notes(c=0.0)


@pytest.mark.parametrize("c", [0.5, 2.0, 5.0])
def test_the_score_of_a_stay_is_that_of_the_paper(c):
    chances = [0.9, 0.2, 0.4]
    n, mean = len(chances), np.mean(chances)
    expected = (max(chances) + mean * n / c) / (1 + n / c)
    assert clinical_notes.score_of(chances, c) == pytest.approx(expected, rel=1e-12)


@pytest.mark.status("ClinicalBERT (Huang)", "matches")
def test_stays_are_scored_as_the_released_code_does():
    """run_readmission.py, vote_score: (max + sum / 2) / (1 + n / 2) of each id."""
    draw = np.random.default_rng(0)
    stays, chances = draw.integers(0, 20, 80), draw.random(80)
    labels = (stays % 3 == 0).astype(int)
    examples = [
        Example("", None, str(label), "", group=str(stay))
        for stay, label in zip(stays, labels, strict=True)
    ]
    predictions = [Prediction("", {"0": 1 - p, "1": p}) for p in chances]
    found = clinical_notes.stays_of(examples, predictions, 2.0)
    assert {*found} == {str(stay) for stay in stays}
    for stay, (score, label, count) in found.items():
        mine = chances[stays == int(stay)]
        theirs = (mine.max() + mine.sum() / 2) / (1 + len(mine) / 2)
        assert score == pytest.approx(theirs, rel=1e-12)
        assert (label, count) == (str(int(int(stay) % 3 == 0)), len(mine))

    from sklearn.metrics import precision_recall_curve, roc_auc_score

    task = catalogue.get("readmission")
    figures = clinical_notes.readmission(examples, predictions, task)
    gold = [int(label) for _, label, _ in found.values()]
    scores = [score for score, _, _ in found.values()]
    assert figures["auroc"] == pytest.approx(roc_auc_score(gold, scores))
    rows = zip(*precision_recall_curve(gold, scores), strict=False)  # the last point is left out
    enough = [recall for precision, recall, _ in rows if precision > 0.799999]
    assert figures["recall_at_precision_80"] == pytest.approx(enough[0] if enough else 0.0)
    one = [example for example in examples if example.label == "0"]
    assert math.isnan(clinical_notes.readmission(one, predictions[: len(one)], task)["auroc"])
    lines = [json.loads(line) for line in clinical_notes.lines(task, examples, predictions)]
    assert sum(line["pieces"] for line in lines) == 80


@pytest.mark.status("patents", "built")
def test_symbols_of_patents_become_subclasses(tmp_path):
    text = "text,codes\na pill,A61K 31/00; a61p9/00;A61K 9/20\na bolt,F16B\n"
    spec = Patents(task="patents").settled([str(written(tmp_path / "train.csv", text))])
    assert spec.labels == ("A61K", "A61P", "F16B")
    found = list(spec.read(tmp_path / "train.csv"))
    assert [example.names for example in found] == [("A61K", "A61P"), ("F16B",)]
    with pytest.raises(UserError, match=r"bad\.csv:2.*'61K'"):
        list(spec.read(written(tmp_path / "bad.csv", "text,codes\na pill,61K\n")))


@pytest.mark.status("PatentBERT", "built")
def test_the_first_labels_of_patents_by_hand():
    scores = [{"A": 0.9, "B": 0.2, "C": 0.6}, {"A": 0.1, "B": 0.3, "C": 0.2}]
    gold = [("C", "A"), ("A",)]
    examples = [Several("", None, names, "", n) for n, names in enumerate(gold)]
    figures = patents.top_labels(examples, [Chosen((), one) for one in scores])
    assert figures["precision_at_1"] == 1 / 2 and figures["recall_at_1"] == 1 / 3
    assert figures["f1_at_1"] == pytest.approx(2 / 5)
    assert figures["precision_at_5"] == 3 / 6 and figures["recall_at_5"] == 1.0


def test_bm25_is_its_definition():
    texts = ["breast cancer", "cancer of the breast breast", "colon cancer", "a fever of the colon"]
    words = [words_of(text) for text in texts]
    mean, k1, b = np.mean([len(one) for one in words]), 1.2, 0.75
    for query in ("breast cancer", "Colon, colon", "unknown"):
        expected = np.zeros(len(texts))
        for number, one in enumerate(words):
            for word in words_of(query):
                n, f = sum(word in other for other in words), one.count(word)
                rarity = np.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
                part = f + k1 * (1 - b + b * len(one) / mean)
                expected[number] += rarity * f * (k1 + 1) / part
        np.testing.assert_allclose(BM25(texts).scores(query), expected, rtol=1e-12)
    assert BM25(texts).best("colon", 2) == [2, 3] and BM25(texts).best("unknown", 2) == [0, 1]


DICTIONARY = "id\tname\nD1\tbreast cancer\nD1\tcarcinoma of breast\nD2\tcolon cancer\nD3\tfever\n"


@pytest.mark.status("normalise", "built")
def test_mentions_get_candidates_of_the_dictionary(tmp_path):
    written(tmp_path / "dictionary.tsv", DICTIONARY)
    path = written(tmp_path / "train.tsv", "mention\tid\nbreast tumour\tD1\npyrexia\tD3\n")
    spec, remarks = Candidates(candidates=2), Remarks()
    found = list(spec.read(path, remarks))
    assert found[0].texts == ("breast tumour", "breast cancer", "carcinoma of breast")
    assert found[0].scores == (1.0, 1.0) and found[1].scores == (0.0, 0.0)
    assert sum(remarks.values()) == 1
    (tmp_path / "dictionary.tsv").unlink()
    with pytest.raises(UserError, match=r"dictionary\.tsv: lines with an id"):
        list(spec.read(path))


@pytest.mark.status("BERT for entity normalisation", "built")
def test_the_concept_of_the_first_name_counts():
    groups = [Group(("m", "a", "b"), grades, "", 0) for grades in ((0, 1), (1, 0), (0, 0))]
    scores = [np.array([0.1, 0.9]), np.array([0.1, 0.9]), np.array([0.5, 0.1])]
    figures = normalisation.first_names(groups, scores)
    assert figures["accuracy_at_1"] == figures["bm25_accuracy_at_1"] == pytest.approx(1 / 3)
    assert figures["candidate_recall"] == pytest.approx(2 / 3)


REPAIRS = {
    "Who did no What did they want?": ("What did they want?", "DDDOOOO"),
    "the the cat": ("The cat", "DOO"),
    "a red, sorry blue hat": ("a blue hat", "ODDOO"),
    "it is , fine": ("It is, fine!", "OODO"),
}


@pytest.mark.status("disfl_qa_tags", "built")
def test_words_that_a_repair_replaces_are_found(tmp_path):
    document = {
        str(n): {"original": original, "disfluent": text}
        for n, (text, (original, _)) in enumerate(REPAIRS.items())
    }
    path, remarks = written(tmp_path / "dev.json", json.dumps(document)), Remarks()
    found = list(Repairs().read(path, remarks))
    assert ["".join(example.tags) for example in found] == [tags for _, tags in REPAIRS.values()]
    assert [" ".join(example.words) for example in found] == list(REPAIRS)
    with pytest.raises(UserError, match=r"bad\.json: a.*original"):
        list(Repairs().read(written(tmp_path / "bad.json", '{"a": {"disfluent": "b"}}')))


def test_an_alignment_is_a_longest_common_subsequence():
    draw = np.random.default_rng(1)
    for _ in range(20):
        long = draw.integers(0, 4, 9).tolist()
        short = [word for word in long if draw.random() < 0.6]
        stays = disfluencies.aligned(short, long)
        assert [word for word, stay in zip(long, stays, strict=True) if stay] == short


@pytest.mark.status("Disfluency model", "built")
def test_disfluent_words_by_hand():
    examples = [Sentence(("a", "b", "c"), ("D", "D", "O"), "")]
    figures = disfluencies.disfluent_words(examples, [("D", "O", "D")])
    assert figures == {"f1": 0.5, "precision": 0.5, "recall": 0.5}


@pytest.mark.full
@pytest.mark.status("disfl_qa_tags", "built")
def test_the_real_questions_have_their_repairs(data):
    remarks = Remarks()
    found = list(Repairs().read(data / "disfluency/disfl-qa/dev.json", remarks))
    gone = np.mean([tag == "D" for example in found for tag in example.tags])
    assert len(found) == 1000 and 0.3 < gone < 0.4
    assert sum(remarks.values()) == 183  # their disfluent form lacks a word, or spells it otherwise
