"""Masked words with the focal loss of Lin et al. 2017 (arXiv 1708.02002)."""

import dataclasses

import jax.numpy as jnp

from ptm_jax import systems
from ptm_jax.core.types import Loss, Ratio
from ptm_jax.objectives.text.language import gather


def focal_mlm(towers, batch, key):
    hidden = towers["main"](batch, key).hidden
    readout = towers["main"].head("mlm", gather(hidden, batch["mlm_positions"]))
    nll, weight = readout.nll(batch["mlm_labels"]), batch["mlm_weights"]
    focal = nll * (1 - jnp.exp(-nll)) ** 2
    total = weight.sum()
    return Loss((focal * weight).sum(), total, {"mlm_nll": Ratio((nll * weight).sum(), total)})


config = dataclasses.replace(systems.get("bert_tiny"), name="bert_tiny_focal", objective=focal_mlm)
