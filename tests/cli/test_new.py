"""`ptm new`: each file that it writes is complete, trains as it is for two steps, and does what its
docstring says."""

import json
import re
import subprocess
import sys
from pydoc_data.topics import topics

import numpy as np
import pytest

from ptm_jax.cli import new
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.own_code import import_file, loaded
from ptm_jax.data.text import sources
from support import corrupting, plain_towers, tiny_checkpoint
from support.tiny_runs import ptm

KINDS = ("objective", "corruption", "head", "reader", "task")
SMALL = [
    "system.recipe.phases=(Phase(steps=2, batch=4, length=16),)",
    "tokenizer.vocab=150",
    "system.towers.main.encoder.stack.layers=1",
    "system.towers.main.encoder.stack.block.attention.heads=2",
]
WORD = re.compile(r"\w+")
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind: the file that `ptm new` writes}."""
    folder = tmp_path_factory.mktemp("new")
    paths = {kind: folder / f"my_{kind}.py" for kind in KINDS}
    assert [ptm("new", kind, path) for kind, path in paths.items()] == [0] * len(KINDS)
    return paths


@pytest.fixture
def sources_again(monkeypatch):
    """A copy of the kinds of sources of this process: what a test adds ends with it."""
    monkeypatch.setattr(sources, "KINDS", dict(sources.KINDS))


def test_kinds_and_templates_are_the_same(files):
    folder = new.Path(new.__file__).parent / "templates"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{k}.py.txt" for k in KINDS)
    for path in files.values():
        assert len(path.read_text().splitlines()) < 75 and f"{path}" in path.read_text()
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E4,E7,E9,F,I,UP,B"]
    done = subprocess.run([*words, *files.values()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


FULL = [pytest.param(kind, marks=pytest.mark.full) for kind in ("corruption", "head", "reader")]


@pytest.mark.parametrize("kind", ["objective", *FULL])
def test_a_file_trains_as_it_is(kind, files, text, tmp_path, capsys, sources_again):
    data = [] if kind == "reader" else ["--data", text]
    words = ["train", files[kind], *data, "--workdir", tmp_path / "run", "--set", *SMALL]
    assert ptm(*words, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 2 and np.isfinite(result["heldout"]["loss"])
    if kind != "reader":  # the class of the file is in the record
        record = json.loads((tmp_path / "run" / "config.json").read_text())["own"]["classes"]
        assert [source["file"] for source in record.values()] == [str(files[kind])]


@pytest.mark.full
def test_the_task_is_fine_tuned(files, tmp_path, capsys):
    tiny_checkpoint.write(tmp_path / "model")
    rows = [f"a {'good' if n % 2 else 'bad'} film,{'yes' if n % 2 else 'no'}" for n in range(36)]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = ["train", "--init", tmp_path / "model", "--task", f"{files['task']}:mine", "--data"]
    words += [tmp_path / "table.csv", "--workdir", tmp_path / "run", "--epochs", 1, "--json"]
    assert ptm(*words) == 0
    assert {"macro_f1", "accuracy"} <= json.loads(capsys.readouterr().out)["metrics"].keys()


def hard_words(p, b):
    """The definition of the template's objective in float64."""
    states, total = plain_towers.states_of(p, b), 0.0
    for row, place in np.ndindex(b["mlm_positions"].shape):
        scores = states[row, b["mlm_positions"][row, place]] @ p["mlm"]
        probability = np.exp(scores) / np.exp(scores).sum()
        truth = probability[b["mlm_labels"][row, place]]
        smoothed = -0.9 * np.log(truth) - 0.1 * np.log(probability).mean()
        total += b["mlm_weights"][row, place] * (1 - truth) ** 2 * smoothed
    return [(total, b["mlm_weights"].sum())]


def test_the_objective_equals_its_definition(files):
    module = loaded(files["objective"]) or import_file(files["objective"])
    loss = plain_towers.check(module.HardWords(), hard_words, leaves=("mlm", "table"))
    assert {"mlm_nll", "mlm_accuracy"} == loss.metrics.keys()


def test_the_corruption_hides_one_run(files):
    module = loaded(files["corruption"]) or import_file(files["corruption"])
    batch = corrupting.documents(rows=64)
    after = corrupting.numpied(module.SkippedRun(vocab=corrupting.VOCAB, length=5), 0, batch)
    for row, ids in zip(np.asarray(batch["input_ids"]), after["input_ids"], strict=True):
        (places,) = np.nonzero(row != ids)
        assert not len(places) or places[-1] - places[0] < 6
        assert {*ids[places]} <= {corrupting.VOCAB.mask}
    assert (after["input_ids"] == corrupting.VOCAB.mask).any(1).mean() > 0.5


def test_the_reader_yields_the_topics_of_python(files, sources_again):
    module = import_file(files["reader"])
    documents = list(module.documents("topics:python"))
    words = [WORD.findall(" ".join(document.sentences)) for document in documents]
    assert words == [found for title in sorted(topics) if (found := WORD.findall(topics[title]))]
    assert sources.fingerprints("topics:python")[0]["sha256"] == module.fingerprint("topics:python")
    with pytest.raises(UserError, match="give topics:python"):
        list(module.documents("topics:perl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tfds"}, "another kind"),
        ({"forms": ("gs:NAME",)}, "another prefix"),
        ({"forms": ("NAME",)}, "without a prefix"),
    ],
)
def test_a_source_that_exists_is_refused(change, message, sources_again):
    fields = {"kind": "mine", "forms": ("mine:NAME",), "help": "", "documents": iter}
    with pytest.raises(UserError, match=message):
        sources.add(sources.Source(**{**fields, "fingerprint": str, **change}))


def test_no_file_is_overwritten(files, one_line, tmp_path):
    before = files["head"].read_text()
    assert "exists; give another name" in one_line("new", "objective", files["head"])
    assert files["head"].read_text() == before
    assert "ends in .py" in one_line("new", "head", tmp_path / "mine.txt")
    assert "cannot write" in one_line("new", "head", tmp_path / "no" / "mine.py")
    assert spec.to_json(import_file(files["head"]).config)["name"] == "bert_tiny_narrow_head"
