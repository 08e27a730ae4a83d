"""Every update rule against a brute-force numpy reading of its paper; clipping, decay, rates, freezing, layout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import paths, slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import LAMB, SGD, Adafactor, Adagrad, Adamax, AdamW, Constant, Linear, Phase, Recipe
from ptm_jax.train import optimizers
from ptm_jax.train.freedom import Freedom

STEPS = 5


def recipe(optimizer, **options):
    phases = (Phase(steps=STEPS, batch=1, length=1),)
    plain = {"phases": phases, "lr": 0.01, "schedule": Constant(), "clip": None, "optimizer": optimizer}
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


def ours(recipe, grads):
    transform = optimizers.build(recipe, Freedom(towers={"main": Network()}))
    params = paths.unflatten({k: jnp.asarray(v, jnp.float32) for k, v in draw(0, 0.5).items()})
    state = transform.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = transform.update(grads, state, params)
        return optimizers.apply(params, updates), state

    for grad in grads:
        grad = paths.unflatten({k: jnp.asarray(v, jnp.float32) for k, v in grad.items()})
        params, state = step(params, state, grad)
    return paths.flatten(params), state


def brute(rule, grads, lr=lambda path, k: 0.01):
    """`rule(path, state, w, g, t) -> direction` on every tensor; each layer of the scanned block is a tensor."""
    params, states = draw(0, 0.5), {}
    for k, grad in enumerate(grads):
        for path, w in params.items():
            layers = range(len(w)) if "block" in path else [slice(None)]
            for i in layers:
                state = states.setdefault((path, str(i)), {})
                w[i] = w[i] - lr(path, k) * rule(path, state, w[i], grad[path][i], k + 1)
    return params


def adam(s, g, t, b1=0.9, b2=0.999, eps=1e-6, correct=True):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g**2
    m, v = (s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)) if correct else (s["m"], s["v"])
    return m / (np.sqrt(v) + eps)


def decay(path):
    return 0.0 if path.endswith(("bias", "scale")) else 0.01


def adamw_paper(path, s, w, g, t):
    return adam(s, g, t) + decay(path) * w


def adamw_bert(path, s, w, g, t):
    return adam(s, g, t, correct=False) + decay(path) * w


def adamax_paper(path, s, w, g, t, correct=True):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["u"] = np.maximum(0.999 * s.get("u", 0), np.abs(g) + 1e-8)
    return s["m"] / (s["u"] * (1 - 0.9**t if correct else 1)) + decay(path) * w


def adamax_original(path, s, w, g, t):
    return adamax_paper(path, s, w, g, t, correct=False)


def lamb_paper(path, s, w, g, t):
    u = adam(s, g, t) + decay(path) * w
    return np.linalg.norm(w) / np.linalg.norm(u) * u


def adagrad_paper(path, s, w, g, t):
    s["sum"] = s.get("sum", 0.1) + g**2
    return g / (np.sqrt(s["sum"]) + 1e-7)


def sgd_paper(path, s, w, g, t):
    return g


def momentum_paper(path, s, w, g, t):
    s["m"] = 0.9 * s.get("m", 0) + g
    return s["m"]


def nesterov_paper(path, s, w, g, t):
    """Sutskever et al. 2013, Eqs. 3 and 4, over the point looked ahead to, theta + 0.9 v (Bengio et al. 2013, Eq. 7)."""
    before = s.get("v", np.zeros_like(g))
    s["v"] = 0.9 * before - 0.01 * g
    return -(0.9 * s["v"] - 0.9 * before + s["v"]) / 0.01


def rms(x):
    return np.sqrt(np.mean(x**2))


def adafactor_paper(relative=True, momentum=None):
    """Algorithms 4 and 5, with row and column *sums* as printed; a 3-axis tensor is a batch of matrices."""

    def factored(s, g, b2):
        n, m = g.shape
        s["R"] = b2 * s.get("R", np.zeros(n)) + (1 - b2) * (g**2 + 1e-30) @ np.ones(m)
        s["C"] = b2 * s.get("C", np.zeros(m)) + (1 - b2) * np.ones(n) @ (g**2 + 1e-30)
        return g / np.sqrt(np.outer(s["R"], s["C"]) / (np.ones(n) @ s["R"]))

    def rule(path, s, w, g, t):
        b2 = 1 - t**-0.8
        if g.ndim == 1:
            s["V"] = b2 * s.get("V", 0) + (1 - b2) * (g**2 + 1e-30)
            u = g / np.sqrt(s["V"])
        elif g.ndim == 2:
            u = factored(s, g, b2)
        else:  # main/head/kernel [4, 2, 3]: the two largest axes are the first and the last
            u = np.stack([factored(s.setdefault(j, {}), g[:, j], b2) for j in range(2)], axis=1)
        u = u / max(1.0, rms(u))
        u = u * max(1e-3, rms(w)) if relative else u
        if momentum is not None:
            u = s["m"] = momentum * s.get("m", 0) + (1 - momentum) * u
        return u

    return rule


@pytest.mark.parametrize(
    "optimizer, paper",
    [
        (AdamW(), adamw_paper),
        (AdamW(bias_correction=False), adamw_bert),
        (Adamax(weight_decay=0.01), adamax_paper),
        (Adamax(weight_decay=0.01, bias_correction=False), adamax_original),
        (LAMB(), lamb_paper),
        (Adafactor(), adafactor_paper()),
        (Adafactor(relative=False, momentum=0.9), adafactor_paper(relative=False, momentum=0.9)),
        (Adagrad(), adagrad_paper),
        (SGD(), sgd_paper),
        (SGD(momentum=0.9), momentum_paper),
        (SGD(momentum=0.9, nesterov=True), nesterov_paper),
    ],
    ids=lambda value: "" if callable(value) else repr(value),
)
def test_paper(optimizer, paper):
    grads = [draw(k + 1) for k in range(STEPS)]
    got, want = ours(recipe(optimizer), grads)[0], brute(paper, grads)
    for path, value in want.items():
        rtol = 1e-6 if isinstance(optimizer, Adamax) else 2e-5
        np.testing.assert_allclose(got[path], value, rtol=rtol, atol=1e-6, err_msg=path)


def test_schedule_and_rates_by_path():
    """Update k uses the schedule's rate k; the first matching multiplier wins."""
    options = {"schedule": Linear(warmup=2), "lr_rules": (("table", 0.0), ("block", 0.5), ("ffn", 9.0))}
    ramp = [0.5, 1, 1, 2 / 3, 1 / 3]
    factor = lambda path: 0.0 if "table" in path else 0.5 if "block" in path else 1.0
    grads = [draw(k + 1) for k in range(STEPS)]
    got = ours(recipe(AdamW(), **options), grads)[0]
    for path, value in brute(adamw_paper, grads, lambda path, k: 0.01 * ramp[k] * factor(path)).items():
        np.testing.assert_allclose(got[path], value, rtol=2e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("clip", [0.5, 1e4])
def test_clip(clip):
    """A gradient of norm n > clip is scaled to clip; a smaller one is left as it is."""
    grad = draw(1)
    norm = np.sqrt(sum(np.sum(g**2) for g in grad.values()))
    np.testing.assert_allclose(optimizers.global_norm(grad), norm, rtol=1e-6)
    scaled = {path: g * min(1, clip / norm) for path, g in grad.items()}
    got, want = ours(recipe(SGD(), clip=clip), [grad])[0], brute(sgd_paper, [scaled])
    for path, value in want.items():
        np.testing.assert_allclose(got[path], value, rtol=1e-5, atol=1e-7)


def test_a_gradient_of_zero_only_decays_what_decays():
    zero = {path: np.zeros_like(g) for path, g in draw(1).items()}
    before, after = draw(0, 0.5), ours(recipe(AdamW(weight_decay=0.1)), [zero])[0]
    for path, value in before.items():
        shrink = 1.0 if path.endswith(("bias", "scale")) else 1 - 0.01 * 0.1
        np.testing.assert_allclose(after[path], value * shrink, rtol=1e-6)
    for optimizer in (Adamax(), LAMB(), Adafactor(), Adagrad(), SGD()):
        assert all(np.isfinite(leaf).all() for leaf in ours(recipe(optimizer), [zero])[0].values())


def test_first_decay_rule_wins():
    rules = (("table", 2.0), ("embed|head", 0.0))
    zero = {path: np.zeros_like(g) for path, g in draw(1).items()}
    after = ours(recipe(AdamW(weight_decay=0.1, decay_rules=rules)), [zero])[0]
    before = draw(0, 0.5)
    np.testing.assert_allclose(after["main/embed/table"], before["main/embed/table"] * 0.998, rtol=1e-6)
    np.testing.assert_allclose(after["main/head/kernel"], before["main/head/kernel"], rtol=1e-6)
    np.testing.assert_allclose(after["main/norm/scale"], before["main/norm/scale"] * 0.999, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [AdamW(), LAMB(), Adafactor(), SGD(momentum=0.9)], ids=lambda o: type(o).__name__)
def test_frozen_leaves_are_bit_unchanged_and_carry_no_state(optimizer):
    transform = optimizers.build(recipe(optimizer, clip=1.0), Freedom(given=("b",)))
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
    np.testing.assert_array_equal(optimizers.apply(part, updates)["a"]["kernel"], after["a"]["kernel"])


def test_everything_frozen_is_an_error():
    with pytest.raises(UserError, match="every parameter is frozen"):
        optimizers.build(recipe(AdamW()), Freedom(given=("a",))).init({"a": jnp.ones(3)})


@pytest.mark.parametrize("optimizer", [AdamW(), Adamax(), LAMB(), Adafactor(), Adagrad(), SGD(momentum=0.9)])
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
    """1 - b2**t does not lose digits in float32: the first bias-corrected step is sign(g) to 1e-6."""
    spec = recipe(AdamW(weight_decay=0.0, eps=0.0), lr=1.0)
    transform = optimizers.build(spec)
    params = {"w": jnp.zeros(4)}
    updates, _ = transform.update({"w": jnp.array([1e-3, -2.0, 5.0, -1e-6])}, transform.init(params), params)
    np.testing.assert_allclose(updates["w"], [-1, 1, -1, 1], rtol=1e-6)


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="eps of Adamax is 0; it must be above 0"):
        Adamax(eps=0)
    with pytest.raises(TypeError, match="no optimizer is known for Linear"):
        optimizers.build(dataclasses.replace(recipe(AdamW()), optimizer=Linear()))


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer", [AdamW(eps=1e-8, decay_rules=()), Adamax(), Adagrad(eps=1e-10), SGD(momentum=0.99, nesterov=True)]
)
def test_torch(optimizer):
    name = type(optimizer).__name__
    torch = pytest.importorskip("torch")
    grads = [draw(k + 1) for k in range(STEPS)]
    theirs = {path: torch.nn.Parameter(torch.tensor(w, dtype=torch.float32)) for path, w in draw(0, 0.5).items()}
    options = {
        "AdamW": {"weight_decay": 0.01},
        "Adamax": {},
        "Adagrad": {"initial_accumulator_value": 0.1},
        "SGD": {"momentum": 0.99, "nesterov": True},
    }[name]
    reference = getattr(torch.optim, name)(theirs.values(), lr=0.01, **options)
    for grad in grads:
        for path, param in theirs.items():
            param.grad = torch.tensor(grad[path], dtype=torch.float32)
        reference.step()
    for path, value in ours(recipe(optimizer), grads)[0].items():
        np.testing.assert_allclose(value, theirs[path].detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=path)
