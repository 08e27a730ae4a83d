"""TextCNN on Subj: is a sentence subjective? As `configs/textcnn.py`. Row 20.

    ptm train configs/textcnn_subj.py --data SUBJ_FOLDER --workdir runs/textcnn_subj
    ptm train configs/textcnn_subj.py --data SUBJ_FOLDER --init embeddings=runs/skipgram \
        --workdir runs/textcnn_subj_given

Paper: Kim 2014, arXiv 1408.5882.
Expected: 89.6 with random vectors, 93.4 with given ones (Table 2), ten folds of 10,000 sentences.
Measured: accuracy 86.3 with random vectors, 88.7 with given ones, seed 0, on 300 of the 3,000
sentences that are here; 2.1 minutes of one core each.
"""

from ptm_jax.adapt.parameters.max_norm import MaxNorm
from ptm_jax.core.recipe import Adadelta, Constant, Phase, Recipe
from ptm_jax.systems import get
from ptm_jax.tuning.finetuning import from_scratch

recipe = Recipe(
    phases=(Phase(steps=10 * 54, batch=50, length=128),),
    lr=1.0,
    optimizer=Adadelta(),
    schedule=Constant(),
    clip=None,
)
config = from_scratch(
    get("textcnn"),
    "subj",
    recipe,
    ("../shared/data/classification/subj",),
    min_count=2,
    adapt=(MaxNorm(),),
)
