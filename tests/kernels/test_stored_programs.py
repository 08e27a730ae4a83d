"""Programs that a command stores, so that the next one traces nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.kernels import stored_programs
from ptm_jax.nn.layers import RMSNorm

traced = []


@functools.partial(jax.jit, static_argnums=(0, 1))
def scaled(layer, times, tree, x):
    traced.append(x.shape)
    if times > 5:
        raise UserError("too often")
    return {"y": x * times + tree["bias"], "key": jax.random.fold_in(tree["key"], times)}


ARRAYS = {"bias": np.float32(2.0), "key": jax.random.key(3)}, np.arange(4, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Own:
    """A class that is not the package's."""


@pytest.fixture
def folder(tmp_path):
    traced.clear()
    stored_programs.use(tmp_path)
    yield tmp_path
    stored_programs.use(None)


def call(plan, arrays=ARRAYS, new=True):
    """The results of a call, in a new process or in the one that made it before."""
    if new:
        stored_programs._programs.clear()
    jax.clear_caches()
    result = stored_programs.call(scaled, plan, *arrays)
    return np.asarray(result["y"]).tolist(), jax.random.key_data(result["key"]).tolist()


def test_another_process_reads_the_program_and_traces_nothing(folder):
    plan = RMSNorm(), 3
    direct = scaled(*plan, *ARRAYS)
    expected = np.asarray(direct["y"]).tolist(), jax.random.key_data(direct["key"]).tolist()
    assert expected[0] == [2.0, 5.0, 8.0, 11.0]
    assert call(plan) == expected and len(traced) == 2
    for new in (True, False):
        assert call(plan, new=new) == expected and len(traced) == 2
    (file,) = folder.iterdir()
    for content in (file.read_bytes()[:-1], b"", b"\0" * 100):
        file.write_bytes(content)
        assert call(plan) == expected
    assert len(traced) == 5 and call(plan) == expected and len(traced) == 5


def test_what_a_program_follows_from_is_in_its_key(folder):
    wide = ARRAYS[0], np.arange(8, dtype=np.float32)
    for plan, arrays in (
        ((RMSNorm(), 3), ARRAYS), ((RMSNorm(), 2), ARRAYS), ((RMSNorm(eps=1.0), 2), ARRAYS),
        ((RMSNorm(), 3), wide), ((RMSNorm(), 3), (ARRAYS[0], jnp.arange(4))),
    ):  # fmt: skip
        call(plan, arrays)
    assert len({*folder.iterdir()}) == len(traced) == 5
    call((Own(), 3))  # of a user, whose code the key has not
    assert len({*folder.iterdir()}) == 5
    with pytest.raises(UserError, match="too often"):
        call((RMSNorm(), 6))
