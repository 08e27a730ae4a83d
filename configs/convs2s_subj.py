"""The encoder of ConvS2S on Subj: is a sentence subjective? As `configs/convs2s.py`. Row 20.

    ptm train configs/convs2s_subj.py --data SUBJ_FOLDER --workdir runs/convs2s_subj
    ptm train configs/convs2s_subj.py --data SUBJ_FOLDER --init embeddings=runs/skipgram256 \
        --workdir runs/convs2s_subj_given

Paper: Gehring et al. 2017, arXiv 1705.03122.
Expected: the paper has no figure for classification.
Measured: accuracy 87.7 with random vectors, 85.3 with skip-gram's of 2.5 million words, seed 0, on
300 sentences that are held out of 3,000; 3.9 and 3.8 minutes of one core. Two points are no
difference.
"""

import dataclasses

from ptm_jax.core.recipe import Phase
from ptm_jax.systems.structured import textcnn as convolutional
from ptm_jax.tuning.finetuning import from_scratch

network = convolutional.convs2s_sentences()
recipe = dataclasses.replace(network.recipe, phases=(Phase(steps=10 * 54, batch=50, length=128),))
config = from_scratch(
    network, "subj", recipe, ("../shared/data/classification/subj",), min_count=2, dropout=0.2
)
