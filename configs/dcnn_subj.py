"""The dynamic CNN on Subj: is a sentence subjective? As `configs/dcnn.py`. Row 20.

    ptm train configs/dcnn_subj.py --data SUBJ_FOLDER --workdir runs/dcnn_subj
    ptm train configs/dcnn_subj.py --data SUBJ_FOLDER --init embeddings=runs/skipgram48 \
        --workdir runs/dcnn_subj_given

Paper: Kalchbrenner et al. 2014, arXiv 1404.2188.
Expected: the paper has no figure for Subj.
Measured: accuracy 81.3 with random vectors, 84.7 with given ones, seed 0, on 300 of 3,000
sentences; 1.2 minutes of one core. The network is that of its section 5.2, for two classes.
"""

from ptm_jax.core.recipe import Adagrad, Constant, Phase, Recipe
from ptm_jax.systems import get
from ptm_jax.tuning.finetuning import from_scratch

recipe = Recipe(
    phases=(Phase(steps=20 * 54, batch=50, length=128),),
    lr=0.1,
    optimizer=Adagrad(),
    schedule=Constant(),
    clip=None,
)
config = from_scratch(
    get("dcnn"), "subj", recipe, ("../shared/data/classification/subj",), min_count=2
)
