"""CONTRIBUTING: its Python examples do what they say, and what it names exists."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from ptm_jax import systems
from ptm_jax.core import slots, spec, system
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.core.recipe import spec as recipe_spec
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import WholeSentences
from ptm_jax.nn.heads.task_heads import TaskHead
from ptm_jax.objectives.base import OnePass, real_tokens, token_loss
from ptm_jax.objectives.joint import Joint
from ptm_jax.training.steps import step
from ptm_jax.training.updates import optimizers, schedules
from support import cutting, plain_towers, published
from support.baselines import constant
from support.classifier import batch, classifier
from support.corrupting import VOCAB

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
NAMES = {
    "dataclasses": dataclasses, "jnp": jnp, "np": np, "nn": nn, "slots": slots, "packing": packing,
    "TaskHead": TaskHead, "WholeSentences": WholeSentences, "CorpusFact": CorpusFact,
    "spec": recipe_spec, "rule_of": optimizers.rule_of, "build": schedules.build,
    "Rule": optimizers.Rule,
}  # fmt: skip


def example(title):
    """What the Python example of a section defines."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## )", TEXT, re.M | re.S)[1]
    code = re.search(r"```python\n(.*?)```", section, re.S)[1]
    names = {**NAMES, "__name__": "contributed"}
    exec(compile(code, title, "exec", dont_inherit=True), names)
    return SimpleNamespace(**names)


def test_a_head_in_a_step():
    head = example("A head").MaxHead(classes=3)
    hidden = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    params = head.init(jax.random.key(0), hidden)["params"]
    kernel, bias = params["classes"]["kernel"], params["classes"]["bias"]
    expected = hidden.max(1) @ np.asarray(kernel) + np.asarray(bias)
    np.testing.assert_allclose(head.apply({"params": params}, hidden), expected, atol=1e-5)
    model = classifier()
    tower = model.towers["main"].clone(heads={"classify": example("A head").MaxHead(classes=2)})
    work = step.program(dataclasses.replace(model, towers={"main": tower}), 0)
    state = jax.eval_shape(work.init, batch())
    assert jax.eval_shape(work.step, state, batch())[1]["loss"]


def test_rows_lose_no_token():
    value = example("Rows").EachSentence()
    block = cutting.block(documents=3)
    rows = value.rows(block, length=8, vocab=VOCAB, rng=np.random.default_rng(0))
    fields = value.spec(8, VOCAB)
    assert {*rows} == {*fields} and all(rows[name].shape[1:] == (8,) for name in fields)
    pieces = [[6] * (size // 6) + [size % 6] * (size % 6 > 0) for size in block.sentences.tolist()]
    assert (rows["segment_ids"].sum(1) - 2).tolist() == sum(pieces, [])
    words = [
        ids[real > 0][1:-1]
        for ids, real in zip(rows["input_ids"], rows["segment_ids"], strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(words), block.tokens)


def test_an_adaptation_holds_the_encoder_back():
    wrapper = example("An adaptation").HeadsFirst(steps=1)
    adapted = dataclasses.replace(classifier(), adapt=(wrapper,))
    assert system.refusal(adapted) is None
    work = step.program(adapted, 0)
    before = jax.jit(work.init)(batch())
    states = [before]
    for _ in range(2):
        states.append(jax.jit(work.step)(states[-1], batch())[0])
    flat = [
        {path: np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(one.params)}
        for one in states
    ]
    moved = [
        {str(path) for path in flat[0] if (one[path] != other[path]).any()}
        for one, other in zip(flat, flat[1:], strict=False)
    ]
    assert moved[0] and all("heads_" in path for path in moved[0])
    assert any("encoder" in path for path in moved[1])


def test_an_optimizer_and_a_schedule():
    names = example("An optimizer, or a schedule")
    recipe = Recipe(
        phases=(Phase(steps=4, batch=1, length=8),), lr=0.5, optimizer=names.SignSGD(),
        schedule=names.Halved(), clip=None,
    )  # fmt: skip
    transform = optimizers.build(recipe)
    params = {"a": {"kernel": jnp.array([1.0, 2.0])}}
    state, grads = transform.init(params), {"a": {"kernel": jnp.array([3.0, -0.1])}}
    for expected in ([0.5, 2.5], [0.0, 3.0], [-0.25, 3.25], [-0.5, 3.5]):
        updates, state = transform.update(grads, state, params)
        params = optimizers.apply(params, updates)
        np.testing.assert_allclose(params["a"]["kernel"], expected, rtol=1e-6)


def test_a_fact_is_filled_from_a_corpus():
    fact = example("A fact of a corpus").Logarithms()
    counts = np.array([0, 1, 7])
    corpus = SimpleNamespace(counts=lambda split: counts if split == "train" else None)
    filled = fact.filled(fact.read(corpus))
    np.testing.assert_allclose(filled.values, np.log([1, 2, 8]), rtol=1e-6)
    assert filled.corpus_sha256 and filled.values.dtype == fact.stand_in(VOCAB).dtype
    assert "corpus_sha256" in spec.field_names(fact)


def test_the_figures_of_a_system_stand_in_a_file_of_its_own():
    """No table of all systems is edited for a new one."""
    one = {"SIZES": {"x": 3}, "TRAINS": {"x_mini": [(constant("loss", 1.0), 0.5)]}}
    assert published.collected("SIZES", {"x.py": one, "y.py": {}}) == {"x": 3}
    with pytest.raises(ValueError, match=r"x.py and y.py have SIZES of x; keep one"):
        published.collected("SIZES", {"x.py": one, "y.py": {"SIZES": {"x": 4}}})
    (metric, baseline), margin = published.collected("TRAINS", {"x.py": one})["x_mini"][0]
    assert (metric, baseline(None), margin) == ("loss", 1.0, 0.5)
    for table in ("SIZES", "TRAINS", "TEXT"):
        assert {*published.collected(table)} <= {*systems.names()}
    assert published.collected("TEXT")["transe_mini"] == "triples:kg/umls"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort(OnePass):
    """An objective on the entry of an encoder's trait that no other objective reads."""

    tower: str = "main"

    def of(self, tower, encoded, batch):
        return token_loss(encoded.extra["effort"], real_tokens(batch), name="effort")


class Untowered(OnePass):
    """An objective whose class has no field `tower`."""


def test_an_objective_on_an_own_trait_needs_no_edit_of_the_shared_tower():
    """The laws and `Joint` take it; another entry than those of the tower is [B, L]."""
    fields = plain_towers.batch_of()
    towers = {"main": plain_towers.PlainTower(plain_towers.params_of())}
    loss = Joint(parts=((2.0, Effort()),))(towers, fields, jax.random.key(0))
    states = np.asarray(towers["main"](fields).hidden, np.float64)
    real = np.asarray(fields["segment_ids"]) > 0
    expected = 2 * (np.square(states).sum(-1) * real).sum() / real.sum()
    np.testing.assert_allclose(loss.sum / loss.weight, expected, rtol=1e-5)


def test_an_objective_without_a_tower_is_refused_with_what_to_add():
    bare = dataclasses.dataclass(frozen=True, kw_only=True)(Untowered)
    with pytest.raises(
        ValueError, match=r"^Untowered has no field `tower`.*add `tower: str"
    ) as why:
        Joint(parts=((1.0, bare()),))
    assert "\n" not in str(why.value)


def test_the_map_and_the_sections_name_what_exists():
    house = re.search(r"## The house\n\n```\n(.*?)```", TEXT, re.S)[1]
    rooms = re.findall(r"ptm_jax/\w+(?:\.py)?", house)
    assert len(rooms) > 20 and all((ROOT / room).exists() for room in rooms)
    folders = {
        path.name
        for path in (ROOT / "ptm_jax").iterdir()
        if (path / "__init__.py").is_file() and path.name != "configs"
    }
    assert {room.split("/")[1] for room in rooms} >= folders, "a room that the map lacks"
    kinds = r"(?:ptm_jax|tests|benchmarks|docs)/[\w/]+(?:\.(?:py|txt|md|json)|/)?"
    named = re.findall(rf"`({kinds})`", TEXT)
    inside = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py|(?:[a-z_]+/)+)`", TEXT)
    for name in [*named, *inside]:
        if not re.search(r"NAME|mine|x_", name):
            assert (ROOT / name).exists() or (ROOT / "ptm_jax" / name).exists(), name
