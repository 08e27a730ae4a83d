"""Numbers of a spec, by --set and in records: what a field of that name cannot have is one line."""

import json
import math

import pytest

from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.describe import is_spec, values_of
from ptm_jax.core.spec.parsing import check_number
from ptm_jax.core.spec.rebuild import rebuild

PLACES = {
    "embed.width": (0, -1, 2**40),
    "embed.norm.eps": (-1e-12, math.inf),
    "embed.dropout": (-0.1, 1.5, math.inf),
    "embed.vocab.size": (0, -1, 2**40),
    "embed.initializer.std": (-0.02,),
    "embed.position.size": (0, -1),
    "stack.layers": (-1, 10**9),
    "stack.block.attention.heads": (0, -2),
    "stack.block.attention.dropout": (2,),
    "stack.block.ffn.hidden": (-1, 2**40),
}
KINDS = kinds_of()
CASES = [(f"towers.main.encoder.{path}", value) for path in PLACES for value in PLACES[path]]


@pytest.mark.parametrize(("path", "value"), CASES)
def test_a_number_below_a_tower_that_cannot_be_is_refused(path, value, capsys):
    assert main(["show", "bert_tiny", "--set", f"{path}={value}"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("ptm: ") and line.count("\n") == 1
    assert path.rpartition(".")[2] in line and "unexpected" not in line


@pytest.mark.parametrize(("path", "value"), CASES)
def test_the_same_in_a_record(path, value):
    system = systems.get("bert_tiny")
    record = json.loads(json.dumps(spec.to_json(system)))
    node = record
    for step in path.split(".")[:-1]:
        node = node[step]
    assert path.rpartition(".")[2] in node
    node[path.rpartition(".")[2]] = value if math.isfinite(value) else str(value)
    with pytest.raises(UserError, match=r"the record's .* cannot be built as .* is ") as error:
        rebuild(record["towers"], KINDS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value", ["TruncatedNormal(std=-1)", "TruncatedNormal(std=inf)", "TruncatedNormal(std=-1e-9)"]
)
def test_the_same_in_a_value_by_name(value, capsys):
    path = "towers.main.encoder.embed.initializer"
    assert main(["show", "bert_tiny", "--set", f"{path}={value}"]) == 1
    assert "std is" in capsys.readouterr().err


def test_every_number_of_the_catalogue_is_within_its_bounds():
    count = 0
    for name in systems.names():
        for _, value in spec.walk(systems.get(name)):
            if is_spec(value):
                for field, part in values_of(value).items():
                    check_number(field, part)
                    count += 1
    assert count > 10_000


@pytest.mark.parametrize(
    "text", ["(" * 5000, "[" * 300, "-" * 100_000 + "1", "'\\ud800'", "\0", "{1:"]
)
def test_a_text_that_python_cannot_parse_is_one_line(text, capsys):
    for path in ("recipe.lr", "recipe.optimizer", "data", "towers.main.encoder.embed.parts"):
        assert main(["show", "bert_tiny", "--set", f"{path}={text}"]) == 1
        line = capsys.readouterr().err
        assert line.startswith("ptm: ") and "unexpected" not in line and line.count("\n") == 1


@pytest.mark.parametrize("seed", [-1, 2**31, 10**30])
def test_a_seed_that_is_none(seed, capsys):
    for words in (
        ["train", "bert_tiny", "--workdir", "nowhere", "--set", f"seed={seed}"],
        ["predict", "nowhere", "--task", "generate", "--text", "a", "--seed", str(seed)],
        ["prepare", "--data", "nowhere.txt", "--out", "nowhere", "--seed", str(seed)],
    ):
        assert main(words) == 1
        assert "seed is" in capsys.readouterr().err
