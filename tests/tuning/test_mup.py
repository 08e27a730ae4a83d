"""muP: the values of Table 8, and the coordinate check of Appendix D.1 on a tiny language model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import first_match, flatten
from ptm_jax.core.recipe import LAMB, Constant
from ptm_jax.core.spec import respell
from ptm_jax.core.system import Experiment
from ptm_jax.core.towers import abstract
from ptm_jax.core.types import Vocab
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import FeedForward
from ptm_jax.systems import get
from ptm_jax.systems.transformers.bert_gpt import gpt2, miniature
from ptm_jax.training.start import differing
from ptm_jax.training.steps.step import program
from ptm_jax.tuning.scaling.mup import MuP

VOCAB = Vocab(size=64, bos=0, eos=1)
BASE = MuP(width=64, head_width=16)


def model(width, parametrisation=None):
    system = miniature(gpt2("", 2, width, 4), f"w{width}", steps=8, lr=1e-2, batch=8, length=16)
    recipe = dataclasses.replace(system.recipe, schedule=Constant(), clip=None)
    recipe = dataclasses.replace(
        recipe, optimizer=dataclasses.replace(recipe.optimizer, weight_decay=0.0, eps=1e-12)
    )
    system = respell(dataclasses.replace(system, recipe=recipe), Vocab, VOCAB)
    system = system if parametrisation is None else parametrisation.of(system)
    return differing.resolve(Experiment(system=system, precision="float32"), VOCAB).system


def part(system, kind):
    return next(found for _, found in spec.walk(system.towers) if isinstance(found, kind))


def test_the_base_width_is_unchanged():
    assert spec.to_json(model(64, BASE)) == spec.to_json(model(64))


def test_values_of_table_8():
    plain, wide = model(64), model(256, BASE)
    for kind in (Attention, FeedForward):
        for name in ("initializer", "out_init"):
            assert vars(part(wide, kind))[name].std == pytest.approx(
                vars(part(plain, kind))[name].std / 2
            )
    attention, head = part(wide, Attention), wide.towers["main"].heads["lm"]
    assert attention.scale == pytest.approx(16**0.5 / 64) and head.scale == 1 / 4
    assert (
        wide.towers["main"].encoder.embed.initializer
        == plain.towers["main"].encoder.embed.initializer
    )
    ids = {"input_ids": jax.ShapeDtypeStruct((1, 8), jnp.int32)}
    rates = {
        path: first_match(wide.recipe.lr_rules, path, 1.0)
        for path in flatten(abstract(wide.towers, ids))
    }
    quarter = {path for path, rate in rates.items() if rate == 1 / 4}
    assert {path.split("/")[-1] for path in quarter} == {"kernel"} and {*rates.values()} == {
        1.0,
        1 / 4,
    }
    assert not [path for path in rates if path.endswith("kernel") and path not in quarter]


def test_refusals():
    system = model(64)
    with pytest.raises(UserError, match="the optimizer is LAMB"):
        BASE.of(
            dataclasses.replace(system, recipe=dataclasses.replace(system.recipe, optimizer=LAMB()))
        )
    with pytest.raises(UserError, match="MLMHead does not scale"):
        BASE.of(get("bert_tiny"))


@functools.cache
def batch():
    ids = np.random.default_rng(0).integers(2, VOCAB.size, (8, 16)).astype(np.int32)
    return {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "rows": np.arange(8, dtype=np.int32),
    }


def moved(system, steps=4):
    """Root mean square changes of the logits and of the last states after some steps on one
    batch."""
    work = program(system, 0)
    fields = system.examples.spec(16, VOCAB)
    given = {
        name: batch().get(name, np.zeros((8, *dims), dtype))
        for name, (dims, dtype) in fields.items()
    }
    given["rows"] = batch()["rows"]
    tower = system.towers["main"]

    def outputs(params):
        hidden = tower.encoder.apply({"params": params["main"]["encoder"]}, given).hidden
        table = next(
            leaf
            for leaf in jax.tree.leaves(params["main"]["encoder"]["embed"])
            if leaf.shape[0] == VOCAB.size
        )
        return hidden, tower.heads["lm"].scale * hidden @ table.T

    state, step = jax.jit(work.init)(given), jax.jit(work.step)
    before = jax.jit(outputs)(state.params)
    for _ in range(steps):
        state, _ = step(state, given)
    after = jax.jit(outputs)(state.params)
    return [float(jnp.sqrt(jnp.mean((a - b) ** 2))) for a, b in zip(after, before, strict=True)]


@pytest.mark.full
def test_coordinate_check():
    """From width 64 to 512 the change of the logits grows with the width in the standard
    parametrisation, and by less than half in muP (Figure 5)."""
    widths = (64, 512)
    logits = {
        name: [moved(model(width, value))[1] for width in widths]
        for name, value in (("plain", None), ("mup", BASE))
    }
    assert logits["plain"][1] / logits["plain"][0] > 3, logits
    assert 0.5 < logits["mup"][1] / logits["mup"][0] < 1.5, logits
