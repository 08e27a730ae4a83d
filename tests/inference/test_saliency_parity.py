"""Saliency beside captum, on the same checkpoint in torch."""

import numpy as np
import pytest

import ptm_jax
from ptm_jax.inference.saliency import attributions
from support import tiny_checkpoint


@pytest.mark.full
@pytest.mark.status("ptm view --by saliency", "matches")
def test_scores_are_captums(tmp_path):
    """Integrated gradients at the nodes of Gauss and Legendre, gradient times input, occlusion."""
    torch = pytest.importorskip("torch")
    attr = pytest.importorskip("captum.attr")
    from transformers import AutoModelForMaskedLM

    folder = tiny_checkpoint.write(tmp_path, architectures=["BertForMaskedLM"], vocab=84, scale=0.5)
    model = ptm_jax.load(folder)
    function = attributions.function_of(model, "the film was [MASK] and very long")
    peer = AutoModelForMaskedLM.from_pretrained(folder).eval()

    def forward(ids):
        logits = peer(input_ids=ids).logits[:, function.place]
        return torch.log_softmax(logits, -1)[:, function.index]

    ids, missing = (torch.tensor(row[None]).long() for row in (function.ids, function.missing()))
    words = peer.get_input_embeddings()
    for name, wanted in (
        ("integrated_gradients", attr.LayerIntegratedGradients(forward, words).attribute(
            ids, missing, n_steps=50, method="gausslegendre")),
        ("gradient_input", attr.LayerGradientXActivation(forward, words).attribute(ids)
            * (words(ids) - words(missing)) / words(ids)),
    ):  # fmt: skip
        wanted = wanted.detach().sum(-1).numpy()[0, function.text]
        scores = attributions.attributed(model, "the film was [MASK] and very long", name).scores
        np.testing.assert_allclose(scores, wanted, atol=1e-4)
    occlusion = attr.FeatureAblation(forward).attribute(ids, missing).numpy()[0, function.text]
    scores = attributions.attributed(model, "the film was [MASK] and very long", "occlusion").scores
    np.testing.assert_allclose(scores, occlusion, atol=1e-4)
