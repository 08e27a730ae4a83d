"""TextCNN on the six classes of TREC: CNN-rand, and with given vectors CNN-non-static (section 3).
Row 20.

    ptm train configs/textcnn.py --data TREC_FOLDER --workdir runs/textcnn
    ptm train configs/textcnn.py --data TREC_FOLDER --init embeddings=runs/skipgram \
        --workdir runs/textcnn_given

Paper: Kim 2014, arXiv 1408.5882.
Expected: 91.2 with random vectors, 93.6 with those of 100 billion words (Table 2), on the 500
questions of TREC's test file.
Measured: accuracy 85.3 with random vectors (85.7, 84.4, 85.9 with seeds 0, 1, 2), 87.5 with
skip-gram's of 2.5 million words (87.9, 87.3, 87.2; docs/vector_uses.md), on 545 questions that are
held out of TREC.train; 1.0 minute of one core each. Deviations: the test file is not among the
data, so that a tenth of the training questions is held out; 10 epochs in place of early stopping;
words that occur once are unknown. Adadelta and 50 examples a batch as in the paper.
"""

from ptm_jax.adapt.parameters.max_norm import MaxNorm
from ptm_jax.core.recipe import Adadelta, Constant, Phase, Recipe
from ptm_jax.systems import get
from ptm_jax.tuning.finetuning import from_scratch

recipe = Recipe(
    phases=(Phase(steps=10 * 99, batch=50, length=64),),
    lr=1.0,
    optimizer=Adadelta(),
    schedule=Constant(),
    clip=None,
)
config = from_scratch(
    get("textcnn"),
    "trec6",
    recipe,
    ("../shared/data/classification/trec",),
    min_count=2,
    adapt=(MaxNorm(),),
)
