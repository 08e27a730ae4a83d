"""Checkpoints under fire: kills, torn and flipped files, full and read-only disks, other meshes."""

import contextlib
import dataclasses
import os
import resource
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import record
from ptm_jax.training import sealing
from ptm_jax.training.checkpoints import Checkpoints, restore_params


@record
class State:
    step: object
    params: object
    opt_state: object
    carry: object = None


def state_at(step, width=8):
    """A state that is a function of its step."""
    kernel = jnp.arange(4.0 * width).reshape(4, width) + step
    params = {"main": {"kernel": kernel, "bias": jnp.full(width, -1.0 * step)}}
    return State(
        jnp.int32(step),
        params,
        {"count": jnp.int32(step), "mu": jax.tree.map(lambda x: x / 2, params)},
    )


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def save(workdir, *steps, **options):
    store = Checkpoints(workdir, **options)
    for step in steps:
        store.save(step, state_at(step), {"step": step, "data": {"position": [step, 0.5]}})
    store.wait()
    return store


def test_round_trip(tmp_path):
    store = save(tmp_path, 1, 2)
    like = jax.eval_shape(lambda: state_at(0))
    for reader in (store, Checkpoints(tmp_path), Checkpoints(tmp_path, writable=False)):
        state, meta, step = reader.restore(like=like)
        assert (step, meta) == (
            2,
            {"step": 2, "data": {"position": [2, 0.5]}},
        ) and reader.latest() == 2
        assert_equal(state, state_at(2))
    assert_equal(store.restore(1, like=like)[0], state_at(1))


def test_parameters_alone(tmp_path):
    save(tmp_path, 1, 2)
    for path, step in (
        (tmp_path, 2),
        (tmp_path / "checkpoints", 2),
        (tmp_path / "checkpoints/step_00000001", 1),
    ):
        params, meta, found = restore_params(path)
        assert found == step == meta["step"]
        assert_equal(params, state_at(step).params)
    assert_equal(restore_params(tmp_path, like=state_at(0).params)[0], state_at(2).params)
    with pytest.raises(UserError, match="has no 'weights'; it has: opt_state, params, step"):
        restore_params(tmp_path, name="weights")


def test_parameters_that_are_not_finite_are_named(tmp_path):
    state = dataclasses.replace(
        state_at(1), params={"main": {"kernel": jnp.ones(3), "bias": jnp.array([0.0, jnp.nan])}}
    )
    store = Checkpoints(tmp_path)
    store.save(1, state, {})
    store.wait()
    with pytest.raises(
        UserError, match="step_00000001: params/main/bias has numbers that are NaN or infinite"
    ):
        restore_params(tmp_path)


@pytest.mark.full
def test_arrays_may_be_donated_at_once(tmp_path):
    """Also at later saves, which reuse the memory of the first, and with another tree in
    between."""
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 7, tree), donate_argnums=0)
    store = Checkpoints(tmp_path)
    for step, width in ((1, 100_000), (2, 100_000), (3, 100_000), (4, 50_000), (5, 50_000)):
        state = jax.tree.map(jnp.copy, state_at(step, width))
        store.save(step, state, {})
        assert (jax.block_until_ready(overwrite(state)).params["main"]["bias"] == -7).all()
        store.wait()
        expected = state_at(step, width)
        assert_equal(store.restore(like=expected)[0], expected)


def test_a_save_returns_before_it_is_done(tmp_path, monkeypatch):
    seal, released = sealing.seal, threading.Event()
    monkeypatch.setattr(sealing, "seal", lambda *args: (released.wait(60), seal(*args)))
    store = Checkpoints(tmp_path)
    store.save(1, state_at(1), {})  # would wait for its seal, which nothing has released
    assert store.latest() is None and not released.is_set()
    released.set()
    store.wait()
    assert store.latest() == 1


def test_retention(tmp_path):
    assert save(tmp_path / "a", 10, 20, 30, 40).steps() == [30, 40]
    assert save(tmp_path / "b", 10, 20, 30, keep=1).steps() == [30]
    store = save(tmp_path / "a", 35)
    assert store.steps() == [30, 35], "step 40 belongs to a past that was left"
    with pytest.raises(UserError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


def test_nothing_to_restore(tmp_path):
    store = Checkpoints(tmp_path)
    assert store.latest() is None
    with pytest.raises(UserError, match="no usable checkpoint"):
        store.restore(like=state_at(0))
    save(tmp_path, 4, 5)
    with pytest.raises(UserError, match="no checkpoint of step 7 in .*; there are: 4, 5"):
        Checkpoints(tmp_path).restore(7, like=state_at(0))


@pytest.mark.parametrize(
    "change, path, saved, wanted",
    [
        (
            lambda s: s.params["main"].update(bias=jnp.zeros(9)),
            "params/main/bias",
            "float32[8]",
            "float32[9]",
        ),
        (
            lambda s: s.params["main"].update(extra=jnp.zeros(2)),
            "params/main/extra",
            "nothing",
            "float32[2]",
        ),
        (lambda s: s.params["main"].pop("bias"), "params/main/bias", "float32[8]", "nothing"),
        (
            lambda s: s.opt_state.update(count=jnp.zeros(())),
            "opt_state/count",
            "int32[]",
            "float32[]",
        ),
    ],
)
def test_mismatch_names_the_first_leaf(tmp_path, change, path, saved, wanted):
    store, like = save(tmp_path, 1), state_at(1)
    change(like)
    with pytest.raises(UserError) as error:
        store.restore(like=like)
    assert f"at {path!r} it has {saved} and this run expects {wanted}" in str(error.value)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("two")
    save(workdir, 100, 200)
    return workdir


KINDS = [
    "record.json",
    "params.main.kernel/0.0",
    "params.main.kernel/.zarray",
    "opt_state.mu.main.bias/0",
    "step/0",
    "_METADATA",
    "_CHECKPOINT_METADATA",
    "_sharding",
    "array_metadatas/process_0",
]


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        *((kind, flip) for kind in KINDS),
        *(("step/0", harm) for harm in (truncate, os.remove, empty)),
    ],
)
def test_a_damaged_checkpoint_is_never_chosen(two, tmp_path, capsys, kind, harm):
    shutil.copytree(two, tmp_path / "run")
    harm(tmp_path / "run/checkpoints/step_00000200" / kind)
    store = Checkpoints(tmp_path / "run", writable=False)
    assert store.latest() == store.latest() == 100
    lines = capsys.readouterr().err.splitlines()
    assert (
        len(lines) == 1
        and "step_00000200" in lines[0]
        and kind in lines[0]
        and "using that of step 100" in lines[0]
    )
    with pytest.raises(UserError, match="is damaged"):
        store.restore(200, like=state_at(0))


def test_every_file_is_covered(two):
    files = sealing.files(two / "checkpoints/step_00000200")
    assert len(files) > 12 and set(sealing.verify(two / "checkpoints/step_00000200")["files"]) == {
        file.relative_to(two / "checkpoints/step_00000200").as_posix() for file in files
    }


def test_training_goes_on_after_damage(two, tmp_path, capsys):
    shutil.copytree(two, tmp_path / "run")
    truncate(tmp_path / "run/checkpoints/step_00000200/step/0")
    store = Checkpoints(tmp_path / "run")
    assert_equal(store.restore(like=state_at(0))[0], state_at(100))
    store.save(200, state_at(200), {"again": True})
    store.wait()
    fresh = Checkpoints(tmp_path / "run")
    assert fresh.restore(like=state_at(0))[1:] == ({"again": True}, 200) and fresh.steps() == [
        100,
        200,
    ]
    truncate(tmp_path / "run/checkpoints/step_00000200/step/0")
    truncate(tmp_path / "run/checkpoints/step_00000100/step/0")
    capsys.readouterr()
    assert Checkpoints(tmp_path / "run").latest() is None
    assert capsys.readouterr().err.count("there is no whole one before it") == 2


def test_leftovers_are_swept_by_writers_only(two, tmp_path):
    shutil.copytree(two, tmp_path / "run")
    for name in ("draft_00000300.orbax-checkpoint-tmp", "old_00000050"):
        shutil.copytree(two / "checkpoints/step_00000100", tmp_path / "run/checkpoints" / name)
    assert Checkpoints(tmp_path / "run", writable=False).latest() == 200
    assert len(os.listdir(tmp_path / "run/checkpoints")) == 4
    assert Checkpoints(tmp_path / "run").latest() == 200
    assert sorted(os.listdir(tmp_path / "run/checkpoints")) == ["step_00000100", "step_00000200"]


@contextlib.contextmanager
def file_size_limit(size):
    """Writes past `size` bytes fail, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def fill_disk(workdir):
    store = save(workdir, 1)
    with file_size_limit(10_000), pytest.raises(UserError) as error:
        store.save(2, state_at(2, width=10_000), {})
        store.wait()
    assert str(error.value) == (
        f"cannot write checkpoints to {workdir}/checkpoints: File too large; free space "
        "there or name a workdir that "
        "can be written. The checkpoint of step 1 is intact."
    )
    assert os.listdir(f"{workdir}/checkpoints") == ["step_00000001"]
    assert_equal(store.restore(like=state_at(0))[0], state_at(1))
    store.save(2, state_at(2), {})
    store.wait()
    assert store.latest() == 2


@pytest.mark.full
def test_a_full_disk_is_one_error(tmp_path):
    """In a process of its own, whose libraries print no line beside it."""
    done = run(
        "import sys; from tests.training import test_checkpoints as it; it.fill_disk(sys.argv[1])",
        tmp_path,
    )
    assert done.stdout == done.stderr == ""


def test_read_only_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match="cannot write checkpoints to .*: Not a directory; .* name a workdir"
    ):
        Checkpoints(tmp_path / "file")
    save(tmp_path / "run", 1)
    root = os.geteuid() == 0
    os.chmod(tmp_path / "run/checkpoints", 0o555)
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(UserError, match="cannot write checkpoints to .*: Permission denied"):
            Checkpoints(tmp_path / "run")
    finally:
        if root:
            os.seteuid(0)
        os.chmod(tmp_path / "run/checkpoints", 0o755)
    assert Checkpoints(tmp_path / "run").latest() == 1


KILLED = """
import os, random, signal, sys, time
from tests.training.test_checkpoints import Checkpoints, state_at, assert_equal

def train(workdir, acknowledge):
    store = Checkpoints(workdir)
    step = store.latest() or 0
    if step:
        state, meta, step = store.restore(like=state_at(0, 50_000))
        assert_equal(state, state_at(step, 50_000))
        assert meta == {"step": step}
    assert not [n for n in os.listdir(store.root) if not n.startswith("step_")]
    while True:
        step += 1
        store.save(step, state_at(step, 50_000), {"step": step})
        store.wait()
        os.write(acknowledge, b"%d\\n" % step)

workdir, rounds, last = sys.argv[1], int(sys.argv[2]), 0
draw = random.Random(7)
for _ in range(rounds):
    out, into = os.pipe()
    if not (child := os.fork()):
        try:
            train(workdir, into)
        finally:
            os._exit(3)
    os.close(into)
    with os.fdopen(out, "rb") as lines:
        first = int(lines.readline() or -1)
        assert first > last, (first, last)
        time.sleep(draw.uniform(0, 0.25))
        os.kill(child, signal.SIGKILL)
        last = max([first, *map(int, lines.read().split())])
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
print("survived", last)
"""


def run(script, *args, **env):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env = {**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu", **env}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.full
def test_sigkill_at_any_moment(tmp_path):
    """Ten runs killed while they save without a pause: each next one finds at least what was
    acknowledged, whole."""
    assert "survived" in run(KILLED, tmp_path, 10).stdout


OTHER_MESH = """
import sys, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.training.test_checkpoints import Checkpoints, restore_params, state_at, assert_equal

def place(shape, *names):
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    parts = {2: P(*names), 1: P(names[-1])}
    spec = lambda x: NamedSharding(mesh, parts.get(x.ndim, P()))
    placed = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spec(x))
    return jax.tree.map(placed, state_at(0))

assert jax.device_count() == 8
store = Checkpoints(sys.argv[1])
both = ("data", "model")
for shape, names in (((4, 2), both), ((2, 4), (None, "model")), ((1, 8), (None, both))):
    like = place(shape, *names)
    state, _, step = store.restore(like=like)
    assert_equal(state, state_at(1))
    assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding, state, like))
    store.save(step, state, {})  # what a mesh wrote, the next one and one device read
    store.wait()
    store = Checkpoints(sys.argv[1])
assert restore_params(sys.argv[1])[0]["main"]["kernel"].sharding.num_devices == 1
"""


@pytest.mark.full
def test_other_meshes(tmp_path):
    save(tmp_path, 1)
    run(OTHER_MESH, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert_equal(Checkpoints(tmp_path).restore(like=state_at(0))[0], state_at(1))
