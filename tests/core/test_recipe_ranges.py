"""Every number of a recipe has its range: what lies outside ends in one line."""

import dataclasses
import math
import typing

import pytest

from ptm_jax import systems
from ptm_jax.cli.explaining import explain
from ptm_jax.cli.main import main
from ptm_jax.convert.config import Config
from ptm_jax.core import recipe as recipes
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.inference.decoding.settings import Generation

CLASSES = [
    cls
    for cls in vars(recipes).values()
    if isinstance(cls, type) and issubclass(cls, recipes.Ranged) and cls is not recipes.Ranged
]
NEEDED = {
    "Phase": {"steps": 2, "batch": 4, "length": 8},
    "Staircase": {"full": 1, "every": 1, "divisor": 2.0},
    "WarmupStableDecay": {"decay": 1},
    "Recipe": {"phases": (Phase(steps=2, batch=4, length=8),), "lr": 1e-3},
}  # fmt: skip


def numbers():
    """(class, field, whether it is whole) of every number of a recipe."""
    for cls in CLASSES:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            kinds = {hints[field.name], *typing.get_args(hints[field.name])}
            if field.name.endswith("_rules") or kinds & {int, float}:
                yield pytest.param(cls, field.name, int in kinds, id=f"{cls.__name__}.{field.name}")


def made(cls, name, value):
    value = ((".*", value),) if name.endswith("_rules") else value
    return cls(**{**NEEDED.get(cls.__name__, {}), name: value})


@pytest.mark.parametrize(("cls", "name", "whole"), list(numbers()))
@pytest.mark.parametrize("value", [-1, -1e-9, -math.inf, math.inf, math.nan, 10**40, -(10**40)])
def test_what_no_recipe_has_is_refused(cls, name, whole, value):
    with pytest.raises(ValueError, match="must be|does not divide") as caught:
        made(cls, name, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cls", "name", "whole"), list(numbers()))
def test_zero_is_accepted_or_refused_in_one_line(cls, name, whole):
    least, _ = recipes.range_of(f"{cls.__name__.lower()}.{name}")
    needs_more = cls.__name__ == "InverseSqrt"
    if least <= 0 and not needs_more:
        made(cls, name, 0)
    else:
        with pytest.raises(ValueError, match="must be|does not divide"):
            made(cls, name, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [("recipe.clip=-1", "recipe.clip is -1.0; it must be a finite number above 0"),
     ("recipe.clip=0", "recipe.clip is 0.0; it must be a finite number above 0"),
     ("recipe.optimizer.b1=1", "b1 is 1.0; it must be at least 0 and below 1"),
     ("recipe.optimizer.weight_decay=-0.1", "weight_decay is -0.1; it must be a finite number of")],
)  # fmt: skip
def test_by_command(words, message, capsys):
    assert main(["show", "bert_mini", "--set", words]) == 1
    assert message in capsys.readouterr().err


def test_every_system_has_a_recipe_in_range():
    assert all(isinstance(systems.get(name).recipe, Recipe | None) for name in systems.names())


@pytest.mark.parametrize("value", [-1e-12, -1, -0.5])
@pytest.mark.parametrize("name", ["layer_norm_eps", "layer_norm_epsilon", "initializer_range",
    "init_std", "hidden_dropout_prob", "attn_pdrop", "dropout_rate", "layerdrop"])  # fmt: skip
def test_numbers_of_a_config_that_cannot_be(name, value):
    with pytest.raises(UserError, match=rf"config.json: {name} is {value}; expected a number"):
        Config({name: value})(name, float)
    if "drop" in name:
        with pytest.raises(UserError, match="expected a number from 0 to 1"):
            Config({name: 1.5})(name, float)
    assert Config({name: 0.0})(name, float) == 0.0


def test_a_memory_of_a_billion_states_is_refused():
    assert Config({"mem_len": 1600}).memory("mem_len") == 1600
    with pytest.raises(UserError, match="config.json: mem_len is 1,000,000,000; expected at most"):
        Config({"mem_len": 10**9}).memory("mem_len")


def test_a_billion_beams_are_refused():
    for options in ({"beams": 10**9}, {"answers": 10**6, "strategy": "sample"}):
        with pytest.raises(ValueError, match="at most 10,000 are searched"):
            Generation(**options)


def test_memory_that_a_device_does_not_have_is_one_line():
    error = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 168140670904 bytes.")
    assert explain(error) == "out of memory; take a smaller batch or a smaller system"
