"""Structured removal: the smaller model equals the whole one with the removed parts at zero;
importance against numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.compress import catalogue
from ptm_jax.compress.pruning import removal
from ptm_jax.compress.pruning.gates import GatedHeads, HardConcrete
from ptm_jax.core import spec, towers
from ptm_jax.core.paths import count, flatten
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Loss
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.uneven import UnevenStack
from support.classifier import ROWS, batch, classifier

GATES = [np.array(gate, np.float32) for gate in ([1, 0], [0, 1], [1, 1])]


@pytest.fixture(scope="module")
def small():
    system = classifier()
    params = jax.jit(lambda rows: towers.init(system.towers, jax.random.key(0), rows))(batch())
    return system, jax.tree.map(np.asarray, params)


def logits(system, params):
    tower = towers.bind(system.towers, params)["main"]
    encoded = tower(batch())
    return np.asarray(tower.read("classify", encoded, batch())), encoded


def without(params, gates, part):
    return {"main": removal.gated(params["main"], gates, part)}


@pytest.mark.full
def test_a_model_without_heads_is_the_whole_with_these_heads_at_zero(small):
    system, params = small
    chosen = [np.flatnonzero(gate) for gate in GATES]
    pruned, less = removal.changed(
        system, params, ("main",), lambda _, layers: removal.kept(layers, "heads", chosen)
    )
    stack = pruned.towers["main"].encoder.stack
    assert isinstance(stack, UnevenStack) and [block.attention.heads for block in stack.blocks] == [
        1,
        1,
        2,
    ]
    assert less["main"]["encoder"]["stack"]["blocks_0"]["attention"]["query"]["kernel"].shape == (
        8,
        1,
        4,
    )
    assert count(params) - count(less) == 2 * (4 * 8 * 4 + 3 * 4)
    (found, encoded), (wanted, _) = (
        logits(pruned, less),
        logits(system, without(params, GATES, "heads")),
    )
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert encoded.layers.shape == (4, ROWS, 6, 8)
    again = rebuild(spec.to_json(pruned.towers["main"]), kinds_of())
    assert not spec.differences(again, pruned.towers["main"])
    assert pruned.towers["main"].encoder.level_of("encoder/stack/blocks_1/ffn/up/kernel") == 2


def test_a_model_without_hidden_units_is_one_stack(small):
    system, params = small
    scores = [
        np.linalg.norm(up, axis=0) * np.linalg.norm(down, axis=1) for up, down in _ffn(params)
    ]
    method = catalogue.read("columns(share=0.25, by='magnitude')")
    assert method.rows == 0
    pruned, less = method.smaller(system, params, None)
    assert isinstance(pruned.towers["main"].encoder.stack, Stack)
    assert less["main"]["encoder"]["stack"]["block"]["ffn"]["down"]["kernel"].shape == (3, 9, 8)
    gates = [np.isin(np.arange(12), np.argsort(score)[3:]).astype(np.float32) for score in scores]
    np.testing.assert_allclose(
        logits(pruned, less)[0], logits(system, without(params, gates, "columns"))[0], atol=1e-6
    )


def _ffn(params):
    ffn = params["main"]["encoder"]["stack"]["block"]["ffn"]
    return list(zip(ffn["up"]["kernel"], ffn["down"]["kernel"], strict=True))


@pytest.mark.parametrize(
    ("text", "stay"),
    [
        ("layers", [0, 2, 4]),
        ("layers(drop=0.25)", [0, 1, 2, 4, 5]),
        ("layers(keep=(0, -1))", [0, 5]),
    ],
)
def test_which_layers_stay(text, stay):
    """Fan et al.: of layers 1 to 6 those with d = 0 (mod floor(1 / p)) go."""
    assert catalogue.read(text).chosen(6) == stay


@pytest.mark.status("layers", "built")
def test_a_model_without_a_layer_is_the_rest_of_its_layers(small):
    system, params = small
    pruned, less = catalogue.read("layers").smaller(system, params, None)
    assert pruned.towers["main"].encoder.stack.layers == 2
    for path, leaf in flatten(less["main"]["encoder"]["stack"]).items():
        np.testing.assert_array_equal(
            leaf, flatten(params["main"]["encoder"]["stack"])[path][[0, 2]]
        )


def linear(gates, row):
    """A loss whose slopes are known: sum of gate * row."""
    return sum((gate * row["x"][i]).sum() for i, gate in enumerate(gates)), row["weight"]


def test_importance_is_the_mean_magnitude_of_each_rows_slope_by_layer_norm():
    x = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    rows = {"x": jnp.asarray(x), "weight": jnp.array([1.0, 1, 1, 1, 1, 0])}
    rows["x"] = rows["x"].at[5].set(0)
    found = removal.importance(linear, [np.ones(3, np.float32)] * 2, iter([rows]))
    wanted = np.abs(x[:5]).mean(0)
    np.testing.assert_allclose(
        found, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), rtol=1e-5
    )
    drop = removal.ablation(linear, [np.ones(3, np.float32)] * 2, iter([rows]))
    np.testing.assert_allclose(drop, -x[:5].mean(0), atol=1e-5)
    for measure in (removal.importance, removal.ablation):
        with pytest.raises(ValueError, match="there are no rows to measure it on"):
            measure(linear, [np.ones(3, np.float32)], iter([]))


@pytest.mark.status("heads", "built")
def test_the_least_important_heads_go_and_each_layer_keeps_one(monkeypatch):
    scores, asked = [np.array([0.1, 0.2, 0.3]), np.array([0.9, 0.8, 0.7])], []
    monkeypatch.setattr(removal, "importance", lambda loss, gates, rows: asked.append(1) or scores)
    method = catalogue.read("heads(share=0.5, step=0.2)")
    gates = method.gates([3, 3], None, lambda: None)
    np.testing.assert_array_equal(gates, [[0, 0, 1], [1, 1, 0]])
    assert len(asked) == 3
    with pytest.raises(
        ValueError, match=r"share is 0.9, and 1 of the 6 heads in each layer stay; take less"
    ):
        catalogue.read("heads(share=0.9)").gates([3, 3], None, lambda: None)


@pytest.mark.full
def test_importance_of_the_heads_of_a_model(small):
    """The slope of each gate against a difference quotient."""
    system, params = small
    loss = removal.row_loss(system, params, "heads")
    rows = {name: jnp.asarray(leaf) for name, leaf in batch().items()}
    found = removal.importance(loss, [np.ones(2, np.float32)] * 3, iter([rows]))
    slopes = np.zeros((3, 2))
    for row in range(ROWS):
        one = {name: leaf[row] for name, leaf in rows.items()}
        for layer, head in np.ndindex(3, 2):
            sides = []
            for change in (1e-2, -1e-2):
                gates = [np.ones(2, np.float32) for _ in range(3)]
                gates[layer][head] += change
                sides.append(float(loss(gates, one)[0]))
            slopes[layer, head] += abs(sides[0] - sides[1]) / 2e-2
    np.testing.assert_allclose(
        found, slopes / np.linalg.norm(slopes, axis=1, keepdims=True), atol=0.02
    )


def test_the_hard_concrete_distribution():
    """Louizos et al.: by hand at log alpha 0, and the share of open gates of many draws."""
    gate = HardConcrete()
    log_alpha = jnp.array([-2.0, 0.0, 1.0])
    np.testing.assert_allclose(gate.expected(jnp.array([0.0, 9.0, -9.0])), [0.5, 1, 0], atol=1e-6)
    opened = 1 / (1 + np.exp(-(np.array([-2.0, 0, 1]) - 0.33 * np.log(0.1 / 1.1))))
    np.testing.assert_allclose(gate.open(log_alpha), opened, rtol=1e-6)
    draws = gate.sample(jnp.broadcast_to(log_alpha, (20000, 3)), jax.random.key(0))
    np.testing.assert_allclose((draws > 0).mean(0), opened, atol=0.01)
    assert draws.min() == 0 and draws.max() == 1


def test_the_loss_with_gates_adds_the_expected_number_of_open_heads(small):
    system, params = small
    method = catalogue.read("gates(weight=0.5, opening=0.0)")
    params = method.init(params, None)

    def task(bound, rows, key):
        return Loss(jnp.asarray(6.0), 4.0)

    whole = adapted(dataclasses.replace(system, objective=task, compress=(method,)))
    assert isinstance(whole.objective, GatedHeads)
    loss = whole.objective(towers.bind(system.towers, params, True), batch(), jax.random.key(0))
    opened = 6 / (1 + np.exp(0.33 * np.log(0.1 / 1.1)))
    np.testing.assert_allclose(
        (np.asarray(loss.sum) / np.asarray(loss.weight)).sum(), 1.5 + 0.5 * opened, rtol=1e-6
    )
    assert method.rate("main/gates/0/bias") == 1000 and method.rate("main/encoder/embed/token") == 1


def test_heads_with_closed_gates_are_removed(small):
    system, params = small
    method = catalogue.read("gates")
    trained = method.init(params, None)
    for layer, values in enumerate(([9.0, -9.0], [-9.0, -9.0], [0.0, 9.0])):
        trained["main"]["gates"][str(layer)]["bias"] = jnp.array(values)
    effective = method.effective(trained, False)
    assert method.effective(trained, True) is trained and "gates" not in effective["main"]
    np.testing.assert_allclose(
        logits(system, effective)[0],
        logits(
            system,
            without(params, [np.array(g, np.float32) for g in ([1, 0], [0, 0], [0.5, 1])], "heads"),
        )[0],
        atol=1e-6,
    )
    pruned, less = method.smaller(system, effective, None)
    assert [block.attention.heads for block in pruned.towers["main"].encoder.stack.blocks] == [
        1,
        1,
        2,
    ]
    np.testing.assert_allclose(logits(pruned, less)[0], logits(system, effective)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heads(share=1.5)", "share is 1.5; it must be at most 1 and at least 0"),
        ("heads(examples=0)", "examples is 0; it must be at least 1"),
        ("heads(least=0)", "least at least 1"),
        ("columns(share=-1)", "share is -1"),
        ("layers(drop=0.9)", "drop is 0.9"),
        ("gates(weight=-1)", "the weight must be at least 0"),
    ],
)
def test_what_they_refuse(text, message):
    with pytest.raises(Exception, match=message):
        catalogue.read(text)


def test_a_layer_that_is_not_there():
    with pytest.raises(ValueError, match="keep names the layer 7, and there are 6: 0 to 5"):
        catalogue.read("layers(keep=(7,))").chosen(6)
