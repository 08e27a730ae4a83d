"""The Transformer encoder: equal to code that we did not write, and the laws of who sees whom."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_families import FAMILIES, LIMIT, VOCABS, arrays, batch_of, path_of, small

from ptm_jax.core import towers
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.encoders.model import Model
from ptm_jax.inference.pretrained import Pretrained
from support.tiny_decoders import drawn
from support.tiny_systems import LENGTH, encoder, sees

SYSTEMS = {"bert": "bert_base", "roberta": "roberta_base", "gpt": "gpt", "gpt2": "gpt2"}
each_family = pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.status(SYSTEMS[f], "matches")) for f in FAMILIES]
)
CAUSAL = ("gpt", "gpt2")


def compare(family, system, params, given, expected, atol=1e-4):
    """Our model's record and loss against an oracle's arrays. A decoder's padding query that sees
    nothing is left out."""
    model = Pretrained(system, {"main": params})
    words = {
        k: v for k, v in given.items() if k in ("input_ids", "attention_mask", "token_type_ids")
    }
    out = model(**words, layers=True, attention=True)
    mask = given["attention_mask"]
    seeing = np.cumsum(mask, 1) > 0 if family in CAUSAL else np.ones_like(mask, bool)
    chosen = {"hidden": np.s_[seeing], "logits": np.s_[seeing], "layers": np.s_[:, seeing]}
    chosen |= {"attention": np.s_[:, seeing.nonzero()[0], :, seeing.nonzero()[1]]} | (
        {"pooled": ...} if family == "bert" else {}
    )
    for name, places in chosen.items():
        ours, theirs = getattr(out, name)[places], np.asarray(expected[name])[places]
        np.testing.assert_allclose(ours, theirs, atol=atol, rtol=atol, err_msg=name)
    np.testing.assert_allclose(
        jitted(family)[0](params, batch_of(system, given)), expected["loss"], rtol=atol
    )


@functools.cache
def jitted(family):
    """(loss, gradient) of a small system's objective as functions of (params, batch)."""
    system = small(family)

    def loss(params, batch):
        return system.objective(
            towers.bind(system.towers, {"main": params}), batch, jax.random.key(0)
        ).value()

    return jax.jit(loss), jax.jit(jax.grad(loss))


@pytest.mark.full
@each_family
def test_golden_parity(family):
    with np.load(path_of(family)) as file:
        parts = {name: file[name] for name in file.files}

    def under(top):
        return {k.removeprefix(f"{top}/"): v for k, v in parts.items() if k.startswith(f"{top}/")}

    system = small(family)
    params = unflatten({k: jnp.asarray(v) for k, v in under("param").items()})
    shapes = towers.abstract(system.towers, {"input_ids": jnp.zeros((1, 4), jnp.int32)})["main"]
    assert {k: v.shape for k, v in flatten(params).items()} == {
        k: v.shape for k, v in flatten(shapes).items()
    }
    compare(family, system, params, under("input"), under("output"))


@pytest.mark.full
@each_family
@pytest.mark.parametrize(
    "lengths, left", [((11, 7, 9), 2), ((1, 1), None), ((LIMIT, LIMIT), None), ((5, LIMIT), 0)]
)
def test_live_parity_of_outputs_loss_and_gradients(family, lengths, left):
    pytest.importorskip("torch")
    import golden_oracles

    system, model, given = (
        small(family),
        golden_oracles.build(family, seed=1),
        arrays(family, lengths, left, seed=2),
    )
    params = unflatten(golden_oracles.tree(family, model))
    if family in CAUSAL and lengths == (1, 1):
        given = arrays(
            family, (2, 2), None, seed=2
        )  # one token predicts nothing: a mean over no token
    found = golden_oracles.run(family, model, given)
    found["loss"].backward()
    compare(family, system, params, given, {k: v.detach().numpy() for k, v in found.items()})
    theirs = golden_oracles.tree(family, model, golden_oracles.gradients(model))
    ours = flatten(jitted(family)[1](params, batch_of(system, given)))
    assert set(ours) == set(theirs)
    if (
        family == "bert" and left is not None
    ):  # the first token is padding, whose lookup torch gives no gradient
        ours["encoder/embed/token"], theirs["encoder/embed/token"] = (
            np.delete(g, VOCABS[family].pad, 0)
            for g in (ours["encoder/embed/token"], theirs["encoder/embed/token"])
        )
    for path, gradient in ours.items():
        scale = max(1.0, float(np.abs(theirs[path]).max()))
        np.testing.assert_allclose(gradient, theirs[path], atol=1e-4 * scale, err_msg=path)


@pytest.fixture(scope="module", params=["bert", "gpt", "gpt2"])
def net(request):
    """hidden(batch), jitted."""
    tower = drawn(
        small(request.param).towers["main"], 0, 0.2, {"input_ids": np.zeros((1, 4), np.int32)}
    )
    run = jax.jit(lambda params, batch: towers.Tower(tower.module, params)(batch).hidden)
    return functools.partial(run, tower.params)


@pytest.mark.full
def test_a_packed_row_equals_its_documents_alone(net):
    ids = np.random.default_rng(0).integers(5, 60, 9)
    packed = {
        "input_ids": np.concatenate([ids, [0]])[None],
        "segment_ids": np.array([[1] * 4 + [2] * 5 + [0]]),
        "positions": np.array([[*range(4), *range(5), 0]]),
    }
    whole = net(jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), packed))[0]
    for start, piece in ((0, ids[:4]), (4, ids[4:])):
        alone = net({"input_ids": jnp.asarray(piece, jnp.int32)[None]})[0]
        np.testing.assert_allclose(whole[start : start + len(piece)], alone, atol=3e-5)


@pytest.mark.full
def test_rows_of_one_batch_see_by_their_orders():
    """UniLM's four: both ways, left to right, right to left, prefix and continuation; by gradients
    that are exactly zero."""
    slots, ones = jnp.arange(LENGTH), np.ones((LENGTH, LENGTH), bool)
    prefix = np.tril(ones)
    prefix[: LENGTH // 2, : LENGTH // 2] = True
    order = jnp.stack([0 * slots, slots, -slots, jnp.maximum(slots - LENGTH // 2 + 1, 0)])
    batch = {"input_ids": jnp.tile(slots + 4, (4, 1)), "order": order}
    tower = drawn(Model(encoder=encoder(), heads={}), 0, 0.4, batch)
    tower = dataclasses.replace(tower, params=jax.tree.map(jnp.asarray, tower.params))
    seen = sees(
        tower,
        "encoder/embed/token",
        lambda tower: tower(batch).hidden.reshape(4 * LENGTH, -1),
        slots + 4,
    )
    expected = np.stack([ones, np.tril(ones), np.triu(ones), prefix])
    np.testing.assert_array_equal(seen.reshape(4, LENGTH, LENGTH), expected)
