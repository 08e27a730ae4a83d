"""A small BERT learns English from the documentation of the Python packages on this machine, in
about five minutes.

    make quickstart
    ptm train configs/quickstart.py --workdir runs/quickstart

Paper: Devlin et al. 2019 (arXiv 1810.04805), masked language modelling alone, dynamic masks as in
RoBERTa. Three things let so short a training learn: the layer norms stand before attention and
feed-forward (Xiong et al. 2020, arXiv 2002.04745), T5's biases by distance are added to the scores
(Raffel et al. 2020, section 2.1), and 20% of the tokens are masked.
"""

import dataclasses

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import Experiment
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.systems import get

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

config = Experiment(
    system=dataclasses.replace(
        parent,
        name="quickstart",
        towers=towers,
        corruption=dataclasses.replace(parent.corruption, rate=0.2),
        recipe=Recipe(
            phases=(Phase(steps=2000, batch=32, length=64),),
            lr=4e-3,
            optimizer=AdamW(b2=0.98),
            schedule=Linear(warmup=200),
        ),
    ),
    data=("pydocs",),
    save_every=500,
    eval_every=500,
    log_every=50,
)
