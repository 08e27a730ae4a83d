"""Skip-thought: uni-skip of 2400 units; bi-skip by its name. Row 18.

    ptm train configs/skip_thought.py --data 'data/books/*.txt' --workdir runs/uni
    ptm train skip_thought_bi --data 'data/books/*.txt' --workdir runs/bi
    ptm train skip_thought_mini --data pydocs --workdir runs/mini --set recipe.phases.0.steps=900 \
        recipe.phases.0.batch=16

Paper: Kiros et al. 2015, arXiv 1506.06726.
Data: BookCorpus, 985 million words. The pattern in `data` is an example: `--data` names your files.
Expected: STS-B 69.7 (Spearman; Pearson 71.8) on its test set, with a trained classifier (Wang et
al. 2018, GLUE), after two weeks of training.
Measured: 600 steps of the third command with WikiText-2 besides, a million words in 8 minutes of
two cores, then `python -m benchmarks.sentences runs/mini --stsb STSB`: on sts-dev Spearman 0.367 by
the cosine, without training on STS-B, and 0.438 by a regression that is fitted to sts-train
(Pearson 0.433).
Sizes: `skip_thought` is this config's; `skip_thought_bi`, `skip_thought_mini`,
`skip_thought_bi_mini`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("skip_thought"),
    data=("data/books/*.txt",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
