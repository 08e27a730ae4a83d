"""In-batch negatives are those of every data shard: eight forced devices give the loss and gradient
of one."""

import json
import os
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


def found(given):
    """{objective: [loss, gradient of `TRAINED`]} of a batch that lies somewhere."""

    def loss(trained, params, objective):
        return objective({"main": PlainTower({**params, **trained})}, given, None).value()

    params, results = params_of(), {}
    for name, objective in OBJECTIVES.items():
        step = jax.jit(jax.value_and_grad(lambda part, o=objective: loss(part, params, o)))
        value, slope = step({part: params[part] for part in TRAINED})
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


@pytest.mark.full
def test_negatives_come_from_all_shards():
    here = Path(__file__).resolve()
    path = os.pathsep.join(
        str(folder) for folder in (here.parents[2], here.parents[1], here.parent)
    )
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, "-c", "import test_shards; test_shards.on_eight_devices()"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    every, one = json.loads(result.stdout), found(jax.tree.map(jnp.asarray, batch()))
    for eight, name in ((eight, name) for eight in every for name in OBJECTIVES):
        for a, b in zip(eight[name], one[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
        apart = np.linalg.norm(np.subtract(eight[name][1], one[name][1]))
        assert apart <= 1e-6 * np.linalg.norm(one[name][1]), name
