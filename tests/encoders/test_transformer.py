"""The Transformer encoder: equal to code that we did not write, and the laws of who sees whom."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_families import FAMILIES, HEADS, LAYERS, LIMIT, VOCABS, WIDTH, arrays, batch_of, path_of, small

from ptm_jax.core import towers
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.embeddings import LearnedPositions
from ptm_jax.nn.initializers import Normal
from ptm_jax.tasks.pretrained import Pretrained

SYSTEMS = {"bert": "bert_base", "roberta": "roberta_base", "gpt": "gpt", "gpt2": "gpt2"}
each_family = pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.status(SYSTEMS[f], "matches")) for f in FAMILIES]
)
CAUSAL = ("gpt", "gpt2")


def compare(family, system, params, given, expected, atol=1e-4):
    """Our model's record and loss against an oracle's arrays. A decoder's padding query that sees nothing is left out."""
    model = Pretrained(system, {"main": params})
    words = {k: v for k, v in given.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
    out = model(**words, layers=True, attention=True)
    mask = given["attention_mask"]
    seeing = np.cumsum(mask, 1) > 0 if family in CAUSAL else np.ones_like(mask, bool)
    # [B, L] chosen of arrays whose axes B, L stand at the given places
    pick = lambda name, value: {
        "hidden": lambda: value[seeing],
        "logits": lambda: value[seeing],
        "layers": lambda: value[:, seeing],
        "attention": lambda: value.transpose(0, 1, 3, 2, 4)[:, seeing],
        "pooled": lambda: value,
    }[name]()
    for name in ("hidden", "layers", "attention", "logits", *(["pooled"] if family == "bert" else [])):
        ours, theirs = pick(name, getattr(out, name)), pick(name, np.asarray(expected[name]))
        np.testing.assert_allclose(ours, theirs, atol=atol, rtol=atol, err_msg=name)
    np.testing.assert_allclose(jitted(family)[0](params, batch_of(system, given)), expected["loss"], rtol=atol)


@functools.cache
def jitted(family):
    """(loss, gradient) of a small system's objective as functions of (params, batch)."""
    system = small(family)

    def loss(params, batch):
        return system.objective(towers.bind(system.towers, {"main": params}), batch, jax.random.key(0)).value()

    return jax.jit(loss), jax.jit(jax.grad(loss))


@each_family
def test_golden_parity(family):
    with np.load(path_of(family)) as file:
        parts = {name: file[name] for name in file.files}
    under = lambda top: {k.removeprefix(f"{top}/"): v for k, v in parts.items() if k.startswith(f"{top}/")}
    system = small(family)
    params = unflatten({k: jnp.asarray(v) for k, v in under("param").items()})
    shapes = towers.abstract(system.towers, {"input_ids": jnp.zeros((1, 4), jnp.int32)})["main"]
    assert {k: v.shape for k, v in flatten(params).items()} == {k: v.shape for k, v in flatten(shapes).items()}
    compare(family, system, params, under("input"), under("output"))


@pytest.mark.full
@each_family
@pytest.mark.parametrize("lengths, left", [((11, 7, 9), 2), ((1, 1), None), ((LIMIT, LIMIT), None), ((5, LIMIT), 0)])
def test_live_parity_of_outputs_loss_and_gradients(family, lengths, left):
    pytest.importorskip("torch")
    import golden_oracles

    system, model, given = small(family), golden_oracles.build(family, seed=1), arrays(family, lengths, left, seed=2)
    params = unflatten(golden_oracles.tree(family, golden_oracles.parameters(model)))
    if family in CAUSAL and lengths == (1, 1):
        given = arrays(family, (2, 2), None, seed=2)  # one token predicts nothing: a mean over no token
    found = golden_oracles.run(family, model, given)
    found["loss"].backward()
    compare(family, system, params, given, {k: v.detach().numpy() for k, v in found.items()})
    theirs = golden_oracles.tree(family, golden_oracles.gradients(model))
    ours = flatten(jitted(family)[1](params, batch_of(system, given)))
    assert set(ours) == set(theirs)
    if family == "bert" and left is not None:  # the first token is padding, whose lookup torch gives no gradient
        ours["encoder/embed/token"], theirs["encoder/embed/token"] = (
            np.delete(g, VOCABS[family].pad, 0) for g in (ours["encoder/embed/token"], theirs["encoder/embed/token"])
        )
    for path, gradient in ours.items():
        scale = max(1.0, float(np.abs(theirs[path]).max()))
        np.testing.assert_allclose(gradient, theirs[path], atol=1e-4 * scale, err_msg=path)


@pytest.fixture(scope="module", params=["bert", "gpt", "gpt2"])
def net(request):
    """(family, hidden(params, batch) jitted, params with differences that matter)."""
    system = small(request.param)
    module = system.towers["main"]
    init = jax.jit(lambda: towers.init({"main": module}, jax.random.key(0), {"input_ids": jnp.zeros((1, 4), jnp.int32)}))
    params = jax.tree.map(lambda x: 10.0 * x if x.ndim > 1 else x, init()["main"])
    return request.param, jax.jit(lambda p, batch: towers.Tower(module, p)(batch).hidden), params


def sensitivity(hidden, params, batch, row=0):
    """[L, L] total |d hidden[t] / d token embedding at slot s|, through a table with one row per slot."""
    length = batch["input_ids"].shape[1]

    def outputs(token):
        changed = {**params, "encoder": {**params["encoder"], "embed": {**params["encoder"]["embed"], "token": token}}}
        return (hidden(changed, batch)[row] * jnp.linspace(1.0, 2.0, WIDTH)).sum(-1)

    jacobian = jax.jacrev(outputs)(params["encoder"]["embed"]["token"])
    return np.abs(np.asarray(jacobian)).sum(-1)[:, np.asarray(batch["input_ids"])[row]].reshape(length, length)


def test_nothing_flows_from_the_future_other_segments_or_padding(net):
    family, hidden, params = net
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0]], jnp.int32)
    batch = {"input_ids": jnp.arange(5, 13)[None], "segment_ids": segments, "positions": jnp.arange(8)[None]}
    flow = sensitivity(hidden, params, batch)
    same = np.asarray(segments)[0][:, None] == np.asarray(segments)[0][None, :]
    allowed = same & (np.tril(np.ones((8, 8), bool)) if family in CAUSAL else True)
    real = np.asarray(segments)[0] > 0
    assert (flow[real][:, ~real] == 0).all()
    assert (flow[real] * ~allowed[real] == 0).all()
    assert (flow[real][allowed[real]] > 0).all()


def test_a_packed_row_equals_its_documents_alone(net):
    _, hidden, params = net
    ids = np.random.default_rng(0).integers(5, 60, 9)
    pieces = [ids[:4], ids[4:]]
    packed = {
        "input_ids": np.concatenate([ids, [0]])[None],
        "segment_ids": np.array([[1] * 4 + [2] * 5 + [0]]),
        "positions": np.array([[*range(4), *range(5), 0]]),
    }
    whole = hidden(params, jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), packed))[0]
    start = 0
    for piece in pieces:
        alone = hidden(params, {"input_ids": jnp.asarray(piece, jnp.int32)[None]})[0]
        np.testing.assert_allclose(whole[start : start + len(piece)], alone, atol=1e-5)
        start += len(piece)


def test_every_layer_has_parameters_of_its_own(net):
    _, _, params = net
    for path, leaf in flatten(params["encoder"]["stack"]["block"]).items():
        assert leaf.shape[0] == LAYERS, path
        if path.endswith("kernel"):
            assert not np.array_equal(leaf[0], leaf[1]), path


def test_shared_layers_have_one_set():
    encoder = small("bert").towers["main"].encoder
    shared = dataclasses.replace(encoder, stack=dataclasses.replace(encoder.stack, share=True))
    batch = {"input_ids": jnp.zeros((1, 4), jnp.int32)}
    own, one = (jax.eval_shape(lambda m=m: m.init(jax.random.key(0), batch))["params"] for m in (encoder, shared))
    for path, leaf in flatten(one["stack"]).items():
        assert (LAYERS, *leaf.shape) == flatten(own["stack"])[path].shape, path


def test_the_record_has_the_declared_shapes():
    encoder = transformer(
        vocab=VOCABS["bert"],
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        positions=LearnedPositions(LIMIT),
        initializer=Normal(0.1),
    )
    batch = {"input_ids": jnp.zeros((2, 5), jnp.int32)}
    found = jax.eval_shape(lambda: encoder.init_with_output(jax.random.key(0), batch)[0])
    assert found.hidden.shape == (2, 5, WIDTH)
    assert found.layers.shape == (LAYERS + 1, 2, 5, WIDTH)
    assert found.attention.shape == (LAYERS, 2, HEADS, 5, 5)
    assert found.memory is None


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_recomputing_activations_changes_no_gradient(remat):
    system = small("gpt2")
    module = system.towers["main"]
    encoder = module.encoder
    lean = dataclasses.replace(
        module, encoder=dataclasses.replace(encoder, stack=dataclasses.replace(encoder.stack, remat=remat))
    )
    batch = batch_of(system, arrays("gpt2", (6, 4), None))
    params = jax.jit(lambda: towers.init({"main": module}, jax.random.key(0), batch))()["main"]
    loss = lambda p, m: (towers.Tower(m, p)(batch).hidden * jnp.linspace(-1, 1, WIDTH)).sum()
    plain, again = (jax.jit(jax.grad(functools.partial(loss, m=m)))(params) for m in (module, lean))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), plain, again)
