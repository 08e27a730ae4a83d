"""KnowBERT's first stage: the linker alone moves, and the layer back begins as the inverse of the
layer to the graph."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.adapt.modules.linkers import Linkers
from ptm_jax.core import facts, spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Vocab
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.systems.knowledge.knowbert import knowbert, knowledge
from ptm_jax.training.start import init_models
from ptm_jax.training.steps import step
from support import registered

VOCAB = Vocab(size=60, pad=0, unk=1, cls=2, sep=3, mask=4)
LEARNS = ("project", "pool", "span_norm", "spans", "entity_norm", "match", "score")
"""Equations 1 to 3 of the paper."""


def system(*adapt):
    """Two graphs, behind the first and the second of three layers."""
    lexicon = Entities(entities=20, candidates=3)
    graphs = [
        (knowledge(lexicon, width, 2, 12, 4), loss)
        for width, loss in ((6, "margin"), (4, "softmax"))
    ]
    made = knowbert("", (1, 1, 1), tuple(graphs), (8, 2), (100, 4, 0.1))
    made = dataclasses.replace(made, adapt=(*made.adapt, *adapt))
    return facts.stand_ins(made, VOCAB)


def batch():
    ids = jnp.asarray(np.random.default_rng(0).integers(5, VOCAB.size, (4, 12)), jnp.int32)
    ids = ids.at[0].set(jnp.arange(7, 19))  # names of two tokens: without them nothing is pooled
    whole = {"input_ids": ids, "segment_ids": jnp.ones_like(ids), "rows": jnp.arange(4)}
    return whole | {"token_type_ids": jnp.zeros_like(ids), "next_label": jnp.zeros(4, jnp.int32)}


@pytest.mark.full
@pytest.mark.status("linkers", "built")
def test_one_linker_alone_moves_by_its_loss_on_whole_words():
    work = step.program(system(Linkers(source=1)), seed=0)
    before = jax.jit(work.init)(batch())
    after, metrics = jax.jit(work.step)(before, batch())
    old, new = flatten(before.params), flatten(after.params)
    moved = {path for path, leaf in old.items() if not np.array_equal(leaf, new[path])}
    linker = {
        path
        for path in old
        if path.startswith(tuple(f"main/encoder/knowledge_1/layer/{part}/" for part in LEARNS))
    }
    assert (
        moved <= linker and {path for path in linker if path.endswith(("kernel", "scale"))} <= moved
    )
    assert "linking_1_nll" in metrics and not {"mlm_nll", "nsp_nll", "linking_hinge"} & {*metrics}
    masked = work.system.corruption(jax.random.key(0), batch())
    assert np.array_equal(masked["input_ids"], batch()["input_ids"]) and "gold_entities_1" in masked


def test_a_run_that_begins_with_it_finds_the_inverse():
    """Back and forth is the projection on the column space of P: Q Q^T with P = Q R."""
    draw = np.random.default_rng(1)
    shapes = jax.eval_shape(step.program(system(), seed=0).init, batch()).params
    params = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), jnp.float32), shapes)
    (_, found) = init_models.finished([spec.to_json(Linkers(source=1))], params, kinds_of())
    old, new = flatten(params), flatten(found)
    back = {f"main/encoder/knowledge_1/layer/back/{leaf}" for leaf in ("kernel", "bias")}
    assert {path for path in old if not np.array_equal(old[path], new[path])} == back and {
        *old
    } == {*new}

    def layer(name, x):
        return (
            x @ new[f"main/encoder/knowledge_1/layer/{name}/kernel"]
            + (new[f"main/encoder/knowledge_1/layer/{name}/bias"])
        )

    x = draw.normal(size=(5, 8))
    q, _ = np.linalg.qr(
        np.asarray(old["main/encoder/knowledge_1/layer/project/kernel"], np.float64)
    )
    np.testing.assert_allclose(layer("back", layer("project", x)), x @ q @ q.T, atol=1e-5)


def test_layers_move_between_models_with_other_knowledge():
    """KnowBERT-Wiki (10 and 2 layers) begins KnowBERT-W+W (10, 1 and 1)."""
    encoder = systems.get("knowbert_wiki_wordnet").towers["main"].encoder
    layers = {
        "parts_0/block/ffn/up/bias": np.arange(10),
        "parts_1/block/ffn/up/bias": np.arange(10, 12),
        "embed/token": 0,
    }
    expected = {"parts_0": [*range(10)], "parts_1": [10], "parts_2": [11]}
    for given in (layers, {"stack/block/ffn/up/bias": np.arange(12), "embed/token": 0}):
        found = encoder.of_plain(given)
        assert found.pop("embed/token") == 0
        assert {name: leaf.tolist() for name, leaf in found.items()} == {
            f"{part}/block/ffn/up/bias": values for part, values in expected.items()
        }


def test_a_system_without_a_linker_is_refused():
    bert = systems.get("bert_mini")
    reason = refusal(dataclasses.replace(bert, adapt=(Linkers(),)))
    assert registered.one_clause(reason) and "no EntityLinking" in reason
    assert refusal(system(Linkers())) is None
    assert registered.rebuilt(Linkers(source=1)) == Linkers(source=1)
