"""Transformer-XL: a causal decoder with relative positions and the row before in memory. Row 48.

    ptm train configs/transformer_xl.py --data 'data/wikitext-103/train.txt' \
        --workdir runs/transformer_xl
    ptm train transformer_xl_mini --data TEXT --workdir runs/transformer_xl_mini
    ptm train transformer_xl_words_mini --data TEXT --workdir runs/transformer_xl_words_mini

Paper: Dai et al. 2019, arXiv 1901.02860.
Data: WikiText-103, 103 million words. The pattern in `data` is an example: `--data` names your
files.
Expected: test perplexity 24.0; large: 18.3 (Table 1). enwik8: 1.06 bits per character with 12
layers, 0.99 with 24 (Table 2). text8: 1.08 with 24 (Table 3). One Billion Word: 23.5, large: 21.8
(Table 4). Perplexity is per word; of a run over pieces (the miniatures) it is per token: multiply
nats by tokens and divide by words first.
Measured: transformer_xl_mini on WikiText-2's validation text, 2% of it held out: nll 5.940; unigram
baseline 6.520 (nats per token); 31 CPU-seconds on 2 cores.
Sizes: `ptm train transformer_xl_wt103_large`; `transformer_xl_lm1b`, `transformer_xl_enwik8`,
`transformer_xl_text8`, each also `_large`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("transformer_xl_wt103"),
    data=("data/wikitext-103/train.txt",),
    heldout=0.005,
    log_every=100,
    eval_every=5_000,
    save_every=5_000,
)
