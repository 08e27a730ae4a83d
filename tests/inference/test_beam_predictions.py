"""`ptm predict --runner`: an Apache Beam pipeline that writes the bytes of one process."""

import pytest

from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import direct
from ptm_jax.data.corpora.runners import Runner
from ptm_jax.inference.pretrained import Pretrained
from support import tiny_models

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def beam():
    return pytest.importorskip("apache_beam", reason="of the extra [beam]")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "texts.txt"
    rows = [f"the {word} [MASK]" for word in "king queen house hat city".split() * 4]
    path.write_text("\n".join([*rows, "", "the queen [MASK]"]))
    return path


def tagger():
    small = dict(tiny_models.classifier().published)
    config = Config({**small, "id2label": {"0": "O", "1": "B-A", "2": "I-A"}})
    tokenizer = tiny_models.build("bert").tokenizer
    system, _ = checkpoint.record_of(config, "BertForTokenClassification", tokenizer.vocab)
    return Pretrained(system, tiny_models.drawn(system), tokenizer, published=config)


def predicted(model, text, task, output, *more):
    words = ("predict", model, "--task", task, "--input", text, "--output", output, *more)
    return main([*map(str, words)])


def joined(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.glob("rows-*.jsonl")))


def test_each_task_has_the_bytes_of_one_process(text, tmp_path, monkeypatch, capsys):
    """The pipeline runs in this process, without the process around it."""
    monkeypatch.setattr(direct, "run", lambda job, runner, submit: submit(job, runner))
    models = {"fill-mask": tiny_models.build("bert"), "classify": tiny_models.classifier(),
        "tag": tagger()}  # fmt: skip
    for task, model in models.items():
        run = tiny_models.save_run(tmp_path / f"run-{task}", model)
        one, out = tmp_path / f"{task}.jsonl", tmp_path / task
        assert predicted(run, text, task, one) == 0, capsys.readouterr().err
        more = ("--runner", "direct", "--shards", "3")
        assert predicted(run, text, task, out / "rows.jsonl", *more) == 0, capsys.readouterr().err
        assert "wrote 3 of 3 shards (22 rows)" in capsys.readouterr().err
        assert joined(out) == one.read_bytes() and one.read_bytes().count(b"\n") == 22
    (out / "rows-00001-of-00003.jsonl").unlink()
    (out / "rows-00001-of-00003.jsonl.progress").unlink()
    assert predicted(run, text, task, out / "rows.jsonl", "--runner", "direct") == 0
    said = capsys.readouterr().err
    assert "2 of 3 shards were there\n1 shards by --runner direct\n" in said
    assert joined(out) == one.read_bytes()
    assert predicted(run, text, task, tmp_path / "o.jsonl", *more, "--strict") == 1
    wanted = f"ptm: {text}: line 21 is refused: it is empty; correct it, or leave --strict out"
    assert capsys.readouterr().err.splitlines()[-1] == wanted


DIES = """
import os, sys
if "ptm_jax.data.corpora.direct" in sys.orig_argv:
    from ptm_jax.inference.streams import journal
    publish = journal.published
    def dying(output):
        publish(output)
        try:
            os.close(os.open(os.environ["PTM_TEST_DIES"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os._exit(9)
    journal.published = dying
"""


def test_a_worker_that_dies_loses_nothing(text, tmp_path, monkeypatch, capsys):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PTM_TEST_DIES", str(tmp_path / "died"))
    run = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    assert predicted(run, text, "embed", tmp_path / "one.jsonl") == 0
    attempts, attempt = [], direct._attempt
    monkeypatch.setattr(
        direct, "_attempt", lambda request: attempts.append(attempt(request)) or attempts[-1]
    )
    more = ("--runner", "direct", "--shards", "3")
    assert predicted(run, text, "embed", tmp_path / "out" / "rows.jsonl", *more) == 0
    assert (tmp_path / "died").exists() and [status for status, _ in attempts] == [9, 0]
    assert joined(tmp_path / "out") == (tmp_path / "one.jsonl").read_bytes()


def test_what_a_cluster_would_be_sent():
    beam_shards = pytest.importorskip(
        "ptm_jax.inference.streams.beam_shards", exc_type=UserError, reason="of the extra [beam]"
    )
    from apache_beam import Pipeline
    from apache_beam.runners.portability.portable_runner import PortableRunner

    from ptm_jax.cli.models import predict, predict_shards
    from ptm_jax.data.corpora import beam as pipelines
    from ptm_jax.inference.streams.shard_files import Place

    runner = Runner("flink", ("flink_master=h:8081", "environment_config=IMAGE"))
    args = predict.Args(model="m", task="embed", input="/x", output="/o")
    place = Place("/o", "rows", ".jsonl")
    job = predict_shards.Job(args, predict.opened, place, numbers=(0, 1))
    pipeline = Pipeline(options=pipelines.options(runner))
    beam_shards.build(pipeline, job)
    sent = pipeline.to_runner_api(
        default_environment=PortableRunner._create_environment(pipeline._options)
    ).components
    assert any(b"IMAGE" in environment.payload for environment in sent.environments.values())
    names = {part.unique_name for part in sent.transforms.values()}
    assert {"shards", "spread", "predict/BeamML_RunInference"} <= names and len(names) < 60
