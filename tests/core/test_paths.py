"""Parameters by path, and the first-match idiom."""

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import paths
from ptm_jax.core.recipe import NO_DECAY

TREE = {
    "encoder": {"layer": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}, "scale": jnp.ones(4)},
    "head": jnp.ones(()),
}


def test_flatten_and_unflatten_are_inverse():
    flat = paths.flatten(TREE)
    assert sorted(flat) == ["encoder/layer/bias", "encoder/layer/kernel", "encoder/scale", "head"]
    back = paths.unflatten(flat)
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, TREE))


def test_sequences_and_records_have_paths_too():
    from ptm_jax.core.types import Encoded

    flat = paths.flatten({"a": [1, (2, 3)], "b": Encoded(hidden=4)})
    assert flat == {"a/0": 1, "a/1/0": 2, "a/1/1": 3, "b/hidden": 4}


def test_map_with_path_sees_the_path_and_the_other_trees():
    doubled = jax.tree.map(lambda x: 2 * x, TREE)
    named = paths.map_with_path(lambda path, a, b: (path, float(jnp.sum(a + b))), TREE, doubled)
    assert named["encoder"]["layer"]["kernel"] == ("encoder/layer/kernel", 18.0)


def test_first_match_wins():
    rules = ((r"layer/bias$", "a"), (r"bias$", "b"), (r"^encoder", "c"))
    assert paths.first_match(rules, "encoder/layer/bias") == "a"
    assert paths.first_match(rules, "encoder/other/bias") == "b"
    assert paths.first_match(rules, "encoder/layer/kernel") == "c"
    assert paths.first_match(rules, "head/encoder", default=7) == 7


def test_no_decay_names_whole_components():
    assert (
        paths.first_match(NO_DECAY, "a/bias", 1.0)
        == 0.0
        == paths.first_match(NO_DECAY, "scale", 1.0)
    )
    assert (
        paths.first_match(NO_DECAY, "a/bias/kernel", 1.0)
        == 1.0
        == paths.first_match(NO_DECAY, "a/rescale", 1.0)
    )


def test_count_of_arrays_and_of_shapes():
    assert paths.count(TREE) == 6 + 3 + 4 + 1
    assert paths.count({"x": jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)}) == 1 << 40
