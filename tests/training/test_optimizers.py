"""Every update rule against optax; clipping, decay, rates, freezing, layout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ptm_jax.core import paths, slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import (
    LAMB,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adamax,
    AdamW,
    Constant,
    Linear,
    Phase,
    Recipe,
    StableAdamW,
)
from ptm_jax.training.updates import optimizers
from ptm_jax.training.updates.freedom import Freedom
from ptm_jax.training.updates.tensor_rules import Rule

STEPS = 5


def recipe(optimizer, **options):
    phases = (Phase(steps=STEPS, batch=1, length=1),)
    plain = {
        "phases": phases,
        "lr": 0.01,
        "schedule": Constant(),
        "clip": None,
        "optimizer": optimizer,
    }
    return Recipe(**plain | options)


def draw(seed, scale=1.0):
    """Parameters with a vector, matrices, a 3-axis kernel and a scanned block of 2 layers."""
    shapes = {
        "main/embed/table": (7, 4),
        "main/norm/scale": (4,),
        "main/head/kernel": (4, 2, 3),
        "main/stack/block/ffn/kernel": (2, 4, 5),
        "main/stack/block/ffn/bias": (2, 5),
    }
    rng = np.random.default_rng(seed)
    return {path: scale * rng.standard_normal(shape) for path, shape in shapes.items()}


@dataclasses.dataclass(frozen=True)
class Layers(slots.Layered):
    """A stack of two layers, whose parameters lie along axis 0."""

    def level_of(self, path):
        return range(1, 3)


@dataclasses.dataclass(frozen=True)
class Network:
    stack: object = Layers()


def ours(recipe, grads, placed=False):
    transform = optimizers.build(recipe, Freedom(towers={"main": Network()}))
    params = paths.unflatten({k: jnp.asarray(v, jnp.float32) for k, v in draw(0, 0.5).items()})
    state = transform.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = transform.update(grads, state, params, placed=placed)
        return optimizers.apply(params, updates), state

    for grad in grads:
        grad = paths.unflatten({k: jnp.asarray(v, jnp.float32) for k, v in grad.items()})
        params, state = step(params, state, grad)
    return paths.flatten(params), state


def separate(flat):
    """{(path, part): array}; each layer of the scanned block is a tensor of its own."""

    def parts(path, leaf):
        return range(len(leaf)) if "block" in path else [...]

    return {
        (path, i): jnp.asarray(leaf[i], jnp.float32)
        for path, leaf in flat.items()
        for i in parts(path, leaf)
    }


def assert_equal_to_optax(found, transform, grads, lr=lambda path, k: 0.01, rtol=2e-5):
    """`found` has the parameters after the updates of an optax transformation at the rate lr(path,
    k)."""
    params, update = separate(draw(0, 0.5)), jax.jit(transform.update)
    state = transform.init(params)
    for k, grad in enumerate(grads):
        updates, state = update(separate(grad), state, params)
        params = {key: leaf - lr(key[0], k) * updates[key] for key, leaf in params.items()}
    for (path, part), value in params.items():
        np.testing.assert_allclose(found[path][part], value, rtol=rtol, atol=1e-6, err_msg=path)


def without_correction(transform, direction):
    """optax's moments with the direction that they give without bias correction, which optax does
    not have."""

    def update(grads, state, params=None):
        state = transform.update(grads, state, params)[1]
        return jax.tree.map(direction, state.mu, state.nu), state

    return optax.GradientTransformation(transform.init, update)


def decays(params):
    return {key: not key[0].endswith(("bias", "scale")) for key in params}


DECAY, ADAM, ADAMAX = (
    optax.add_decayed_weights(0.01, decays),
    optax.scale_by_adam(eps=1e-6),
    optax.scale_by_adamax(),
)
FACTORED = (optax.scale_by_factored_rms(min_dim_size_to_factor=1), optax.clip_by_block_rms(1.0))


RULES = [
    (AdamW(), [ADAM, DECAY]),
    (
        AdamW(bias_correction=False),
        [without_correction(ADAM, lambda m, v: m / (jnp.sqrt(v) + 1e-6)), DECAY],
    ),
    (Adamax(weight_decay=0.01), [ADAMAX, DECAY]),
    (
        Adamax(weight_decay=0.01, bias_correction=False),
        [without_correction(ADAMAX, lambda m, u: m / u), DECAY],
    ),
    (LAMB(), [ADAM, DECAY, optax.scale_by_trust_ratio()]),
    (Adafactor(), [*FACTORED, optax.scale_by_param_block_rms()]),
    (Adafactor(relative=False, momentum=0.9), [*FACTORED, optax.ema(0.9, debias=False)]),
    (Adagrad(), [optax.scale_by_rss()]),
    (Adadelta(), [optax.scale_by_adadelta(0.95, 1e-6)]),
    (SGD(), [optax.identity()]),
    (SGD(momentum=0.9), [optax.trace(0.9)]),
    (SGD(momentum=0.9, nesterov=True), [optax.trace(0.9, nesterov=True)]),
]


def claims(optimizer):
    """The word that a rule earns for an optimizer that a row of the survey names."""
    name = type(optimizer).__name__
    named = ("AdamW", "LAMB", "Adafactor")
    return [pytest.mark.status(name, "matches")] if name in named else []


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer, parts",
    [pytest.param(*rule, marks=claims(rule[0])) for rule in RULES],
    ids=lambda value: "" if isinstance(value, list) else repr(value),
)
def test_every_rule_is_that_of_optax(optimizer, parts):
    grads = [draw(k + 1) for k in range(STEPS)]
    rtol = 1e-6 if isinstance(optimizer, Adamax) else 2e-5
    assert_equal_to_optax(ours(recipe(optimizer), grads)[0], optax.chain(*parts), grads, rtol=rtol)


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer, parts", [rule for rule in RULES if isinstance(rule[0], AdamW | Adafactor)]
)
def test_updates_in_place_are_those_of_optax(optimizer, parts):
    grads = [draw(k + 1) for k in range(STEPS)]
    assert optimizers.rule_of(optimizer).place is not Rule._field_defaults["place"]
    assert_equal_to_optax(ours(recipe(optimizer), grads, True)[0], optax.chain(*parts), grads)


def test_a_stable_rule_divides_the_rate_of_a_tensor_whose_gradient_grew():
    """Wortsman et al. 2023, Algorithm 2, of each layer's tensor alone, in float64."""
    spec = StableAdamW(weight_decay=0.1)
    grads = [draw(k + 1, scale) for k, scale in enumerate((0.1, 0.1, 3.0, 0.1, 1.0))]
    params, divided = separate(draw(0, 0.5)), []
    moments = {key: (0.0, 0.0) for key in params}
    for t, grad in enumerate(grads, 1):
        for key, g in separate(grad).items():
            g, x = np.asarray(g, np.float64), np.asarray(params[key], np.float64)
            v, u = (
                b * old + (1 - b) * new
                for b, old, new in zip((0.9, 0.98), moments[key], (g, g * g), strict=True)
            )
            moments[key] = v, u
            u_hat = u / (1 - 0.98**t)
            rms = np.sqrt(np.mean(g * g / np.maximum(u_hat, 1e-12)))
            divided.append(rms > 1)
            decay = 0.0 if key[0].endswith(("bias", "scale")) else 0.1
            step = v / (1 - 0.9**t) / (np.sqrt(u_hat) + 1e-6) + decay * x
            params[key] = x - 0.01 / max(1.0, rms) * step
    results = ours(recipe(spec), grads)[0]
    for (path, part), value in params.items():
        np.testing.assert_allclose(results[path][part], value, rtol=2e-5, atol=1e-6, err_msg=path)
    assert 0 < sum(divided) < len(divided)


def test_schedule_and_rates_by_path():
    """Update k uses the schedule's rate k; the first matching multiplier wins."""
    options = {
        "schedule": Linear(warmup=2),
        "lr_rules": (("table", 0.0), ("block", 0.5), ("ffn", 9.0)),
    }
    ramp = [0.5, 1, 1, 2 / 3, 1 / 3]

    def factor(path):
        return 0.0 if "table" in path else 0.5 if "block" in path else 1.0

    grads = [draw(k + 1) for k in range(STEPS)]
    found = ours(recipe(AdamW(), **options), grads)[0]
    assert_equal_to_optax(
        found, optax.chain(ADAM, DECAY), grads, lambda path, k: 0.01 * ramp[k] * factor(path)
    )


@pytest.mark.parametrize("clip", [0.5, 1e4])
def test_clip(clip):
    """A gradient of norm n > clip is scaled to clip; a smaller one is left as it is."""
    grad = draw(1)
    norm = np.sqrt(sum(np.sum(g**2) for g in grad.values()))
    found = ours(recipe(SGD(), clip=clip), [grad])[0]
    for path, value in draw(0, 0.5).items():
        scaled = grad[path] * min(1, clip / norm)
        np.testing.assert_allclose(found[path], value - 0.01 * scaled, rtol=1e-5, atol=1e-7)


def test_rows_of_a_matrix_keep_to_the_limit():
    """A row's change is at most 0.02 long, in its own direction; vectors are left as they are."""
    grad = draw(1)
    found = ours(recipe(SGD(row_limit=0.02)), [grad])[0]
    lengths = []
    for path, before in draw(0, 0.5).items():
        change = 0.01 * grad[path]
        if change.ndim == 2:
            length = np.sqrt((change**2).sum(-1, keepdims=True))
            change = change * np.minimum(1, 0.02 / length)
            lengths += [*length.ravel()]
        np.testing.assert_allclose(before - found[path], change, rtol=1e-4, atol=1e-7)
    assert min(lengths) < 0.02 < max(lengths)
    with pytest.raises(ValueError, match="row_limit is -1"):
        SGD(row_limit=-1)


def test_a_gradient_of_zero_only_decays_what_decays():
    zero = {path: np.zeros_like(g) for path, g in draw(1).items()}
    before, after = draw(0, 0.5), ours(recipe(AdamW(weight_decay=0.1)), [zero])[0]
    for path, value in before.items():
        shrink = 1.0 if path.endswith(("bias", "scale")) else 1 - 0.01 * 0.1
        np.testing.assert_allclose(after[path], value * shrink, rtol=1e-6)
    for optimizer in (Adamax(), LAMB(), StableAdamW(), Adafactor(), Adagrad(), Adadelta(), SGD()):
        assert all(np.isfinite(leaf).all() for leaf in ours(recipe(optimizer), [zero])[0].values())


def test_first_decay_rule_wins():
    rules = (("table", 2.0), ("embed|head", 0.0))
    zero = {path: np.zeros_like(g) for path, g in draw(1).items()}
    after = ours(recipe(AdamW(weight_decay=0.1, decay_rules=rules)), [zero])[0]
    before = draw(0, 0.5)
    np.testing.assert_allclose(
        after["main/embed/table"], before["main/embed/table"] * 0.998, rtol=1e-6
    )
    np.testing.assert_allclose(after["main/head/kernel"], before["main/head/kernel"], rtol=1e-6)
    np.testing.assert_allclose(
        after["main/norm/scale"], before["main/norm/scale"] * 0.999, rtol=1e-6
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer", [AdamW(), LAMB(), Adafactor(), SGD(momentum=0.9)], ids=lambda o: type(o).__name__
)
def test_frozen_leaves_are_bit_unchanged_and_carry_no_state(optimizer):
    transform = optimizers.build(recipe(optimizer, clip=1.0), Freedom(fixed=("b",)))
    frozen = jnp.array([-0.0, 0.0, 1e-45, 3.0, jnp.inf], jnp.float32)
    params = {"a": {"kernel": jnp.ones((3, 2))}, "b": {"kernel": frozen}}
    state = transform.init(params)
    assert not [path for path in paths.flatten(state) if "b" in path.split("/")]
    grads = {"a": {"kernel": jnp.full((3, 2), 2.0)}, "b": {"kernel": jnp.full(5, jnp.nan)}}
    updates, state = jax.jit(transform.update)(grads, state, params)
    after = jax.jit(optimizers.apply)(params, updates)
    assert after["b"]["kernel"].tobytes() == frozen.tobytes()
    assert np.isfinite(after["a"]["kernel"]).all() and (after["a"]["kernel"] != 1).all()
    # The same, when only the trained part is differentiated at all.
    part = {"a": params["a"]}
    updates, _ = transform.update({"a": grads["a"]}, transform.init(part), part)
    np.testing.assert_array_equal(
        optimizers.apply(part, updates)["a"]["kernel"], after["a"]["kernel"]
    )


def test_everything_frozen_is_an_error():
    with pytest.raises(UserError, match="every parameter is frozen"):
        optimizers.build(recipe(AdamW()), Freedom(fixed=("a",))).init({"a": jnp.ones(3)})


@pytest.mark.parametrize(
    "optimizer",
    [
        AdamW(),
        StableAdamW(),
        Adamax(),
        LAMB(),
        Adafactor(),
        Adagrad(),
        Adadelta(),
        SGD(momentum=0.9),
    ],
)
def test_moments_lie_at_the_path_and_rank_of_their_parameter(optimizer):
    params = paths.flatten(ours(recipe(optimizer), [])[0])
    state = ours(recipe(optimizer), [draw(1)])[1]
    for path, leaf in paths.flatten(state).items():
        if path == "count":
            assert leaf.dtype == jnp.int32 and int(leaf) == 1
            continue
        param = params[path.split("/", 1)[1]]
        assert leaf.ndim == param.ndim and leaf.dtype == jnp.float32
        assert all(m in (1, p) for m, p in zip(leaf.shape, param.shape, strict=True))


def test_adafactor_memory_is_sublinear():
    params = {"kernel": jnp.zeros((512, 256))}
    state = optimizers.build(recipe(Adafactor())).init(params)
    assert paths.count(state) == 512 + 256 + 1


def test_first_step_of_adam_is_exact():
    """1 - b2**t does not lose digits in float32: the first bias-corrected step is sign(g) to
    1e-6."""
    spec = recipe(AdamW(weight_decay=0.0, eps=1e-30), lr=1.0)
    transform = optimizers.build(spec)
    params = {"w": jnp.zeros(4)}
    updates, _ = transform.update(
        {"w": jnp.array([1e-3, -2.0, 5.0, -1e-6])}, transform.init(params), params
    )
    np.testing.assert_allclose(updates["w"], [-1, 1, -1, 1], rtol=1e-6)


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="adamax.eps is 0; it must be a finite number above 0"):
        Adamax(eps=0)
    with pytest.raises(TypeError, match="no optimizer is known for Linear"):
        optimizers.build(dataclasses.replace(recipe(AdamW()), optimizer=Linear()))
