"""Paragraph vectors: PV-DM beside PV-DBOW, 400 + 400 wide. Row 17.

    ptm train configs/paragraph_vectors.py --data 'data/imdb/*.txt' --epochs 20 \
        --workdir runs/paragraph_vectors
    ptm train pv_dbow_words --data 'data/imdb/*.txt' --epochs 20 --workdir runs/pv_dbow_words

Paper: Le and Mikolov 2014, arXiv 1405.4053.
Data: the 100,000 reviews of IMDB. The pattern in `data` is an example: `--data` names your files.
Expected: IMDB error 7.42% (section 3.2), which others did not reach (Mesnil et al. 2015, arXiv
1412.5335: 11.3%).
Measured: `python -m benchmarks.paragraphs --stsb glue/stsb --epochs 10` trains on the 11,498
sentences of STS-B's training file alone, without scores, and infers those of its dev file, in about
four minutes for three models and gensim's on two cores: Spearman 0.335 (pv_dbow), 0.329 (pv_dm),
0.405 (pv_dbow_words); gensim's Doc2Vec 0.337, 0.332, 0.417. Published beside it: 58.0 for means of
GloVe vectors of 6 billion words, on the test file (Reimers and Gurevych 2019, Table 2).
Sizes: `paragraph_vectors`, `pv_dm`, `pv_dm_concat`, `pv_dbow`, `pv_dbow_words`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("paragraph_vectors"),
    data=("data/imdb/*.txt",),
    heldout=0.001,
    log_every=100,
    eval_every=5_000,
    save_every=5_000,
)
