"""SpanBERT-large: spans of whole words, predicted by themselves and from their borders. Row 46.

    ptm train configs/spanbert.py --data 'data/wikibooks/*.txt.zst' --workdir runs/spanbert
    ptm train spanbert_mini --data TEXT --workdir runs/spanbert_mini

Paper: Joshi et al. 2020, arXiv 1907.10529.
Data: BERT's: English Wikipedia and BooksCorpus. The pattern in `data` is an example: `--data` names
your files.
Expected: SQuAD test 88.8 EM, 94.6 F1 (1.1) and 85.7, 88.7 (2.0); OntoNotes coreference 79.6 F1;
TACRED 70.8 F1 (Tables 1, 3 and 4). Base, dev: SQuAD 1.1 92.4 F1, 2.0 83.6 F1 (the repository's
README).
Measured: spanbert_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.088,
mlm_nll 6.190, sbo_nll 6.293; unigram baseline 6.378 (nats per token); 55 CPU-seconds on 2 cores.
Sizes: `ptm train spanbert_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("spanbert_large"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
