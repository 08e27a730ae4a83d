"""Cleaning and duplicates against cases written by hand from the papers, and against definitions in
plain Python."""

import collections
import math
import random

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import jobs, prepare
from ptm_jax.data.text import cleaning, duplicates, sources
from ptm_jax.data.text.documents import Document, document
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

GOOD = [
    "The first line is a good one.",
    "The second line is as good!",
    'He wrote that "this is the third."',
]


def run(steps, *texts):
    counts = collections.Counter()
    found = cleaning.clean([document(lines) for lines in texts], steps, counts)
    return [d.sentences for d in found], cleaning.report(counts)


@pytest.mark.parametrize("line, reason", [
    ("This line ends without a mark", "no end mark"),
    ("This line ends in an ellipsis...", "no end mark"),
    ("Only four words here.", "too few words"),
    ("This word is long: " + "x" * 1001 + ".", "too long a word"),
    ("Please enable JavaScript to see this.", "javascript"),
    ("By this you accept our cookie policy.", "policy"),
    ("We say javascript { here too now.", "javascript"),
])  # fmt: skip
def test_c4_takes_lines(line, reason):
    found, report = run([cleaning.C4()], [*GOOD[:1], line, *GOOD[1:]])
    assert found == [document(GOOD).sentences]
    assert report == {"read": 1, "kept": 1, "dropped": {f"lines: {reason}": 1}}


@pytest.mark.parametrize("lines, reason", [
    ([*GOOD, "Here is lorem ipsum dolor sit."], "lorem ipsum"),
    ([*GOOD, "Then if (a) { b; } it ends."], "curly bracket"),
    ([*GOOD, "Foul is the first word here."], "bad word"),
    ([*GOOD, "One of them is quite foul."], "bad word"),
    (GOOD[:2], "too few sentences"),
    (["no mark", "none"], "too few sentences"),
])  # fmt: skip
def test_c4_drops_pages(lines, reason):
    found, report = run([cleaning.C4(bad_words=("foul", "very bad"))], lines)
    assert not found and report["kept"] == 0 and report["dropped"][f"documents: {reason}"] == 1


def test_c4_leaves_what_only_looks_like_it():
    lines = [
        *GOOD,
        "The fouls of a game[12] are counted [edit] by her[citation needed]. Not by him.",
    ]
    found, report = run([cleaning.C4(bad_words=("foul",))], lines)
    assert (
        found[0][3:] == ("The fouls of a game are counted by her.", "Not by him.")
        and not report["dropped"]
    )
    # braces count in lines that stay: as the authors' code reads the rule
    assert run([cleaning.C4()], [*GOOD, "{ menu }"])[1]["dropped"] == {"lines: no end mark": 1}


def test_spans_of_three_sentences():
    one, two = (
        [f"Sentence number {i} stands here." for i in range(6)],
        [f"Another number {i} is there." for i in range(4)],
    )
    found, report = run([duplicates.Spans()], one, [*two, *one[1:4]], one, two[:2], two[:2])
    assert found == [
        tuple(one),
        tuple(two),
        tuple(two[:2]),
        tuple(two[:2]),
    ]  # two sentences are no span
    assert report["dropped"] == {"sentences: duplicate spans": 3, "documents: duplicate spans": 1}
    twice = [*one[:3], *two, *one[:3]]
    assert run([duplicates.Spans()], twice)[0] == [tuple(one[:3] + two)]


def test_exact_duplicates_stay_once():
    found, report = run(
        [duplicates.Exact()],
        ["A cat, here."],
        ["Dogs."],
        ["a CAT here!"],
        ["A cat.", "Here"],
        ["?"],
        ["!"],
    )
    assert found == [("A cat, here.",), ("Dogs.",), ("?",), ("!",)]
    assert report["dropped"] == {"documents: duplicate": 2}


def words(draw, count):
    return [f"w{draw.randrange(3000)}" for _ in range(count)]


def changed(draw, text, rate):
    return [word if draw.random() > rate else f"x{draw.randrange(3000)}" for word in text]


def jaccard(a, b, n=5):
    one, two = ({tuple(text[i : i + n]) for i in range(len(text) - n + 1)} for text in (a, b))
    return len(one & two) / len(one | two)


def test_minhash_estimates_the_jaccard_similarity():
    draw, errors = random.Random(0), []
    for trial in range(60):
        a = words(draw, draw.randint(30, 300))
        b = changed(draw, a, 0.02 * (trial % 6))
        true = jaccard(a, b)
        estimate = np.mean(duplicates.signature(a) == duplicates.signature(b))
        spread = math.sqrt(max(true * (1 - true), 1e-9) / duplicates.HASHES)
        assert abs(estimate - true) <= 4 * spread + 1e-6
        errors.append((estimate - true) / (spread + 1e-6))
    assert abs(np.mean(errors)) < 4 / math.sqrt(len(errors))  # without bias
    assert (
        len(duplicates.shingles(["a", "b"] * 50, 5)) == 2
        and len(duplicates.shingles(["a"], 5)) == 1
    )


def test_signatures_are_the_same_everywhere():
    found = duplicates.signature("the cat sat on the mat and looked at the moon".split())
    assert found[[0, 1, 127]].tolist() == [
        908977128,
        975892713,
        631385480,
    ] and found.dtype == np.dtype("<u4")


def test_shingles_do_not_collide():
    draw = random.Random(1)
    text = words(draw, 20_000)
    assert len(duplicates.shingles(text, 5)) == len(
        {tuple(text[i : i + 5]) for i in range(len(text) - 4)}
    )


@pytest.mark.parametrize("similarity", [0.5, 0.8])
def test_near_duplicates_against_brute_force(similarity):
    draw, texts = random.Random(2), []
    for _ in range(40):
        texts.append(words(draw, 150))
        texts += [
            changed(draw, texts[-1], draw.choice([0.0, 0.005, 0.2]))
            for _ in range(draw.randrange(3))
        ]
    draw.shuffle(texts)
    best = [
        max((jaccard(text, other) for other in texts[:i]), default=0.0)
        for i, text in enumerate(texts)
    ]
    margin = 4 * math.sqrt(similarity * (1 - similarity) / duplicates.HASHES)
    counts = collections.Counter()
    documents = [Document((" ".join(text),)) for text in texts]
    kept = set(map(id, cleaning.clean(documents, [duplicates.Near(similarity=similarity)], counts)))
    both = zip(documents, best, strict=True)
    clear = [(id(d) in kept) == (b < similarity) for d, b in both if abs(b - similarity) > margin]
    assert (
        all(clear)
        and len(clear) > 0.8 * len(texts)
        and 5 < counts["documents: near duplicate"] < len(texts)
    )


def test_the_first_stays_and_the_rest_does_not_matter():
    draw = random.Random(3)
    base = [" ".join(words(draw, 80)) for _ in range(20)]
    texts = [Document((text,)) for text in base + [text + " more" for text in base[:5]]]

    def keep(documents):
        return list(
            cleaning.clean(documents, [duplicates.Near(similarity=0.7)], collections.Counter())
        )

    assert keep(texts) == texts[:20] == keep(texts)
    assert keep(texts[::-1]) == texts[:4:-1]


def test_openwebtext_and_refusals(tmp_path):
    found, report = run([cleaning.Shortest(words=3)], ["One two. Three."], ["One two."])
    assert len(found) == 1 and report["dropped"] == {"documents: too short": 1}
    with pytest.raises(UserError, match="similarity=2"):
        duplicates.Near(similarity=2)
    (tmp_path / "bad").write_text("\n")
    with pytest.raises(UserError, match="bad holds no words"):
        cleaning.read_words(tmp_path / "bad")
    (tmp_path / "bad").write_text("Foul\n\nvery bad\n")
    assert cleaning.read_words(tmp_path / "bad") == ("foul", "very bad")


def oracle(text):
    return (
        ("de", 1.0)
        if "der" in text.lower().split()
        else ("en", 0.5 if "perhaps" in text.lower() else 1.0)
    )


def test_the_language_is_a_slot():
    found, report = run(
        [cleaning.Language(identify=oracle)], ["The cat."], ["Der Hund."], ["Perhaps it is."]
    )
    assert found == [("The cat.",)]
    assert report["dropped"] == {"documents: language de": 1, "documents: language unsure": 1}


@pytest.mark.full
def test_languages_by_the_model():
    pytest.importorskip("py3langid", reason="of the extra [clean]")
    texts = ["The house on the hill was sold to a family who had moved from the city last summer.",
             "Das Haus auf dem Hügel wurde an eine Familie verkauft, die im Sommer aus "
             "der Stadt kam.",
             "1 2 3."]  # fmt: skip
    found, report = run([cleaning.Language()], *[[text] for text in texts])
    assert len(found) == 1 and report["dropped"]["documents: language de"] == 1


def test_the_manifest_counts_what_was_dropped(tmp_path, text_file):
    spec, steps = TokenizerSpec(kind="wordpiece", vocab=120), (cleaning.C4(), duplicates.Exact())
    found = prepare.prepare(
        [str(text_file)] * 2, tmp_path / "a", tokenizer=spec, cleaning=steps, cooccurrence=3
    )
    report, sizes = found.manifest["cleaning"], found.manifest["splits"]
    assert (
        report["read"] == 800
        and report["kept"] == sum(size["documents"] for size in sizes.values()) < 400
    )
    documents = sum(n for reason, n in report["dropped"].items() if reason.startswith("documents"))
    assert report["read"] == report["kept"] + documents
    assert [step["step"] for step in found.manifest["request"]["cleaning"]] == ["C4", "Exact"]
    table = found.cooccurrence(3)
    assert table["column"].max() < found.vocab.size and (table["row"] <= table["column"]).all()
    with pytest.raises(UserError, match="cleaning.*choose another --out"):
        prepare.prepare([str(text_file)] * 2, tmp_path / "a", tokenizer=spec, cooccurrence=3)
    with pytest.raises(UserError, match="the cleaning left none of 400 documents"):
        prepare.prepare(
            [str(text_file)],
            tmp_path / "b",
            tokenizer=spec,
            cleaning=(cleaning.Shortest(words=10**6),),
        )
    assert not (tmp_path / "b").exists() and not list(tmp_path.glob(".b*"))


def test_an_interrupted_run_keeps_the_report(tmp_path, text_file, monkeypatch):
    options = {
        "tokenizer": TokenizerSpec(kind="wordpiece", vocab=120),
        "cleaning": (duplicates.Exact(),),
        "cooccurrence": 2,
    }
    whole = prepare.prepare([str(text_file)] * 2, tmp_path / "a", **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jobs, "_fill", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        prepare.prepare([str(text_file)] * 2, tmp_path / "b", **options)
    monkeypatch.setattr(sources, "read", None)  # the text is there
    again = prepare.prepare([str(text_file)] * 2, tmp_path / "b", **options)
    assert again.manifest == whole.manifest and again.manifest["cleaning"]["dropped"] == {
        "documents: duplicate": 400
    }
    assert sorted(p.name for p in again.dir.iterdir()) == sorted(
        p.name for p in whole.dir.iterdir()
    )


def test_a_corpus_without_cleaning_and_a_window_that_cannot_be_counted(corpus):
    assert "cleaning" not in corpus.manifest and "cleaning" not in corpus.manifest["request"]
    with pytest.raises(UserError, match="expected 1 to 22"):
        prepare.prepare(["x"], "y", tokenizer=TokenizerSpec(), cooccurrence=99)
