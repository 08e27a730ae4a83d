"""The encoder of ConvS2S as a classifier: the six classes of TREC, by the mean of its states. Row
20.

    ptm train configs/convs2s.py --data TREC_FOLDER --workdir runs/convs2s
    ptm train configs/convs2s.py --data TREC_FOLDER --init embeddings=runs/skipgram256 \
        --workdir runs/convs2s_given

Paper: Gehring et al. 2017, arXiv 1705.03122.
Expected: the paper has no figure for classification.
Measured: accuracy 83.3 with random vectors, 86.4 with skip-gram's, seed 0, on 545 questions that
are held out of TREC.train; 2.9 and 3.5 minutes of one core. The four layers of width 256 and
dropout 0.2 are fairseq's `fconv_iwslt_de_en`; Nesterov's momentum 0.99 at the rate 0.25, clipped at
0.1, is section 4.3's. 10 epochs; words that occur once are unknown.
"""

import dataclasses

from ptm_jax.core.recipe import Phase
from ptm_jax.systems.structured import textcnn as convolutional
from ptm_jax.tuning.finetuning import from_scratch

network = convolutional.convs2s_sentences()
recipe = dataclasses.replace(network.recipe, phases=(Phase(steps=10 * 99, batch=50, length=64),))
config = from_scratch(
    network, "trec6", recipe, ("../shared/data/classification/trec",), min_count=2, dropout=0.2
)
