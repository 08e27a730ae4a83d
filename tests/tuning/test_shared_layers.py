"""Sharing between layers: parameters by hand, and operations that stay."""

import dataclasses

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.tuning.scaling.shared_layers import report
from support.classifier import LAYERS, classifier


def test_sharing_saves_parameters_and_no_operations():
    """Layers of width 8 with 12 hidden units: attention 4 * 72, feed-forward 8 * 12 + 12 + 12 * 8 +
    8, two norms 32."""
    found = {one.pattern: one for one in report(classifier(), length=6)}
    attention, ffn, rest = 4 * 72, 212, 32
    layer = attention + ffn + rest
    whole = found["none"].parameters
    saved = {name: whole - one.parameters for name, one in found.items()}
    assert saved == {
        "none": 0, "attention": (LAYERS - 1) * attention, "feed-forward": (LAYERS - 1) * ffn,
        "all": (LAYERS - 1) * layer,
    }  # fmt: skip
    assert len({one.operations for one in found.values()}) == 1
    products = 4 * 2 * 6 * 8 * 8 + 2 * 2 * 6 * 6 * 8 + 2 * 2 * 6 * 8 * 12
    assert found["all"].operations == LAYERS * products


def test_an_encoder_without_layers():
    from ptm_jax import systems

    with pytest.raises(UserError, match="has no stack of layers that could share"):
        report(dataclasses.replace(systems.get("textcnn")))
