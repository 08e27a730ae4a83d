"""`ptm train` and bad input: one line with the next step, exit 1, and nothing lost or half
written."""

import contextlib
import dataclasses
import errno
import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from ptm_jax.cli import options
from ptm_jax.cli.runs import train as command
from ptm_jax.training import loop
from ptm_jax.training.start import differing
from support import tiny_runs as tiny
from support.tiny_runs import ptm

EXAMPLE = Path(__file__).parent / "example_objective.py"
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, text):
    """The text prepared with GPT-2's tokenizer, which has neither [MASK] nor [CLS]."""
    out = tmp_path_factory.mktemp("prepared") / "gpt2"
    spec = ["--tokenizer", "bytebpe", "--specials", "gpt2", "--vocab", 300, "--heldout", 0.2]
    assert ptm("prepare", "--data", text, "--out", out, *spec) == 0
    return out


@pytest.fixture
def refused(one_line, monkeypatch, tmp_path):
    """The one line of a refused `ptm train`, the only output."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        err = one_line("train", *words)
        assert err.count("\n") == 1, err
        return err

    return call


def listed(folder):
    return sorted(p.name for p in Path(folder).iterdir()) if Path(folder).is_dir() else []


BROKEN = """
import dataclasses
from support import tiny_runs

def mine(towers, batch, key):
    return RETURNS

system = dataclasses.replace(tiny_runs.system, objective=mine)
config = dataclasses.replace(tiny_runs.config, system=system)
"""

# {words after the config: parts of the line}
BAD = {
    "--data texd.txt": ["no such data source: texd.txt", "Did you mean 'text.txt'?"],
    "--data empty.txt": ["empty.txt holds no text; expected at least one document"],
    "--data latin.txt": ["latin.txt", "UTF-8"],
    "--data folder": ["no text files below folder; expected"],
    "--data *.csv": ["no file matches *.csv; check the pattern"],
    "--data a.pdf": ["a.pdf has no format that is read; expected .txt"],
    "--set system.tokenizer.vocab=5000": [
        "vocabulary of 5000 is larger than the text supports; the largest that works is",
    ],
    "--set recipe.phases.1.length=64": [
        "rows of 64 tokens are longer than the position table of 32",
        "set recipe.phases.1.length to at most 32",
    ],
    "--set recipe.phases.0.length=1": ["rows of length 1 have no room"],
    "--set recipe.phases.0.step=3": [
        "unknown field of system.recipe.phases.0 (Phase) 'step'", "batch, length, steps",
        "Did you mean 'steps'?",
    ],
    "--set recipe.steps=3": ["system.recipe (Recipe) 'steps'", "mean 'recipe.phases.0.steps'?"],
    "--set steps=3": ["unknown field 'steps'", "Did you mean 'recipe.phases.0.steps'?"],
    "--set recipee.lr=3": ["unknown field 'recipee'", "Did you mean 'recipe'?"],
    "--set recipe.phases.0.steps=many": ["recipe.phases.0.steps must be a whole number", "'many'"],
    "--set recipe.phases.0.steps=0": ["steps is 0; it must be at least 1"],
    "--set recipe.accumulate=3": [
        "recipe.accumulate is 3, which does not divide the batch of 8 rows",
    ],
    "--rules megatrom": ["unknown rule table 'megatrom'", "Did you mean"],
    "--mesh dato=1": ["unknown mesh axis 'dato'", "Did you mean 'data'"],
    "--mesh data=2,model=2": ["needs 4 devices; this process group has 1"],
    "--mesh data": ["--mesh takes axis=size", "'data'"],
    "--set towers.main.encoder.stack.block.attention.heads=3": ["tiny cannot be trained", "3"],
    "--set objective=MLM(head='lm')": ["has no head 'lm'; it has mlm"],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, refused, text, tmp_path):
    words = case if case.startswith("--data") else f"--data text.txt {case}"
    shutil.copy(text, tmp_path / "text.txt")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("A café, déjà vu.\n".encode("latin-1"))
    (tmp_path / "a.pdf").touch()
    (tmp_path / "folder").mkdir()
    before = {*listed(tmp_path)}
    line = refused(tiny.FILE, *words.split(), "--workdir", "run")
    assert all(word in line for word in BAD[case]), line
    assert {*listed(tmp_path)} - before <= {"run"} and set(listed("run")) <= {".data.preparing"}, (
        listed("run")
    )


def test_a_vocabulary_without_a_token_that_the_system_needs(refused, prepared, text, tmp_path):
    line = refused(tiny.FILE, "--data", prepared, "--workdir", "run")
    assert "cls" in line and "tokenizer" in line
    line = refused(
        tiny.FILE,
        "--data",
        prepared,
        "--workdir",
        "run",
        "--set",
        "examples=Contiguous(separator=eos)",
    )
    assert "no mask token" in line and "tokenizer" in line
    assert not listed("run")
    line = refused(
        "gpt_mini", "--data", prepared, "--workdir", "run", "--set", "system.examples.separator=sep"
    )
    assert "sep" in line and not listed("run")
    spec = "tokenizer=TokenizerSpec(specials=bert,vocab=200)"
    line = refused("gpt_mini", "--data", text, "--workdir", "run", "--set", spec)
    assert (
        "no eos token" in line
        and "ptm prepare --data SOURCE --out DIR --tokenizer bytebpe --specials gpt2" in line
    )


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (
            'batch["nothing"]',
            [
                "mine.py:6: KeyError: 'nothing'; the batch has the fields input_ids, ",
                "the towers are main",
            ],
        ),
        (
            'towers["main"](batch).hidden.sum()',
            ["objective mine (", "mine.py:5) returns float32[];", "Loss(sum, weight)"],
        ),
        (
            'towers["main"](batch).hidden[0, 0]',
            ["mine.py:5) returns float32[16]; it must return ptm_jax.core.types.Loss"],
        ),
        ("None", ["mine.py:5) returns NoneType;"]),
    ],
)
def test_an_error_in_the_users_own_objective_names_their_line(
    refused, text, tmp_path, returns, words
):
    (tmp_path / "mine.py").write_text(BROKEN.replace("RETURNS", returns))
    line = refused("mine.py", "--data", text, "--workdir", "run")
    assert all(word in line for word in words) and "tokenizer" not in line and not listed("run"), (
        line
    )


@pytest.mark.full
@pytest.mark.parametrize("place", ["file/run", "/sys/run", "file"])
def test_a_workdir_that_cannot_be_written(refused, text, prepared, tmp_path, place):
    (tmp_path / "file").write_text("x")
    assert (
        "cannot write" in (line := refused(tiny.FILE, "--data", text, "--workdir", place))
        and "can be written" in line
    )
    words = [
        "--data",
        prepared,
        "--set",
        "examples=Contiguous(separator=eos)",
        "objective=LM",
        "corruption=none",
    ]
    line = refused("gpt_mini", *words[:2], "--workdir", place, "--set", "recipe.phases.0.length=32")
    assert "cannot write" in line and "name a workdir that can be written" in line
    assert listed(tmp_path) == ["file"]


@pytest.mark.full
def test_a_read_only_workdir_keeps_what_it_has(run, refused, text, monkeypatch, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000009")
    before = tiny.files(tmp_path / "run")

    def refuse(path, *args, **options):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for name in ("mkdir", "write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, refuse)
    line = refused(tiny.FILE, "--data", text, "--workdir", "run", "--set", *tiny.SMALL)
    assert "Read-only file system" in line and "can be written" in line
    assert tiny.files(tmp_path / "run") == before


@pytest.mark.full
def test_a_full_disk_leaves_the_checkpoint_before(run, text, tmp_path):
    """A limit on the size of files stands for the disk: the arrays of the next checkpoint do not
    fit. Compiled programs do not either, so that their folder is of this test."""
    workdir = tmp_path / "run"
    shutil.copytree(run, workdir)
    for step in (8, 9):
        shutil.rmtree(workdir / "checkpoints" / f"step_{step:08d}")
    arguments = [
        *tiny.PTM,
        "train",
        tiny.FILE,
        "--data",
        text,
        "--workdir",
        str(workdir),
        "--set",
        *tiny.SMALL,
    ]

    size = (workdir / "config.json").stat().st_size + 200

    def limit():
        return resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    environment = tiny.environment(tmp_path / "programs")
    result = subprocess.run(
        arguments, preexec_fn=limit, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("ptm: ")]
    assert (
        "File too large" in line
        and "The checkpoint of step 4 is intact" in line
        and "free space" in line
    )
    assert listed(workdir / "checkpoints") == ["step_00000004"]
    assert not [p for p in tiny.files(workdir) if "draft" in p]
    assert ptm(*arguments[len(tiny.PTM) :]) == 0
    tiny.assert_same_run(run, workdir)


@pytest.mark.full
@pytest.mark.parametrize("name", ["write_bytes", "mkdir"])
def test_a_disk_that_is_full_at_the_start(refused, text, prepared, monkeypatch, tmp_path, name):
    """Neither half a record nor half a tokenizer is left."""
    real = getattr(Path, name)

    def full(path, *args, **options):
        if path.name.endswith(".draft"):
            with contextlib.suppress(OSError):
                real(path, *args, **options)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(Path, name, full)
    line = refused(tiny.FILE, "--data", text, "--workdir", "run")
    assert "No space left on device" in line and "free space there or name a workdir" in line
    assert not [
        name for name in listed("run") if name.endswith(".draft")
    ] and "tokenizer" not in listed("run")


@pytest.mark.full
def test_a_tokenizer_that_does_not_match(run, refused, text, prepared, tmp_path):
    """The workdir's was exchanged; the corpus was prepared anew with another; the checkpoint is of
    another run."""
    shutil.copytree(run, tmp_path / "run")
    words = [tiny.FILE, "--data", text, "--workdir", "run", "--set", *tiny.SMALL]
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    shutil.copytree(prepared / "tokenizer", tmp_path / "run" / "tokenizer")
    line = refused(*words)
    assert "is not the one that the run was trained with" in line and "put that one back" in line
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    line = refused(tiny.FILE, "--data", prepared, "--workdir", "run", "--set", *tiny.SMALL)
    assert "corpus.tokenizer" in line and "Choose another --workdir" in line
    record = next((tmp_path / "run" / "checkpoints").glob("*_00000009")) / "record.json"
    from ptm_jax.training import sealing

    body = json.loads(record.read_text())["body"]
    body["meta"]["tokenizer"] = "0" * 64
    record.write_text(json.dumps({"crc32": sealing._crc_of(body), "body": body}))
    assert "the run was trained with (000000000000)" in refused(*words)


@pytest.mark.parametrize("content", ["{", "[]", '{"config": {}}'])
def test_a_damaged_record(refused, text, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(content)
    line = refused(tiny.FILE, "--data", text, "--workdir", "run")
    assert "is no record of a run" in line and listed("run") == ["config.json"]


@pytest.mark.full
def test_the_example_of_an_objective_trains(text, tmp_path, capsys):
    """A plain function in a file of one's own, as the README shows it, in under 25 lines."""
    assert len(EXAMPLE.read_text().splitlines()) < 25
    shutil.copy(EXAMPLE, tmp_path / "my_config.py")
    words = [
        "system.tokenizer.vocab=200",
        "recipe.phases=(Phase(steps=30, batch=8, length=32),)",
        "precision=float32",
    ]
    words += ["towers.main.encoder.stack.block.attention.heads=2"]
    arguments = [
        "train",
        tmp_path / "my_config.py",
        "--data",
        text,
        "--workdir",
        tmp_path / "run",
        "--set",
        *words,
    ]
    assert ptm(*arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == result["steps"] == 30 and {"loss", "mlm_nll"} <= set(result["heldout"])
    lines = [x["values"]["loss"] for x in tiny.metrics(tmp_path / "run") if x["split"] == "train"]
    assert lines[-1] < 0.9 * lines[0]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["system"][
        "objective"
    ].endswith(":focal_mlm")


@pytest.mark.full
def test_the_summary_of_a_run(run, text, capsys):
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", run, "--set", *tiny.SMALL) == 0
    out = capsys.readouterr().out
    for word in (
        "done: 9 steps",
        "held-out mlm_nll",
        "unigram baseline",
        "checkpoint",
        "loss.png",
        "report.md",
    ):
        assert word in out
    assert str(run / "checkpoints" / "step_00000009") in out


def test_a_summary_compares_the_metric_that_the_objective_names(tmp_path):
    result = loop.Result(
        tmp_path, 9, 9, {"nsp_nll": 0.25, "mlm_nll": 4.5}, 6.0, None, False, compared="mlm_nll"
    )
    lines = command._summary(result).splitlines()
    assert "  unigram baseline            6.0000 nats on the same held-out data" in lines
    assert "  mlm_nll below it by 1.5000" in lines
    assert "baseline" not in command._summary(dataclasses.replace(result, compared=None))


def test_mesh_words():
    assert options.layout("data=2, model=4", "fsdp") == [
        "mesh=(('data', 2), ('model', 4))",
        "rules=fsdp",
    ]
    assert differing.FREE[-3:] == ("mesh", "rules", "slices")
