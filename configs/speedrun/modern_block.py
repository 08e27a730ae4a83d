"""ModernBERT's block in three layers, 16 rows a step, 30% masks, a stable rate with a decay.

    ptm reproduce speedrun --record modern_block --workdir runs/modern_block
    ptm train configs/speedrun/modern_block.py --workdir runs/modern_block

A step has half of the rows of `pre_norm_bert`, and there are fewer steps. Evaluations mask 15%.
"""

import dataclasses

from ptm_jax.core.recipe import AdamW, WarmupStableDecay
from ptm_jax.corruptions.masking.token import ScheduledMasking
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.modern.modernbert import VOCAB, modernbert
from ptm_jax.tuning.speedrun import Record

STEPS, RATE = 1500, 3e-3
parent = modernbert("", 3, 128, 4, 256, lr=RATE, decay=0.05)
small = miniature(parent, "modern_block", steps=STEPS, lr=RATE, std=0.05, batch=16, length=64)

config = dataclasses.replace(
    small,
    corruption=ScheduledMasking(vocab=VOCAB, training_rate=0.3),
    recipe=dataclasses.replace(
        small.recipe,
        optimizer=AdamW(b2=0.98, weight_decay=0.05),
        schedule=WarmupStableDecay(warmup=60, decay=900, shape="linear"),
    ),
)
record = Record(system=config, seconds=65.1, operations=6.542e12, loss=3.9347, commit="f0ff38e1")
