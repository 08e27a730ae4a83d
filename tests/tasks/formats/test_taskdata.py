"""Examples of downstream tasks: the published formats, broken files, and that nothing is lost on
the way to rows."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import tfds_sources
from ptm_jax.data.tokenizers.pieces import pieces_of
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.text.answering import best_windows
from ptm_jax.inference.text.tags import parts
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats import tabular, task_corpus
from ptm_jax.tasks.formats.choices import Choices
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.questions import Questions
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.tagged import Sentence, Tagged
from ptm_jax.tasks.formats.targets import Targets
from ptm_jax.tasks.formats.taskdata import Remarks

TEXT = (
    "the quick brown fox jumps over a lazy dog near ann arbor in 1912 and (again) naps "
    "by the river unhurriedly"
)
QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def tokenizers():
    """One of each way of spelling pieces."""
    return {
        kind: make(TokenizerSpec(kind=kind, vocab=vocab, specials=family), [TEXT] * 20)
        for kind, vocab, family in (
            ("wordpiece", 60, "bert"),
            ("bytebpe", 300, "roberta"),
            ("unigram", 44, "xlnet"),
        )
    }


def written(folder, name, text, encoding="utf8"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)
    return path


LINE = json.dumps
UD = "# text\n1-2\tdu" + 8 * "\t_" + "\n" + "".join(
    f"{i}\t{w}\t_\t{p}" + 6 * "\t_" + "\n" for i, w, p in ((1, "de", "ADP"), (2, "le", "DET"))
)  # fmt: skip
FORMATS = {
    "stsb": ("dev.tsv", "main\tMSR\t2012\t0\t4.5\tA man.\tA boy.\textra\n",
    ("A man.", "A boy.", "4.5")),
    "cola": ("dev.tsv", 'gj04\t0\t*\tHe "left.\n', ('He "left.', None, "0")),
    "mrpc": ("dev.txt", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tOne.\tTwo.\n",
    ("One.", "Two.", "1")),
    "rte": ("val.tsv", "2\tIt rains.\tIt is wet.\tentailment\n",
    ("It rains.", "It is wet.", "entailment")),
    "mnli": ("mnli_matched", "neutral\tIt rains.\tIt is wet.\n",
    ("It rains.", "It is wet.", "neutral")),
    "tacred": (
        "dev.json", LINE([{"token": "Ann met Bob .".split(), "subj_start": 0, "subj_end": 0,
        "obj_start": 2, "obj_end": 2,
                           "relation": "per:other"}]),
                           ("[E1] Ann [/E1] met [E2] Bob [/E2] .", None, "per:other"),
    ),
    "fewrel": (
        "val.json", LINE({"P1": [{"tokens": "New York is big".split(),
        "h": ["new york", "Q60", [[0, 1]]],
                                  "t": ["big", "Q1", [[3]]]}]}),
                                  ("[E1] New York [/E1] is [E2] big [/E2]", None, "P1"),
    ),
    "boolq": (
        "val.jsonl", LINE({"question": "is it", "passage": "it is", "idx": 3, "label": True}),
        ("is it", "it is", "true"),
    ),
    "imdb": ("imdb", "1 a fine film\n", ("a fine film", None, "pos")),
    "sst5": ("stsa.fine.dev", "3 שלום 😀\n", ("שלום 😀", None, "3")),
    "trec6": ("TREC.train", "LOC:city What is caf\u00e9 ?\n", ("What is caf\u00e9 ?", None, "LOC")),
    "ag_news": ("test.csv", '"3","A title","a, ""text"""\n',
    ('A title a, "text"', None, "Business")),
    "scicite": ("dev.txt", LINE({"text": "we follow [1]", "label": "method"}),
    ("we follow [1]", None, "method")),
    "semeval10": (
        "train.txt", "Cause-Effect|1|4|the burst was caused by pressure\n",
        ("the [E1] burst [/E1] was caused [E2] by [/E2] pressure", None, "Cause-Effect"),
    ),
    "absa": ("Train.seg", "the $T$ was fine\nstaff\n1\n", ("the staff was fine", "staff", "1")),
    "copa": (
        "val.jsonl", LINE(dict(premise="p", question="cause", choice1="a", choice2="b", label=1,
        idx=0)),
        ("p What was the cause?", ("a", "b"), "1"),
    ),
    "openbookqa": (
        "dev.tsv", "ID\tQuestion Stem\tChoices\tAnswer Key\n7\tit is\t(A) a (B) b (C) c (D) d\tC\n",
        ("it is", ("a", "b", "c", "d"), "2"),
    ),
    "swag": (
        "val.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\nx,he,a,b,c,d,2\n",
        ("x", ("he a", "he b", "he c", "he d"), "2"),
    ),
    "race": (
        "dev.txt", LINE(dict(article="a", questions=["q _ ?"], options=[list("abcd")],
        answers=["B"], id="r")),
        ("a", ("q  a  ?", "q  b  ?", "q  c  ?", "q  d  ?"), "1"),
    ),
    "wic": ("val.jsonl", LINE(dict(
        sentence1="a bank", sentence2="banks", start1=2, end1=6, start2=0, end2=5, idx=1,
        label=False,
    )), ("a * bank *", "* banks *", "false")),
    "wsc": ("val.jsonl", LINE(dict(
        text="Ann saw that she won", idx=2, label=True,
        target=dict(span1_text="Ann", span1_index=0, span2_text="she", span2_index=3),
    )), ("Ann saw that * she * won", "Ann", "true")),
    "multirc": ("val.jsonl", LINE(dict(idx=5, passage=dict(text="t", questions=[
        dict(idx=1, question="q", answers=[dict(idx=0, text="a", label=1),
            dict(idx=1, text="b", label=0)]),
    ]))), ("t", "q a", "1")),
    "record": ("val.jsonl", LINE(dict(
        idx=0, passage=dict(text="Ann met Bob", entities=[dict(start=0, end=2),
        dict(start=8, end=10)]),
        qas=[dict(idx=4, query="@placeholder won", answers=[dict(text="Bob")])],
    )), ("Ann met Bob", "Ann won", "0")),
    "wsd": ("dev.json", LINE([dict(token="The", lemma="the", pos="DET"), dict(
        token="hat", lemma="hat", pos="NOUN", senses=["1:06:00::"], id="d0.s0.t0",
    )]), ("The [E1] hat [/E1]", "hat: worn on the head", "1")),
    "wnut17": ("dev.conll", "-DOCSTART- O\n\nAnn\tB-person\nwon\tO\n\n",
    (("Ann", "won"), ("B-person", "O"))),
    "conll2003": ("eng.testa", "-DOCSTART- -X- -X- O\n\nAnn NNP B-NP B-PER\nwon VBD B-VP O\n",
    (("Ann", "won"), ("B-PER", "O"))),
    "multi30k_en_de": ("val.en", "A man .\n", ("A man .", "Ein Mann .")),
    "msra": ("dev.tsv", "text_a\tlabel\n\u5317 \u4eac\tB-LOC I-LOC\n",
    (("\u5317", "\u4eac"), ("B-LOC", "I-LOC"))),
    "ud": ("dev.conllu", UD, (("de", "le"), ("ADP", "DET"))),
    "disfl_qa": ("dev.json", LINE({"k": {"original": "who ?", "disfluent": "what no who ?"}}),
    ("what no who ?", "who ?")),
    "xsum": ("dev.jsonl", LINE({"document": "a b", "summary": "a"}), ("a b", "a")),
}  # fmt: skip
"""{task: file, its text, the first fields of its first example}"""


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.status(task, "built")) for task in FORMATS]
)
def test_published_formats(tmp_path, task):
    name, text, wanted = FORMATS[task]
    examples = catalogue.get(task).examples
    path = written(tmp_path, name, text, "latin-1" if task == "trec6" else "utf8")
    if task == "wsd":
        senses = dict(id="hat%1:06:00::", pos="n", synset="hat.n.01", type="lemma", count=2)
        synset = dict(
            id="hat.n.01",
            pos="n",
            lemmas=["hat%1:06:00::"],
            definition="worn on the head",
            type="synset",
        )
        written(tmp_path, "entities.jsonl", LINE(senses) + "\n" + LINE(synset))
    if task == "multi30k_en_de":
        written(tmp_path, "val.de", "Ein Mann .\n")
    found = next(examples.read(path))
    assert tuple(found[: len(wanted)]) == wanted and str(path) in found.place


def squad(answers, context="Ann was born in 1912 .", **more):
    placed = [{"text": text, "answer_start": at} for text, at in answers]
    question = {"id": "q1", "question": "When ?", "answers": placed, **more}
    return json.dumps(
        {"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}, indent=1
    )


@pytest.mark.parametrize(
    ("examples", "name", "text", "message"),
    [
        (Labelled(), "a.tsv", "txt\tlabel\nx\t1\n",
        "a.tsv has no column sentence or text; its first line has: txt, label"),
        (Labelled(), "a.jsonl", '{"text": "x"}\n', "a.jsonl:1 has no field label; it has: text"),
        (Labelled(), "a.jsonl", '{"text": "x", "label": 1}\n{"text"\n', "a.jsonl:2 is not JSON"),
        (Labelled(), "a.tsv", "text\tlabel\nx\t1\ny\t3\n",
        "a.tsv:3: the label is '3'; there are 0, 1"),
        (Labelled(), "a.tsv", "text\tlabel\n  \t1\n", "a.tsv:2: the text is empty"),
        (Labelled(), "a.tsv", "text\tlabel\nx\t1\ty\n", "a.tsv:2: 3 columns; the first line has 2"),
        (Labelled(labels=()), "a.tsv", "text\tlabel\nx\tmuch\n",
        "a.tsv:2: the label is 'much'; expected a number"),
        (Labelled(format="wic"), "a.jsonl", LINE(dict(sentence1="a", start1=0, end1=9)),
        "a.jsonl:1: .*outside sentence1"),
        (Tagged(), "a.conll", "Ann B-PER\nwon\n",
        "a.conll:2: 1 column; expected a word and its tag"),
        (Tagged(labels=("O",)), "a.conll", "x O\nAnn B-PER\n",
        "a.conll:2: the tag is 'B-PER'; there are O"),
        (Labelled(), "a.csv", 'text,label\nx,1\n"y,1\nz,0\n',
        r"a.csv:3 is not CSV \(a quote is never closed\)"),
        (Questions(), "a.json", squad([("1999", 3)], context=None),
        "a.json:1: the field context is null"),
        (Questions(), "a.json", squad([("1912", 3)], question=None),
        "a.json:9: question q1: the field question is null"),
        (Tagged(format="columns"), "a.tsv", "w\tt\na b\tO\n", "a.tsv:2: 2 words and 1 tags"),
        (Tagged(format="columns"), "a.tsv", "w\tt\n \tO\n", "a.tsv:2: the sentence is empty"),
        (Tagged(format="conllu"), "a.conllu", "1\tx\n",
        "a.conllu:1: 2 columns; a line of CoNLL-U has 10"),
        (Questions(), "a.json", squad([("1999", 77)]),
        "a.json:9: question q1: .* outside the text of 22"),
        (Questions(), "a.json", squad([]), "a.json:9: question q1: the question has no answer"),
        (Questions(), "a.json", squad([], question=" "),
        "a.json:9: question q1: the question is empty"),
        (Questions(), "a.json", '{"version": 1}', "a.json:1: no field data"),
        (Choices(), "a.jsonl", LINE(dict(question="q", choices=["a"], label=0)),
        "a.jsonl:1: 1 choices; this task has 2"),
        (Choices(), "a.jsonl", LINE(dict(question="q", choices=["a", "b"], label=2)),
        "a.jsonl:1: the label is '2'"),
        (Targets(), "a.jsonl", json.dumps(dict(document="a", summary=" ")),
        "a.jsonl:1: a text is empty"),
    ],
)  # fmt: skip
def test_broken_files_name_file_and_line(tmp_path, examples, name, text, message):
    with pytest.raises(UserError, match=message):
        list(examples.read(written(tmp_path, name, text)))


def test_a_file_of_another_shape_and_a_single_example(tmp_path):
    path = written(tmp_path, "a.json", '{"data": [{"paragraphs": 5}]}')
    with pytest.raises(UserError, match="a.json is not in the format of Questions"):
        Questions().examples(Source(str(path)))
    path = written(tmp_path, "a.tsv", "text\tlabel\nx\t1\n")
    with pytest.raises(
        UserError, match="a.tsv cannot be divided: .*give more examples, or two files"
    ):
        Labelled().examples(Source(str(path), False))


def test_what_a_file_may_cost(tmp_path, monkeypatch):
    """An archive of 100 times its size and more, a file that is sparse, and JSON that is deep have
    a line each."""
    monkeypatch.setattr(tabular, "DOCUMENT_BYTES", 100_000)
    (tmp_path / "a.tsv.gz").write_bytes(
        gzip.compress(b"text\tlabel\n" + b"word" * 200_000 + b"\t1\n")
    )
    with pytest.raises(UserError, match=r"a\.tsv\.gz has more than 10\d,\d+ bytes; divide it"):
        list(Labelled().read(tmp_path / "a.tsv.gz"))
    with (tmp_path / "a.tsv").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        UserError,
        match=r"a\.tsv: has 1,099,511,627,776 bytes; a file of a task has at most 2,147,483,648",
    ):
        Labelled().corpus(
            [str(tmp_path / "a.tsv")] * 2, tmp_path / "corpus", TokenizerSpec(vocab=30)
        )
    with pytest.raises(UserError, match="a.jsonl:1 is not JSON"):
        list(Labelled().read(written(tmp_path, "a.jsonl", '{"a":' * 100_000)))


def test_what_is_mended_or_left_out_is_counted(tmp_path):
    remarks = Remarks()
    path = written(tmp_path, "a.json", squad([("1912", 3), ("then", 0)]))
    (found,) = Questions().read(path, remarks)
    assert found.answers == (("1912", 16), ("then", -1))
    assert sorted(remarks.values()) == [1, 1] and all(
        f"first at {path}:9" in remark for remark in remarks
    )
    path = written(tmp_path, "a.tsv", "premise\thypothesis\tlabel\nx\ty\t-\nx\ty\tneutral\n")
    remarks, examples = (
        Remarks(),
        Labelled(first=("premise",), second=("hypothesis",), labels=("neutral",), skip=("-",)),
    )
    assert len(list(examples.read(path, remarks))) == 1 and list(remarks.values()) == [1]


def test_other_scripts_and_a_word_of_no_piece_keep_their_tags(tmp_path, tokenizers):
    words = ["שלום", "😀", "\u200d", "x"]
    path = written(
        tmp_path, "a.conll", "".join(f"{w}\t{t}\n" for w, t in zip(words, "ABAB", strict=True))
    )
    examples = Tagged(labels=("A", "B"))
    found = list(examples.read(path))
    assert found[0].words == tuple(words)
    for tokenizer in tokenizers.values():
        (record,) = examples.encode(tokenizer, found)
        assert (record["sizes"] > 0).all() and len(record["sizes"]) == 4
        ((row,),), _ = examples.features(tokenizer, [record], 128)
        assert row["token_labels"][row["token_weights"] > 0].tolist() == [0, 1, 0, 1]


def test_a_sentence_of_ten_thousand_words_goes_on_in_the_next_rows(tokenizers):
    tokenizer, examples = tokenizers["wordpiece"], Tagged(labels=("A", "B"))
    words = (TEXT.split() * 500)[:10_000]
    tags = tuple("AB"[i % 2] for i in range(len(words)))
    (record,) = examples.encode(tokenizer, [Sentence(tuple(words), tags, "here")])
    groups, remarks = examples.features(tokenizer, [record], 64)
    found = np.concatenate([row["token_labels"][row["token_weights"] > 0] for (row,) in groups])
    assert len(words) == len(found) == 10_000 and (found == record["tags"]).all()
    assert all(len(row["input_ids"]) <= 64 for (row,) in groups) and sum(remarks.values()) == 1


@QUIET
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), room=st.integers(1, 20))
def test_parts_of_a_sentence_lose_no_word(sizes, room):
    found = parts(np.array(sizes), room)
    assert [n for a, b in found for n in range(a, b)] == list(range(len(sizes)))
    assert all(sum(min(s, room) for s in sizes[a:b]) <= room for a, b in found)


@QUIET
@given(text=st.text("abe( )é1.,Xם😀中\n", max_size=30))
@pytest.mark.parametrize("kind", ["wordpiece", "bytebpe", "unigram"])
def test_every_character_belongs_to_pieces(tokenizers, kind, text):
    """Pieces come in order, stay in the text, and together hold every character that is no blank; a
    blank's own mark holds none."""
    (found,) = pieces_of(tokenizers[kind], [text])
    assert (np.diff(found.starts) >= 0).all() and (found.ends >= found.starts).all()
    held = {place for a, b in zip(found.starts, found.ends, strict=True) for place in range(a, b)}
    needed = {i for i, c in enumerate(text) if not c.isspace()}
    assert held <= set(range(len(text))) and needed - held == set()


def test_a_span_of_characters_comes_back_from_pieces(tokenizers):
    for tokenizer in tokenizers.values():
        (found,) = pieces_of(tokenizer, [TEXT])
        for word in ("ann", "arbor", "1912", "again", "unhurriedly"):
            at = TEXT.index(word)
            inside = np.flatnonzero((found.starts < at + len(word)) & (found.ends > at))
            assert TEXT[found.starts[inside[0]] : found.ends[inside[-1]]].strip("()") == word


@QUIET
@given(
    size=st.integers(1, 60), length=st.integers(24, 40), stride=st.integers(1, 20),
    answer=st.integers(0, 50),
    question=st.integers(1, 12),
)  # fmt: skip
def test_windows_cover_a_text_and_find_its_answer(
    tokenizers, size, length, stride, answer, question
):
    tokenizer, examples = tokenizers["wordpiece"], Questions(stride=stride, question=8)
    ids = np.arange(5, 5 + size, dtype=np.int32)
    record = {
        "question": np.full(question, 3, np.int32),
        "ids": ids,
        "answer": np.array([min(answer, size - 1)] * 2),
    }
    windows, remarks = examples.windows(tokenizer, [record], length)
    assert sum("questions are longer" in remark for remark in remarks) == (question > 8)
    seen = {place for w in windows for place in range(w.first, w.first + w.size)}
    assert seen == set(range(size))
    groups, _ = examples.features(tokenizer, [record], length)
    for window, (row,) in zip(windows, groups, strict=True):
        assert len(row["input_ids"]) <= length
        assert (
            row["input_ids"][window.offset : window.offset + window.size]
            == ids[window.first :][: window.size]
        ).all()
        inside = window.first <= record["answer"][0] < window.first + window.size
        wanted = ids[record["answer"][0]] if inside else tokenizer.vocab.cls
        assert row["input_ids"][row["answer_start"]] == wanted
    best = best_windows(
        windows
    )  # every piece counts in one window, that of the most text on its poorer side
    counts = np.zeros(size, int)
    for window, may in zip(windows, best, strict=True):
        counts[window.first : window.first + window.size] += may
    assert (counts == 1).all()


@QUIET
@given(st.lists(st.fixed_dictionaries({"a": st.lists(st.integers(0, 9), max_size=4)}, optional={
    "b": st.lists(st.integers(0, 9), max_size=4),
}), min_size=1, max_size=8))  # fmt: skip
def test_records_come_back(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "x.npz"
    records = [
        {name: np.array(value, np.int32) for name, value in record.items()} for record in records
    ]
    task_corpus.save_records(path, records)
    for found, wanted in zip(task_corpus.load_records(path), records, strict=True):
        assert found.keys() == wanted.keys() and all(
            (found[name] == wanted[name]).all() for name in wanted
        )


def test_one_file_gives_a_tenth_to_hold_out(tmp_path):
    path = written(
        tmp_path, "all.tsv", "text\tlabel\n" + "".join(f"t{i}\t{i % 2}\n" for i in range(57))
    )
    for given_ in (path, tmp_path):
        files = (
            Labelled().files([str(given_)])
            if given_ is path
            else Labelled(train=("all.tsv",)).files([str(given_)])
        )
        parts = {
            split: [e.first for e in Labelled().examples(source)] for split, source in files.items()
        }
        assert len(parts["heldout"]) == 5 and sorted(parts["train"] + parts["heldout"]) == sorted(
            f"t{i}" for i in range(57)
        )
    with pytest.raises(UserError, match="there is no"):
        Labelled().files([str(tmp_path / "none")])


def test_choices_share_a_batch_and_refuse_an_odd_one(tmp_path, tokenizers):
    rows = [
        dict(question=f"the fox {i}", choices=["a dog", "the river"], label=i % 2) for i in range(7)
    ]
    for name in ("train", "dev"):
        written(tmp_path, f"data/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    examples, spec = Choices(), TokenizerSpec(kind="wordpiece", vocab=30)
    corpus = examples.corpus([str(tmp_path / "data")], tmp_path / "out", spec)
    stream = corpus.stream("train", examples, length=16, batch=4, seed=0, epochs=1)
    batches = list(stream)
    assert stream.per_epoch == len(batches) == 4 and corpus.counts().tolist() == [4, 3]
    real = np.concatenate([batch["segment_ids"].any(1) for batch in batches])
    assert real.sum() == 14 and all(
        (batch["label"][::2] == batch["label"][1::2]).all() for batch in batches
    )
    with pytest.raises(UserError, match="choose a multiple of 2"):
        corpus.stream("train", examples, length=16, batch=3, seed=0)


def test_a_decoders_target_is_shifted(tmp_path, tokenizers):
    tokenizer, examples = tokenizers["wordpiece"], Targets(answer=5)
    path = written(
        tmp_path,
        "a.jsonl",
        json.dumps({"source": "the dog", "target": "the fox naps by the river"}),
    )
    (record,) = examples.encode(tokenizer, list(examples.read(path)))
    ((row,),), remarks = examples.features(tokenizer, [record], 32)
    assert len(row["decoder_labels"]) == 5 and row["decoder_labels"][-1] == tokenizer.vocab.sep
    assert (row["decoder_input_ids"][1:] == row["decoder_labels"][:-1]).all() and sum(
        remarks.values()
    ) == 1


def test_a_folder_for_every_class(tmp_path):
    for split in ("train", "test"):
        files = (
            ("pos/2_9.txt", "fine\nfilm"),
            ("neg/1_2.txt", "dull"),
            ("unsup/3_0.txt", "?"),
            ("urls_pos.txt", "x"),
        )
        for name, text in files:
            written(tmp_path, f"{split}/{name}", text)
    examples, remarks = catalogue.get("imdb").examples, Remarks()
    assert examples.files([str(tmp_path)])["train"].path == str(tmp_path / "train")
    found = list(examples.read(tmp_path / "test", remarks))
    assert [(e.first, e.label) for e in found] == [("dull", "neg"), ("fine film", "pos")] and sum(
        remarks.values()
    ) == 1
    for name in ("rt.pos", "rt.neg"):
        written(tmp_path, f"mr/{name}", "one\n\ntwo\n")
    assert [e.label for e in catalogue.get("mr").examples.read(tmp_path / "mr")] == [
        "neg",
        "neg",
        "pos",
        "pos",
    ]


def test_labels_of_the_data(tmp_path):
    written(tmp_path, "train.conll", "x B-A\ny O\n")
    written(tmp_path, "dev.conll", "x I-C\n")
    assert Tagged().settled([str(tmp_path)]).labels == ("O", "B-A", "I-C")
    written(tmp_path, "c/train.tsv", "text\tlabel\nx\tred\ny\tblue\n")
    assert Labelled(labels="found").settled([str(tmp_path / "c")]).labels == ("blue", "red")


def test_tfds_rows_have_their_class_names(monkeypatch):
    class Names:
        names = ["neg", "pos"]

    class Builder:
        class info:
            splits = {"train": 1, "validation": 1}
            features = {"label": Names(), "sentence": None}

        def as_data_source(self, split):
            return [{"label": np.int64(1), "sentence": b"fine"}]

    monkeypatch.setattr(tfds_sources, "builder_of", lambda name: Builder())
    examples = Labelled(labels=("neg", "pos"))
    files = examples.files(["tfds:glue/sst2"])
    assert files["heldout"].path == "tfds:glue/sst2#validation"
    (found,) = examples.read(files["train"].path)
    assert (found.first, found.label, found.place) == ("fine", "pos", "tfds:glue/sst2#train:1")


SIZES = {
    "cola": ("glue/cola", 8551, 527), "sst2": ("glue/sst2", 12000, 872),
    "stsb": ("glue/stsb", 5749, 1500),
    "mrpc": ("glue/mrpc", 3669, 407), "rte": ("glue/rte", 2127, 363),
    "wnli": ("glue/wnli", 518, 117),
    "qnli": ("glue/qnli", 2700, 300), "mnli": ("glue/mnli/mnli_matched", 900, 100),
    "snli": ("glue/snli/s1.dev", 3600, 400),
    "cb": ("superglue/cb", 250, 56), "boolq": ("superglue/boolq", 540, 60),
    "wsc": ("superglue/wsc", 94, 10),
    "openbookqa": ("multiple_choice/openbookqa", 450, 50),
    "trec6": ("classification/trec", 4907, 545),
    "ag_news": ("classification/ag_news/test_first3000.csv", 2700, 300),
    "scicite": ("classification/sci-cite", 1500, 916),
    "subj": ("classification/subj", 2700, 300), "semeval10": ("relation/semeval2010-task8", 7200,
    800),
    "squad2": ("qa/squad2", 1450, 626), "xquad": ("qa/xquad/xquad.en.json", 981, 135),
    "cmrc": ("qa/cmrc2018", 499, 57),
    "wnut17": ("ner/wnut17", 3394, 1009), "msra": ("ner/msra", 2087, 231),
    "ncbi": ("bio_ner/NCBI-disease-IOB", 5424, 923),
    "ud": ("ud/en_partut", 1200, 156), "xnli": ("xnli/zh", 2241, 249),
    "ocnli": ("xnli/ocnli", 1331, 147),
    "disfl_qa": ("disfluency/disfl-qa", 900, 100),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.status(task, "built")) for task in SIZES]
)
def test_the_real_files(data, task):
    """As many examples as the files' manifest has; SemEval's 86 and CMRC's 71 quirks are
    counted."""
    path, train, heldout = SIZES[task]
    examples, remarks = catalogue.get(task).examples.settled([str(data / path)]), Remarks()
    files = examples.files([str(data / path)])
    assert [len(examples.examples(files[split], remarks)) for split in ("train", "heldout")] == [
        train,
        heldout,
    ]
    halves = 2 if files["train"].held is not None else 1
    expected = {"semeval10": 86, "cmrc": 71, "ocnli": 22}
    assert task not in expected or sum(remarks.values()) == halves * expected[task]
