"""The `ptm` command: exit statuses, one line for bad input, help with examples that run, list, show
and prepare."""

import dataclasses
import errno
import importlib
import json
import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import flax.linen as nn
import pytest
import tyro

from ptm_jax import systems
from ptm_jax.cli import listing as catalogue_command
from ptm_jax.cli import show, target
from ptm_jax.cli.main import COMMANDS, main
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.core.registry import Catalogue
from ptm_jax.core.system import System, Tie
from ptm_jax.nn import blocks
from ptm_jax.tuning import scoring


class Tower(nn.Module):
    width: int = 4
    heads: int = 2

    @nn.compact
    def initialise(self, batch):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        table = self.param("table", nn.initializers.zeros, (10, self.width))
        self.param("bias", nn.initializers.zeros, (self.width,))
        return table[batch["input_ids"]]


def a_task(towers, batch, key):
    return None


def make(name, **changes):
    system = System(
        name=name,
        paper="Devlin et al. 2019, arXiv 1810.04805, whose title is far longer than a line "
        "of a terminal can be",
        section="3.1.2",
        rows=(44,),
        group="Transformer encoders",
        towers={"main": Tower()},
        examples=None,
        objective=a_task,
        recipe=Recipe(phases=(Phase(steps=10, batch=4, length=8),), lr=1e-4),
    )
    return dataclasses.replace(system, **changes)


@pytest.fixture(autouse=True)
def fake_catalogue(monkeypatch, tmp_path):
    fake = Catalogue("system")
    two = {"generator": Tower(), "main": Tower(width=8)}
    tie = Tie(path="main/table", source="generator/table")
    fake.add(make("bert_base"), make("bert_mini"), make("roberta_base", rows=(45,)))
    fake.add(make("electra_base", towers=two, ties=(tie,)))
    systems.names()
    monkeypatch.setattr(systems, "catalogue", fake)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PTM_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def ptm(capsys):
    def call(line):
        status = main(shlex.split(line))
        out, err = capsys.readouterr()
        return status, out, err

    return call


def one_line(err):
    return err.startswith("ptm: ") and err.count("\n") == 1 and err.endswith("\n")


def test_help_of_all_commands(ptm):
    status, out, err = ptm("--help")
    assert status == 0 and not err and all(f"  {name} " in out for name in COMMANDS)
    assert ptm("help")[1] == out
    status, out, err = ptm("")
    assert status == 2 and not out and "usage: ptm COMMAND" in err


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_examples_that_are_valid(ptm, name):
    status, out, err = ptm(f"{name} --help")
    assert status == 0 and not err and "Example:" in out and f"\n  ptm {name}" in out
    module = importlib.import_module(COMMANDS[name][0])
    lines = [line.strip() for line in module.__doc__.splitlines() if line.startswith("  ptm ")]
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["ptm", name]
        assert tyro.cli(module.Args, args=words[2:])
        if name == "show":
            status, out, err = ptm(shlex.join(words[1:]))
            assert status == 0 and out, err


FIRST_RUN = "train bert_base --data x.txt --workdir"
COUNTS = {
    "save_every": "steps",
    "eval_every": "steps",
    "log_every": "steps",
    "eval_batches": "batches",
}
EMPTY = """
prepare --data x.txt --out ''
import x --out ' '
export x --out ''
average a b --out ''
launch local bert_base --workdir ''
bench --out ''
predict x --task embed --output ''
plan bert_base --topology cpu:1 --plot ''
""".strip().splitlines()


@pytest.mark.parametrize(
    "line", ["show", "show bert_base --nonsense", "list x", "prepare --data x", "prepare --vocab y"]
)
def test_usage_errors_exit_with_2(ptm, line):
    status, out, err = ptm(line)
    assert status == 2 and not out and err and "Traceback" not in err


def test_an_unknown_command_names_the_closest(ptm):
    status, out, err = ptm("lits")
    assert status == 2 and one_line(err) and "Did you mean 'list'?" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "show bert_bsae",
            ["unknown system 'bert_bsae'", "`ptm list` shows the 4", "Did you mean 'bert_base'?"],
        ),
        ("show nowhere.py", ["no such config: nowhere.py"]),
        ("show a/b", ["no such config: a/b"]),
        ("show .", ["directory"]),
        ("show empty.py", ["empty.py defines neither `config`", "`experiment()`"]),
        (
            "show number.py",
            ["the config of number.py is of type int; it must be an Experiment or a System"],
        ),
        ("show raises.py", ["raises.py:2: ZeroDivisionError"]),
        ("show broken.py", ["broken.py:1:"]),
        ("show emty.py", ["Did you mean 'empty.py'"]),
        ("show bert_base --set recipe.lr=x", ["recipe.lr must be a number; given 'x'"]),
        ("show bert_base --set recipe.lr=-1", ["recipe.lr is -1.0", "number of at least 0"]),
        ("show bert_base --set recipe.lr=nan", ["recipe.lr must be a number; given 'nan'"]),
        ("show bert_base --set recipe.lr=inf", ["recipe.lr is inf", "number of at least 0"]),
        *(
            (f"{FIRST_RUN} w --set {name}=-5", [f"{name} is -5", f"number of {what}"])
            for name, what in COUNTS.items()
        ),
        *(
            (line, [f"{shlex.split(line)[-2]} is empty; give a path, or . for the folder"])
            for line in EMPTY
        ),
        (f"{FIRST_RUN}=", ["--workdir is empty", "folder"]),
        ("plan bert_base --topology cpu:1 --efficiency 3", ["--efficiency is 3", "at most 1"]),
        (
            "show bert_base --set corruption=NGrams()",
            ["corruption is NGrams, which is no core.slots.Corruption"],
        ),
        ("show bert_base --set adapt=lora", ["give adaptations by --adapt"]),
        ("show bert_base --set 'recipe.schedule=Cosine(warmup=x)'", ["whole number"]),
        (f"show bert_base --set recipe.accumulate={'7' * 90}", ["777777777777... (90 digits)"]),
        ("show bert_base --set recipe.rate=1", ["unknown field", "'rate'", "accumulate"]),
        ("show bert_base --set recipe.lr", ["--set takes path=value", "'recipe.lr'"]),
        (
            "show bert_base --set towers.main.heads=3",
            ["bert_base cannot be built: width 4 is not a multiple of heads 3"],
        ),
        ("show bert_base --diff bert_bsae", ["Did you mean 'bert_base'?"]),
        ("show run", ["run/config.json is no record of a run"]),
        ("prepare --data x.txt --out o --lowercase --no-lowercase", ["both given"]),
        ("prepare --data x.txt --out o --heldout 1", ["--heldout is 1"]),
        ("prepare --data x.txt --out o --workers 0", ["--workers is 0"]),
        ("prepare --data x.txt --out o", ["x.txt"]),
        ("prepare --data x.txt --out o --language german", ["'german' is no language", "de"]),
        ("import run --out o", ["run is a run; `ptm export run --out DIR` writes a checkpoint"]),
    ],
)
def test_bad_input_is_one_line_and_1(ptm, tmp_path, line, words):
    (tmp_path / "run").mkdir()
    files = {
        "empty.py": "",
        "number.py": "config = 3",
        "raises.py": "def f():\n  return 1 / 0\nf()",
        "broken.py": "x = (",
    }
    for name, text in {**files, "run/config.json": "{"}.items():
        (tmp_path / name).write_text(text)
    status, out, err = ptm(line)
    assert status == 1 and not out and one_line(err), err
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UserError("two\nlines  here"), 1, "ptm: two lines here\n"),
        (
            OSError(errno.ENOSPC, "x", "/a/b"),
            1,
            "ptm: No space left on device: /a/b; free some space, or",
        ),
        (
            PermissionError(errno.EACCES, "x", "/a/b"),
            1,
            "ptm: Permission denied: /a/b; check its permissions",
        ),
        (
            OSError(errno.EROFS, "x", "/a", None, "/b"),
            1,
            "ptm: Read-only file system: /a -> /b; choose a place",
        ),
        (KeyboardInterrupt(), 130, "ptm: interrupted\n"),
        (RuntimeError("what"), 1, "ptm: RuntimeError: what (unexpected: PTM_DEBUG=1"),
        (MemoryError(), 1, "ptm: out of memory"),
    ],
)
def test_errors_inside_a_command(ptm, monkeypatch, error, status, words):
    def fail(args):
        raise error

    monkeypatch.setattr(catalogue_command, "run", fail)
    code, out, err = ptm("list")
    assert code == status and one_line(err) and err.startswith(words)
    monkeypatch.setenv("PTM_DEBUG", "1")
    assert ("Traceback" in ptm("list")[2]) == (status == 1)


def test_show_prints_how_many_layers_this_device_runs_at_once(monkeypatch):
    monkeypatch.setattr(blocks, "UNROLLED", 12)

    def stack(layers):
        return blocks.Stack(block=Tower(), layers=layers)

    shown = show.layers_at_once(make("two", towers={"main": stack(6), "deep": stack(24)}))
    assert shown == [
        "unrolled on cpu",
        "  towers.main: 6 of 6 layers",
        "  towers.deep: 1 of 24 layers",
    ]


def test_show_counts_parameters_and_tied_ones_once(ptm):
    status, out, err = ptm("show electra_base --full")
    assert status == 0 and "\nSystem\n  name: electra_base\n" in out
    assert "\nparameters  generator: 44, main: 8\n" in out
    document = json.loads(ptm("show bert_base --json")[1])
    assert document["parameters"] == {"main": 44} and document["record"]["recipe"]["lr"] == 1e-4
    assert len(document["fingerprint"]) == 64
    assert show.parameter_counts(make("huge", towers={"main": Tower(width=1 << 30)})) == {
        "main": 11 << 30
    }  # shapes alone


def test_show_with_changes_given_in_one_go_or_several(ptm):
    line = (
        "show bert_base --set recipe.lr=1 'recipe.schedule=Cosine(warmup=2)' --set "
        "towers.main.width=6 --json"
    )
    document = json.loads(ptm(line)[1])
    assert document["record"]["recipe"]["lr"] == 1.0 and document["parameters"] == {"main": 66}
    assert document["record"]["recipe"]["schedule"] == {"kind": "Cosine", "warmup": 2, "end": 0.0}


def test_show_differences(ptm):
    status, out, err = ptm("show bert_base --set recipe.optimizer=LAMB --diff roberta_base")
    assert (
        status == 0 and "name: bert_base | roberta_base\n" in out and "rows: (44,) | (45,)\n" in out
    )
    assert "recipe.optimizer: LAMB(b1=0.9," in out and "objective" not in out
    assert ptm("show bert_base --diff bert_base")[1] == "no differences\n"
    found = json.loads(ptm("show bert_base --diff bert_mini --json")[1])
    assert found == [{"path": "name", "a": "bert_base", "b": "bert_mini"}]


CONFIG = """
from __future__ import annotations
import dataclasses
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.core.system import Experiment, System
from beside import LR

@dataclasses.dataclass(frozen=True)
class Mine:
    scale: float = 1.0

@dataclasses.dataclass(frozen=True)
class Other:
    depth: int = 2

def make():
    recipe = Recipe(phases=(Phase(steps=1, batch=1, length=8),), lr=LR)
    slots = {"towers": {}, "examples": None, "objective": Mine()}
    system = System(name="mine", paper="", section="", recipe=recipe, **slots)
    return Experiment(system=system)

"""


@pytest.mark.parametrize("last", ["config = make()", "experiment = make", "config = make().system"])
def test_a_config_of_the_users_own(ptm, tmp_path, last):
    (tmp_path / "beside.py").write_text("LR = 0.5")
    (tmp_path / "my config.py").write_text(CONFIG + last)
    status, out, err = ptm("show 'my config.py' --set objective.scale=3 recipe.accumulate=1 --json")
    assert status == 0, err
    record = json.loads(out)["record"]
    system = record.get("system", record)
    assert system["objective"] == {"kind": "Mine", "scale": 3.0} and system["recipe"]["lr"] == 0.5
    status, out, err = ptm("show 'my config.py' --set 'objective=Other(depth=3)' --full")
    assert status == 0 and "objective: Other\n" in out and "depth: 3\n" in out, err
    assert "\nrecipe.lr: 0.5 | 0.0001\n" in ptm("show 'my config.py' --diff bert_base")[1]


def test_resolve_makes_an_experiment_where_asked():
    value = target.resolve("bert_base", ["seed=3", "recipe.lr=1"], experiment=True)
    assert (value.seed, value.system.recipe.lr) == (3, 1.0)
    with pytest.raises(UserError, match="unknown field of System 'seed'"):
        target.resolve("bert_base", ["seed=3"])


def test_show_the_record_of_a_run(ptm, tmp_path):
    (tmp_path / "run").mkdir()
    record = json.loads(ptm("show bert_base --json")[1])["record"]
    (tmp_path / "run" / "config.json").write_text(json.dumps({"config": {"system": record}}))
    assert ptm("show run --diff bert_base")[1] == "no differences\n"
    assert ptm("show bert_mini --diff run")[1] == "name: bert_mini | bert_base\n"
    assert "name: bert_base\n" in ptm("show run")[1]
    status, out, err = ptm("show run --set a=1")
    assert status == 1 and one_line(err) and "leave --set out" in err


def test_a_system_wins_over_a_folder_of_its_name(tmp_path):
    """`ptm train bert_mini --workdir bert_mini` starts, and resumes when the workdir holds a
    record."""
    (tmp_path / "bert_mini").mkdir()
    expected = systems.get("bert_mini")
    assert target.resolve("bert_mini") == expected
    (tmp_path / "bert_mini" / "config.json").write_text('{"config": {"system": {"towers": {}}}}')
    assert target.resolve("bert_mini") == expected


def test_options_of_beam_search_reach_the_model(monkeypatch):
    asked = {}
    model = SimpleNamespace(generate=lambda texts, **options: asked.update(options) or texts)
    monkeypatch.setattr(scoring, "load", lambda *names: model)
    monkeypatch.setattr(scoring, "together", lambda model: model)
    words = [
        "predict",
        "m",
        "--task",
        "generate",
        "--text",
        "x",
        "--length-rule",
        "power",
        "--beams",
        "2",
    ]
    for given, wanted in {"true": True, "false": False, "never": "never"}.items():
        assert main([*words, "--early-stopping", given]) == 0
        assert asked == {
            "early_stopping": wanted,
            "length_rule": "power",
            "beams": 2,
            "max_new_tokens": None,
            "seed": 0,
        }


def test_prepare_end_to_end(ptm, tmp_path):
    words = "the quick brown fox jumps over a lazy dog while many small birds sing songs".split()
    lines = [
        " ".join(words[(i * j) % len(words)] for j in range(1, 12)) + "." for i in range(1, 60)
    ]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    line = (
        "prepare --data a.txt --out ready --tokenizer bytebpe --vocab 300 --heldout 0.1 --workers 1"
    )
    status, out, err = ptm(line + " --json")
    assert status == 0, err
    report = json.loads(out)
    assert list(report) == ["documents", "tokens", "vocabulary", "shards", "seconds"]
    assert report["documents"] == 59 and report["vocabulary"] == 300 and report["tokens"] > 59 * 11
    status, out, err = ptm(line)
    assert status == 0 and "59 documents" in out and "ready" in out
    status, out, err = ptm(line.replace("300", "310"))
    assert status == 1 and one_line(err) and "vocab" in err


@pytest.mark.full
def test_help_imports_no_slow_package():
    code = "import sys; from ptm_jax.cli.main import COMMANDS, main; main(['--help'])\n"
    code += (
        "print('slow:', *{'tyro', 'numpy', 'jax'} & {*sys.modules}); [main([name, "
        "'--help']) for name in COMMANDS]\n"
    )
    code += "print('slow:', *{'numpy', 'jax', 'flax'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("slow:")] == [
        "slow:",
        "slow:",
    ]


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ptm_jax.cli.main", "list", "--help"],
        stdout=writer,
        stderr=-1,
        text=True,
    )
    os.close(writer)
    assert (
        done.returncode in (0, 141)
        and "Traceback" not in done.stderr
        and "Exception" not in done.stderr
    )
