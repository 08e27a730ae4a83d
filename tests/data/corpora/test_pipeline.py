"""The Beam pipeline: the bytes of the local path, whatever dies on the way; the options of runners
that are elsewhere."""

import collections
import sys

import numpy as np
import pytest

import ptm_jax.data.corpora
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import direct, prepare, splits, spool
from ptm_jax.data.corpora.jobs import Job
from ptm_jax.data.corpora.runners import Runner
from ptm_jax.data.text import cleaning, duplicates
from ptm_jax.data.text.documents import Document
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from support.tiny_runs import files as contents

ALL = (
    cleaning.Language(least=0.5),
    cleaning.C4(),
    duplicates.Spans(),
    duplicates.Exact(),
    duplicates.Near(),
)
TWO = Runner("direct", ("direct_num_workers=2", "direct_running_mode=multi_processing"))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "heldout, shard_bytes, train_bytes", [(0.1, 3000, 4000), (0.3, 700, 10**9), (0.0, 10**9, 1)]
)
def test_a_layout_is_that_of_the_spool(tmp_path, seed, heldout, shard_bytes, train_bytes):
    draw = np.random.default_rng(seed)
    texts = [
        f"Text {n} {'x' * draw.integers(80)}." for n in draw.integers(0, 60, 300)
    ]  # many are equal
    texts += ["The same again."] * 100
    text = spool.write((Document((t,)) for t in texts), tmp_path, seed)
    wanted = collections.Counter()
    for split, documents in text.split(heldout).items():
        sizes = text.sizes(documents)
        trained = splits.training(sizes, train_bytes) if split == "train" else 0
        number = np.searchsorted(
            splits.cuts(sizes, shard_bytes), np.arange(len(documents)), "right"
        )
        rows = zip(documents.tolist(), number.tolist(), strict=True)
        wanted.update((split, n, place < trained, texts[i]) for place, (i, n) in enumerate(rows))
    copies = collections.Counter(texts)
    facts = {t: spool.hashes(spool.to_bytes(Document((t,))), seed) for t in copies}
    index = np.array([(*facts[t], len(t) + 1, n) for t, n in copies.items()], np.uint64).T
    plan = splits.layout(index, heldout, shard_bytes, train_bytes)
    found = collections.Counter(
        (*where, t) for t, n in copies.items() for where in plan.of(*facts[t], n)
    )
    assert found == wanted


@pytest.mark.parametrize("kind, options, flags", [
    ("direct", (), ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]),
    ("flink", ("flink_master=h:8081", "environment_config=I", "parallelism=64"),
     ["--runner=FlinkRunner", "--environment_type=DOCKER", "--flink_master=h:8081",
     "--environment_config=I",
      "--parallelism=64"]),
    ("flink", ("flink_master=h:8081", "environment_type=LOOPBACK"),
     ["--runner=FlinkRunner", "--environment_type=LOOPBACK", "--flink_master=h:8081"]),
    ("spark", ("--spark_master_url=spark://h:7077", "environment_config=I"),
     ["--runner=SparkRunner", "--environment_type=DOCKER", "--spark_master_url=spark://h:7077",
     "--environment_config=I"]),
    ("dataflow", ("project=p", "region=r", "temp_location=gs://b/t", "setup_file=setup.py",
    "no_use_public_ips"),
     ["--runner=DataflowRunner", "--job_name=ptm-prepare", "--project=p", "--region=r",
     "--temp_location=gs://b/t",
      "--setup_file=setup.py", "--no_use_public_ips"]),
])  # fmt: skip
def test_rendered_options(kind, options, flags, capsys):
    assert Runner(kind, options).flags() == flags
    words = ["prepare", "--data", "x", "--out", "y", "--runner", kind, "--dry-run"]
    assert (
        main(
            [*words, "--runner-options", *(o.removeprefix("--") for o in options)]
            if options
            else words
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines() == flags


@pytest.mark.parametrize("line, message", [
    ("--runner flink", "needs flink_master; add --runner-options flink_master=host:8081"),
    ("--runner dataflow --runner-options project=p",
    "needs region; add --runner-options region=us-central1"),
    ("--runner spark --runner-options spark_master_url=s",
    "need ptm_jax; add --runner-options environment_config=IMAGE"),
    ("--runner direct --runner-options runner=x", "names a runner; give its kind with --runner"),
    ("--runner direct --runner-options =3", "expected NAME=VALUE"),
    ("--runner direct --staging tmp", "the staging is tmp; expected a URL"),
    ("--runner dataflow --runner-options project=p region=r temp_location=gs://b "
     "sdk_container_image=i --staging gs://b",
     "workers of dataflow see no folder of this machine"),
    ("--staging gs://b/d", "add --runner direct, flink, spark or dataflow"),
    ("--dry-run", "add --runner direct, flink, spark or dataflow"),
    ("--bad-words f", "--bad-words needs --clean c4"),
    ("--clean c4 --bad-words none.txt", "none.txt: cannot be read"),
    ("--similarity 0.5", "--similarity needs --dedup near"),
    ("--dedup near --similarity 7", "similarity=7.0"),
    ("--cooccurrence 0", "the window of co-occurrences is 0; expected 1 to 22"),
])  # fmt: skip
def test_refusals_are_one_line(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("Text.")
    assert main(["prepare", "--data", "x.txt", "--out", "y", *line.split()]) == 1
    shown = capsys.readouterr().err
    assert message in shown and len(shown.splitlines()) == 1


@pytest.mark.full
def test_the_command_cleans_and_reports(text_file, tmp_path, capsys):
    words = [
        "prepare",
        "--data",
        str(text_file),
        str(text_file),
        "--out",
        str(tmp_path / "c"),
        "--vocab",
        "120",
    ]
    assert main([*words, "--clean", "c4", "--dedup", "near", "--cooccurrence", "2"]) == 0
    shown = capsys.readouterr().out
    assert (
        "cleaning kept" in shown
        and "of 800 documents; dropped" in shown
        and "documents: duplicate" in shown
    )


@pytest.mark.parametrize("answers, attempts, message", [
    ([(0, "")], 1, None),
    ([(-9, "died"), (1, ""), (0, "")], 3, None),
    ([(3, "x.txt is not UTF-8")], 1, "^x.txt is not UTF-8$"),
    ([(-9, "RuntimeError: killed")] * 9, direct.ATTEMPTS,
    r"died in each of 4 attempts \(RuntimeError: killed\).*continue"),
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


@pytest.mark.full
def test_options_that_beam_does_not_know():
    beam = pytest.importorskip(
        "ptm_jax.data.corpora.beam", exc_type=UserError, reason="of the extra [beam]"
    )
    with pytest.raises(UserError, match="knows no option --nonsense"):
        beam.options(Runner("direct", ("nonsense=3",)))


@pytest.mark.full
@pytest.mark.parametrize("runner", [
    Runner("flink", ("flink_master=h:8081", "environment_config=IMAGE")),
    Runner("spark", ("spark_master_url=spark://h:7077", "environment_config=IMAGE")),
], ids=lambda runner: runner.kind)  # fmt: skip
def test_what_a_cluster_would_be_sent(runner, tmp_path):
    pipelines = pytest.importorskip(
        "ptm_jax.data.corpora.beam", exc_type=UserError, reason="of the extra [beam]"
    )
    from apache_beam import Pipeline
    from apache_beam.runners.portability.portable_runner import PortableRunner

    job = Job((("file", "x"),), tmp_path, str(tmp_path), TokenizerSpec(), 0.1, 0, 512, ALL, 5, 1000)
    pipeline = Pipeline(options=pipelines.options(runner))
    pipelines.build(pipeline, job)
    sent = pipeline.to_runner_api(
        default_environment=PortableRunner._create_environment(pipeline._options)
    ).components
    assert any(b"IMAGE" in environment.payload for environment in sent.environments.values())
    kinds = collections.Counter(transform.spec.urn for transform in sent.transforms.values())
    assert kinds["beam:transform:group_by_key:v1"] >= 8 and len(sent.transforms) < 120


def test_without_beam_there_is_an_install_line(monkeypatch, tmp_path, text_file):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "ptm_jax.data.corpora.beam", raising=False)
    monkeypatch.delattr(ptm_jax.data.corpora, "beam", raising=False)
    with pytest.raises(UserError, match=r"needs Apache Beam.*pip install 'ptm_jax\[beam\]'"):
        prepare.prepare(
            [str(text_file)], tmp_path / "a", tokenizer=TokenizerSpec(vocab=120), runner=Runner()
        )


@pytest.mark.full
@pytest.mark.parametrize("spec, options", [
    pytest.param(TokenizerSpec(kind="wordpiece", vocab=4096, train_bytes=500_000), {"workers": 2},
        id="plain"),
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
        assert (
            report["read"] > report["kept"] > 100 and "documents: language zh" in report["dropped"]
        )
    assert not list(tmp_path.glob(".*"))


DIES = """
import os, sys
if "sdk_worker_main" in " ".join(sys.orig_argv):
    from ptm_jax.data.corpora import shards
    finish = shards.Shard.finish
    def dying(shard):
        try:
            os.close(os.open(os.environ["PTM_TEST_DIES"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return finish(shard)
        os._exit(9)
    shards.Shard.finish = dying
"""


@pytest.mark.full
def test_a_worker_that_dies_loses_nothing(data, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam", reason="of the extra [beam]")
    monkeypatch.setattr(prepare, "SHARD_BYTES", 100_000)
    options = {
        "tokenizer": TokenizerSpec(kind="wordpiece", vocab=1024),
        "heldout": 0.05,
        "cleaning": (duplicates.Exact(),),
    }
    sources = [str(data / "lm" / name) for name in ("bert-sample-text", "clue-corpus-small")]
    local = prepare.prepare(sources, tmp_path / "local", **options)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PTM_TEST_DIES", str(tmp_path / "died"))
    attempts, attempt = [], direct._attempt
    monkeypatch.setattr(
        direct, "_attempt", lambda request: attempts.append(attempt(request)) or attempts[-1]
    )
    piped = prepare.prepare(sources, tmp_path / "piped", runner=TWO, **options)
    assert (tmp_path / "died").exists() and len(attempts) == 2 and "return code 9" in attempts[0][1]
    assert contents(local.dir) == contents(piped.dir)
    assert not list(tmp_path.glob(".*"))


BUCKET = """
import os, shutil, sys
if "ptm_jax.data.corpora.direct" in sys.orig_argv or "pytest" in sys.modules:
    from apache_beam.io.localfilesystem import LocalFileSystem

    def own(given):
        # ptmtest://x/y is the file y in the folder PTM_TEST_BUCKET
        if isinstance(given, list):
            return [own(url) for url in given]
        return given.replace("ptmtest://x", os.environ["PTM_TEST_BUCKET"])

    class Bucket(LocalFileSystem):
        scheme = classmethod(lambda cls: "ptmtest")

        def match(self, patterns, limits=None):
            found = super().match(own(patterns), limits)
            for entry in (entry for result in found for entry in result.metadata_list):
                entry.path = entry.path.replace(os.environ["PTM_TEST_BUCKET"], "ptmtest://x")
            return found

        def delete(self, paths):
            for path in own(paths):
                shutil.rmtree(path)

    for name in ("mkdirs", "create", "open", "exists", "rename"):
        def passed_on(self, *given, method=getattr(LocalFileSystem, name), **named):
            return method(self, *map(own, given), **named)
        setattr(Bucket, name, passed_on)
"""


@pytest.mark.full
def test_text_and_staging_at_urls(tmp_path, monkeypatch, text_file):
    pytest.importorskip("apache_beam", reason="of the extra [beam]")
    options = {
        "tokenizer": TokenizerSpec(kind="bytebpe", vocab=300, specials="roberta"),
        "block_tokens": 512,
    }
    local = prepare.prepare([str(text_file)], tmp_path / "local", **options)
    (tmp_path / "bucket" / "in").mkdir(parents=True)
    (tmp_path / "bucket" / "in" / "prose.txt").write_bytes(text_file.read_bytes())
    (tmp_path / "bucket" / "in" / "bad.txt").write_bytes(b"abc \xff")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BUCKET)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PTM_TEST_BUCKET", str(tmp_path / "bucket"))
    held = {}
    exec(BUCKET, held)  # the class is known while it lives
    runner = Runner("direct", staging="ptmtest://x/tmp")
    piped = prepare.prepare(
        ["ptmtest://x/in/pro*.txt"], tmp_path / "piped", runner=runner, **options
    )
    ours, theirs = contents(local.dir), contents(piped.dir)
    assert ours.keys() == theirs.keys() and [n for n in ours if ours[n] != theirs[n]] == [
        "manifest.json"
    ]
    assert (
        piped.manifest["request"]["sources"][0]["source"] == "ptmtest://x/in/prose.txt"
    )  # the one difference
    assert (
        piped.manifest["request"]["sources"][0]["sha256"]
        == local.manifest["request"]["sources"][0]["sha256"]
    )
    assert not list((tmp_path / "bucket" / "tmp").iterdir())
    with pytest.raises(UserError, match=r"^ptmtest://x/in/bad\.txt is not UTF-8 at byte 4"):
        prepare.prepare(["ptmtest://x/in/"], tmp_path / "bad", **options)
    with pytest.raises(UserError, match=r"nothing matches ptmtest://x/none/"):
        prepare.prepare(["ptmtest://x/none/"], tmp_path / "bad", **options)
    with pytest.raises(UserError, match=r"gone://x/\* cannot be reached .*apache-beam\[gcp\]"):
        prepare.prepare(["gone://x/"], tmp_path / "bad", **options)
