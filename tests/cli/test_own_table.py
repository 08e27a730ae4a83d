"""The path of a table of the user's: train, predict, evaluate, export, by the commands."""

import csv
import json
import shlex
import types

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli import main
from ptm_jax.cli.runs import own_table
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Linear, Phase, Recipe
from ptm_jax.tuning import own_data
from support import tiny_checkpoint
from support import tiny_runs as tiny

WORDS = tiny_checkpoint.WORDS
GOOD, BAD = "good funny film", "bad sad film"
QUICK = ("--epochs", "1", "--batch", "8", "--length", "64")


def texts(count, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(2, 9))) for _ in range(count)]


def written(path, columns, separator=","):
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def read(path, separator=","):
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_checkpoint.write(tmp_path_factory.mktemp("model"), scale=0.5))


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled"):
        yield


COUNT = 40
FIRST, SECOND = texts(COUNT), texts(COUNT, 1)
TABLES = {
    "classify": ({"Question": FIRST, "topic": ["praise", "complaint"] * (COUNT // 2)},
                 ("question",), ("topic",)),
    "pairs": ({"a": FIRST, "b": SECOND, "same": ["yes", "no", "no", "yes"] * (COUNT // 4)},
              ("a", "b"), ("same",)),
    "rate": ({"text": FIRST, "price": [f"{1900 + 3.5 * n}" for n in range(COUNT)]},
             ("text",), ("price",)),
    "labels": ({"text": FIRST, "tags": ["x|y", "y", "x", "z|x"] * (COUNT // 4)},
               ("text",), ("tags",)),
    "ner": ({"words": FIRST, "tags": [
        " ".join("B-FILM" if word in ("film", "story") else "O" for word in text.split())
        for text in FIRST]}, ("words",), ("tags",)),
    "answers": ({"ask": ["is it good"] * COUNT, "said": [f"the {t} end {n}" for n, t in
                enumerate(FIRST)], "part": [t.split()[0] + " " + t.split()[1] for t in FIRST]},
                ("ask", "said"), ("part",)),
}  # fmt: skip


def trained(model, folder, name, *more):
    """The words of `ptm train` on a table."""
    columns, text, label = TABLES[name]
    table = written(folder / "train.csv", columns)
    words = ["train", "--init", model, "--data", str(table), "--text-column", *text]
    words += ["--label-column", *label, "--heldout", "0.2", "--workdir", str(folder / "own")]
    return [*words, *QUICK, *more]


def test_the_path_of_a_table(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(trained(model, tmp_path, "classify")) == 0
    printed = capsys.readouterr()
    assert "task: classify, a class of a text" in printed.err
    assert "32 rows to train on, each read 1 times; 8 held out" in printed.err
    lines = printed.out.splitlines()
    assert next(line for line in lines if line.split()[:1] == ["complaint"]).split()[-1] == "4"
    assert [line.split()[1] for line in lines[lines.index("next:") + 1 :]] == [
        "predict", "evaluate", "export",
    ]  # fmt: skip
    assert (
        "4 steps of 8 rows, 1 epoch; learning rate up to 5e-05 (Linear, 1 step of warm-up)"
        in printed.err
    )
    assert "fewer than 2 epochs" in printed.err and "--epochs 3" in printed.err
    held = read(tmp_path / "own" / "predictions.csv")
    assert len(held) == 8 and list(held[0]) == ["text", "gold", "prediction", "score"]
    columns = TABLES["classify"][0]
    known = set(zip(columns["Question"], columns["topic"], strict=True))
    assert all((row["text"], row["gold"]) in known for row in held)

    new = written(tmp_path / "new.csv", {"id": range(3), "question": FIRST[:3]}, ";")
    predict = ["predict", "own", "--task", "classify", "--input", str(new), "--output"]
    assert main.main([*predict, "out.tsv"]) == 0 and main.main([*predict, "out.jsonl"]) == 0
    rows = read(tmp_path / "out.tsv", "\t")
    expected = ptm_jax.load("own").classify(FIRST[:3])
    for row, scores, line in zip(
        rows, expected, (tmp_path / "out.jsonl").read_text().splitlines(), strict=True
    ):
        best = max(scores, key=scores.get)
        assert row["prediction"] == best == json.loads(line)["prediction"] and row["gold"] == ""
        assert float(row["score"]) == pytest.approx(scores[best], abs=1e-5)

    capsys.readouterr()
    assert main.main(["evaluate", "own", "--task", "classify", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    right = np.mean([row["gold"] == row["prediction"] for row in held])
    assert document["metrics"]["accuracy"] == right and document["examples"] == 8
    assert {*document["classes"]} == {"praise", "complaint"}
    assert main.main(trained(model, tmp_path, "classify", "--json")) == 0  # it is only read
    assert json.loads(capsys.readouterr().out)["classes"] == document["classes"]


@pytest.mark.parametrize(
    ("steps", "warmup", "line", "hints"),
    [
        (30, 3, "30 steps of 8 rows, 3 epochs; learning rate up to 0.001 (Linear, 3 steps", ()),
        (20, 3, "20 steps of 8 rows, 2 epochs", ()),
        (15, 3, "15 steps of 8 rows, 1.5 epochs", ("fewer than 2 epochs",)),
        (30, 60, "learning rate up to 0.0005 (", ("ends in its warm-up", "warmup=3")),
    ],
)
def test_the_recipe_in_force_is_printed(steps, warmup, line, hints):
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=16, length=8),), lr=1e-3, schedule=Linear(warmup=warmup)
    )
    system = types.SimpleNamespace(recipe=recipe, examples=types.SimpleNamespace(readings=2))
    run = own_data.OwnRun("classify", None, (), False, rows=73)
    first, *others = run.plan(types.SimpleNamespace(system=system)).splitlines()
    assert line in first and len(others) == bool(hints)
    assert all(hint in "".join(others) for hint in hints)


def test_few_steps_of_a_model_without_a_new_head_have_a_hint():
    recipe = Recipe(
        phases=(Phase(steps=9, batch=24, length=8),), lr=1e-3, schedule=Linear(warmup=1)
    )
    system = types.SimpleNamespace(recipe=recipe, examples=types.SimpleNamespace(readings=3))
    first, hint = own_data.plan(types.SimpleNamespace(system=system), 70, new_head=False)
    assert "9 steps of 8 rows, 1 epoch" in first and "--epochs 6" in hint


def test_the_commands_after_a_sentence_encoder():
    run = types.SimpleNamespace(task="contrast", workdir="my runs/a")
    first, *lines = own_table.next_of_task(run)
    assert first == "next:" and [line.split()[1] for line in lines] == [
        "evaluate", "predict", "export",
    ]  # fmt: skip
    assert all(shlex.split(line)[2] == "my runs/a" for line in lines)
    assert own_table.next_of_task(types.SimpleNamespace(task="sst2", workdir="a")) == []
    spans = types.SimpleNamespace(task="gliner", workdir="a", classes={"a river": None})
    assert "--types 'a river'" in own_table.next_of_task(spans)[2]


REFUSED = {
    "a share of pairs": (
        ["--init", "MODEL", "--data", "TABLE", "--task", "contrast", "--heldout", "0.1"],
        "contrast holds out a tenth",
    ),
    "a column of pairs that is not there": (
        ["--init", "MODEL", "--data", "TABLE", "--task", "contrast", "--text-column", "a", "label"],
        "has no column 'a'",
    ),
    "no model": (["--label-column", "topic"], "--label-column needs the model (--init)"),
    "a system": (["bert_mini", "--heldout", "0.1"], "leave --heldout out, or the system"),
    "two files": (
        ["--init", "MODEL", "--data", "TABLE", "TABLE", "--heldout", "0.1"], "divides one file",
    ),
    "several tasks": (
        ["--init", "MODEL", "--data", "TABLE", "--tasks", "rte", "--heldout", "0.1"],
        "leave --heldout out, or --tasks",
    ),
    "a published task": (
        ["--init", "MODEL", "--data", "TABLE", "--task", "sst2", "--text-column", "Question"],
        "sst2 reads files in their published form",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_tables_that_do_not_fit(name, model, tmp_path, capsys):
    words, message = REFUSED[name]
    table = written(tmp_path / "t.csv", {"Text": FIRST, "label": TABLES["classify"][0]["topic"]})
    places = {"MODEL": model, "TABLE": str(table)}
    words = [places.get(word, word) for word in words]
    assert main.main(["train", *words, "--workdir", str(tmp_path / "run")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_python_has_the_same_names(model):
    columns = TABLES["classify"][0]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    options = {"epochs": 1, "batch": 8, "length": 64, "quiet": True}
    tuned = ptm_jax.finetune(
        model, data=rows, text_column="Question", label_column=["topic"], heldout=0.2, **options
    )
    assert {*tuned.classify(FIRST[:1])[0]} == {"praise", "complaint"}
    with pytest.raises(UserError, match="give it as data"):
        ptm_jax.finetune(model, FIRST, columns["topic"], label_column="topic")


@pytest.mark.full
@pytest.mark.parametrize("task", TABLES)
def test_an_export_predicts_the_same_in_transformers(task, model, tmp_path, monkeypatch, capsys):
    """Train, predict and export by the commands; transformers gives the predictions of the file."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    assert main.main(trained(model, tmp_path, task, "--lr", "3e-3")) == 0
    assert f"task: {task}," in capsys.readouterr().err
    assert main.main(["predict", "own", "--input", "train.csv", "--output", "out.csv"]) == 0
    assert main.main(["export", "own", "--out", "hf"]) == 0
    rows = read(tmp_path / "out.csv")
    assert len(rows) == COUNT
    kind = {"ner": "TokenClassification", "answers": "QuestionAnswering"}.get(
        task, "SequenceClassification"
    )
    peer = getattr(transformers, f"AutoModelFor{kind}").from_pretrained("hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("hf")
    for row in rows:
        pair = [row["pair"]] if "pair" in row else []
        words = row["text"].split()
        given = (
            tokenizer(words, is_split_into_words=True, return_tensors="pt")
            if task == "ner"
            else tokenizer(row["text"], *pair, return_tensors="pt")
        )
        with torch.no_grad():
            out = peer(**given)
        names = peer.config.id2label
        if task == "answers":
            scores = (out.start_logits[0].numpy(), out.end_logits[0].numpy())
            inside = [n for n, part in enumerate(given.sequence_ids(0)) if part == 1]
            begins, stops = (  # the 20 best of run_squad
                sorted(inside, key=lambda n, part=part: -part[n])[:20] for part in scores
            )
            spans = {(a, b): scores[0][a] + scores[1][b] for a in begins for b in stops
                     if a <= b < a + 30}  # fmt: skip
            a, b = max(spans, key=spans.get)
            start, end = given.token_to_chars(0, a).start, given.token_to_chars(0, b).end
            assert row["prediction"] == row["pair"][start:end]
            continue
        logits = out.logits[0].numpy().astype(float)
        if task == "ner":
            first = {word: n for n, word in reversed(list(enumerate(given.word_ids(0))))}
            tags = [names[int(logits[first[n]].argmax())] for n in range(len(words))]
            assert row["prediction"] == " ".join(tags)
        elif task == "rate":
            assert float(row["prediction"]) == pytest.approx(logits[0], rel=1e-5)
        elif task == "labels":
            assert peer.config.problem_type == "multi_label_classification"
            chosen = [names[n] for n in np.flatnonzero(logits > 0)]
            assert row["prediction"] == "|".join(chosen)
        else:
            chances = np.exp(logits - logits.max())
            assert row["prediction"] == names[int(logits.argmax())]
            assert float(row["score"]) == pytest.approx(chances.max() / chances.sum(), abs=1e-5)
    assert len({row["prediction"] for row in rows} | {row["score"] for row in rows}) > 8
    if task == "rate":
        numbers = [float(row["prediction"]) for row in rows]
        assert 1880 < np.mean(numbers) < 2060  # the numbers of the column, not of deviation 1
