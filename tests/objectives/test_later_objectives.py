"""GPT-BERT's hybrid, masked diffusion and SimCSE against definitions in plain numpy (float64)."""

import jax
import numpy as np
import pytest

from ptm_jax.core import spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.objectives.base import encode_view
from ptm_jax.objectives.text.contrastive import InfoNCE
from ptm_jax.objectives.text.diffusion import Diffusion
from ptm_jax.objectives.text.hybrid import Hybrid
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems import get
from ptm_jax.training.steps.step import program
from support.plain_towers import L, PlainTower, V, batch_of, check, nll, params_of, states_of

MASK = 3
DIFFUSION = Diffusion(vocab=Vocab(size=V, mask=MASK))


def hybrid(share):
    """Both terms are predicted by the state before the token; each term has its own mean."""

    def definition(p, b):
        states, segments = states_of(p, b), b["segment_ids"]
        masked, causal = [], []
        for i, j in np.argwhere(b["mlm_weights"] > 0):
            at = b["mlm_positions"][i, j]
            if at > 0 and segments[i, at - 1] == segments[i, at]:
                masked.append(nll(states[i, at - 1] @ p["mlm"], b["mlm_labels"][i, j]))
        for i in np.flatnonzero(b["causal"]):
            for t in range(L - 1):
                if segments[i, t] == segments[i, t + 1] > 0:
                    causal.append(nll(states[i, t] @ p["mlm"], b["input_ids"][i, t + 1]))
        return [((1 - share) * sum(masked), len(masked)), (share * sum(causal), len(causal))]

    return definition


def diffusion(p, b):
    """-1 / t log p(x), where [MASK] has no probability, over the tokens that could be hidden."""
    states, total = states_of(p, b), 0.0
    for i, j in np.argwhere(b["mlm_weights"] > 0):
        scores = states[i, b["mlm_positions"][i, j]] @ p["mlm"]
        scores = np.delete(scores, MASK)
        label = b["mlm_labels"][i, j] - (b["mlm_labels"][i, j] > MASK)
        total += b["diffusion_scale"][i] * nll(scores, label)
    return [(total, b["diffusion_weights"].sum())]


def without_masks_as_labels():
    batch = batch_of()
    labels = np.asarray(batch["mlm_labels"])
    return {**batch, "mlm_labels": jax.numpy.asarray(np.where(labels == MASK, MASK + 1, labels))}


@pytest.mark.full
@pytest.mark.parametrize("share", [1 / 16, 0.5])
def test_hybrid_is_its_definition(share):
    loss = check(Hybrid(causal=share), hybrid(share))
    assert set(loss.metrics) == {"mlm_nll", "mlm_accuracy", "causal_nll"}


@pytest.mark.full
def test_diffusion_is_its_definition():
    loss = check(DIFFUSION, diffusion, batch=without_masks_as_labels())
    assert set(loss.metrics) == {"diffusion_nll", "mlm_nll", "mlm_accuracy"}


def test_predictions_are_what_the_losses_read():
    """-log softmax of the predictions, weighted, is the loss of the masked tokens."""
    batch, tower = without_masks_as_labels(), PlainTower(params_of())
    labels = np.asarray(batch["mlm_labels"])[..., None]
    for objective in (Hybrid(), DIFFUSION, MLM()):
        scores, weights = objective.predictions(tower, tower(batch), batch)["mlm"]
        each = -np.take_along_axis(np.asarray(jax.nn.log_softmax(scores)), labels, -1)[..., 0]
        metric = objective({"main": tower}, batch, None).metrics["mlm_nll"]
        np.testing.assert_allclose((each * weights).sum(), metric.sum, rtol=1e-5)


def test_a_share_of_masks_at_every_level_is_the_bound():
    """Of a network that knows nothing the bound is log(V - 1), whatever the levels are."""
    batch = without_masks_as_labels()
    params = jax.tree.map(lambda leaf: 0 * leaf, params_of())
    loss = DIFFUSION({"main": PlainTower(params)}, batch, None)
    scale = np.asarray(batch["diffusion_scale"])[:, None]
    hidden = (np.asarray(batch["mlm_weights"]) * scale).sum()
    np.testing.assert_allclose(loss.sum, hidden * np.log(V - 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Hybrid(causal=1.5), "causal is 1.5"),
        (lambda: Hybrid(causal=-0.1), "causal is -0.1"),
    ],
)
def test_shares_outside_their_range_are_named(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_simcse_contrasts_two_passes_of_dropout():
    """The second text is the row itself; test_definitions.py has the formula of InfoNCE."""
    system = get("simcse_mini")
    batch = batch_of()
    made = system.corruption(jax.random.key(0), batch)
    for field in ("input_ids", "segment_ids"):
        assert np.array_equal(made[f"pair_{field}"], batch[field])
    assert system.objective == InfoNCE(temperature=0.05, similarity="cosine")


@pytest.mark.full
def test_the_two_passes_of_simcse_differ_by_dropout_alone():
    system = spec.respell(get("simcse_mini"), Vocab, Vocab(size=40, pad=0, cls=2, sep=3, mask=4))
    ids = np.random.default_rng(0).integers(5, 40, (8, 12)).astype(np.int32)
    batch = {"input_ids": ids, "segment_ids": np.ones_like(ids), "rows": np.arange(8)}
    work = program(system, 0)
    state = work.init(batch)
    made = system.corruption(jax.random.key(0), batch)
    for train, same in ((True, False), (False, True)):
        tower = towers.bind(system.towers, state.params, train)["main"]
        key = jax.random.key(1)
        first, second = tower(made, key), encode_view(tower, {**made, "noise": key}, "pair")
        assert np.allclose(first.hidden, second.hidden, atol=1e-5) == same
