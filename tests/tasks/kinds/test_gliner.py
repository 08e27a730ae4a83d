"""GLiNER as a task: its files, the types that are drawn, decoding, F1, a training, and types that
the training did not have."""

import itertools
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.spans.named_entities import Prompt, Span, decoded
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.entity_spans import Entities, EntitySpans
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.spans.gliner import by_class, span_f1
from ptm_jax.tuning import selection

LINES = [
    {"tokenized_text": ["dog", "naps", "by", "the", "river"],
     "ner": [[0, 0, "animal"], [3, 4, "place"], [4, 4, "water"]]},
    {"tokenized_text": ["the", "fox", "naps"], "ner": []},
]  # fmt: skip


def written(path, text):
    path.write_text(text, encoding="utf8")
    return str(path)


def jsonl(path, rows):
    return written(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_the_released_form_and_tags_are_read(tmp_path):
    spec, remarks = EntitySpans(longest=1), Remarks()
    first, second = spec.read(jsonl(tmp_path / "data.jsonl", LINES), remarks)
    assert first.spans == ((0, 1, "animal"), (3, 5, "place"), (4, 5, "water"))
    assert second.words == ("the", "fox", "naps") and second.spans == ()
    assert remarks == {"entities have more than 1 words, and are not learnt": 1}
    whole = written(tmp_path / "data.json", json.dumps(LINES))
    assert [one.spans for one in spec.read(whole)] == [first.spans, ()]
    tags = "New B-LOC\nYork I-LOC\nis O\nart B-creative-work\n\n[ O\n\n"
    of_tags = list(spec.read(written(tmp_path / "train.txt", tags)))
    assert of_tags[0].spans == ((0, 2, "location"), (3, 4, "creative work"))
    assert of_tags[1].words == ("[",)
    assert spec.settled([whole, whole]).labels == ("animal", "place", "water")
    (unknown,) = spec.read(jsonl(tmp_path / "x.jsonl", [{"tokenized_text": ["a"]}]), labels=False)
    assert unknown.spans is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokenized_text": ["a"], "ner": [[0, 1, "x"]]}, "not within the 1 words"),
        ({"tokenized_text": ["a"], "ner": [[0, 0, " "]]}, "has no type"),
        ({"tokenized_text": ["a"], "ner": [[0, "x"]]}, "expected \\[first word"),
        ({"tokenized_text": ["a"], "ner": 3}, "ner is 3"),
        ({"tokenized_text": "a b", "ner": []}, "expected words"),
        ({"words": ["a"], "ner": []}, "tokenized_text"),
    ],
)
def test_a_broken_row_is_one_line_with_its_place(tmp_path, row, message):
    path = jsonl(tmp_path / "data.jsonl", [LINES[0], row])
    with pytest.raises(UserError, match=f"data.jsonl:2.*{message}"):
        list(EntitySpans().read(path))


@pytest.fixture(scope="module")
def tokenizer(published):
    return ptm_jax.load(published).tokenizer


def rows_of(spec, tokenizer, examples, length=24):
    return spec.features(tokenizer, spec.encode(tokenizer, examples), length)


def test_long_sentences_go_on_and_lose_no_word(tokenizer):
    spec = EntitySpans(labels=("animal", "place"))
    words = ("dog", "naps", "by", "river", "fox") * 6
    spans = tuple((i, i + 2, "place") for i in range(0, 28, 2))
    groups, remarks = rows_of(spec, tokenizer, [Entities(words, spans, "")])
    rows = [row for (row,) in groups]
    assert sum(len(row["word_places"]) for row in rows) == len(words) and len(rows) > 2
    learnt, cut = sum(len(row["span_starts"]) for row in rows), [*remarks.values()][-1]
    assert learnt + remarks.get(
        "entities begin in one row and end in the next, and are not learnt", 0
    ) == len(spans)
    assert cut and all(len(row["input_ids"]) <= 24 for row in rows)
    marker = Prompt(tokenizer, spec.labels, 24).markers.type
    for row in rows:
        assert (row["input_ids"][row["type_places"] - 1] == marker).all()
        assert row["word_places"].min() > row["type_places"].max()


def test_types_of_training_rows_are_drawn(tokenizer):
    labels = tuple("abcdefgh")
    spec = EntitySpans(labels=labels, drop=False)
    examples = [
        Entities(("dog", "fox"), ((0, 1, a), (1, 2, b)), "")
        for a, b in zip("abc", "bcd", strict=True)
    ]
    groups, _ = rows_of(spec, tokenizer, examples, 64)
    rows = [row for (row,) in groups]
    prompt, draw = Prompt(tokenizer, labels, 64), spec.drawing(tokenizer, 64)
    spelled = {int(prompt.pieces[n][0]): label for n, label in enumerate(labels)}
    seen = [set(), set(), set()]
    for seed in range(30):
        drawn = draw(rows, np.random.default_rng(seed))
        for number, row in enumerate(drawn):
            types = [spelled[int(row["input_ids"][place])] for place in row["type_places"]]
            own = {kind for *_, kind in examples[number].spans}
            assert own <= {*types} <= {*"abcd"}  # negative types are of the batch
            marks = zip(row["span_starts"], row["span_sizes"], row["span_types"], strict=True)
            assert {(a - 1, a - 1 + b, types[c - 1]) for a, b, c in marks} == {
                *examples[number].spans
            }
            seen[number].add(tuple(types))
    assert all(len(several) > 4 for several in seen)
    again = draw(rows, np.random.default_rng(0)), draw(rows, np.random.default_rng(0))
    for one, two in zip(*again, strict=True):
        np.testing.assert_array_equal(one["input_ids"], two["input_ids"])
    dropping = EntitySpans(labels=labels, negatives=0).drawing(tokenizer, 64)
    counts = {
        len(row["type_places"])
        for s in range(9)
        for row in dropping(rows, np.random.default_rng(s))
    }
    assert counts == {1, 2}


def test_decoding_is_greedy_over_all_spans():
    draw = np.random.default_rng(0)
    for nested in (False, True):
        spans = [
            Span(a, b, "x", float(draw.random())) for a, b in itertools.combinations(range(7), 2)
        ]
        chosen, refused = decoded(spans, nested), []
        for span in sorted(spans, key=lambda span: -span.score):  # the definition, word by word
            words = {*range(span.start, span.end)}
            better = [{*range(o.start, o.end)} for o in chosen if o.score > span.score]
            free = all(
                not words & o or (nested and words != o and (words < o or o < words))
                for o in better
            )
            refused += [] if free else [span]
            assert free == (span in chosen)
        assert refused and len(chosen) > 1


@pytest.mark.full
def test_f1_is_seqevals_where_spans_do_not_overlap():
    from seqeval.metrics import f1_score

    draw, kinds = np.random.default_rng(1), ("PER", "LOC")
    pairs = []
    for _ in range(40):
        tags = [
            draw.choice(["O", "B-PER", "I-PER", "B-LOC"], size=9, p=[0.4, 0.2, 0.2, 0.2])
            for _ in "ab"
        ]
        pairs.append([["B-PER" if t == "I-PER" and (i == 0 or "PER" not in row[i - 1]) else str(t)
                       for i, t in enumerate(row)] for row in tags])  # fmt: skip

    def spans(row):
        starts = [i for i, tag in enumerate(row) if tag[0] == "B"]
        ends = [
            next((j for j in range(i + 1, 10) if j == 9 or row[j][0] != "I"), 9) for i in starts
        ]
        return tuple((i, j, row[i][2:]) for i, j in zip(starts, ends, strict=True))

    examples = [Entities(("w",) * 9, spans(gold), "") for gold, _ in pairs]
    predictions = [[Span(a, b, k, 1.0) for a, b, k in spans(chosen)] for _, chosen in pairs]
    wanted = f1_score([gold for gold, _ in pairs], [chosen for _, chosen in pairs])
    assert span_f1(examples, predictions)["f1"] == pytest.approx(wanted)
    assert by_class(None, examples, predictions).keys() == {*kinds}


@pytest.mark.full
def test_a_training_finds_entities_also_of_types_by_name(published, tmp_path, capsys):
    """Nine sentences, by heart; the task, the command and the export agree."""
    places, animals = ("river", "arbor", "york"), ("dog", "fox", "naps")
    rows = [
        {"tokenized_text": ["the", a, "by", "the", p], "ner": [[1, 1, "animal"], [4, 4, "place"]]}
        for a in animals for p in places
    ]  # fmt: skip
    data = jsonl(tmp_path / "data.jsonl", rows)
    ptm_jax.finetune(
        str(published), task="gliner", data=[data, data], workdir=tmp_path / "run", length=48,
        batch=9, epochs=300, lr=2e-3,
    )  # fmt: skip
    classes = selection.tuned(tmp_path / "run").classes
    assert {name: (one.f1, one.support) for name, one in classes.items()} == {
        "animal": (1.0, 9), "place": (1.0, 9),
    }  # fmt: skip
    model = ptm_jax.load(tmp_path / "run")
    scored = evaluating.evaluate(model, catalogue.get("gliner"), Source(data))
    assert scored.metrics["f1"] == 1.0
    command = [
        "predict",
        str(tmp_path / "run"),
        "--task",
        "entities",
        "--text",
        "the fox by the york",
    ]
    assert main([*command, "--types", "place,animal", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    sentence = ["the fox by the york"]
    entities = model.entities(sentence, ["place", "animal"])
    assert result["entities"] == entities[0]
    assert {(one["text"], one["type"]) for one in entities[0]} == {
        ("fox", "animal"), ("york", "place"),
    }  # fmt: skip
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "library_name: gliner" in card and "| f1 | 1 |" in card
    assert "GLiNER.from_pretrained" in capsys.readouterr().out
    again = ptm_jax.load(tmp_path / "out").entities(["the fox by the york"], ["place", "animal"])
    assert again == model.entities(["the fox by the york"], ["place", "animal"])
    capsys.readouterr()
    assert main(command) != 0 and "--types" in capsys.readouterr().err
