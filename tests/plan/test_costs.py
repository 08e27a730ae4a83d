"""The parameters and operations of a step without its vocabulary."""

import pytest

from ptm_jax.core.spec import respell
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.mesh.chips import topology
from ptm_jax.plan import costs
from ptm_jax.systems.transformers.bert_gpt import gpt2, miniature


@pytest.mark.parametrize("words", [96, 128])  # 128 is also the width of the feed-forward layer
def test_the_body_does_not_depend_on_the_vocabulary(words):
    """A GPT-2 block has 12 D^2 + 13 D parameters, and 24 D^2 + 4 L D operations a token forward,
    three times that in all."""
    layers, width, rows, length = 2, 32, 4, 16
    system = miniature(gpt2("", layers, width, 1), "", steps=1, lr=1e-3, batch=rows, length=length)
    found = costs.of(
        Experiment(system=respell(system, Vocab, Vocab(size=words, eos=1))), topology("cpu:1")
    )
    assert (
        found.body == layers * (12 * width**2 + 13 * width) + 2 * width
    )  # and the last normalisation
    assert found.parameters == found.body + (words + 1024) * width
    forward = rows * length * layers * (24 * width**2 + 4 * length * width)
    assert found.body_operations == pytest.approx(3 * forward)
    logits = rows * (length - 1) * 2 * width * words  # the last token has no next
    assert found.operations == pytest.approx(3 * (forward + logits))
