"""Megatron-LM's GPT-2 of 8.3 billion parameters: each product over the devices of one host. Row 60.

    ptm train configs/megatron_lm.py --data 'data/*.txt.zst' --workdir runs/megatron \
        --mesh data=64,model=8 --rules megatron
    ptm train megatron_gpt2_mini --data TEXT --workdir runs/megatron_gpt2_mini
    ptm train megatron_bert_mini --data TEXT --workdir runs/megatron_bert_mini

Paper: Shoeybi et al. 2019, arXiv 1909.08053.
Data: Wikipedia, CC-Stories, RealNews and OpenWebText, 174 GB. The pattern in `data` is an example:
`--data` names your files.
Expected: WikiText-103 perplexity 10.81, LAMBADA 66.51 (2.5 billion: 12.76, 61.73; Table 3). BERT of
3.9 billion: MNLI dev 91.4, SQuAD 2.0 dev 91.2 F1, 88.5 EM, RACE test 89.5; of 336 million: 89.7,
88.1, 84.8, 83.0 (Table 5).
Measured: megatron_gpt2_mini on WikiText-2's validation text, 2% of it held out: nll 5.662; unigram
baseline 6.520 (nats per token); 22 CPU-seconds on 2 cores.
Sizes: `ptm train megatron_gpt2_1200m` and on; `megatron_bert_336m`, `megatron_bert_1300m`,
`megatron_bert_3900m`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("megatron_gpt2_8300m"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
