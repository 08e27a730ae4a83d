"""The Transformer: encoder and decoder as they were published, on restoring text. Row 26.

    ptm train configs/transformer.py --data 'data/wikibooks/*.txt.zst' --workdir runs/transformer
    ptm train bart_mini --data TEXT --workdir runs/bart_mini

Paper: Vaswani et al. 2017, arXiv 1706.03762.
Data: WMT 2014, 4.5 million sentence pairs English-German; here any one text, infilled and permuted.
The pattern in `data` is an example: `--data` names your files.
Expected: newstest2014 BLEU 27.3 English-German, 38.1 English-French; big 28.4, 41.8 (Table 2): of
translation, which this run is not.
Measured: bart_mini on WikiText-2's validation text, 2% of it held out: nll 5.771; unigram baseline
6.520 (nats per token); 50 CPU-seconds on 2 cores.
Sizes: `ptm train transformer_big`. It has no miniature of its own: the task is BART's.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("transformer_base"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=5_000,
    save_every=5_000,
)
