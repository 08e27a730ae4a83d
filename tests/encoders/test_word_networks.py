"""NNLM and SENNA against their formulas in numpy and their networks in torch."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.windows import SentenceEncoder, WindowEncoder
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.objectives.text.language import LM
from ptm_jax.objectives.vectors.windows import WindowRanking

VOCAB = Vocab(size=11, pad=0, unk=2)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 0], [1] * 7])


def drawn(model, batch, seed=0):
    draw = np.random.default_rng(seed)
    shapes = towers.abstract({"main": model}, batch)["main"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32), shapes
    )


def batch_of(**more):
    draw = np.random.default_rng(1)
    fields = {"input_ids": draw.integers(0, 11, SEGMENTS.shape), "segment_ids": SEGMENTS}
    return {name: jnp.asarray(value, jnp.int32) for name, value in (fields | more).items()}


def words_of(p, b, row, t, reach, centre=None):
    """The vectors of the window around a place, with padding outside of its document."""
    for u in range(t - reach[0], t + reach[1] + 1):
        inside = 0 <= u < SEGMENTS.shape[1] and SEGMENTS[row, u] == SEGMENTS[row, t]
        word = (
            centre if centre is not None and u == t else b["input_ids"][row, u] if inside else None
        )
        yield p["padding"] if word is None else p["embed"]["token"][word]


@pytest.mark.parametrize("reach", [(3, 0), (2, 2)])
def test_states_are_those_of_the_window(reach):
    shape = {"embed": Embeddings(vocab=VOCAB, width=4), "features": 5, "direct": True}
    model = Model(encoder=WindowEncoder(before=reach[0], after=reach[1], **shape), heads={})
    other = np.random.default_rng(2).integers(0, 11, SEGMENTS.shape)
    params = drawn(model, batch_of())
    for centres in (None, other):
        batch = batch_of() if centres is None else batch_of(centre_ids=other)
        found = np.asarray(towers.Tower(model, params)(batch).hidden)
        p, b = jax.tree.map(np.asarray, (params["encoder"], batch))
        for row, t in np.argwhere(SEGMENTS > 0):
            x = np.concatenate(
                list(words_of(p, b, row, t, reach, None if centres is None else centres[row, t]))
            )
            h = np.tanh(p["hidden"]["bias"] + x @ p["hidden"]["kernel"])
            np.testing.assert_allclose(found[row, t], np.concatenate([h, x]), rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_the_sentence_approach_is_its_formula():
    shape = {"features": 5, "filters": 6, "distance_width": 2, "longest": 3}
    model = Model(
        encoder=SentenceEncoder(embed=Embeddings(vocab=VOCAB, width=4), **shape), heads={}
    )
    params, batch = drawn(model, batch_of()), batch_of()
    found = np.asarray(towers.Tower(model, params)(batch).hidden)
    p, b = jax.tree.map(np.asarray, (params["encoder"], batch))
    for row, t in np.argwhere(SEGMENTS > 0):
        over = []
        for u in np.flatnonzero(SEGMENTS[row] == SEGMENTS[row, t]):
            words = np.concatenate(list(words_of(p, b, row, u, (1, 1))))
            apart = np.clip(np.arange(u - 1, u + 2) - t, -3, 3) + 3
            over.append(
                words @ p["convolution"]["kernel"]
                + p["distance"][apart].ravel() @ p["distance_kernel"]
            )
        h = np.max(over, 0) + p["convolution"]["bias"]
        h = np.clip(h @ p["hidden"]["kernel"] + p["hidden"]["bias"], -1, 1)
        np.testing.assert_allclose(found[row, t], h, rtol=1e-5, atol=1e-5)


def narrow(name):
    system = spec.respell(systems.get(name), Vocab, VOCAB)
    return spec.with_field(spec.with_field(system, "width", 4), "features", 5)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.status(name, "matches")) for name in ("nnlm", "senna")],
)
def test_logits_loss_and_gradients_equal_torch(name):
    torch = pytest.importorskip("torch")
    model = narrow(name).towers["main"]
    rows = {"input_ids": np.arange(24).reshape(2, 12) % 11, "segment_ids": np.ones((2, 12), int)}
    batch = {field: jnp.asarray(value, jnp.int32) for field, value in rows.items()}
    batch |= {
        "replaced_ids": (batch["input_ids"] * 7 + 3) % 11,
        "replaced_weights": jnp.ones((2, 12)),
    }
    params = drawn(model, batch)
    objective = LM() if name == "nnlm" else WindowRanking()

    def value(params):
        return objective({"main": towers.Tower(model, params)}, batch, None).value()

    loss, ours = jax.value_and_grad(value)(params)

    flat = {
        path: torch.tensor(np.asarray(leaf), requires_grad=True)
        for path, leaf in jax.tree.leaves_with_path(params)
    }

    def of(*path):
        return next(leaf for at, leaf in flat.items() if tuple(part.key for part in at) == path)

    before, after = model.encoder.before, model.encoder.after
    table, padding, ids = (
        of("encoder", "embed", "token"),
        of("encoder", "padding"),
        torch.tensor(rows["input_ids"]),
    )

    def states(ids, centres):
        x, c = table[ids], table[centres]
        around = torch.cat([padding.expand(2, before, -1), x, padding.expand(2, after, -1)], 1)
        parts = [around[:, o : o + 12] for o in range(before + after + 1)]
        parts[before] = c
        window = torch.cat(parts, -1)
        h = window @ of("encoder", "hidden", "kernel") + of("encoder", "hidden", "bias")
        return window, torch.tanh(h) if name == "nnlm" else torch.nn.functional.hardtanh(h)

    if name == "nnlm":
        window, h = states(ids, ids)
        out = of("heads_lm", "table")
        y = of("heads_lm", "bias") + window @ out[:, h.shape[-1] :].T + h @ out[:, : h.shape[-1]].T
        theirs = torch.nn.functional.cross_entropy(
            y[:, :-1].reshape(-1, 11), ids[:, 1:].reshape(-1)
        )
    else:

        def dense(h):
            return h @ of("heads_score", "dense", "kernel") + of("heads_score", "dense", "bias")

        good, bad = (
            dense(states(ids, c)[1])
            for c in (ids, torch.tensor(np.asarray(batch["replaced_ids"]).astype(int)))
        )
        theirs = torch.clamp(1 - good + bad, min=0).mean()
    theirs.backward()
    np.testing.assert_allclose(loss, theirs.item(), rtol=1e-5)
    for path, leaf in jax.tree.leaves_with_path(ours):
        np.testing.assert_allclose(
            leaf, flat[path].grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(path)
        )


@pytest.mark.parametrize(("name", "path"), [("skipgram", ("token",)), ("nnlm", ("embed", "token"))])
def test_the_table_is_exported_without_special_pieces(name, path):
    table = np.arange(12.0).reshape(4, 3)
    params = {path[-1]: table} if len(path) == 1 else {path[0]: {path[1]: table}}
    tokenizer = SimpleNamespace(pieces=["<pad>", "a", "b", "c"], special_pieces={"<pad>": 0})
    module, system = systems.get(name).towers["main"], systems.get(name)
    given = {"main": {"encoder": params, "heads_context": {"table": table}}}
    model = SimpleNamespace(
        module=module, system=system, tower="main", params=given, _tokenizer=lambda: tokenizer
    )
    found = WordVectors.of_model(model)
    assert found.words == ["a", "b", "c"]
    np.testing.assert_array_equal(found.vectors, table[1:])
