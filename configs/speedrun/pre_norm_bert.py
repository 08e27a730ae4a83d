"""BERT's block in pre-norm with T5's position biases, 20% masks: the first quickstart.

ptm reproduce speedrun --record pre_norm_bert --workdir runs/pre_norm_bert
"""

import dataclasses

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.systems import get
from ptm_jax.tuning.speedrun import Record

HEADS, LAYERS = 4, 3
CHANGES = {
    Attention: {"heads": HEADS},
    Block: {"norm": "pre"},
    Stack: {"layers": LAYERS, "final_norm": LayerNorm()},
    Transformer: {"relative": Buckets(heads=HEADS)},
}

parent = get("bert_tiny")
towers = parent.towers
for kind, fields in CHANGES.items():
    towers = respell(
        towers, kind, lambda module, fields=fields: dataclasses.replace(module, **fields)
    )

config = dataclasses.replace(
    parent,
    name="pre_norm_bert",
    towers=towers,
    corruption=dataclasses.replace(parent.corruption, rate=0.2),
    recipe=Recipe(
        phases=(Phase(steps=2000, batch=32, length=64),),
        lr=4e-3,
        optimizer=AdamW(b2=0.98),
        schedule=Linear(warmup=200),
    ),
)
record = Record(system=config, seconds=147.1, operations=1.840e13, loss=3.9814, commit="576a85c5")
