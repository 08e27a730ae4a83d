"""The dynamic CNN on the six classes of TREC, with random and with given vectors (section 5.3). Row
20.

    ptm train configs/dcnn.py --data TREC_FOLDER --workdir runs/dcnn
    ptm train configs/dcnn.py --data TREC_FOLDER --init embeddings=runs/skipgram32 \
        --workdir runs/dcnn_given

Paper: Kalchbrenner et al. 2014, arXiv 1404.2188.
Expected: 93.0 with vectors of Turian et al. (Table 3), on the 500 questions of TREC's test file.
Measured: accuracy 82.8 with random vectors, 84.0 with skip-gram's of 2.5 million words
(docs/vector_uses.md), seed 0, on 545 questions that are held out of TREC.train; 0.9 minutes of one
core each. Vectors of width 32, one convolution of width 8 with 5 maps, AdaGrad: section 5.3. The
paper prints neither rate, batch, k_top nor epochs of it: 0.1, 50, 4 and 40 here, and no penalty on
the norms. Words that occur once are unknown.
"""

from ptm_jax.core.recipe import Adagrad, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.systems import get
from ptm_jax.tuning.finetuning import from_scratch

recipe = Recipe(
    phases=(Phase(steps=40 * 99, batch=50, length=64),),
    lr=0.1,
    optimizer=Adagrad(),
    schedule=Constant(),
    clip=None,
)
network = with_field(with_field(get("dcnn"), "layers", ((8, 5),)), "width", 32)
config = from_scratch(
    network, "trec6", recipe, ("../shared/data/classification/trec",), min_count=2
)
