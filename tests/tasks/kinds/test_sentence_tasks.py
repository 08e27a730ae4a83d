"""Sentence encoders from groups of texts: files, rows, measures, and a run to its export."""

import dataclasses
import importlib.util
import json
import types

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.inference.text.vectors import similarity
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.text_groups import Group, TextGroups
from ptm_jax.tasks.kinds import sentence_encoders
from ptm_jax.tasks.kinds.base import rows_of
from ptm_jax.tasks.metrics import ranks
from ptm_jax.training import workdirs
from ptm_jax.tuning import multitask
from support.tiny_checkpoint import WORDS

PEER = importlib.util.find_spec("sentence_transformers")


def written(path, text):
    path.write_text(text)
    return str(path)


def groups_of(path, **fields):
    return [(e.texts, e.scores) for e in TextGroups(**fields).settled([path, path]).read(path)]


FILES = {
    "a.tsv": "anchor\tpositive\na b\tc\nd\te\n",
    "a.csv": 'query,answer\n"a b",c\nd,e\n',
    "a.jsonl": '{"sentence1": "a b", "sentence2": "c"}\n{"sentence1": "d", "sentence2": "e"}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_pairs_are_read(name, tmp_path):
    found = groups_of(written(tmp_path / name, FILES[name]))
    assert found == [(("a b", "c"), ()), (("d", "e"), ())]


def test_pairs_are_read_from_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"anchor": ["a", "b"], "positive": ["c", "d"], "negative": ["e", "f"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = groups_of(str(tmp_path / "a.parquet"))
    assert found == [(("a", "c", "e"), ()), (("b", "d", "f"), ())]


def test_negatives_are_columns_or_a_list(tmp_path):
    table = written(tmp_path / "a.tsv", "anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\n")
    rows = [
        {"query": "a", "pos": ["b", "e"], "neg": ["c", "d"], "scores": [0.5, 0.25, 1]},
        {"query": "f", "pos": ["g"], "neg": ["h", "i"]},
    ]
    lines = written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert groups_of(table) == [(("a", "b", "c", "d"), ())]
    scores = (0.5, 0.25, 1.0)
    assert groups_of(lines) == [
        (("a", "b", "c", "d"), scores),
        (("a", "e", "c", "d"), scores),
        (("f", "g", "h", "i"), ()),
    ]
    assert groups_of(lines, negatives=1)[0] == (("a", "b", "c"), scores[:2])


def test_numbers_are_scaled_to_the_highest(tmp_path):
    stsb = catalogue.get("sts").examples
    path = written(tmp_path / "dev.tsv", "g\tf\t12\t0\t2.500\ta b\tc\ng\tf\t12\t1\t5.000\td\te\n")
    spec = stsb.settled([path, path])
    assert spec.highest == 5.0 and [e.scores for e in spec.read(path)] == [(2.5,), (5.0,)]


FORMS = ("csv", "tsv", "parquet")

WRONG = {
    "an empty side": ("anchor\tpositive\na\t\n", {}, r"a.tsv:2: the column positive is empty"),
    "several empty sides": (
        "anchor\tpositive\na\t\n\tb\nc\td\n",
        {},
        r"2: the column positive is empty.* 2 rows are wrong: lines 2 \(positive\), 3 \(anchor\)$",
    ),
    "no known column": ("left\tright\na\tb\nc\td\n", {}, "no field anchor.*by --text-column$"),
    "no number": ("text1\ttext2\tscore\na\tb\tgood\n", {"scored": True}, "expected a number"),
    "no score": ("text1\ttext2\na\tb\n", {"scored": True}, "no field score"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_line(name, tmp_path):
    text, fields, message = WRONG[name]
    with pytest.raises(UserError, match=message) as caught:
        groups_of(written(tmp_path / "a.tsv", text), **fields)
    assert "\n" not in str(caught.value)


NEGATIVES = (
    "negative", "negatives", "neg", "hard_negative", "hard_negatives", "hard_neg", "negative_1",
    "hard negative 2", "Hard-Negative",
)  # fmt: skip


def qa(path, name):
    """A file of three rows with ids, of which the second has a negative in the column `name`."""
    rows = [{"id": n, "question": f"q{n}", "answer": f"a{n}"} for n in range(3)]
    if path.suffix == ".jsonl":
        rows[1][name] = ["n1"]
        return written(path, "".join(json.dumps(row) + "\n" for row in rows))
    rows = [{**row, name: "n1" if row["id"] == 1 else None} for row in rows]
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(path)
    sign = {".csv": ",", ".tsv": "\t"}[path.suffix]
    cells = [[*rows[0]], *([str(cell or "") for cell in row.values()] for row in rows)]
    return written(path, "".join(sign.join(row) + "\n" for row in cells))


@pytest.mark.parametrize(
    ("form", "name"),
    [("jsonl", name) for name in NEGATIVES] + [(f, "hard_negative") for f in FORMS],
)
def test_negatives_of_some_rows_are_read_and_named(form, name, tmp_path):
    pytest.importorskip("pyarrow.parquet") if form == "parquet" else None
    path = qa(tmp_path / f"a.{form}", name)
    assert [texts[2:] for texts, _ in groups_of(path)] == [(), ("n1",), ()]
    line = TextGroups().reads(path)
    assert line == (
        f"{path}: 3 rows; reads question, answer, {name}; not read: id; 0 to 1 negatives in a row"
    )
    scored = TextGroups(scored=True, negatives=0).reads(path, labels=False)
    assert scored.endswith(f"reads question, answer; not read: id, {name}")


def test_a_row_without_its_negative_has_an_empty_text(tmp_path, models_of):
    """Its tokens are in no segment, by which the losses leave it out."""
    spec = TextGroups().settled([qa(tmp_path / "a.jsonl", "neg")] * 2)
    (model,) = models_of(spec)
    groups, _ = rows_of(model, spec, list(spec.read(tmp_path / "a.jsonl")), 16)
    assert spec.readings == 3
    assert [[len(row["segment_ids"]) > 0 for row in rows] for rows in groups] == [
        [True, True, False], [True, True, True], [True, True, False],
    ]  # fmt: skip


def test_columns_are_named(tmp_path):
    path = written(tmp_path / "a.csv", "No,Frage,Antwort,falsch,Note\n1,q,a,n,0.5\n2,r,b,,1\n")
    named = TextGroups().with_columns([path], ("frage", "Antwort", "falsch"), ())
    assert [e.texts for e in named.settled([path]).read(path)] == [("q", "a", "n"), ("r", "b")]
    assert "reads Frage, Antwort, falsch; not read: No, Note" in named.reads(path)
    stsb = catalogue.get("sts").examples.with_columns([path], ("Frage", "Antwort"), ("note",))
    assert [e.scores for e in stsb.read(path)] == [(0.5,), (1.0,)]
    assert catalogue.get("sts").examples.like(stsb) == stsb
    assert TextGroups().like(stsb) == TextGroups()


@pytest.mark.parametrize(
    ("task", "texts", "labels", "message"),
    [
        ("contrast", ("a",), (), "name the anchor, the positive text and any negatives"),
        ("sts", ("a", "b", "c"), (), "name two texts"),
        ("sts", ("a", "b"), ("c", "d"), "one column of numbers"),
        ("sts", ("a", "b"), ("b",), "each column once"),
        ("contrast", ("a", "e"), (), "has no column 'e'"),
    ],
)
def test_columns_that_do_not_fit(task, texts, labels, message, tmp_path):
    path = written(tmp_path / "a.csv", "a,b,c,d\n1,2,3,4\n")
    with pytest.raises(UserError, match=message):
        catalogue.get(task).examples.with_columns([path], texts, labels)


def test_a_row_of_json_without_its_number_is_refused(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text1": "a", "text2": "b"}\n')
    with pytest.raises(UserError, match="no field score"):
        groups_of(path, scored=True)


def test_scores_are_one_or_as_many_as_the_texts(tmp_path):
    with pytest.raises(UserError, match="4 scores for 3 texts"):
        groups_of(
            written(
                tmp_path / "b.jsonl",
                '{"anchor": "a", "positive": "b", "negatives": ["c", "d"], "score": [1, 2, 3, 4]}',
            )
        )


def test_prompts_are_those_of_the_model_s_folder():
    prompts = {"query": "ask: ", "passage": "read: ", "topic": "sort: "}
    sentence = Sentence(prompts=prompts, default_prompt="topic", lower=True, max_length=5)
    group = Group(("A", "b", "c"), (), "", 0)
    made = TextGroups(negatives=1).with_settings(sentence)
    assert made.prompted(group) == ("ask: a", "read: b", "read: c") and made.longest == 5
    scored = TextGroups(scored=True, negatives=0).with_settings(sentence)
    assert scored.prompted(group)[:2] == ("sort: a", "sort: b")
    chosen = TextGroups(queries="q: ", negatives=1).with_settings(sentence)
    assert chosen.prompted(group) == ("q: a", "b", "c")


@pytest.mark.parametrize("task", ["contrast", "sts", "copa"])
def test_a_task_of_several_rows_is_not_mixed(task):
    with pytest.raises(UserError, match=f"{task} is no task on whole texts"):
        multitask.read_data((f"{task}=a.tsv", "sst2=SST-2"), (task, "sst2"))


def test_micro_batches_are_refused_with_what_to_take(models_of):
    (model,) = models_of(TextGroups(negatives=0))
    recipe = Recipe(phases=(Phase(steps=1, batch=8, length=16),), lr=1e-3, accumulate=2)
    system = dataclasses.replace(model.system, recipe=recipe)
    assert "grad_cache" in TextGroups(negatives=0).refusal(system)


class Words:
    """A model whose vector of a text counts its letters."""

    system, sentence = types.SimpleNamespace(examples=None), None

    def encode(self, texts, **options):
        return np.array([[text.count(c) for c in "abcde"] for text in texts], np.float32)

    similarity = staticmethod(similarity)


def test_a_positive_is_ranked_among_all_texts(monkeypatch):
    monkeypatch.setattr(sentence_encoders, "BLOCK", 2)
    rows = [("ab", "abb", "a"), ("ab", "aab", "b"), ("c", "cd", "c"), ("e", "d", "ee")]
    examples = [Group(texts, (), "", n) for n, texts in enumerate(rows)]
    spec = TextGroups(negatives=1)
    found, _ = sentence_encoders.predict(Words(), spec, examples, 8, 4)
    every = list(dict.fromkeys(text for row in rows for text in row[1:]))
    vectors = {text: Words().encode([text])[0] for row in rows for text in row}
    for (anchor, positive, _), one in zip(rows, found, strict=True):
        others = {text for a, text, _ in rows if a == anchor} - {positive}
        cosines = {text: similarity(vectors[anchor], vectors[text])[0, 0] for text in every}
        better = [t for t in every if t not in others and cosines[t] > cosines[positive]]
        assert one.rank == 1 + len(better) and one.score == pytest.approx(cosines[positive])
    metrics = sentence_encoders.ranking(examples, found)
    assert metrics["mrr_at_10"] == np.mean([1 / one.rank for one in found])


def test_measures_of_ranks_are_their_definitions():
    found = ranks.of_ranks([1, 2, 11])
    assert found == pytest.approx({
        "ndcg_at_10": (1 + 1 / np.log2(3)) / 3, "mrr_at_10": 0.5, "recall_at_10": 2 / 3,
        "accuracy_at_1": 1 / 3,
    })  # fmt: skip


def pairs(folder, count=40, negatives=1, seed=0):
    """A file of random triplets of words, and one of pairs with numbers."""
    draw = np.random.default_rng(seed)

    def text():
        return " ".join(draw.choice(WORDS, draw.integers(2, 8)))

    names = ["anchor", "positive", *(f"negative_{n}" for n in range(negatives))]
    rows = ["\t".join(names), *("\t".join(text() for _ in names) for _ in range(count))]
    numbers = [f"{text()}\t{text()}\t{n % 6}" for n in range(count)]
    return (
        written(folder / "triplets.tsv", "\n".join(rows) + "\n"),
        written(folder / "scored.tsv", "\n".join(["text1\ttext2\tscore", *numbers]) + "\n"),
    )


@pytest.mark.full
def test_a_head_keeps_the_pooling_of_a_folder(published, models_of):
    (model,) = models_of(TextGroups(negatives=0))
    head = dataclasses.replace(model.module, heads={}), model.params["main"]
    plain = dataclasses.replace(
        model,
        system=dataclasses.replace(model.system, towers={"main": head[0]}),
    )
    np.testing.assert_array_equal(model.encode(["the film"]), plain.encode(["the film"]))


@pytest.mark.full
def test_from_the_command_to_the_folder(published, tmp_path, capsys):
    triplets, scored = pairs(tmp_path)
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    common = ["train", "--init", str(published), "--batch", "8", "--length", "16"]
    steps = ["--epochs", "2", "--set", "save_every=0"]
    assert main([*common, *steps, "--task", "contrast", "--data", triplets, "--workdir", run]) == 0
    assert "ndcg_at_10" in capsys.readouterr().out
    assert main(["evaluate", run, "--task", "sts", "--data", scored, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    model = ptm_jax.load(run)
    rows = [line.split("\t") for line in open(scored).read().splitlines()[1:]]
    a, b = (model.encode([row[n] for row in rows], normalize=True) for n in (0, 1))
    from scipy import stats

    expected = stats.spearmanr([float(row[2]) for row in rows], (a * b).sum(1))[0]
    assert metrics["spearman"] == pytest.approx(expected)
    assert main(["export", run, "--out", out]) == 0
    texts = ["the film was good", "a very long story", "sad"]
    np.testing.assert_array_equal(ptm_jax.load(out).encode(texts), model.encode(texts))
    poolers = [checkpoint.read(folder).params["main"]["heads_pool"] for folder in (published, out)]
    jax.tree.map(np.testing.assert_array_equal, *poolers)
    if PEER:
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(out, device="cpu")
        np.testing.assert_allclose(peer.encode(texts), model.encode(texts), atol=1e-5)


@pytest.mark.full
def test_python_trains_with_the_same_names(published, tmp_path):
    rows = [{"text1": f"the {word}", "text2": word, "score": n % 3} for n, word in enumerate(WORDS)]
    options = {"epochs": 1, "batch": 8, "quiet": True}
    model = ptm_jax.finetune(str(published), task="sts", data=rows, **options)
    assert {"spearman", "pearson"} <= set(ptm_jax.evaluate(model, task="sts", data=rows))


@pytest.mark.full
def test_fewer_negatives_by_command_keep_the_batch_in_groups(published, tmp_path, capsys):
    """Rows with 0 to 3 negatives, of which one is read: a batch is of eight groups of three."""
    rows = [
        {
            "anchor": f"the {word}",
            "positive": word,
            "negative": [f"{word} {k}" for k in "abc"][: n % 4],
        }
        for n, word in enumerate(WORDS * 2)
    ]
    (data := tmp_path / "mined.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in ("contrast", "colbert"):
        run = tmp_path / task
        words = ["train", "--init", str(published), "--task", task, "--data", str(data)]
        words += ["--workdir", str(run), "--batch", "8", "--length", "16", "--epochs", "1"]
        assert main([*words, "--set", "examples.negatives=1"]) == 0
        assert "of 8 rows" in capsys.readouterr().err
        (phase,) = workdirs.read(run)["config"]["system"]["recipe"]["phases"]
        assert phase["batch"] == 8 * 3
