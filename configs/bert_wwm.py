"""BERT-large with whole word masking: the pieces of a word are masked together. Row 63.

    ptm train configs/bert_wwm.py --data 'data/wikibooks/*.txt.zst' --workdir runs/bert_wwm
    ptm train bert_wwm_mini --data TEXT --workdir runs/bert_wwm_mini

Paper: Devlin et al. 2019, arXiv 1810.04805, release of May 2019; Chinese: Cui et al. 2019, arXiv
1906.08101.
Data: BERT's: English Wikipedia and BooksCorpus. Chinese: Wikipedia, with spaces between words. The
pattern in `data` is an example: `--data` names your files.
Expected: SQuAD 1.1 dev 92.8 F1, 86.7 EM, MNLI 87.07, where pieces alone have 91.0, 84.3, 86.05
(google-research/bert, README). Chinese: CMRC 2018 dev 66.3 EM, 85.6 F1, where characters have 65.5,
84.5 (ymcui/Chinese-BERT-wwm, README).
Measured: bert_wwm_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.095,
mlm_nll 6.112; unigram baseline 6.378 (nats per token); 40 CPU-seconds on 2 cores.
Sizes: `ptm train bert_large_cased_wwm`, `bert_base_chinese_wwm`, `bert_base_chinese_wwm_ext`,
`roberta_base_chinese_wwm`, `roberta_large_chinese_wwm`, `roberta_chinese_wwm_mini` (the Chinese
ones need a segmenter: `pip install rjieba`).
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("bert_large_wwm"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
