"""Levels of parameters: what an encoder answers, one by one, and what happens where it does not."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.adapt.base import tower_of
from ptm_jax.adapt.parameters import levels
from ptm_jax.adapt.parameters.freezing import FeatureExtraction
from ptm_jax.adapt.parameters.rates import LayerDecay
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import unflatten


def places(name, *paths):
    """Places of parameters [2, 3] of a system's tower."""
    params = unflatten({f"main/{path}": np.zeros((2, 3)) for path in paths})
    return levels.parameter_paths(params, systems.get(name).towers)


def level(found, path):
    return np.asarray(found[f"main/{path}"].level).tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "bert_mini",
            {
                "embed/token": 0,
                "stack/block/ffn/up/kernel": [1, 2, 3, 4],
                "stack/final_norm/scale": 4,
            },
        ),
        ("albert_mini", {"embed/token": 0, "stack/block/ffn/up/kernel": 1}),
        (
            "albert_base_shared_attention",
            {"stack/block/attention/key/bias": 1, "stack/block/ffn/up/bias": [*range(1, 13)]},
        ),
        ("universal_mini", {"stack/block/ffn/up/bias": 1, "stack/halting/bias": 1}),
        (
            "t5_mini",
            {
                "encoder/stack/block/ffn/up/kernel": [1, 2],
                "decoder/stack/block/ffn/up/kernel": [3, 4],
            },
        ),
        (
            "hibert_mini",
            {
                "sentence/stack/block/a": [1, 2],
                "document/block/a": [3, 4],
                "decoder/stack/block/a": [5, 6],
            },
        ),
        (
            "cloze_mini",
            {"forward/block/a": [1, 2], "backward/block/a": [1, 2], "merge/ffn/up/bias": 3},
        ),
    ],
)
def test_levels_count_from_the_input(name, expected):
    found = places(name, *(f"encoder/{path}" for path in expected), "heads_mlm/bias")
    assert {path: level(found, f"encoder/{path}") for path in expected} == expected
    highest = max(np.max(place.level) for path, place in found.items() if "heads" not in path)
    assert found["main/heads_mlm/bias"].level == found["main/heads_mlm/bias"].top == highest + 1


def test_what_stands_beside_a_tower_has_the_level_of_what_it_stands_for():
    params = unflatten(
        {"lora/main/encoder/stack/block/a": np.zeros((4, 2)), "recent/count": np.zeros(())}
    )
    found = levels.parameter_paths(params, systems.get("bert_mini").towers)
    assert found["lora/main/encoder/stack/block/a"].level.tolist() == [1, 2, 3, 4]
    assert (found["recent/count"].level, found["recent/count"].top) == (0, 1)
    assert levels.stacked(params, systems.get("bert_mini").towers) == {
        "lora/main/encoder/stack/block/a": True,
        "recent/count": False,
    }


def test_the_tower_of_a_parameter_is_that_of_the_one_it_adapts():
    """Whatever an adaptation names what it keeps beside the towers."""
    paths = {
        "main/encoder/a": "main",
        "generator/heads_mlm/a": "generator",
        "lora/generator/encoder/a": "generator",
        "ranks/main/encoder/a": "main",
        "recent/count": "recent",
    }
    params = unflatten({path: np.zeros(()) for path in paths})
    known = levels.parameter_paths(params, systems.get("electra_mini").towers)
    assert {path: tower_of(place) for path, place in known.items()} == paths
    assert tower_of("main/encoder/a") == "main"
    frozen = FeatureExtraction()
    free = {path for path, place in known.items() if frozen.trainable(place, 0)}
    assert free == {*paths} - {"main/encoder/a", "ranks/main/encoder/a"}


class Bag(slots.Encoder, nn.Module):
    """An encoder that declares no levels."""

    @nn.compact
    def __call__(self, batch, train=False):
        return self.param("table", nn.initializers.zeros, (3,))


def test_an_encoder_without_levels_is_one_line_where_they_are_needed():
    params = {
        "main": jax.eval_shape(Bag().init, jax.random.key(0), {"ids": jnp.zeros(1)})["params"]
    }
    (place,) = levels.parameter_paths(params, {"main": Bag()}).values()
    assert place == "main/table"
    with pytest.raises(
        UserError, match="main/table has no level, because Bag does not declare .*define level_of"
    ):
        LayerDecay().rate(place)
