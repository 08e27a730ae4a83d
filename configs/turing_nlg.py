"""Turing-NLG: 17 billion parameters, divided over devices within each layer and over hosts. Row 61.

    ptm train configs/turing_nlg.py --data TEXT --workdir runs/17b --mesh data=2,fsdp=32,model=4 \
        --rules megatron_fsdp
    ptm train megatron_gpt2_mini --data TEXT --workdir runs/megatron_gpt2_mini

Paper: Rosset 2020, Turing-NLG: A 17-billion-parameter language model by Microsoft (a blog post).
Data: that of Megatron-LM's models, according to the post. The pattern in `data` is an example:
`--data` names your files.
Expected: WikiText-103 perplexity 10.21, LAMBADA 67.98 (the post's table, not compared).
Measured: megatron_gpt2_mini on WikiText-2's validation text, 2% of it held out: nll 5.662; unigram
baseline 6.520 (nats per token); 22 CPU-seconds on 2 cores. It has no miniature of its own: the
block is Megatron-LM's.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("turing_nlg"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
