"""Every command that reads or writes a folder refuses a URL that it cannot use, before it does
anything. `tests/training/test_buckets.py` has the commands on gs:// and s3://."""

import dataclasses
import importlib

import pytest

import ptm_jax
from ptm_jax.cli.main import COMMANDS, main
from ptm_jax.cli.places import LOCAL, PLACES, REMOTE
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_local
from ptm_jax.data.stores import objects
from ptm_jax.runs import writing

OPTIONS = {
    (command, field.name, (field.default, field.default_factory))
    for command, (module, _) in COMMANDS.items()
    for field in dataclasses.fields(importlib.import_module(module).Args)
    if field.name in PLACES and (command, field.name) != ("export", "adapter")  # a switch
}


def words_of(command, option, url):
    """A command line with its positional arguments and required options."""
    needed = {
        "train": "bert_mini --data x.txt", "prepare": "--data x.txt", "export": "m", "import": "m",
        "compress": "prune m", "plan": "bert_base", "study": "s.py", "launch": "local c.py",
        "predict": "m --task embed", "average": "a b", "align": "a b --dictionary d",
        "topics": "lsa --data x.txt", "reproduce": "table1", "evaluate": "",
        "mine": "m --data x.tsv", "probe": "m --data x.conllu", "view": "m --text x",
    }  # fmt: skip
    other = {"import": "out", "compress": "out", "mine": "out", "launch": "workdir"}.get(command)
    needed = {n: w + (f" --{other} o" if n == command and other not in (None, option) else "")
        for n, w in needed.items()}  # fmt: skip
    words = [command, *needed.get(command, "").split()]
    if command == "evaluate" and option == "workdir":
        return [*words, url]
    return [*words, *(["m"] if command == "evaluate" else []), f"--{option}", url]


@pytest.mark.parametrize("option", sorted({(c, name) for c, name, _ in OPTIONS}))
@pytest.mark.parametrize("url", ["gs:/bucket/run", "az://b/x"])
def test_every_place_of_every_command(option, url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status = main(words_of(*option, url))
    said = capsys.readouterr().err
    assert status == 1 and said.count("\n") == 1 and f"--{option[1]} is {url}; the object" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", sorted({(c, name) for c, name, _ in OPTIONS} - {REMOTE}))
def test_every_place_reaches_the_store_or_is_refused(option, tmp_path, monkeypatch, capsys):
    """The store is asked for its bucket first: here the answer is an error."""

    def refuses(url):
        raise UserError(f"cannot read {url}: the store refuses it")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(objects, "check", refuses)
    status = main(words_of(*option, "gs://bucket/run"))
    said = capsys.readouterr().err
    wanted = "takes no object store" if option[0] in LOCAL else "cannot read gs://bucket/run: the"
    assert status == 1 and said.count("\n") == 1 and wanted in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["gs:/b/r", "hdfs://h/p", "file:///tmp/x",
    "az://c/p", "abfss://c@a/p", "https://h/x", "GS://B/r"])  # fmt: skip
def test_urls_and_paths(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="the object stores are gs://BUCKET/DIR"):
        check_local(url, "workdir")
    with pytest.raises(UserError, match="the object stores are gs://BUCKET/DIR"):
        writing.check_free(url)
    with pytest.raises(UserError, match="the object stores are gs://BUCKET/DIR"):
        ptm_jax.train("bert_mini", data=["x.txt"], workdir=url)
    assert not list(tmp_path.iterdir())
    for path in ("runs/a", "./gs:x", "a/b:/c", "/tmp/x:y", "C:run", str(tmp_path)):
        check_local(path, "workdir")
