"""Muon and SOAP: matrices by the axes that layers declare, against optax and numpy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ptm_jax import systems
from ptm_jax.core import paths, slots
from ptm_jax.core.recipe import SOAP, Constant, Muon, Phase, Recipe
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.mesh.padding import Padding, stored
from ptm_jax.mesh.rules import TABLES, make_mesh
from ptm_jax.training.steps.step import program
from ptm_jax.training.updates import matrices, optimizers
from ptm_jax.training.updates.freedom import Freedom
from support import elsewhere

RATE = 0.01
SHAPES = {
    "main/embed/project/kernel": ((4, 6), (None, "width")),
    "main/stack/block/query/kernel": ((2, 6, 2, 3), ("width", "heads", "head")),
    "main/stack/block/query/bias": ((2, 2, 3), ("heads", "head")),
    "main/stack/block/joined/kernel": ((2, 6, 3, 2, 3), ("width", None, "heads", "head")),
    "main/stack/block/out/kernel": ((2, 2, 3, 6), ("heads", "head", "width")),
    "main/stack/block/ffn/kernel": ((2, 6, 8), ("width", "hidden")),
    "main/stack/block/experts": ((2, 3, 6, 8), (None, "width", "hidden")),
    "main/stack/block/norm/scale": ((2, 6), ("width",)),
    "main/heads_mlm/dense/kernel": ((6, 6), ("width", None)),
}
"""{path: (shape, logical axes without the stack's)}."""
SIDES = {
    "main/stack/block/query/kernel": ((1,), (2, 3)),
    "main/stack/block/joined/kernel": ((1,), (3, 4)),
    "main/stack/block/out/kernel": ((1, 2), (3,)),
    "main/stack/block/ffn/kernel": ((1,), (2,)),
    "main/stack/block/experts": ((2,), (3,)),
}
AXES = ParameterAxes({path: axes for path, (_, axes) in SHAPES.items()})


@dataclasses.dataclass(frozen=True)
class Layers(slots.Layered):
    def level_of(self, path):
        return range(1, 3)


class Network(slots.Encoder):
    stack = Layers()

    def level_of(self, path):
        return range(1, 3) if "stack" in path else 0

    @property
    def encoder(self):
        return self


def draw(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {path: scale * rng.standard_normal(shape) for path, (shape, _) in SHAPES.items()}


def recipe(optimizer):
    phases = (Phase(steps=9, batch=1, length=1),)
    return Recipe(phases=phases, lr=RATE, schedule=Constant(), clip=None, optimizer=optimizer)


def ours(optimizer, grads, put=jax.device_put):
    """(parameters, state) after the updates. `put` places a tree."""
    freedom = Freedom(towers={"main": Network()})
    transform = optimizers.build(recipe(optimizer), freedom, AXES)
    params = paths.unflatten({k: jnp.asarray(v, jnp.float32) for k, v in draw(0, 0.5).items()})
    params = put(params)
    state, update = put(transform.init(params)), jax.jit(transform.update)
    for grad in grads:
        grad = put(paths.unflatten({k: jnp.asarray(v, jnp.float32) for k, v in grad.items()}))
        updates, state = update(grad, state, params)
        params = optimizers.apply(params, updates)
    return paths.flatten(params), state


def test_the_roles_follow_from_the_axes():
    params = paths.unflatten({path: jnp.zeros(shape) for path, (shape, _) in SHAPES.items()})
    places = Freedom(towers={"main": Network()}).places(params)
    sides = {path: matrices.sides_of(AXES, places[path], len(SHAPES[path][0])) for path in SHAPES}
    assert {path: tuple(side) for path, side in sides.items() if side} == SIDES


def separate(flat):
    """Every matrix by itself, [inputs, outputs]; other parameters as they are."""
    parts = {}
    for path, leaf in flat.items():
        leaf = np.asarray(leaf, np.float64)
        if path not in SIDES:
            parts[path, 0] = leaf
            continue
        sides = SIDES[path]
        batch = [axis for axis in range(leaf.ndim) if axis not in sides[0] + sides[1]]
        moved = leaf.transpose([*batch, *sides[0], *sides[1]])
        rows = int(np.prod([leaf.shape[axis] for axis in sides[0]]))
        shape = (int(np.prod([leaf.shape[axis] for axis in batch])), rows, -1)
        parts |= {(path, n): matrix for n, matrix in enumerate(moved.reshape(shape))}
    return parts


@pytest.mark.full
@pytest.mark.parametrize("spec", [Muon(), Muon(rms=None, nesterov=False, other_rate=0.5)], ids=repr)
def test_muon_is_that_of_optax_matrix_by_matrix(spec):
    """Also a kernel of queries, keys and values: three matrices. AdamW has the other parameters."""
    grads = [draw(k + 1) for k in range(3)]
    decayed = {path: not path.endswith(("bias", "scale")) for path in SHAPES}
    params = {key: jnp.asarray(leaf, jnp.float32) for key, leaf in separate(draw(0, 0.5)).items()}
    transform = optax.contrib.muon(
        RATE, beta=spec.momentum, weight_decay=spec.weight_decay, nesterov=spec.nesterov,
        consistent_rms=spec.rms, adam_learning_rate=0.0,
        muon_weight_dimension_numbers={
            key: optax.contrib.MuonDimensionNumbers() if key[0] in SIDES else None for key in params
        },
    )  # fmt: skip
    adam = optax.chain(
        optax.scale_by_adam(b1=spec.b1, b2=spec.b2, eps=spec.eps),
        optax.add_decayed_weights(spec.weight_decay, {key: decayed[key[0]] for key in params}),
        optax.scale(-RATE * spec.other_rate),
    )
    states = [each.init(params) for each in (transform, adam)]
    for grad in grads:
        grad = {key: jnp.asarray(leaf, jnp.float32) for key, leaf in separate(grad).items()}
        (one, first), (two, second) = (
            each.update(grad, state, params)
            for each, state in zip((transform, adam), states, strict=True)
        )
        states = [first, second]
        moved = {key: (one if key[0] in SIDES else two)[key] for key in params}
        params = optax.apply_updates(params, moved)
    results = separate(ours(spec, grads)[0])
    for key, value in params.items():
        np.testing.assert_allclose(results[key], value, rtol=1e-4, atol=2e-6, err_msg=str(key))


def soap(spec, x, grads):
    """Algorithm 3 for one matrix, in float64; a basis is unique up to signs, which cancel. A side
    longer than `largest` has none."""
    m, v, factors, bases = np.zeros_like(x), np.zeros_like(x), {}, {}
    short = [side for side, size in enumerate(x.shape) if size <= spec.largest]

    def turned(z, back=False):
        for side, q in bases.items():
            q = q if back else q.T
            z = q @ z if side == 0 else z @ q.T
        return z

    for t, g in enumerate(grads):
        if t:
            m = spec.b1 * m + (1 - spec.b1) * g
            v = spec.b2 * v + (1 - spec.b2) * turned(g) ** 2
            scaled = turned(m) / (1 - spec.b1**t) / (np.sqrt(v / (1 - spec.b2**t)) + spec.eps)
            x = x - RATE * (turned(scaled, back=True) + spec.weight_decay * x)
        for side in short:
            new = g @ g.T if side == 0 else g.T @ g
            factors[side] = spec.b2 * factors.get(side, 0) + (1 - spec.b2) * new
            if t == 0:
                bases[side] = np.linalg.eigh(factors[side])[1][:, ::-1]
            elif t % spec.every == 0:
                order = np.argsort(-np.diag(bases[side].T @ factors[side] @ bases[side]))
                bases[side] = np.linalg.qr(factors[side] @ bases[side][:, order])[0]
                v = np.take(v, order, side)
    return x


@pytest.mark.full
@pytest.mark.parametrize("largest", [10_000, 7, 5])
def test_soap_is_algorithm_3(largest):
    """The longer side of a matrix has no unique first basis, so that only a shorter one is turned
    there (`largest`)."""
    spec, grads = SOAP(every=2, weight_decay=0.1, largest=largest), [draw(k + 1) for k in range(7)]
    results = separate(ours(spec, grads)[0])
    begun, each, compared = separate(draw(0, 0.5)), [separate(grad) for grad in grads], 0
    for key, value in begun.items():
        if key[0] in SIDES and (largest < 8 or value.shape == (6, 6)):
            expected = soap(spec, value, [grad[key] for grad in each])
            np.testing.assert_allclose(results[key], expected, atol=2e-5, err_msg=str(key))
            compared += 1
    assert compared == (18 if largest < 8 else 10)


PARTS = {f"attention/{part}" for part in ("query", "key", "value", "out")}
SYSTEMS = {
    "bert_tiny": {"ffn/up", "ffn/down"},
    "modernbert_mini": {"ffn/up", "ffn/gate", "ffn/down"},
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_matrices_of_a_system_are_those_of_its_layers(name):
    """Tables, positions, norms, biases and the transformation before the softmax are not."""
    state, _ = program(with_optimizer(name, Muon()), 0).abstract(batch_of(name))
    both, adam = ({*paths.flatten(state.opt_state[moment])} for moment in ("mu", "nu"))
    expected = {f"main/encoder/stack/block/{part}/kernel" for part in PARTS | SYSTEMS[name]}
    assert both - adam == expected and adam < both


def with_optimizer(name, optimizer):
    system = systems.get(name)
    recipe = dataclasses.replace(system.recipe, optimizer=optimizer)
    return dataclasses.replace(system, recipe=recipe)


def batch_of(name):
    system = systems.get(name)
    vocab = slots.encoder_of(system).embeddings.vocab
    fields = system.examples.batch_spec(16, vocab)
    shapes = {key: jax.ShapeDtypeStruct((4, *dims), kind) for key, (dims, kind) in fields.items()}
    return {**shapes, "rows": jax.ShapeDtypeStruct((4,), jnp.int32)}


def placed(mesh, tree):
    """Puts a tree on the shardings that a state has on a mesh."""
    shapes = stored(tree, Padding(), AXES, TABLES["megatron_fsdp"], mesh)
    return jax.device_put(tree, jax.tree.map(lambda leaf: leaf.sharding, shapes))


def of_meshes():
    """{optimizer: the greatest difference of parameters after 3 updates on a mesh of 4 from those
    of one device, and the partition of a moment and of a preconditioner}."""
    mesh = make_mesh({"fsdp": 2, "model": 2}, jax.devices()[:4])
    results = {}
    for optimizer in (Muon(), SOAP(every=2, largest=7)):
        grads = [draw(k + 1) for k in range(3)]
        one, _ = ours(optimizer, grads)

        four, state = ours(optimizer, grads, functools.partial(placed, mesh))
        apart = max(
            float(np.abs(np.asarray(four[path]) - leaf).max()) for path, leaf in one.items()
        )
        flat = paths.flatten(state)
        names = "mu/main/stack/block/ffn/kernel", "left/main/stack/block/ffn/kernel"
        specs = [str(flat[name].sharding.spec) if name in flat else "" for name in names]
        results[type(optimizer).__name__] = [apart, *specs]
    return results


@pytest.mark.full
def test_an_update_on_four_devices_is_that_of_one():
    for name, (apart, moment, factor) in elsewhere.on_devices(8, of_meshes).items():
        assert apart < 1e-5, (name, apart)
        assert "fsdp" in moment and "model" in moment and "fsdp" not in factor, (moment, factor)
