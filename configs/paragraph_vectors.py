"""Paragraph vectors: PV-DM beside PV-DBOW, 400 + 400 wide. Row 17.

    ptm train configs/paragraph_vectors.py --data 'data/imdb/*.txt' --epochs 20 --workdir runs/paragraph_vectors
    ptm train pv_dbow_words --data 'data/imdb/*.txt' --epochs 20 --workdir runs/pv_dbow_words

Paper: Le and Mikolov 2014, arXiv 1405.4053.
Data: the 100,000 reviews of IMDB. The pattern in `data` is an example: `--data` names your files.
Expected: IMDB error 7.42% (section 3.2), which others did not reach (Mesnil et al. 2015, arXiv 1412.5335: 11.3%); STS
similarity on sentences of other corpora: Lau and Baldwin 2016, arXiv 1607.05368, Table 4.
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
