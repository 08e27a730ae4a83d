"""The Beam pipeline: the bytes of the local path, whatever dies on the way; the options of runners that are elsewhere."""

from __future__ import annotations

import collections
import sys

import numpy as np
import pytest

import ptm_jax.data
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.data import cleaning, direct, duplicates, layout, prepare, spool
from ptm_jax.data.runners import Runner
from ptm_jax.data.sentences import Document
from ptm_jax.data.tokenizers import TokenizerSpec

TWO = Runner("direct", ("direct_num_workers=2", "direct_running_mode=multi_processing"))


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("heldout, shard_bytes, train_bytes", [(0.1, 3000, 4000), (0.3, 700, 10**9), (0.0, 10**9, 1)])
def test_a_layout_is_that_of_the_spool(tmp_path, seed, heldout, shard_bytes, train_bytes):
    draw = np.random.default_rng(seed)
    texts = [f"Text {n} {'x' * draw.integers(80)}." for n in draw.integers(0, 60, 300)]  # many are equal
    texts += ["The same again."] * 100
    text = spool.write((Document((t,)) for t in texts), tmp_path, seed)
    wanted = collections.Counter()
    for split, documents in text.split(heldout).items():
        sizes = text.sizes(documents)
        trained = layout.training(sizes, train_bytes) if split == "train" else 0
        number = np.searchsorted(layout.cuts(sizes, shard_bytes), np.arange(len(documents)), "right")
        rows = zip(documents.tolist(), number.tolist(), strict=True)
        wanted.update((split, n, place < trained, texts[i]) for place, (i, n) in enumerate(rows))
    copies = collections.Counter(texts)
    facts = {t: spool.hashes(spool.to_bytes(Document((t,))), seed) for t in copies}
    index = np.array([(*facts[t], len(t) + 1, n) for t, n in copies.items()], np.uint64).T
    plan = layout.layout(index, heldout, shard_bytes, train_bytes)
    found = collections.Counter((*where, t) for t, n in copies.items() for where in plan.of(*facts[t], n))
    assert found == wanted


@pytest.mark.parametrize("kind, options, flags", [
    ("direct", (), ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]),
    ("flink", ("flink_master=h:8081", "sdk_container_image=I", "parallelism=64"),
     ["--runner=FlinkRunner", "--environment_type=DOCKER", "--flink_master=h:8081", "--sdk_container_image=I",
      "--parallelism=64"]),
    ("flink", ("flink_master=h:8081", "environment_type=LOOPBACK"),
     ["--runner=FlinkRunner", "--environment_type=LOOPBACK", "--flink_master=h:8081"]),
    ("spark", ("--spark_master_url=spark://h:7077", "environment_config=I"),
     ["--runner=SparkRunner", "--environment_type=DOCKER", "--spark_master_url=spark://h:7077", "--environment_config=I"]),
    ("dataflow", ("project=p", "region=r", "temp_location=gs://b/t", "setup_file=setup.py", "no_use_public_ips"),
     ["--runner=DataflowRunner", "--job_name=ptm-prepare", "--project=p", "--region=r", "--temp_location=gs://b/t",
      "--setup_file=setup.py", "--no_use_public_ips"]),
])  # fmt: skip
def test_rendered_options(kind, options, flags, capsys):
    assert Runner(kind, options).flags() == flags
    words = ["prepare", "--data", "x", "--out", "y", "--runner", kind, "--dry-run"]
    assert main([*words, "--runner-options", *(o.removeprefix("--") for o in options)] if options else words) == 0
    assert capsys.readouterr().out.splitlines() == flags


@pytest.mark.parametrize("line, message", [
    ("--runner flink", "needs flink_master; add --runner-options flink_master=host:8081"),
    ("--runner dataflow --runner-options project=p", "needs region; add --runner-options region=us-central1"),
    ("--runner spark --runner-options spark_master_url=s", "need ptm_jax; add --runner-options sdk_container_image=IMAGE"),
    ("--runner direct --runner-options runner=x", "names a runner; give its kind with --runner"),
    ("--runner direct --runner-options =3", "expected NAME=VALUE"),
    ("--dry-run", "add --runner direct, flink, spark or dataflow"),
    ("--bad-words f", "--bad-words is a rule of --clean c4"),
    ("--clean c4 --bad-words none.txt", "none.txt cannot be read"),
    ("--similarity 0.5", "--similarity is of --dedup near"),
    ("--dedup near --similarity 7", "similarity=7.0"),
    ("--cooccurrence 0", "the window of co-occurrences is 0; expected 1 to 22"),
])  # fmt: skip
def test_refusals_are_one_line(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("Text.")
    assert main(["prepare", "--data", "x.txt", "--out", "y", *line.split()]) == 1
    shown = capsys.readouterr().err
    assert message in shown and len(shown.splitlines()) == 1


def test_the_command_cleans_and_tells(text_file, tmp_path, capsys):
    words = ["prepare", "--data", str(text_file), str(text_file), "--out", str(tmp_path / "c"), "--vocab", "120"]
    assert main([*words, "--clean", "c4", "--dedup", "near", "--cooccurrence", "2"]) == 0
    shown = capsys.readouterr().out
    assert "cleaning kept" in shown and "of 800 documents; dropped" in shown and "documents: duplicate" in shown


@pytest.mark.parametrize("answers, attempts, message", [
    ([(0, "")], 1, None),
    ([(-9, "died"), (1, ""), (0, "")], 3, None),
    ([(3, "x.txt is not UTF-8")], 1, "^x.txt is not UTF-8$"),
    ([(-9, "RuntimeError: killed")] * 9, direct.ATTEMPTS, r"died in each of 4 attempts \(RuntimeError: killed\).*goes on"),
])  # fmt: skip
def test_attempts(answers, attempts, message, monkeypatch):
    left = list(answers)
    monkeypatch.setattr(direct, "_attempt", lambda request: left.pop(0))
    if message:
        with pytest.raises(UserError, match=message):
            direct.run(None, Runner())
    else:
        direct.run(None, Runner())
    assert len(answers) - len(left) == attempts


def test_options_that_beam_does_not_know():
    beam = pytest.importorskip("ptm_jax.data.beam", exc_type=UserError, reason="of the extra [beam]")
    with pytest.raises(UserError, match="knows no option --nonsense"):
        beam.options(Runner("direct", ("nonsense=3",)))


def test_without_beam_there_is_an_install_line(monkeypatch, tmp_path, text_file):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "ptm_jax.data.beam", raising=False)
    monkeypatch.delattr(ptm_jax.data, "beam", raising=False)
    with pytest.raises(UserError, match=r"needs Apache Beam.*pip install 'ptm_jax\[beam\]'"):
        prepare.prepare([str(text_file)], tmp_path / "a", tokenizer=TokenizerSpec(vocab=120), runner=Runner())


ALL = (cleaning.Language(least=0.5), cleaning.C4(), duplicates.Spans(), duplicates.Exact(), duplicates.Near())


@pytest.mark.full
@pytest.mark.parametrize("spec, options", [
    pytest.param(TokenizerSpec(kind="wordpiece", vocab=4096, train_bytes=500_000), {"workers": 2}, id="plain"),
    pytest.param(TokenizerSpec(kind="unigram", vocab=1024, specials="t5", train_bytes=200_000),
                 {"cleaning": ALL, "cooccurrence": 5, "seed": 3}, id="cleaned"),
])  # fmt: skip
def test_the_pipeline_writes_the_same_bytes(data, tmp_path, monkeypatch, spec, options):
    pytest.importorskip("apache_beam", reason="of the extra [beam]")
    pytest.importorskip("py3langid", reason="of the extra [clean]")
    monkeypatch.setattr(prepare, "SHARD_BYTES", 400_000)
    options |= {"tokenizer": spec, "heldout": 0.05}
    local = prepare.prepare([str(data / "lm")], tmp_path / "local", **options)
    piped = prepare.prepare([str(data / "lm")], tmp_path / "piped", runner=Runner(), **options)
    assert contents(local.dir) == contents(piped.dir)
    assert len(local.paths("train")) > 1 and local.size("heldout")["documents"]
    if "cleaning" in options:
        report = local.manifest["cleaning"]
        assert report["read"] > report["kept"] > 100 and "documents: language zh" in report["dropped"]
    assert not list(tmp_path.glob(".*"))


DIES = """
import os, sys
if "sdk_worker_main" in " ".join(sys.orig_argv):
    from ptm_jax.data import blocks
    finish = blocks.Shard.finish
    def dying(shard):
        try:
            os.close(os.open(os.environ["PTM_TEST_DIES"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return finish(shard)
        os._exit(9)
    blocks.Shard.finish = dying
"""


@pytest.mark.full
def test_a_worker_that_dies_loses_nothing(data, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam", reason="of the extra [beam]")
    monkeypatch.setattr(prepare, "SHARD_BYTES", 100_000)
    options = {"tokenizer": TokenizerSpec(kind="wordpiece", vocab=1024), "heldout": 0.05, "cleaning": (duplicates.Exact(),)}
    sources = [str(data / "lm" / name) for name in ("bert-sample-text", "clue-corpus-small")]
    local = prepare.prepare(sources, tmp_path / "local", **options)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PTM_TEST_DIES", str(tmp_path / "died"))
    attempts, attempt = [], direct._attempt
    monkeypatch.setattr(direct, "_attempt", lambda request: attempts.append(attempt(request)) or attempts[-1])
    piped = prepare.prepare(sources, tmp_path / "piped", runner=TWO, **options)
    assert (tmp_path / "died").exists() and len(attempts) == 2 and "return code 9" in attempts[0][1]
    assert contents(local.dir) == contents(piped.dir)
    assert not list(tmp_path.glob(".*"))
