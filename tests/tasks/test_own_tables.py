"""Tables of users: 40 layouts and the task that is guessed, what is refused, and the rows held out.

No layout is of a published data set. The right task of each was written by hand.
"""

import collections
import csv
import io
import json
import random

import numpy as np
import pytest
from sklearn.metrics import classification_report, precision_recall_fscore_support

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.metrics import per_class
from ptm_jax.tasks.tables import dividing, guessing, prediction_tables
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.guessing import Asked, guess

WORDS = "where is my parcel it came late and the box was broken please send money back now".split()
TOPICS = ("delivery", "refund", "damage")


def sentences(count, seed=0, size=9):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, size))) + f" {n}" for n in range(count)]


def cycled(values, count):
    return [values[n % len(values)] for n in range(count)]


def table(columns, separator=",", **dialect):
    """The text of a table of {column: cells}."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n", **dialect)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def objects(columns):
    """The text of JSON lines of {column: cells}."""
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


N = 60
TEXTS = sentences(N)
LONG = [" ".join(sentences(40, seed)) for seed in range(N)]
TAGS = [" ".join("B-ITEM" if word == "parcel" else "O" for word in text.split()) for text in TEXTS]
MEMBERS = cycled(["delivery|late", "refund", "late|refund", "delivery", "damage|late"], N)
PASSAGES = [f"the box came on {day} by the river and was broken" for day in sentences(N, 3, 5)]
ANSWERS = [" ".join(text.split()[4:7]) for text in PASSAGES]
DECIMALS = [f"{n / 7:.3f}" for n in range(N)]

# {layout: (file, text, columns of the text, of the label, the task)}
LAYOUTS = {
    "plain": ("a.csv", table({"question": TEXTS, "category": cycled(TOPICS, N)}),
              "question", "category", "classify"),
    "mixed case headers": ("a.csv", table({"Question": TEXTS, "CATEGORY": cycled(TOPICS, N)}),
                           "question", "category", "classify"),
    "blanks in headers": ("a.csv", table({"Customer question": TEXTS,
                                          " The category ": cycled(TOPICS, N)}),
                          "customer_question", "The category", "classify"),
    "byte order mark": ("a.csv", "\ufeff" + table({"q": TEXTS, "c": cycled(TOPICS, N)}),
                        "q", "c", "classify"),
    "semicolons": ("a.csv", table({"q": [f"{t}, or not" for t in TEXTS], "c": cycled(TOPICS, N)},
                                  ";"), "q", "c", "classify"),
    "semicolons of a spreadsheet": ("a.csv", "sep=;\n" + table(
        {"q": TEXTS, "c": cycled(TOPICS, N)}, ";"), "q", "c", "classify"),
    "bars": ("a.csv", table({"q": TEXTS, "c": cycled(TOPICS, N)}, "|"), "q", "c", "classify"),
    "tabs in a csv": ("a.csv", table({"q": [f"{t}, or not" for t in TEXTS],
                                      "c": cycled(TOPICS, N)}, "\t"), "q", "c", "classify"),
    "tabs": ("a.tsv", table({"q": TEXTS, "c": cycled(TOPICS, N)}, "\t"), "q", "c", "classify"),
    "tabs with open quotes": ("a.tsv", "q\tc\n" + "".join(
        f'"{t} he said\t{c}\n' for t, c in zip(TEXTS, cycled(TOPICS, N), strict=True)),
        "q", "c", "classify"),
    "line ends in quotes": ("a.csv", table({"q": [t.replace(" ", "\n", 1) for t in TEXTS],
                                            "c": cycled(TOPICS, N)}), "q", "c", "classify"),
    "line ends in quotes of a tsv": ("a.tsv", table(
        {"q": [t.replace(" ", "\n", 1) for t in TEXTS], "c": cycled(TOPICS, N)}, "\t"),
        "q", "c", "classify"),
    "line ends of Windows": ("a.csv", table({"q": TEXTS, "c": cycled(TOPICS, N)}).replace(
        "\n", "\r\n"), "q", "c", "classify"),
    "every field quoted": ("a.csv", table({"q": TEXTS, "c": cycled(TOPICS, N)},
                                          quoting=csv.QUOTE_ALL), "q", "c", "classify"),
    "0 and 1": ("a.csv", table({"q": TEXTS, "spam": cycled("01", N)}), "q", "spam", "classify"),
    "stars": ("a.csv", table({"q": TEXTS, "stars": cycled("12345", N)}), "q", "stars", "classify"),
    "booleans": ("a.csv", table({"q": TEXTS, "urgent": cycled(["True", "False"], N)}),
                 "q", "urgent", "classify"),
    "booleans of JSON": ("a.jsonl", objects({"q": TEXTS, "urgent": cycled([True, False], N)}),
                         "q", "urgent", "classify"),
    "ages": ("a.csv", table({"q": TEXTS, "age": [str(18 + 7 * n % 53) for n in range(N)]}),
             "q", "age", "rate"),
    "decimals": ("a.csv", table({"q": TEXTS, "score": DECIMALS}), "q", "score", "rate"),
    "decimal commas": ("a.csv", table({"q": TEXTS, "score": [f"{n},{n % 10}5" for n in range(N)]},
                                      ";"), "q", "score", "rate"),
    "floats of JSON": ("a.jsonl", objects({"q": TEXTS, "score": [n / 3 for n in range(N)]}),
                       "q", "score", "rate"),
    "negative numbers": ("a.csv", table({"q": TEXTS, "s": [f"{n - 30}.5" for n in range(N)]}),
                         "q", "s", "rate"),
    "two texts": ("a.csv", table({"a": TEXTS, "b": sentences(N, 9),
                                  "same": cycled(["yes", "no"], N)}), "a b", "same", "pairs"),
    "two texts with a number": ("a.csv", table({"a": TEXTS, "b": sentences(N, 9),
                                                "score": DECIMALS}), "a b", "score", "rate"),
    "bars in labels": ("a.csv", table({"q": TEXTS, "tags": MEMBERS}), "q", "tags", "labels"),
    "commas in labels": ("a.csv", table({"q": TEXTS, "tags": [
        m.replace("|", ", ") for m in MEMBERS]}), "q", "tags", "labels"),
    "some without labels": ("a.csv", table({"q": TEXTS, "tags": cycled(
        ["a;b", "", "b", "a;c", "c"], N)}), "q", "tags", "labels"),
    "lists of JSON": ("a.jsonl", objects({"q": TEXTS, "tags": [m.split("|") for m in MEMBERS]}),
                      "q", "tags", "labels"),
    "lists that pandas spelled": ("a.csv", table({"q": TEXTS, "tags": [
        str(m.split("|")) for m in MEMBERS]}), "q", "tags", "labels"),
    "a column for each label": ("a.csv", table({"q": TEXTS, "late": cycled("01", N),
                                                "rude": cycled("001", N)}),
                                "q", "late rude", "labels"),
    "classes with a comma": ("a.csv", table({"q": TEXTS, "topic": cycled(
        ["Society, Culture", "Sports", "Business, Finance"], N)}), "q", "topic", "classify"),
    "entities": ("a.csv", table({"words": TEXTS, "tags": TAGS}), "words", "tags", "ner"),
    "entities as lists": ("a.jsonl", objects({
        "tokens": [t.split() for t in TEXTS], "ner_tags": [t.split() for t in TAGS]}),
        "tokens", "ner_tags", "ner"),
    "parts of speech": ("a.csv", table({"s": TEXTS, "pos": [
        " ".join("NOUN" if len(w) > 4 else "X" for w in t.split()) for t in TEXTS]}),
        "s", "pos", "pos"),
    "answers": ("a.csv", table({"question": TEXTS, "context": PASSAGES, "answer": ANSWERS}),
                "question context", "answer", "answers"),
    "answers, texts the other way round": ("a.csv", table(
        {"passage": PASSAGES, "question": TEXTS, "answer": ANSWERS}),
        "passage question", "answer", "answers"),
    "some without an answer": ("a.csv", table({
        "question": TEXTS, "context": PASSAGES,
        "answer": [a if n % 5 else "" for n, a in enumerate(ANSWERS)]}),
        "question context", "answer", "answers"),
    "ids and dates beside": ("a.csv", table({
        "id": [str(n) for n in range(N)], "date": ["2024-05-01"] * N, "q": TEXTS,
        "c": cycled(TOPICS, N)}), "q", "c", "classify"),
    "numbers of pandas": ("a.csv", table({"": [str(n) for n in range(N)], "q": TEXTS,
                                          "c": cycled(TOPICS, N)}), "q", "c", "classify"),
    "very long texts": ("a.csv", table({"q": LONG, "c": cycled(TOPICS, N)}),
                        "q", "c", "classify"),
    "other scripts": ("a.csv", table({"вопрос": [f"где {t}" for t in TEXTS],
                                      "类别": cycled(["快", "慢"], N)}),
                      "вопрос", "类别", "classify"),
    "a list of JSON": ("a.json", json.dumps([
        {"q": t, "c": c} for t, c in zip(TEXTS, cycled(TOPICS, N), strict=True)]),
        "q", "c", "classify"),
    "names that are known": ("a.csv", table({"id": [str(n) for n in range(N)], "Text": TEXTS,
                                             "Label": cycled(TOPICS, N)}), "", "", "classify"),
    "a pair that is known": ("a.csv", table({"premise": TEXTS, "hypothesis": sentences(N, 4),
                                             "label": cycled(TOPICS, N)}), "", "", "pairs"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_task_of_a_layout(name, tmp_path):
    file, text, texts, labels, task = LAYOUTS[name]
    (tmp_path / file).write_text(text, encoding="utf8", newline="")
    split = (lambda names: (names,)) if " " in labels and task != "labels" else str.split
    split_texts = str.split if len(texts.split()) == 2 and task != "classify" else split
    asked = Asked(
        text_columns=split_texts(texts) if texts else (),
        label_columns=split(labels) if labels else (),
    )
    chosen = guess((str(tmp_path / file),), asked)
    assert chosen.task == task
    assert f"task: {task}," in chosen.lines[1] and "otherwise --task" in chosen.lines[1]
    examples = chosen.examples.settled((str(tmp_path / file),))
    rows = list(examples.read(tmp_path / file))
    assert len(rows) == N
    files = examples.files((str(tmp_path / file),))
    parts = {split: examples.examples(source) for split, source in files.items()}
    assert sum(map(len, parts.values())) == N and 1 <= len(parts["heldout"]) <= 2 * N // 10


def test_there_are_forty_layouts():
    assert len(LAYOUTS) >= 40


def refused(tmp_path, text, texts=("q",), labels=("c",), file="a.csv", **fields):
    (tmp_path / file).write_text(text, encoding="utf8", newline="")
    with pytest.raises(UserError) as caught:
        asked = Asked(text_columns=texts, label_columns=labels, **fields)
        chosen = guess((str(tmp_path / file),), asked)
        list(chosen.examples.settled((str(tmp_path / file),)).read(tmp_path / file))
    return str(caught.value)


WRONG = {
    "no such column": (
        table({"question": TEXTS, "category": TOPICS * 20}), {"labels": ("categroy",),
        "texts": ("question",)},
        ("no column 'categroy'", "'question', 'category'", "Did you mean 'category'?"),
    ),
    "no first row": (
        table({TEXTS[0]: TEXTS, "refund": cycled(TOPICS, N)}), {},
        ("no column 'q'", "The first row must hold the names of the columns"),
    ),
    "an empty text": (
        table({"q": [*TEXTS[:3], " ", *TEXTS[4:]], "c": cycled(TOPICS, N)}), {},
        ("a.csv:5", "column q is empty", "remove the row"),
    ),
    "an empty label": (
        table({"q": TEXTS, "c": ["", *cycled(TOPICS, N - 1)]}), {},
        ("a.csv:2", "column c is empty", "remove the row"),
    ),
    "a label of pandas that is nan": (
        table({"q": TEXTS, "c": ["NaN", *cycled(TOPICS, N - 1)]}), {}, ("a.csv:2", "is empty"),
    ),
    "one class": (table({"q": TEXTS, "c": ["spam"] * N}), {}, ("every label is 'spam'",)),
    "ids": (table({"q": TEXTS, "c": [str(n) for n in range(N)]}), {}, ("numbers the rows",)),
    "names of rows": (
        table({"q": TEXTS, "c": [f"row{n}x" for n in range(N)], "topic": TOPICS * 20}), {},
        ("60 different values in 60 rows", "name another --label-column of topic".capitalize()),
    ),
    "dates": (
        table({"q": TEXTS, "c": [f"2024-05-{1 + n % 28:02}" for n in range(N)]}), {},
        ("holds dates", "--task classify"),
    ),
    "labels that are texts": (
        table({"q": TEXTS, "c": sentences(N, 5)}), {}, ("looks like text", "--task"),
    ),
    "texts that are numbers": (
        table({"q": [str(n) for n in range(N)], "c": TOPICS * 20, "say": TEXTS}), {},
        ("column q holds numbers, no texts", "c, say"),
    ),
    "thousands": (
        table({"q": TEXTS, "c": [f"{n + 1},200" for n in range(N)]}), {},
        ("a.csv:2", "between thousands"),
    ),
    "a word among numbers": (
        table({"q": TEXTS, "c": [*DECIMALS[:-1], "many"]}), {"task": "rate"},
        (f"a.csv:{N + 1}", "column c holds 'many'", "a number in every row"),
    ),
    "another flag": (
        table({"q": TEXTS, "c": cycled("01", N), "d": cycled("012", N)}), {"labels": ("c", "d")},
        ("a.csv:4", "column d holds '2'", "0 or 1"),
    ),
    "a word without a tag": (
        table({"q": TEXTS, "c": [TAGS[0] + " O", *TAGS[1:]]}), {"task": "ner"},
        ("a.csv:2", "every word needs one"),
    ),
    "an answer that is elsewhere": (
        table({"q": TEXTS, "p": PASSAGES, "c": ["nowhere at all", *ANSWERS[1:]]}),
        {"texts": ("q", "p"), "task": "answers"}, ("a.csv:2", "not in the column p"),
    ),
    "three texts": (
        table({"q": TEXTS, "p": TEXTS, "r": TEXTS, "c": cycled(TOPICS, N)}),
        {"texts": ("q", "p", "r")}, ("3 text columns",),
    ),
    "pairs of one text": (
        table({"q": TEXTS, "c": cycled(TOPICS, N)}), {"task": "pairs"}, ("take --task classify",),
    ),
    "a published task": (
        table({"q": TEXTS, "c": cycled(TOPICS, N)}), {"task": "sst2"},
        ("sst2 reads files in their published form", "classify, pairs, rate"),
    ),
    "no rows": ("q,c\n", {}, ("has no rows",)),
    "two columns of a name": (table({"q": TEXTS, "c": TOPICS * 20}).replace("c", "q", 1), {},
        ("two columns are named 'q'",)),
    "all of it": (table({"q": TEXTS, "c": TOPICS * 20}), {"share": 1.0}, ("between 0 and 1",)),
    "unknown columns": (table({"one": TEXTS, "two": TEXTS, "three": TOPICS * 20}),
        {"texts": (), "labels": ()}, ("'one', 'two', 'three'", "--text-column")),
    "a row with a field more": ("q,c\n" + "a b,x\n" * 60 + "a, b,x\n", {}, ("a.csv:62",)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_refusal_names_column_row_and_remedy(name, tmp_path):
    text, fields, parts = WRONG[name]
    message = refused(tmp_path, text, **fields)
    for part in parts:
        assert part.lower() in message.lower(), message


def test_a_guess_says_what_is_odd(tmp_path):
    rows = {"q": [*TEXTS[:-2], TEXTS[0].upper(), TEXTS[1]], "c": ["Refund", *cycled(TOPICS, N - 1)]}
    rows["c"][7] = "lost"
    (tmp_path / "a.csv").write_text(table(rows))
    said = "\n".join(
        guess((str(tmp_path / "a.csv"),), Asked(text_columns="q", label_columns="c")).lines
    )
    assert "'Refund' and 'refund' are taken as different classes" in said
    assert "2 of 5 classes have one row" in said
    assert (
        "2 texts occur in more than one row, 2 of them with different labels; all rows of" in said
    )


HOLES = {
    "classify": ({"q": TEXTS, "c": cycled(TOPICS, N)}, ("q",), ("c",)),
    "ner": ({"q": TEXTS, "c": TAGS}, ("q",), ("c",)),
    "rate": ({"q": TEXTS, "c": DECIMALS}, ("q",), ("c",)),
    "pairs": ({"q": TEXTS, "p": PASSAGES, "c": cycled(TOPICS, N)}, ("q", "p"), ("c",)),
}  # fmt: skip


@pytest.mark.parametrize("task", HOLES)
def test_empty_cells_are_named_together_or_left_out(task, tmp_path):
    columns, texts, labels = HOLES[task]
    columns = {"key": list(range(N))} | {name: list(one) for name, one in columns.items()}
    places = [("q", 3), ("c", 5), *((texts[-1], n) for n in range(10, 20)), ("c", 59)]
    for name, row in places:
        columns[name][row] = " "
    path = tmp_path / "a.csv"
    path.write_text(table(columns))
    expected = "13 rows are wrong: lines " + ", ".join(
        f"{row + 2} ({name})" for name, row in places[:10]
    )

    def chosen(skip):
        asked = Asked(text_columns=texts, label_columns=labels, skip_empty=skip, id_column="key")
        one = guess((str(path),), asked)
        assert one.task == task and f"{N - 13 if skip else N} rows" in one.lines[0]
        assert one.examples.skip_empty is skip and one.examples.id_column == "key"
        return one.examples.settled((str(path),))

    with pytest.raises(UserError, match=r"^\S*a.csv:5: the column q is empty") as caught:
        list(chosen(False).examples(Source(str(path))))
    assert expected + ", .... --skip-empty leaves rows with an empty cell out" in str(caught.value)
    remarks, examples = collections.Counter(), chosen(True)
    rows = examples.examples(Source(str(path)), remarks)
    bad = [row for _, row in places]
    assert [example.place for example in rows] == [
        f"{path}:{n + 2}" for n in range(N) if n not in bad
    ]
    lines = ", ".join(str(row + 2) for row in bad[:10])
    assert remarks == {f"rows left out: lines {lines}, ...": 13}
    parts = [examples.examples(Source(str(path), held), remarks) for held in (False, True)]
    assert sum(map(len, parts)) == N - 13 and [*remarks.values()] == [26]  # once a divided file


def test_other_wrong_rows_are_named_together_too(tmp_path):
    words = [*DECIMALS[:-2], "many", "few"]
    message = refused(tmp_path, table({"q": TEXTS, "c": words}), task="rate")
    assert "a.csv:60: the column c holds 'many'" in message and "--skip-empty" not in message
    assert "2 rows are wrong: lines 60 (c), 61 (c)" in message
    message = refused(tmp_path, "q,c\n" + "a b,x\na, b,x\n" * 30)
    assert "a.csv:3: 3 columns; the first line has 2 (30 such rows: lines 3, 5, 7" in message
    both = table({"q": ["", *TEXTS[1:]], "c": cycled("01", N), "d": ["0", "2", *cycled("01", 58)]})
    message = refused(tmp_path, both, labels=("c", "d"), skip_empty=True)
    assert message.startswith(f"{tmp_path / 'a.csv'}:3: the column d holds '2'")


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_held_out_are_a_share_of_each_class(seed):
    draw = np.random.default_rng(seed)
    count, share = int(draw.integers(20, 400)), float(draw.uniform(0.05, 0.5))
    units = draw.integers(0, count, count).tolist()
    names = draw.choice(["a", "b", "c", "d"], count, p=[0.6, 0.3, 0.08, 0.02])
    strata = [names[unit] for unit in units]
    held = dividing.divided(units, strata, share, seed)
    assert held == dividing.divided(units, strata, share, seed)
    sides = collections.defaultdict(set)
    for unit, side in zip(units, held, strict=True):
        sides[unit].add(side)
    assert all(len(side) == 1 for side in sides.values())
    sizes = collections.Counter(strata[units.index(unit)] for unit in sides)
    counts = collections.Counter(
        strata[units.index(u)] for u, side in sides.items() if True in side
    )
    assert sum(counts.values()) == max(1, round(share * len(sides)))
    for name, size in sizes.items():
        assert counts[name] < size and abs(counts[name] - share * size) < 2


def test_another_seed_holds_out_other_rows():
    units, strata = list(range(200)), [""] * 200
    first, second = (dividing.divided(units, strata, 0.1, seed) for seed in (0, 1))
    assert first != second and sum(first) == sum(second) == 20


def test_the_figures_of_classes_are_those_of_scikit_learn():
    draw = np.random.default_rng(0)
    names = ["b", "a", "long name", "d"]
    gold, predicted = (draw.choice(names[:3], 200).tolist() for _ in range(2))
    figures = per_class.of_classes(names, gold, predicted)
    expected = precision_recall_fscore_support(gold, predicted, labels=names, zero_division=0)
    assert np.allclose(list(figures.values()), np.array(expected).T)
    report = classification_report(gold, predicted, output_dict=True, zero_division=0)["macro avg"]
    mean = per_class.macro(figures)
    assert np.allclose(
        mean, [report[key] for key in ("precision", "recall", "f1-score", "support")]
    )
    assert per_class.lines(figures)[-1].split()[-1] == "200"


def test_the_figures_of_labels_are_those_of_scikit_learn():
    draw, names = np.random.default_rng(1), ["a", "b", "c"]
    gold, predicted = draw.integers(0, 2, (2, 80, 3))
    sets = [[[names[i] for i in np.flatnonzero(row)] for row in part] for part in (gold, predicted)]
    expected = precision_recall_fscore_support(gold, predicted, zero_division=0)
    assert np.allclose(list(per_class.of_sets(names, *sets).values()), np.array(expected).T)


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_table_of_predictions_is_read_back_by_the_csv_module(separator):
    texts = ['a "quoted", word', "two\nlines", "a\ttab", "; = é 快"]
    rows = [
        {"text": t, "pair": None, "gold": None, "prediction": "x", "score": 0.25} for t in texts
    ]
    text = "".join(prediction_tables.lines(rows, separator))
    read = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    assert read == [["text", "gold", "prediction", "score"], *([t, "", "x", "0.25"] for t in texts)]


def test_cells():
    assert cells.list_of("['a', 'b']") == cells.list_of('["a", "b"]') == ["a", "b"]
    assert cells.list_of("[see below]") is None and cells.list_of("a") is None
    assert (
        cells.number_of("3,5") == 3.5 and not cells.is_number("1,200") and cells.is_grouped("1,200")
    )
    assert not any(map(cells.is_number, ("1_000", "nan", "inf", "", "3 apples")))
    assert (
        cells.is_date("31.12.1999")
        and cells.is_date("2024-01-02T10:00")
        and not cells.is_date("12")
    )
    assert [cells.plain(v) for v in (None, float("nan"), True, 3.0, " a ")] == [
        "",
        "",
        "true",
        "3",
        "a",
    ]


def test_separators():
    assert guessing.separator_of(["a|b", "b|c", "c"]) == "|"
    assert guessing.separator_of(["Society, Culture", "Sports", "Health, Body"]) is None
    assert guessing.separator_of(["a", "b"]) is None
