"""Supervised fastText on the six classes of TREC: words and bigrams, width 10. Row 12.

    ptm train configs/fasttext_supervised_trec.py --data TREC_FOLDER --workdir runs/trec

Paper: Joulin et al. 2016, arXiv 1607.01759, which has no figure for TREC.
Measured: accuracy 84.2, seed 0, on 545 questions that are held out of TREC.train, 84.0 with the
hierarchical softmax; fastText's own library 85.0 and 81.7 on the same tokens, rate and epochs; 0.3
minutes, of which the steps take 0.7 s (`python -m benchmarks.text_classes`). Deviations: the test
file is not among the data, so that a tenth of the training questions is held out; words that occur
once are unknown.
"""

from ptm_jax.systems.word_vectors import fasttext
from ptm_jax.tuning.finetuning import from_scratch

recipe = fasttext.labelled(0.5, 4907, epochs=10, length=48)
config = fasttext.classes(
    from_scratch(
        fasttext.supervised(), "trec6", recipe, ("../shared/data/classification/trec",), min_count=2
    )
)
