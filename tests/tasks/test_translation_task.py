"""Translation as a task: published markup, contexts, low-resource parts, sacreBLEU's signature."""

import dataclasses
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import sacrebleu

from ptm_jax import systems
from ptm_jax.cli.models import evaluate
from ptm_jax.cli.runs import own_table
from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import translations
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text import generating
from ptm_jax.runs.run import Run
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.targets import Written
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tasks.translation.translation_pairs import TranslationPairs

DATA = Path(os.environ.get("PTM_DATA", "../shared/data")) / "mt"
SGM = """<srcset setid="t" srclang="any"><DOC docid="a" genre="news"><hl><seg id="1">Eins & zwei.
</seg></hl><p><seg id="2">Drei &amp; vier.</seg></p></DOC><doc docid="b"><seg id="1"> Fünf </seg>
</doc></srcset>"""
REF = """<refset><doc docid="a"><seg id="1">One & two.</seg><seg id="2">Three & four.</seg></doc>
<doc docid="b"><seg id="1">Five</seg></doc></refset>"""
TAGS = """<url>http://x</url>
<keywords>talks, a</keywords>
Eins.
Zwei.
<url>http://y</url>
<title>T</title>
Drei.
"""
BOTH = """<?xml version='1.0'?><dataset id="w"><doc id="a" origlang="de"><src lang="de"><p>
<seg id="1">Eins.</seg><seg id="2">Zwei.</seg></p></src><ref lang="en" translator="A"><p>
<seg id="2">Two.</seg><seg id="1">One.</seg></p></ref><ref lang="en" translator="B"><p>
<seg id="1">1.</seg><seg id="2">2.</seg></p></ref></doc></dataset>"""
END = ("", "")


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


@pytest.mark.status("translation", "built")
def test_markup_of_wmt_and_iwslt_is_read_by_documents(tmp_path):
    write(tmp_path, s_sgm=SGM, r_sgm=REF, b_xml=BOTH)
    both = f"language:de-en={tmp_path}/s.sgm,{tmp_path}/r.sgm"
    first = [("Eins & zwei.", "One & two."), ("Drei & vier.", "Three & four."), END]
    assert list(translations.pairs(both)) == [*first, ("Fünf", "Five"), END, END]
    pairs = list(translations.pairs(f"language:en-de={tmp_path}/b.xml"))
    assert pairs == [("One.", "Eins."), ("Two.", "Zwei."), END, END]
    (tmp_path / "train.tags.de-en.de").write_text(TAGS)
    (tmp_path / "train.tags.de-en.en").write_text(
        TAGS.replace("Eins", "One").replace("Zwei", "Two").replace("Drei", "Three")
    )
    talks = list(translations.pairs(f"language:de-en={tmp_path}/train.tags.de-en"))
    one, two = [("Eins.", "One."), ("Zwei.", "Two.")], [("Drei.", "Three.")]
    assert talks == [END, *one, END, *two, END]


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("<doc></doc>", "a.sgm,{}/a.sgm", "a.sgm: has no <seg>"),
        (BOTH, "a.xml", "has no fr in a document with de, en"),
        (BOTH.replace('"2">Two', '"3">Two'), "a.xml", "has the segment 2 on one side alone"),
        ("<doc id='a'></doc>", "a.xml", "has no de in a document with no side"),
        ("nothing", "a.xml", "has no <doc> with <src> and <ref>"),
    ],
)
def test_broken_markup_is_one_line(tmp_path, text, source, message):
    (tmp_path / source.split(",")[0]).write_text(text)
    codes = "de-en" if "alone" in message or "sgm" in message else "de-fr"
    with pytest.raises(UserError, match=message) as error:
        list(translations.pairs(f"language:{codes}={tmp_path}/{source.format(tmp_path)}"))
    assert "\n" not in str(error.value)


def documents(tmp_path):
    (tmp_path / "t.de").write_text("A.\nB.\nC.\n\nD.\nE.\n")
    (tmp_path / "t.en").write_text("a.\nb.\nc.\n\nd.\ne.\n")
    return f"language:de-en={tmp_path}/t"


def test_a_context_is_the_sentences_before_in_the_document(tmp_path):
    source = documents(tmp_path)
    read = [(one.source, one.target) for one in TranslationPairs(context=2).read(source)]
    assert read == [
        ("A.", "a."), ("A. </s> B.", "b."), ("A. </s> B. </s> C.", "c."),
        ("D.", "d."), ("D. </s> E.", "e."),
    ]  # fmt: skip
    spec = TokenizerSpec(kind="word", vocab=16, specials="roberta", lowercase=False)
    tokenizer = vocabularies.make(spec, [" ".join("ABCDEabcde.")])
    pairs = TranslationPairs(context=1)
    records = pairs.encode(tokenizer, list(pairs.read(source)))
    end = tokenizer.special_pieces["</s>"]
    assert [int((one["source"] == end).sum()) for one in records] == [0, 1, 1, 0, 1]
    rows, _ = pairs.features(tokenizer, records[2:3], 5)  # B. </s> C. loses its beginning
    letters = tokenizer.encode_batch([". </s> C."], specials=True)[0]
    assert np.array_equal(rows[0][0]["input_ids"][1:-1], letters[-3:])
    with pytest.raises(UserError, match="separator \\[BREAK\\] is no special token"):
        other = TranslationPairs(context=1, separator="[BREAK]")
        other.encode(tokenizer, list(other.read(source)))


def test_a_run_carries_the_tokenizer_of_the_model_inside_its_network(tmp_path):
    spec = TokenizerSpec(kind="word", vocab=9, specials="bert", lowercase=False)
    tokenizer = vocabularies.make(spec, ["Ein Hund läuft ."])
    tokenizer.save(tmp_path / "bert" / "tokenizer")
    named = TranslationPairs(bert=str(tmp_path / "bert"))
    named.save(tmp_path / "run")
    shutil.rmtree(tmp_path / "bert")
    (ids,) = named.within(tmp_path / "run").readings_of(["Hund </s> Ein"])["bert"]
    assert tokenizer.decode(ids, skip_specials=False) == "[CLS] Hund Ein [SEP]"
    assert TranslationPairs().within(tmp_path / "run") == TranslationPairs()
    assert named.within(tmp_path / "older") == named
    with pytest.raises(UserError, match=r"gone, whose tokenizer cannot be read .* put its folder"):
        TranslationPairs(bert=str(tmp_path / "gone")).readings_of(["Hund"])


def test_a_smaller_part_of_the_pairs_is_inside_a_larger_one(tmp_path):
    pairs = [Written(f"s{i}", f"t{i}", f"f:{i}", i) for i in range(20)]
    few, more = (TranslationPairs(first=n, draw=3).part(pairs) for n in (5, 12))
    order = np.random.default_rng(3).permutation(20)
    assert [one.index for one in few] == order[:5].tolist() and more[:5] == few
    assert TranslationPairs(first=5, draw=4).part(pairs) != few
    assert TranslationPairs().part(pairs) == pairs
    source = documents(tmp_path)
    assert TranslationPairs(first=2).count([source, source]) == 2
    with pytest.raises(UserError, match="5 pairs, and first is 6; give at most as many"):
        TranslationPairs(first=6).count([source, source])


def test_sources_decide_the_direction(tmp_path):
    source = documents(tmp_path)
    pairs = TranslationPairs(context=1).settled([source])
    assert pairs.languages == ("de", "en")
    files = pairs.files([source, source])
    assert [one.held for one in files.values()] == [None, None]
    assert {one.held for one in pairs.files([source]).values()} == {False, True}
    task = dataclasses.replace(
        catalogue.get("translation"), examples=TranslationPairs().like(pairs)
    )
    assert task.examples.context == 1 and task.examples.languages == ("de", "en")
    assert evaluating.source_of(task, [source]).held is None
    turned = source.replace("de-en", "en-de").replace("/t", "/t.de-en")
    with pytest.raises(UserError, match="have other languages, or another direction"):
        pairs.settled([source, turned])
    with pytest.raises(UserError, match="one source, or one to train on and one to hold out"):
        pairs.files([source, str(tmp_path / "t.de")])


def test_a_head_of_language_codes_is_no_pair_and_a_table_has_no_language(tmp_path):
    table, remarks = tmp_path / "t.csv", Remarks()
    table.write_text("de,en\r\nEin Hund,a dog\r\nde,en\r\n", newline="")
    read = [(one.source, one.index) for one in TranslationPairs().read(table, remarks)]
    assert read == [("Ein Hund", 1), ("de", 2)]
    assert list(remarks) == [
        f"line of names of columns is the head of the table (first at {table}:1)"
    ]
    for head, count in {
        "deutsch,englisch": 2, "Quelle,Ziel": 2, "German,English": 2,
        "ein Satz,a sentence": 3, "Hund,dog": 2, "Ja.,Yes.": 3,
    }.items():  # fmt: skip
        table.write_text(f"{head}\nEin Hund,a dog\nEine Katze,a cat\n")
        assert len([*TranslationPairs().read(table)]) == count, head
    table.write_text("Hund,dog\nKatze,cat\nEin Haus,a house\n")
    assert len([*TranslationPairs().read(table)]) == 3, "words and their translations"
    for sources in ([f"language:de-en={table}"], [documents(tmp_path), str(table)]):
        with pytest.raises(UserError, match="t.csv: a table of two columns, .* without a language"):
            TranslationPairs().settled(sources)


def test_an_export_names_the_first_token_of_the_training():
    denoising = systems.get("bart_mini")
    translating = dataclasses.replace(denoising, corruption=None, examples=TranslationPairs())
    fields = [
        generating.start_field(Pretrained(system, {}, None))
        for system in (denoising, translating, systems.get("bert_mini"))
    ]
    vocab = denoising.towers["main"].encoder.embeddings.vocab
    assert fields == [
        {"decoder_start_token_id": vocab.eos}, {"decoder_start_token_id": vocab.pad}, {}
    ]  # fmt: skip


@pytest.mark.status("translation", "matches")
@pytest.mark.parametrize(
    ("language", "tokenize", "lines"),
    [
        ("en", "13a", ("A small dog.", "A dog is small.")),
        ("zh", "zh", ("我該去睡覺。", "我去睡覺。")),
    ],
)
def test_scores_are_sacrebleus_with_their_signature(language, tokenize, lines):
    pairs = dataclasses.replace(TranslationPairs(), languages=("de", language))
    task = dataclasses.replace(catalogue.get("translation"), examples=pairs)
    examples = [Written("x", line, "f:1") for line in lines]
    told = [lines[0], lines[0]]
    figures = evaluating.measured(task, examples, told)
    bleu = sacrebleu.corpus_bleu(told, [list(lines)], tokenize=tokenize)
    assert figures["bleu"] == bleu.score / 100 and 0 < figures["bleu"] < 1
    assert figures["chrf"] == sacrebleu.corpus_chrf(told, [list(lines)]).score / 100
    signatures = kind_of(pairs).signatures(examples, told, task)
    version = sacrebleu.__version__
    assert signatures == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:{tokenize}|smooth:exp|version:{version}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}",
    }


@pytest.mark.full
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs {DATA}")
def test_iwslt_as_published():
    folder = DATA / "iwslt16-sample"
    name = "IWSLT16.TED.dev2010.en-de.{}.xml"
    files = [folder / name.format(code) for code in ("en", "de")]
    pairs = list(translations.pairs(f"language:en-de={files[0]},{files[1]}"))
    documents = [ElementTree.parse(file).getroot().iter("doc") for file in files]
    wanted = [
        (" ".join(a.text.split()), " ".join(b.text.split()))
        for one, two in zip(*documents, strict=True)
        for a, b in zip(one.iter("seg"), two.iter("seg"), strict=True)
    ]
    assert [pair for pair in pairs if pair != END] == wanted and len(wanted) > 100
    talks = list(translations.pairs(f"language:en-de={folder}/train.tags.en-de"))
    lines = (folder / "train.tags.en-de.en").read_text().splitlines()
    plain = [" ".join(line.split()) for line in lines if not line.startswith("<")]
    assert [pair[0] for pair in talks if pair != END] == plain


def test_a_table_of_more_columns_is_read_by_their_names(tmp_path):
    """Its first two columns, as an id and a sentence, are no pair."""
    table = tmp_path / "three.csv"
    table.write_text("id,German,English\n1,Ein Hund.,A dog.\n2,Zwei Hunde.,Two dogs.\n")
    pairs = catalogue.get("translation").examples
    with pytest.raises(UserError, match=r"three.csv:1: 3 columns \(id, German, English\); name"):
        list(pairs.read(table))
    named = pairs.with_columns([str(table)], ["german"], ["English"])
    read = [(one.source, one.target) for one in named.read(table)]
    assert read == [("Ein Hund.", "A dog."), ("Zwei Hunde.", "Two dogs.")]
    assert pairs.like(named) == named and pairs.reads(str(table)) == ""
    assert named.reads(str(table)).endswith("reads German and its translation English")
    for texts, labels, message in (
        (["German"], [], "from two columns"),
        (["French"], ["English"], "no column 'French'"),
    ):
        with pytest.raises(UserError, match=message):
            pairs.with_columns([str(table)], texts, labels)


def test_the_commands_that_follow_fit_the_task():
    run = SimpleNamespace(task="translation", workdir="runs/x", classes=None)
    assert (
        own_table.next_of_task(run)[1]
        == "  ptm predict runs/x --input new.txt --output translations.csv"
    )
    rank = own_table.next_of_task(SimpleNamespace(task="rank", workdir="runs/x", classes=None))
    assert "--rerank runs/x" in rank[1] and rank[-1] == "  ptm export runs/x --out runs/x-hf"


@pytest.mark.parametrize(
    "options, expected",
    [({"data": ("a.csv",)}, "translation"), ({}, None), ({"predictions": "p.csv"}, "translation")],
)
def test_an_evaluation_of_a_run_on_a_task_has_that_task(monkeypatch, options, expected):
    run = SimpleNamespace(exists=True, choice=lambda: {"task": "translation"})
    monkeypatch.setattr(Run, "at", lambda path: run)
    assert evaluate._published_task(evaluate.Args(workdir="runs/x", **options)) == expected
