"""The Universal Transformer: encoder and decoder of one block each, six steps. Row 62.

    ptm train configs/universal_transformer.py --data 'data/wikibooks/*.txt.zst' \
        --workdir runs/universal_transformer
    ptm train universal_mini --data TEXT --workdir runs/universal_mini

Paper: Dehghani et al. 2019, arXiv 1807.03819.
Data: WMT 2014 English-German; here one text is restored (see `configs/transformer.py`). The pattern
in `data` is an example: `--data` names your files.
Expected: newstest2014 English-German BLEU 28.9 after training on translation, which this run is
not.
Measured: universal_mini on WikiText-2's validation text, 2% of it held out: nll 6.149, ponder
2.000; unigram baseline 6.520 (nats per token); 43 CPU-seconds on 2 cores.
Sizes: `ptm train universal_lm` has a number of steps per token; the miniature is its.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("universal_transformer"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=5_000,
    save_every=5_000,
)
