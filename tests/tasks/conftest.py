"""Loaded models with the head of a task."""

import dataclasses

import numpy as np
import pytest

import ptm_jax
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.tuning import finetuning
from support import tiny_models


@pytest.fixture(scope="session")
def models_of(published):
    """`models_of(examples, count)`: models with the head of a task's examples and random parameters."""
    tokenizer = ptm_jax.load(published).tokenizer

    def made(examples, count=1):
        system = dataclasses.replace(finetuning.with_head(str(published), examples), examples=examples)
        batch = {"input_ids": np.zeros((2 * examples.readings, 16), np.int32)}
        return [Pretrained(system, tiny_models.drawn(system, seed, 0.5, batch), tokenizer) for seed in range(count)]

    return made
