"""Domains of a corpus with given shares: their rows, an epoch, the held-out text of each, and what
is refused."""

import dataclasses
import json

import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora import stream
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.languages.multilingual import Multilingual
from ptm_jax.data.rows.languages.shares import Shares
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.runs.mixing import mixed
from ptm_jax.systems import get

OLD, NEW = "the cat sat on a mat", "dogs bark loudly near tall trees"
SIZES = {"length": 16, "batch": 4}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("domains")
    for name, text, count in (("old", OLD, 400), ("new", NEW, 600)):
        lines = [f"{text} {name}{n}" for n in range(count)]
        (folder / f"{name}.txt").write_text("\n\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def corpus(files):
    sources = [f"domain:{name}={files / name}.txt" for name in ("new", "old")]
    spec = TokenizerSpec(kind="wordpiece", vocab=150)
    return prepare(sources, files / "data", tokenizer=spec, heldout=0.1, block_tokens=128)


def share_of_old(corpus, rows):
    """The share of tokens in rows that have a word of the old text."""
    cat = corpus.tokenizer().id("mat")
    old = (rows["input_ids"] == cat).any(1)
    real = (rows["segment_ids"] > 0).sum(1)
    return real[old].sum() / real.sum()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_the_old_text_has_its_share_of_the_tokens(corpus, share):
    examples = Shares(examples=Packed(), shares=(("old", share),))
    batches = stream.Stream(corpus, "train", examples, seed=1, **SIZES)
    rows = [next(batches) for _ in range(400)]
    together = {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
    assert abs(share_of_old(corpus, together) - share) < 0.03
    names = {part.name for part in examples.parts(corpus, "train")}
    assert names == ({"new", "old"} if share else {"new"})
    assert {part.name for part in examples.parts(corpus, "heldout")} == {"new", "old"}


def test_an_epoch_reads_the_new_text_once(corpus):
    alone = stream.rows_per_epoch(corpus.language("new"), Packed(), **SIZES)
    for share in (0.0, 0.2):
        examples = Shares(examples=Packed(), shares=(("old", share),))
        rows = stream.rows_per_epoch(corpus, examples, **SIZES)
        assert rows == round(alone / (1 - share))


def test_a_mixture_is_sources_with_domains(files):
    config = Experiment(system=get("bert_tiny"), data=("new.txt",))
    found = mixed(config, ["0.2=old.txt", "0=older.txt"])
    assert found.data == ("domain:new=new.txt", "domain:old=old.txt", "domain:old_2=older.txt")
    assert found.system.examples.shares == (("old", 0.2), ("old_2", 0.0))
    assert found.system.examples.examples == config.system.examples
    assert mixed(config, []) is config
    again = mixed(dataclasses.replace(found, data=("x.txt",)), ["0.1=new.txt"])
    assert again.system.examples.shares == (("old", 0.1),)
    assert again.system.examples.examples == config.system.examples
    prepared = Experiment(system=get("bert_tiny"), data=(str(files / "data"),))
    assert mixed(prepared, ["0.3=old"]).data == prepared.data


WRONG = {
    "no share": (lambda c: mixed(c, ["old.txt"]), "SHARE=SOURCE"),
    "a share of all": (lambda c: mixed(c, ["1=old.txt"]), "from 0 to below 1"),
    "shares of all": (lambda c: mixed(c, ["0.5=a", "0.5=b"]), "sum is below 1"),
    "an unknown domain": (
        lambda c: Shares(examples=Packed(), shares=(("odl", 0.1),)).parts(c.data, "train"),
        "odl",
    ),
    "languages": (lambda c: Shares(examples=Multilingual()), "of one language"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mixture_is_one_line(name, corpus):
    act, message = WRONG[name]
    config = Experiment(system=get("bert_tiny"), data=("new.txt",))
    with pytest.raises(UserError, match=message) as caught:
        act(config if "domain" not in name else type("With", (), {"data": corpus}))
    assert "\n" not in str(caught.value)


def test_a_source_without_a_domain_is_named(files, capsys):
    command = [
        "prepare",
        "--out",
        str(files / "x"),
        "--data",
        f"domain:new={files}/new.txt",
        f"{files}/old.txt",
    ]
    assert main(command) == 1
    assert "old.txt has no domain" in capsys.readouterr().err
    assert main(["prepare", "--out", str(files / "x"), "--data", "domain:a-b=c.txt"]) == 1
    assert "domain:NAME=SOURCE" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.status("Domain- and task-adaptive MLM", "built")
def test_a_run_measures_both_texts(files, tmp_path, capsys):
    old, new = str(files / "old.txt"), str(files / "new.txt")
    small = ["recipe.phases.0.steps=4", "recipe.phases.0.batch=4", "recipe.phases.0.length=16"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    command = ["train", "bert_tiny", "--data", old, "--workdir", first, "--set", *small]
    assert main([*command, "tokenizer.vocab=90", "heldout=0.1"]) == 0
    command = ["train", first, "--data", new, "--mix", f"0.2={old}", "--workdir", second]
    capsys.readouterr()
    assert main([*command, "--set", *small, "heldout=0.1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["heldout"]
    assert {"mlm_nll", "old_mlm_nll", "new_mlm_nll"} <= document.keys()
    assert main(["evaluate", second, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["metrics"]
    assert all(again[name] == pytest.approx(document[name], rel=1e-5) for name in document)
    assert main(["evaluate", second, "--data", old, "--json"]) == 0
    assert "old_mlm_nll" not in json.loads(capsys.readouterr().out)["metrics"]
