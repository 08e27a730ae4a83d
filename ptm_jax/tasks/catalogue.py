"""The catalogue of downstream tasks: file formats, metrics, and names of prediction files.

Data are given by path: `ptm train --task NAME --data PATH`. The first text of a pair is the premise
(or the question), the second is the hypothesis (or the sentence, or the passage), as in the
original data. Rows 207 to 213, 222, 223 and 241.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ptm_jax.core.registry import Catalogue
from ptm_jax.tasks.formats.choices import Choices
from ptm_jax.tasks.formats.conversations import Conversations
from ptm_jax.tasks.formats.dependencies import Dependencies
from ptm_jax.tasks.formats.hotpot import HopDocuments, HopReading
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.questions import Answerable, Questions, VerifiedQuestions
from ptm_jax.tasks.formats.tagged import Tagged
from ptm_jax.tasks.formats.targets import Targets
from ptm_jax.tasks.tables.own_tables import OwnLabels, OwnQuestions
from ptm_jax.tasks.translation.translation_pairs import TranslationPairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A downstream task.

    examples   reader of the files; its class determines the kind of the task
    metrics    names in `Kind.measures`; models are compared by the first number of the first one
    group      the benchmark; its server reads the predictions from `file`
    rows       row numbers in the survey's catalogue (`ptm list --rows`)
    paper      the publication of the data
    length, batch, epochs, lr   defaults of fine-tuning (Devlin et al. 2019, appendix A.3)
    threshold  the answer is empty if score("no answer") - score(best span) is above this
    language   code of the language of the data, where one is known (`mlqa`)
    """

    name: str
    examples: Any
    metrics: tuple[str, ...] = ("accuracy",)
    group: str = ""
    rows: tuple[int, ...] = ()
    file: str = ""
    paper: str = ""
    length: int = 128
    batch: int = 32
    epochs: float = 3.0
    lr: float = 5e-5
    threshold: float = 0.0
    language: str = ""


catalogue = Catalogue("task", f"{__package__}.kinds")
"""{name: task}. A file that registers a kind of task may add tasks."""

ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
PREMISE = ("sentence1", "premise", "text_a", "sentence1_sw")
HYPOTHESIS = ("sentence2", "hypothesis", "hypo", "text_b", "sentence2_sw")
GOLD = ("gold_label", "label", "Label")
NUMBERED = ("index", "sentence1", "sentence2", "label")
BOOLEAN = ("false", "true")
UPOS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN",
    "PUNCT", "SCONJ", "SYM",
    "VERB", "X",
)  # fmt: skip


def _pair(*, first=PREMISE, second=HYPOTHESIS, label=GOLD, **fields: Any) -> Labelled:
    return Labelled(first=first, second=second, label=label, **fields)


def _nli(**fields: Any) -> Labelled:
    spelled = (("contradictory", "contradiction"),)
    return _pair(
        labels=NLI,
        skip=("-",),
        columns=("label", "premise", "hypothesis"),
        spellings=spelled,
        **fields,
    )


def _numbered(names: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of classes that the files number from 1."""
    return {
        "labels": tuple(names),
        "spellings": tuple((str(i), name) for i, name in enumerate(names, 1)),
    }


def _glue(name: str, file: str, examples: Labelled, **fields: Any) -> Task:
    more = {"group": "GLUE", "rows": (207,), "paper": "Wang et al. 2018 (GLUE)"} | fields
    return Task(name=name, file=f"{file}.tsv", examples=examples, **more)


def _super(name: str, file: str, examples: Any, **fields: Any) -> Task:
    more = {"group": "SuperGLUE", "rows": (208,), "paper": "Wang et al. 2019 (SuperGLUE)"} | fields
    return Task(name=name, file=f"{file}.jsonl", examples=examples, **more)


def _span(name: str, paper: str, examples: Any, **fields: Any) -> Task:
    more = {"metrics": ("squad",), "length": 384, "batch": 16, "lr": 3e-5, "epochs": 2.0} | fields
    return Task(name=name, paper=paper, examples=examples, **more)


_BOTH, _MCC, _NAMED = (
    ("f1", "accuracy"),
    ("matthews", "accuracy"),
    dict(first=("first",), second=("second",)),
)
catalogue.add(
    _glue("cola", "CoLA", Labelled(columns=("source", "label", "mark", "sentence")), metrics=_MCC),
    _glue("sst2", "SST-2", Labelled()),
    _glue("mrpc", "MRPC", _pair(
        first=("#1 String", "sentence1"), second=("#2 String", "sentence2"),
        label=("Quality", "label"),
    ), metrics=_BOTH),
    _glue("stsb", "STS-B", Labelled(
        first=("sentence1",), second=("sentence2",), label=("score", "label"), labels=(),
        columns=("genre", "file", "year", "index", "score", "sentence1", "sentence2"),
    ), metrics=("correlations",)),
    _glue("qqp", "QQP", _pair(first=("question1",), second=("question2",),
        label=("is_duplicate", "label")), metrics=_BOTH),
    _glue("mnli", "MNLI-m", _nli(heldout=("dev_matched.*", "mnli_matched", "dev.*", "*dev*")),
        rows=(207, 213)),
    _glue("mnli_mm", "MNLI-mm", _nli(
        heldout=("dev_mismatched.*", "mnli_mismatched"), test=("test_mismatched.*",),
    ), rows=(207, 213)),
    _glue("qnli", "QNLI", _pair(first=("question",), second=("sentence",), labels=ENTAILMENT)),
    _glue("rte", "RTE", _pair(labels=ENTAILMENT, columns=NUMBERED)),
    _glue("wnli", "WNLI", _pair(columns=NUMBERED)),
    _glue("ax", "AX", _nli(test=("diagnostic*", "AX*")), metrics=_MCC),
    _super("boolq", "BoolQ", _pair(first=("question",), second=("passage",), labels=BOOLEAN),
        length=256, batch=16),
    _super("cb", "CB", _pair(labels=NLI), metrics=("accuracy", "macro_f1"), batch=16, length=256,
        epochs=7.0),
    _super("copa", "COPA", Choices(format="copa"), epochs=10.0, batch=16, length=64),
    _super("multirc", "MultiRC", _pair(**_NAMED, format="multirc"), metrics=("multirc",),
        length=384, batch=16),
    _super("record", "ReCoRD", _pair(**_NAMED, format="record"), metrics=("record",), length=384,
        batch=16, epochs=2.0),
    _super("superglue_rte", "RTE", _pair(labels=ENTAILMENT)),
    _super("wic", "WiC", _pair(**_NAMED, labels=BOOLEAN, format="wic"), rows=(208, 246)),
    _super("wsc", "WSC", _pair(**_NAMED, labels=BOOLEAN, format="wsc")),
    _super("axb", "AX-b", _pair(labels=ENTAILMENT, test=("AX-b*",)), metrics=_MCC),
    _super("axg", "AX-g", _pair(labels=ENTAILMENT, test=("AX-g*",))),
)  # fmt: skip

_FILE, _READER = "predictions.json", "Zhang et al. 2021 (retrospective reader)"
catalogue.add(
    _span("squad", "Rajpurkar et al. 2016", Questions(), rows=(209,), file=_FILE),
    _span("squad2", "Rajpurkar et al. 2018", Questions(unanswered=True), rows=(209,), file=_FILE),
    _span("squad2_sketchy", _READER, Answerable(), rows=(212,), metrics=("answerable",)),
    _span("squad2_retro", _READER, VerifiedQuestions(), rows=(212,), file=_FILE),
    _span("xquad", "Artetxe et al. 2020", Questions(heldout=("xquad*",)), rows=(214,)),
    _span("mlqa", "Lewis et al. 2020", Questions(heldout=("dev-context*", "xquad*"),
        test=("test-context*",)), rows=(214,), metrics=("mlqa",)),
    _span("cmrc", "Cui et al. 2019", Questions(), metrics=("cmrc",)),
    _span("answers", "any table of question, text and answer", OwnQuestions()),
    _span("rrc", "Xu et al. 2019", Questions()),
    _span("coqa", "Reddy et al. 2019", Conversations(), rows=(210,), metrics=("coqa",), file=_FILE,
        length=512),
    _span(
        "hotpot_rank", "Yang et al. 2018 (HotpotQA), which documents are needed", HopDocuments(),
        rows=(211,),
        metrics=("hotpot_rank",), length=256, batch=2,
    ),
    _span(
        "hotpot", "Yang et al. 2018 (HotpotQA), answer and facts", HopReading(), rows=(211,),
        metrics=("hotpot",),
        file="pred.json", length=512, batch=8, epochs=4.0,
    ),
)  # fmt: skip

_WORDS = dict(metrics=("entity_f1", "tag_accuracy"))
catalogue.add(
    Task(name="conll2003", rows=(222, 223), paper="Tjong Kim Sang and De Meulder 2003",
        examples=Tagged(
        train=("eng.train", "train.*"), heldout=("eng.testa", "valid.*", "dev.*"),
        test=("eng.testb", "test.*"),
    ), **_WORDS),
    Task(
        name="wnut17", rows=(222,), paper="Derczynski et al. 2017", examples=Tagged(),
        metrics=("entity_f1", "surface_f1", "tag_accuracy"),
    ),
    Task(name="ncbi", rows=(224,), paper="Doğan et al. 2014 (NCBI disease)", examples=Tagged(),
        **_WORDS),
    Task(name="bc5cdr", rows=(224,), paper="Li et al. 2016", examples=Tagged(), **_WORDS),
    Task(name="msra", rows=(222,), paper="Levow 2006", examples=Tagged(format="columns"), **_WORDS),
    Task(name="conll2000", paper="Tjong Kim Sang and Buchholz 2000 (chunks)", examples=Tagged(),
        **_WORDS),
    Task(name="ner", rows=(222,), paper="any file of words and IOB tags", examples=Tagged(),
        **_WORDS),
    Task(
        name="ud", paper="Nivre et al. 2020 (Universal Dependencies)", metrics=("tag_accuracy",),
        examples=Tagged(format="conllu", labels=UPOS, scheme=""),
    ),
    Task(
        name="parsing", paper="Dozat and Manning 2017, arXiv 1611.01734 (any CoNLL-U)",
        metrics=("attachment",),
        examples=Dependencies(), length=128,
    ),
    Task(name="pos", paper="any file of words and tags", metrics=("tag_accuracy",),
        examples=Tagged(scheme="")),
)  # fmt: skip

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
DBPEDIA = (
    "Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder",
    "MeanOfTransportation", "Building",
    "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork",
)  # fmt: skip
YAHOO = (
    "Society & Culture", "Science & Mathematics", "Health", "Education & Reference",
    "Computers & Internet", "Sports",
    "Business & Finance", "Entertainment & Music", "Family & Relationships",
    "Politics & Government",
)  # fmt: skip
SOGOU = ("sports", "finance", "entertainment", "automobile", "technology")
RELATIONS = (
    "Cause-Effect", "Component-Whole", "Content-Container", "Entity-Destination", "Entity-Origin",
    "Instrument-Agency",
    "Member-Collection", "Message-Topic", "Other", "Product-Producer",
)  # fmt: skip
_TITLED = dict(first=("title",), more=("text",), columns=("label", "title", "text"))
_SIGNS = dict(labels=("neg", "pos"), encoding="latin-1", format="folders")
_ERRORS = dict(metrics=("accuracy", "error"), rows=(241,))
_LONG = dict(length=512, batch=16)
catalogue.add(
    Task(name="trec6", paper="Li and Roth 2002", examples=Labelled(
        format="trec", label=("coarse",), encoding="latin-1",
        labels=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    ), length=64, **_ERRORS),
    Task(name="trec50", paper="Li and Roth 2002", length=64, examples=Labelled(
        format="trec", encoding="latin-1", labels="found",
    ), **_ERRORS),
    Task(name="sst5", paper="Socher et al. 2013", examples=Labelled(
        format="labelled", labels=("0", "1", "2", "3", "4"), train=("stsa.fine.train", "train.*"),
        heldout=("stsa.fine.dev", "dev.*"), test=("stsa.fine.test", "test.*"),
    ), **_ERRORS),
    Task(name="imdb", paper="Maas et al. 2011", examples=Labelled(
        format="folders", labels=("neg", "pos"), spellings=(("0", "neg"), ("1", "pos")),
        skip=("unsup",), keep="ends",
    ), **_LONG, **_ERRORS),
    Task(name="ag_news", paper="Zhang et al. 2015",
        examples=Labelled(**_TITLED, **_numbered(TOPICS)), **_ERRORS),
    Task(name="dbpedia", paper="Zhang et al. 2015",
        examples=Labelled(**_TITLED, **_numbered(DBPEDIA)), **_ERRORS),
    Task(name="sogou", paper="Zhang et al. 2015", examples=Labelled(**_TITLED, **_numbered(SOGOU),
        keep="ends"),
         **_LONG, **_ERRORS),
    Task(name="yahoo", paper="Zhang et al. 2015", examples=Labelled(
        first=("question", "title"), more=("content", "answer"),
        columns=("label", "question", "content", "answer"),
        **_numbered(YAHOO),
    ), **_LONG, **_ERRORS),
    Task(name="yelp2", paper="Zhang et al. 2015", examples=Labelled(
        columns=("label", "text"), keep="ends", labels=("neg", "pos"),
        spellings=(("1", "neg"), ("2", "pos")),
    ), **_LONG, **_ERRORS),
    Task(name="yelp5", paper="Zhang et al. 2015", examples=Labelled(
        columns=("label", "text"), keep="ends", labels=("1", "2", "3", "4", "5"),
    ), **_LONG, **_ERRORS),
    Task(name="mr", paper="Pang and Lee 2005", examples=Labelled(**_SIGNS), **_ERRORS),
    Task(name="cr", paper="Hu and Liu 2004", examples=Labelled(**_SIGNS), **_ERRORS),
    Task(name="subj", paper="Pang and Lee 2004", examples=Labelled(
        labels=("objective", "subjective"), encoding="latin-1", format="folders",
    ), **_ERRORS),
    Task(name="scicite", paper="Cohan et al. 2019", metrics=("macro_f1", "accuracy"),
         examples=Labelled(first=("text", "string"), labels=("background", "method", "result"))),
    Task(name="chemprot", paper="Kringelum et al. 2016", metrics=("micro_f1", "macro_f1"),
         examples=Labelled(labels="found")),
    Task(name="semeval10", paper="Hendrickx et al. 2010", metrics=("macro_f1", "accuracy"),
         examples=Labelled(format="semeval", labels=RELATIONS)),
    Task(name="tacred", rows=(246,), paper="Zhang et al. 2017", metrics=("tacred", "accuracy"),
        lr=2e-5, epochs=4.0,
         length=256, examples=Labelled(format="tacred", labels="found")),
    Task(name="wsd", rows=(246,), paper="Raganato et al. 2017; Huang et al. 2019",
        metrics=("senses", "accuracy"), lr=2e-5,
         epochs=4.0, batch=64, length=512, examples=_pair(**_NAMED, format="wsd")),
    Task(name="fewrel", rows=(246,), paper="Han et al. 2018", metrics=("accuracy", "macro_f1"),
        lr=2e-5, epochs=10.0,
         length=256, examples=Labelled(format="fewrel", labels="found")),
    Task(name="absa", paper="Pontiki et al. 2014 (SemEval 2014 task 4)",
        metrics=("accuracy", "macro_f1"), examples=_pair(
        first=("text",), second=("aspect",), format="triples", labels=("-1", "0", "1"),
        train=("*Train*", "train*"),
        heldout=("*Test*", "test*", "dev*"),
    )),
    Task(name="chnsenticorp", paper="Tan 2012", examples=Labelled(first=("text_a", "text")),
        length=256),
    Task(name="thucnews", paper="Sun et al. 2016", examples=Labelled(
        columns=("text", "label"), labels=tuple(map(str, range(10))),
    ), length=64),
    Task(name="snli", rows=(213, 241), paper="Bowman et al. 2015", examples=_nli()),
    Task(name="xnli", rows=(213, 214), paper="Conneau et al. 2018", examples=_nli()),
    Task(name="ocnli", rows=(213,), paper="Hu et al. 2020", examples=_nli()),
    Task(name="classify", paper="any table or JSON of text and label",
        examples=Labelled(labels="found")),
    Task(name="pairs", paper="any table or JSON of two texts and a label",
        examples=_pair(labels="found")),
    Task(name="labels", paper="any table of texts and several labels", examples=OwnLabels(),
        metrics=("labels",)),
    Task(name="rate", paper="any table or JSON of text and number", examples=Labelled(labels=()),
        metrics=("correlations",)),
    Task(name="openbookqa", paper="Mihaylov et al. 2018",
        examples=Choices(format="openbookqa", choices=4), batch=16),
    Task(name="swag", paper="Zellers et al. 2018", examples=Choices(format="swag", choices=4),
        batch=16, lr=2e-5),
    Task(name="race", paper="Lai et al. 2017", examples=Choices(format="race", choices=4),
        length=512, batch=8, lr=2e-5),
)  # fmt: skip

_WRITTEN = dict(metrics=("bleu",), length=256, batch=16, lr=1e-4)
_SUMMED = {**_WRITTEN, "metrics": ("rouge", "bleu")}
catalogue.add(
    Task(name="xsum", rows=(232, 245), paper="Narayan et al. 2018", examples=Targets(), **_SUMMED),
    Task(name="cnndm", rows=(232, 245), paper="See et al. 2017", examples=Targets(
        source=("src", "article"), target=("tgt", "highlights"),
    ), **_SUMMED),
    Task(name="disfl_qa", paper="Gupta et al. 2021", examples=Targets(format="disfl"), **_WRITTEN),
    Task(name="multi30k_en_de", rows=(244,), paper="Elliott et al. 2016", examples=Targets(
        format="parallel", languages=("en", "de"), train=("train.en",),
        heldout=("val.en", "dev.en"), test=("test.en",),
    ), **_WRITTEN),
    Task(name="multi30k_de_en", rows=(244,), paper="Elliott et al. 2016", examples=Targets(
        format="parallel", languages=("de", "en"), train=("train.de",),
        heldout=("val.de", "dev.de"), test=("test.de",),
    ), **_WRITTEN),
    Task(name="translation", rows=(225, 226, 227, 244), paper="Post 2018, arXiv 1804.08771",
        examples=TranslationPairs(), **_WRITTEN),
    Task(name="rewrite", paper="any table or JSON of source and target", examples=Targets(),
        **_WRITTEN),
)  # fmt: skip
