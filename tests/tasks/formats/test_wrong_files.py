"""Files of labels that were read wrongly without a word: each is read rightly, or refused with its
line."""

import json

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.inference.text.tags import entities
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.choices import Choices
from ptm_jax.tasks.formats.hotpot import HopReading
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.questions import Questions
from ptm_jax.tasks.formats.tagged import Tagged
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.metrics import rouge
from ptm_jax.tasks.metrics.entities import entity_scores

OPEN = Labelled(labels="found")


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.tsv", "text\tlabel\ngood\tyes\nbad\t\n", "a.tsv:3"),
        ("b.csv", "text,label\ngood,yes\nbad,\n", "b.csv:3"),
        ("c.csv", 'text,label\ngood,yes\nbad," "\n', "c.csv:3"),
        ("d.json", '{"text": "good", "label": "yes"}\n{"text": "bad", "label": ""}\n', "d.json:2"),
        ("e.json", '{"text": "good", "label": "yes"}\n{"text": "b", "label": NaN}\n', "e.json:2"),
        ("f.tsv", "text\tlabel\ngood\tyes\nbad\t\u00a0\n", "f.tsv:3"),
    ],
)
@pytest.mark.parametrize("examples", [OPEN, Labelled(labels=("yes", "")), Labelled(labels=())])
def test_an_empty_label_is_no_class(tmp_path, name, text, line, examples):
    if not examples.labels:
        text = text.replace("yes", "1.5")
    with pytest.raises(UserError, match=rf"{line}: the label is (empty; |nan; expected)"):
        list(examples.read(written(tmp_path, name, text)))


@pytest.mark.parametrize(
    "value", ["nan", "NaN", "inf", "-Infinity", "1e999", "1_000", "four", "4,5"]
)
def test_a_score_is_a_finite_number(tmp_path, value):
    text = f"sentence1\tsentence2\tscore\na b\tc d\t4.0\na b\tc d\t{value}\n"
    path = written(tmp_path, "train.tsv", text)
    with pytest.raises(UserError, match=r"train.tsv:3: the score is .*; expected a number"):
        list(catalogue.get("stsb").examples.read(path))
    entry = json.dumps({"sentence1": "a", "sentence2": "b", "score": 1.0})
    more = entry.replace("1.0", value if value in ("NaN", "1e999") else json.dumps(value))
    with pytest.raises(UserError, match=r"train.json:2: the score is .*; expected a number"):
        list(
            catalogue.get("stsb").examples.read(
                written(tmp_path, "train.json", entry + "\n" + more)
            )
        )


def test_one_class_alone_is_nothing_to_learn(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\n" + "good\tyes\n" * 30)
    with pytest.raises(UserError, match="every label is 'yes'; a classifier needs two"):
        OPEN.settled([str(path)])
    tagged = written(tmp_path, "a.conll", "good O\n\n" * 30)
    with pytest.raises(UserError, match="every tag is 'O'; a tagger needs two"):
        Tagged().settled([str(tagged)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "text\tlabel\tlabel\na\tyes\tno\n"),
        ("b.csv", "text,label,text\na,yes,b\n"),
        ("c.csv", '"text","label","label"\na,yes,b\n'),
        ("d.json", '{"text": "a", "label": "yes", "label": "no"}\n'),
        ("e.json", '[{"text": "a", "text": "b", "label": "no"}]\n'),
    ],
)
def test_two_columns_of_one_name(tmp_path, name, text):
    with pytest.raises(UserError, match=r"two (columns|fields) are named '(label|text)'"):
        list(OPEN.read(written(tmp_path, name, text)))


def test_a_column_without_a_name_is_left_out(tmp_path):
    remarks = Remarks()
    path = written(tmp_path, "a.csv", ",text,label,\n0,good,yes,x\n1,bad,no,y\n")
    read = list(OPEN.read(path, remarks))
    assert [(e.first, e.label) for e in read] == [("good", "yes"), ("bad", "no")] and not remarks


@pytest.mark.parametrize("value", [["a", "b"], {"a": 1}, [], [["x"]]])
@pytest.mark.parametrize("field", ["sentence1", "sentence2", "label"])
def test_a_list_is_no_text(tmp_path, value, field):
    entry = {"sentence1": "a", "sentence2": "b", "label": "yes", field: value}
    pairs = Labelled(first=("sentence1",), second=("sentence2",), labels="found")
    with pytest.raises(UserError, match=rf"a.json:1: the field {field} is an? (list|object)"):
        list(pairs.read(written(tmp_path, "a.json", json.dumps(entry))))


def squad(*questions, context="The cat sat."):
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]})


def asked(index, question="Who?"):
    return {"id": index, "question": question, "answers": [{"text": "cat", "answer_start": 4}]}


def test_a_question_and_its_context_are_texts(tmp_path):
    for text in (squad(asked("1", ["Who", "?"])), squad(asked("1"), context=["The cat sat."])):
        with pytest.raises(UserError, match="is a list; expected a text"):
            list(Questions().read(written(tmp_path, "a.json", text)))


def test_one_id_for_two_questions(tmp_path):
    path = written(tmp_path, "a.json", squad(asked("1"), asked("2"), asked("1", "What?")))
    with pytest.raises(UserError, match="a.json.*: the id '1' belongs to another question"):
        list(Questions().read(path))
    hop = {"_id": "x", "question": "Who?", "answer": "yes", "context": [["t", ["s"]]]}
    hop["supporting_facts"] = [["t", 0]]
    path = written(tmp_path, "b.json", json.dumps([hop, {**hop, "question": "What?"}]))
    with pytest.raises(UserError, match="the id 'x' belongs to another question"):
        list(HopReading().read(path))


@pytest.mark.parametrize(
    "blank", ["\u00a0", "\u202f", "\u2009", "\u3000", "\u2007", "\x1c", "\u0085"]
)
@pytest.mark.parametrize("between", [" ", "\t", "  ", " \t"])
def test_only_blanks_and_tabs_separate_columns(tmp_path, blank, between):
    text = f"Il{between}O\n10{blank}000{between}B-NUM\n\neuros{between}O\n"
    read = list(Tagged().read(written(tmp_path, "train.txt", text)))
    assert [s.words for s in read] == [("Il", f"10{blank}000"), ("euros",)]
    assert [s.tags for s in read] == [("O", "B-NUM"), ("O",)]
    table = f"text\ttags\nIl 10{blank}000\tO B-NUM\n"
    read = list(Tagged(format="columns").read(written(tmp_path, "train.tsv", table)))
    assert read[0].words == ("Il", f"10{blank}000")


@pytest.mark.parametrize(
    ("text", "words", "comments"),
    [
        ("# id 7f4a domain=en\nAnn _ _ B-PER\nran _ _ O\n", ("Ann", "ran"), 1),
        ("#begin document (x); part 000\nAnn B-PER\nran O\n\n#end document\n", ("Ann", "ran"), 2),
        ("# text = Ann ran\nAnn\tB-PER\nran\tO\n", ("Ann", "ran"), 1),
        ("#ff O\n# O\nAnn B-PER\n", ("#ff", "#", "Ann"), 0),
        ("# a comment about O\nAnn B-PER\nran O\n", ("Ann", "ran"), 1),
        ("#\nAnn B-PER\nran O\n", ("Ann", "ran"), 1),
    ],
)
def test_comment_lines_hold_no_words(tmp_path, text, words, comments):
    remarks = Remarks()
    (sentence,) = Tagged().read(written(tmp_path, "train.txt", text), remarks)
    assert sentence.words == words and sum(remarks.values()) == comments
    labels = ("O", "B-PER")
    (sentence,) = Tagged(labels=labels).read(written(tmp_path, "train.txt", text))
    assert sentence.words == words


def test_tags_without_prefixes_are_whole_types():
    """Runs of one type are entities, as in the scheme without prefixes; the values of case M1."""
    tags = ["ORGANIZATION", "ORGANIZATION", "O", "PERSON"]
    assert entities(tags) == [("ORGANIZATION", 0, 2), ("PERSON", 3, 4)]
    assert entity_scores([tags], [tags])["f1"] == 1.0
    assert entities(["LOC", "PERSON", "PERSON", "BODY", "EVENT"]) == [
        ("LOC", 0, 1), ("PERSON", 1, 3), ("BODY", 3, 4), ("EVENT", 4, 5)
    ]  # fmt: skip
    assert entities(["I-LOC", "I-LOC", "O", "B-X-Y"]) == [("LOC", 0, 2), ("X-Y", 3, 4)]
    assert entities(["Bacteria", "Bacteria", "O"]) == [("Bacteria", 0, 2)]
    assert entities(["O", "o-x", "Ort"]) == [("o-x", 1, 2), ("Ort", 2, 3)]


@pytest.mark.parametrize(
    "tags", [["B_PER", "I_PER"], ["PER-B", "PER-I"], ["B.PER"], ["PER_B", "O"]]
)
def test_other_spellings_of_prefixes_are_refused(tags):
    with pytest.raises(UserError, match="write B-PER"):
        entities(tags)


@pytest.mark.parametrize(
    "text",
    [
        "สวัสดี",
        "你好世界",
        "привет мир",
        "안녕하세요 세계",
        "مرحبا بالعالم",
        "नमस्ते दुनिया",
        "こんにちは",
        "Γειά σου",
    ],
)
def test_rouge_of_other_scripts(text):
    scores = rouge.score(text, text)
    assert scores["rouge1"][0] == scores["rougeL"][0] == 1.0
    assert rouge.score("the cat", text)["rouge1"][0] == 0.0
    assert rouge.score(text + " 2026", text + " 2026")["rouge1"][0] == 1.0


def test_rouge_of_chinese_counts_characters():
    assert rouge.score("我爱猫", "我爱狗")["rouge1"][0] == pytest.approx(2 / 3)
    assert rouge.score("кот и пёс", "кот и кит")["rouge1"][0] == pytest.approx(2 / 3)
    assert rouge.words_of("café déjà vu") == ["caf", "d", "j", "vu"]  # as the published scorer


def test_examples_of_one_of_two_classes_have_a_remark(tmp_path, capsys):
    path = written(tmp_path, "a.tsv", "text\tlabel\n" + "good film\t1\n" * 30)
    spec = TokenizerSpec(kind="word", vocab=7)
    Labelled().corpus([str(path)], tmp_path / "prepared", spec)
    assert "27 examples are all of one class" in capsys.readouterr().err


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
WHOLE = ["1\t1\t2\tHow do I boil an egg?\tHow long?\t1", "3\t5\t6\tWhat is snow?\tWhat is ice?\t0"]


@pytest.mark.parametrize(
    "broken",
    [
        ["2\t3\t4\tWas he real?", '"\tWhat is the evidence?\t0'],
        ["2\t3\t4\tWas he", "real?", "", "\tWhat is the evidence?\t0"],
        ["2\t3\t4\tWas he real?\tIs\tit\t0"],
        ["2\t3\t4"],
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_broken_rows_of_the_published_qqp_are_counted(tmp_path, broken, at):
    lines = [*WHOLE[:at], *broken, *WHOLE[at:]]
    remarks = Remarks()
    path = written(tmp_path, "train.tsv", QQP + "\n".join(lines) + "\n")
    read = list(catalogue.get("qqp").examples.read(path, remarks))
    assert [(e.first, e.label) for e in read] == [
        ("How do I boil an egg?", "1"),
        ("What is snow?", "0"),
    ]
    first = next(n for n, line in enumerate(lines, 2) if line == broken[0])
    assert dict(remarks) == {
        f"broken lines, left out (first at {path}:{first})": sum(map(bool, broken))
    }


def test_other_tables_keep_every_row(tmp_path):
    path = written(tmp_path, "a.tsv", "question1\tquestion2\tis_duplicate\na\tb\t1\na\t1\n")
    with pytest.raises(UserError, match="a.tsv:3: 2 columns; the first line has 3"):
        list(catalogue.get("qqp").examples.read(path))


FLAT = {"id": "1", "context": "the cat sat", "question": "who sat?"}
FLAT_ANSWERS = {"text": ["cat"], "answer_start": [4]}
SPANS = [{"text": "cat", "answer_start": 4}]
PARAGRAPH = {"context": FLAT["context"], "qas": [{"id": "1", "question": "who sat?"}]}


def layouts(answers):
    """{layout: text of a file} of the same question."""
    flat = {**FLAT, **answers}
    listed = {**FLAT, **({"answers": SPANS} if answers.get("answers") else answers)}
    nested = {**PARAGRAPH, "qas": [{**PARAGRAPH["qas"][0], **answers}]}
    return {
        "the Hub's in data": json.dumps({"data": [{**flat, "title": "t"}]}),
        "the Hub's in a list": json.dumps([flat]),
        "the Hub's in lines": json.dumps(flat) + "\n",
        "flat, with spans": json.dumps([listed], indent=1),
        "paragraphs in a list": json.dumps([nested]),
        "paragraphs in data": json.dumps({"data": [nested]}),
        "articles in a list": json.dumps([{"title": "t", "paragraphs": [nested]}]),
        "SQuAD's": json.dumps({"version": "2", "data": [{"paragraphs": [nested]}]}),
    }


@pytest.mark.parametrize("layout", layouts({}))
def test_questions_in_every_layout(tmp_path, layout):
    text = layouts({"answers": FLAT_ANSWERS})[layout]
    (read,) = Questions().read(written(tmp_path, "train.json", text))
    assert (read.question, read.context, read.index) == ("who sat?", "the cat sat", "1")
    assert read.answers == (("cat", 4),) and "train.json:" in read.place
    plausible = {"is_impossible": True, "plausible_answers": SPANS}
    for entry in (plausible, {"is_impossible": True, "answers": []}, {"answers": {"text": []}}):
        entry = {**entry, "answers": {}} if entry.get("answers") == {"text": []} else entry
        path = written(tmp_path, "train.json", layouts(entry)[layout])
        (read,) = Questions(unanswered=True).read(path)
        assert read.answers == ()
        with pytest.raises(UserError, match="no answer; take a task with such questions"):
            list(Questions().read(path))
    path = written(tmp_path, "train.json", layouts({})[layout])
    with pytest.raises(UserError, match="train.json.* has no field answers"):
        list(Questions(unanswered=True).read(path))
    assert len(list(Questions().read(path, labels=False))) == 1


def test_answers_by_columns_of_other_lengths(tmp_path):
    text = json.dumps([{**FLAT, "answers": {"text": ["cat", "sat"], "answer_start": [4]}}])
    with pytest.raises(UserError, match="2 answers have 1 offsets"):
        list(Questions().read(written(tmp_path, "a.json", text)))


@pytest.mark.parametrize("values", ["1.0 0.0", "1.0 0", "1.00 0", "1 0.0", "1 0"])
@pytest.mark.parametrize("form", ["tsv", "csv", "json"])
def test_whole_numbers_as_pandas_writes_them(tmp_path, values, form):
    """A column with a missing value becomes one of floats: `1.0` for the class 1."""
    separator = {"tsv": "\t", "csv": ","}.get(form)
    if form == "json":
        lines = [f'{{"text": "a", "label": {value}}}' for value in values.split()]
    else:
        lines = [f"text{separator}label", *(f"a{separator}{value}" for value in values.split())]
    path = written(tmp_path, f"train.{form}", "\n".join(lines) + "\n")
    assert [e.label for e in Labelled().read(path)] == ["1", "0"]
    settled = OPEN.settled([str(path), str(path)])
    assert settled.labels == ("0", "1")
    assert [e.label for e in settled.read(path)] == ["1", "0"]


def test_classes_that_are_no_whole_numbers_keep_their_spelling(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\na\t1.0\nb\t1.5\nc\t2.0\n")
    assert OPEN.settled([str(path), str(path)]).labels == ("1.0", "1.5", "2.0")
    with pytest.raises(UserError, match="the label is '1.5'; there are 0, 1"):
        list(Labelled().read(path))


CHOICE = {"question": "why?", "choices": ["a", "b"], "label": 1}
HOP = {"_id": "1", "question": "who?", "answer": "cat", "supporting_facts": [["t", 0]]}
HOP["context"] = [["t", ["the cat sat"]]]


@pytest.mark.parametrize(
    ("reader", "entry", "message"),
    [
        ("choices", {**CHOICE, "choices": [["a", "b"], "c"]}, "entry 1: the field choices is a li"),
        ("choices", {**CHOICE, "choices": ["a", {"text": "b"}]}, "entry 2: .*choices is an object"),
        ("choices", {**CHOICE, "choices": ["a", None]}, "entry 2: the field choices is null"),
        ("choices", {**CHOICE, "choices": "ab"}, "the field choices is 'ab'; expected a list"),
        ("choices", {**CHOICE, "choices": {"text": ["a", "b"]}}, "choices is {.*expected a list"),
        ("choices", {**CHOICE, "question": ["why"]}, "the field question is a list"),
        ("hops", {**HOP, "context": [["t", [["the"], "cat"]]]}, "entry 1: the field sentences is"),
        ("hops", {**HOP, "context": [["t", "the cat"]]}, "sentences is 'the cat'; expected a list"),
        ("hops", {**HOP, "context": [[["t"], ["the cat"]]]}, "the field title is a list"),
        ("hops", {**HOP, "context": [["t", [None]]]}, "the field sentences is null"),
    ],
)
def test_lists_in_the_place_of_texts_of_choices_and_documents(tmp_path, reader, entry, message):
    examples = Choices() if reader == "choices" else HopReading()
    text = json.dumps(entry) if reader == "choices" else json.dumps([entry])
    with pytest.raises(UserError, match=f"a.json.*{message}"):
        list(examples.read(written(tmp_path, "a.json", text)))


def test_the_label_of_a_choice_as_pandas_writes_it(tmp_path):
    text = json.dumps({**CHOICE, "label": 1.0})
    assert [e.label for e in Choices().read(written(tmp_path, "a.json", text))] == ["1"]
