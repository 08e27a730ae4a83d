"""In-batch negatives are those of every data shard: eight forced devices, of one process and of
two, give the loss and gradient of one device."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.mesh import rules
from ptm_jax.objectives.sentences.cached import Cached
from ptm_jax.objectives.sentences.cosent import CoSENT
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.text.contrastive import DIM, InfoNCE
from ptm_jax.training.hosts import hosts
from support.plain_towers import L, PlainTower, V, params_of

EVERY = ("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc")
NEGATIVES = MultipleNegatives(directions=EVERY)
OBJECTIVES = {
    "infonce": InfoNCE(both_ways=True),
    "dim": DIM(),
    "hard negatives": NEGATIVES,
    "cached": Cached(task=NEGATIVES, parts=2),
    "scored": CoSENT(),
}
HOSTED = "hard negatives", "cached"
"""Objectives that two processes compute together."""
TRAINED = "pool", "match"
"""Parameters whose gradients are compared."""
MESHES = {"data": 8}, {"data": 2, "fsdp": 2, "model": 2}
ROWS, TEXTS = 16, 4
"""Two rows lie on each of eight devices, so that the texts of a group lie on several."""


def batch():
    draw = np.random.default_rng(3)
    given = {"rows": np.arange(ROWS, dtype=np.int32)}
    for name in ("", "pair_", "ngram_"):
        given[f"{name}input_ids"] = draw.integers(0, V, (ROWS, L)).astype(np.int32)
        given[f"{name}segment_ids"] = (np.arange(L) < draw.integers(0, L, (ROWS, 1))).astype(
            np.int32
        )
    scores = draw.random((ROWS // TEXTS, TEXTS - 1)).astype(np.float32)
    return given | {"text_scores": np.repeat(scores, TEXTS, 0)}


def found(given, names=tuple(OBJECTIVES), where=None):
    """{objective: [loss, gradient of `TRAINED`]} of a batch that lies somewhere; the results lie by
    the sharding `where`."""

    def loss(trained, fields, params, objective):
        return objective({"main": PlainTower({**params, **trained})}, fields, None).value()

    params, results = jax.tree.map(np.asarray, params_of()), {}
    for name in names:
        of_rows = functools.partial(loss, objective=OBJECTIVES[name])
        step = jax.jit(jax.value_and_grad(of_rows), out_shardings=where)
        value, slope = step({part: params[part] for part in TRAINED}, given, params)
        results[name] = [float(value), [np.asarray(slope[part]).tolist() for part in TRAINED]]
    return results


def on_eight_devices():
    results = []
    for axes in MESHES:
        mesh = rules.make_mesh(axes)
        with jax.set_mesh(mesh):
            placed = rules.place_batch(batch(), mesh)
            assert len(placed["input_ids"].sharding.device_set) == 8
            results.append(found(placed))
    print(json.dumps(results))


def on_two_hosts():
    """Each process holds half of the rows, in which no group is cut, and four of the devices."""
    hosts.join()
    mesh = rules.make_mesh({"data": 8})
    with jax.set_mesh(mesh):
        index, count = rules.share(mesh)
        rows = slice(index * ROWS // count, (index + 1) * ROWS // count)
        placed = rules.place_batch({name: x[rows] for name, x in batch().items()}, mesh)
        assert count == 2 and not placed["input_ids"].is_fully_addressable
        everywhere = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
        print("RESULT" + json.dumps(found(placed, HOSTED, everywhere)), flush=True)


def started(call, devices, **more):
    """A process that calls a function of this file."""
    here = Path(__file__).resolve()
    path = os.pathsep.join(
        str(folder) for folder in (here.parents[2], here.parents[1], here.parent)
    )
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": flags, **more}
    command = [sys.executable, "-c", f"import test_shards; test_shards.{call}()"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes)


def near(several, one, name):
    for a, b in zip(several[name], one[name], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
    apart = np.linalg.norm(np.subtract(several[name][1], one[name][1]))
    assert apart <= 1e-6 * np.linalg.norm(one[name][1]), name


@pytest.mark.full
def test_negatives_come_from_all_shards():
    process = started("on_eight_devices", 8)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    every, one = json.loads(out), found(jax.tree.map(jnp.asarray, batch()))
    for eight, name in ((eight, name) for eight in every for name in OBJECTIVES):
        near(eight, one, name)


@pytest.mark.full
def test_negatives_come_from_all_hosts():
    """Two processes with gloo between them: hard negatives of the other host's groups count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    shared = {"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": address, "JAX_PLATFORMS": "cpu"}
    job = [started("on_two_hosts", 4, **shared, JAX_PROCESS_ID=str(n)) for n in range(2)]
    try:
        ends = [process.communicate(timeout=600) for process in job]
    finally:
        for process in job:
            process.kill()
    assert [process.returncode for process in job] == [0, 0], ends
    one = found(jax.tree.map(jnp.asarray, batch()), HOSTED)
    for out, _ in ends:
        two = json.loads(out.partition("RESULT")[2].splitlines()[0])
        for name in HOSTED:
            near(two, one, name)
    half = found(jax.tree.map(lambda x: jnp.asarray(x[: ROWS // 2]), batch()), HOSTED)
    assert abs(half["hard negatives"][0] - one["hard negatives"][0]) > 0.1
