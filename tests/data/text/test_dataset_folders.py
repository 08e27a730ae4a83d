"""Folders as `datasets` saves them, and parquet in the Hub's layout; pyarrow writes the files."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import dataset_folders, sources
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import guessing

CLASS = {"names": ["bad", "good"], "_type": "ClassLabel"}
STRING = {"dtype": "string", "_type": "Value"}
FEATURES = {"sentence": STRING, "label": CLASS, "tags": {"feature": CLASS, "_type": "List"}}


def table(name, count):
    rows = [
        {"sentence": f"{name} text {n}", "label": n % 2, "tags": [1, n % 2]} for n in range(count)
    ]
    return pyarrow.Table.from_pylist(rows)


def saved(folder, name, count, features=FEATURES):
    """A split as `Dataset.save_to_disk` writes it, in two files."""
    folder.mkdir(parents=True)
    whole, files = table(name, count), []
    for part, rows in enumerate((whole.slice(0, count - 3), whole.slice(count - 3))):
        files.append({"filename": f"data-{part:05}-of-00002.arrow"})
        with pyarrow.ipc.new_stream(str(folder / files[-1]["filename"]), whole.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
    (folder / "cache-1234.arrow").write_bytes(b"of another program")
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    state = {"_data_files": files, "_fingerprint": "1", "_format_type": None, "_split": name}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def saved_dict(folder, **counts):
    for name, count in counts.items():
        saved(folder / name, name, count)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*counts]}))
    return folder


def hub(folder, place, **counts):
    """Parquet files as on the Hub: two of train, one of each other split."""
    (folder / place).mkdir(parents=True)
    (folder / "README.md").write_text("---\nno text of the data\n")
    info = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}
    for name, count in counts.items():
        whole = table(name, count).replace_schema_metadata(info)
        parts = [whole.slice(0, 4), whole.slice(4)] if name == "train" else [whole]
        for number, part in enumerate(parts):
            file = folder / place / f"{name}-{number:05}-of-{len(parts):05}.parquet"
            parquet.write_table(part, file)
    return folder


def folders(folder, **counts):
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        parquet.write_table(table(name, count), folder / name / "0000.parquet")
    return folder


LAYOUTS = {
    "saved": saved_dict,
    "data": lambda folder, **counts: hub(folder, "data", **counts),
    "config": lambda folder, **counts: hub(folder, "", **counts),
    "folders": folders,
}
COUNTS = {"train": 9, "validation": 5, "test": 4}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_and_rows(layout, tmp_path):
    folder = LAYOUTS[layout](tmp_path / "set", **COUNTS)
    splits = dataset_folders.splits_of(folder)
    assert set(splits) == set(COUNTS)
    for name, count in COUNTS.items():
        rows = [row for _, row in tabular.rows(splits[name])]
        expected = table(name, count).to_pylist()
        if layout != "folders":  # the files there do not name their classes
            names = CLASS["names"]
            for row in expected:
                row |= {"label": names[row["label"]], "tags": [names[tag] for tag in row["tags"]]}
        assert rows == expected
    digests = {tabular.digest(path) for path in splits.values()}
    assert len(digests) == len(COUNTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tasks_and_texts_read_them(layout, tmp_path):
    folder = str(LAYOUTS[layout](tmp_path / "set", **COUNTS))
    examples = catalogue.get("sst2").examples
    files = examples.files([folder])
    assert [files[split].held for split in ("train", "heldout")] == [None, None]
    assert [len(examples.examples(files[split])) for split in ("train", "heldout")] == [9, 5]
    labels = [one.label for one in examples.examples(files["train"])]
    assert labels == [str(n % 2) for n in range(9)]  # the classes of the task, by their numbers
    source = evaluating.source_of(catalogue.get("sst2"), [folder], "test")
    assert [one.first for one in examples.read(source.path, labels=False)][3] == "test text 3"

    asked = guessing.Asked(text_columns=("sentence",), label_columns=("label",))
    chosen = guessing.guess([folder], asked)
    assert chosen.task == "classify"
    settled = chosen.examples.settled([folder])
    assert settled.labels == (("0", "1") if layout == "folders" else ("bad", "good"))

    parts = sources.FILES.parts(folder)
    texts = [text for part in parts for text in sources.FILES.documents(part, 1 << 20)]
    assert len(parts) == (1 if layout == "folders" else 2)
    assert len(texts) == 9 and "train text 0" in str(texts[0]) and "train text 8" in str(texts[8])


def test_one_saved_split_is_divided(tmp_path):
    folder = saved(tmp_path / "set", "train", 20)
    files = catalogue.get("sst2").examples.files([str(folder)])
    assert {source.held for source in files.values()} == {True, False}
    assert dataset_folders.splits_of(tmp_path) == {}


def test_rows_without_a_label_have_none(tmp_path):
    folder = saved(tmp_path / "set", "test", 4)
    schema = table("test", 4).schema
    rows = [{**row, "label": -1} for row in table("test", 4).to_pylist()]
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00002.arrow"), schema) as writer:
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    assert [row["label"] for _, row in tabular.rows(folder)][:4] == ["-"] * 4
    examples = catalogue.get("sst2").examples
    assert [one.label for one in examples.read(str(folder), labels=False)][:4] == [None] * 4
    with pytest.raises(UserError, match="row 1: the label is '-'; there are 0, 1"):
        list(examples.read(str(folder)))


def damage(folder, what):
    file = folder / "train" / "data-00000-of-00002.arrow"
    state = folder / "train" / "state.json"
    if what == "an index":
        state.write_text(json.dumps(json.loads(state.read_text()) | {"_indices_data_files": [1]}))
    elif what == "a split outside":
        (folder / "dataset_dict.json").write_text('{"splits": ["../train"]}')
    elif what == "no state":
        state.write_text("{")
    elif what == "no file":
        file.unlink()
    elif what == "a cut file":
        file.write_bytes(file.read_bytes()[:700])
    else:
        file.write_bytes(b"no Arrow")


@pytest.mark.parametrize(
    "what, message",
    [("an index", "chooses rows by indices"), ("a split outside", "which is no folder"),
     ("no state", "names no data files"), ("no file", "data-00000-of-00002.arrow"),
     ("a cut file", "is not a readable Arrow file"), ("other bytes", "not a readable Arrow file")],
)  # fmt: skip
def test_damaged_folders_are_one_line(what, message, tmp_path):
    folder = saved_dict(tmp_path / "set", train=9)
    damage(folder, what)
    with pytest.raises(UserError, match=message) as caught:
        for source in catalogue.get("sst2").examples.files([str(folder)]).values():
            list(tabular.rows(source.path))
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_the_folder_of_the_library_itself(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        sentence=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])
    )
    data = {"sentence": ["a", "b", "c"], "label": [0, 1, -1]}
    one = datasets.Dataset.from_dict(data, features=features)
    datasets.DatasetDict(train=one, validation=one.select([1])).save_to_disk(str(tmp_path / "set"))
    many = datasets.Dataset.from_dict({"n": [*range(50)]}).shuffle(seed=3).select(range(20))
    many.save_to_disk(str(tmp_path / "many"), num_shards=3)
    assert [row for _, row in tabular.rows(tmp_path / "many")] == many.to_list()
    splits = dataset_folders.splits_of(tmp_path / "set")
    assert [row["label"] for _, row in tabular.rows(splits["train"])] == ["bad", "good", "-"]
    assert [row for _, row in tabular.rows(splits["validation"])] == [
        {"sentence": "b", "label": "good"}
    ]
