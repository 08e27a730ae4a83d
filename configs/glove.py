"""GloVe, 300 wide, on the words of an encyclopedia and of news. Row 11.

    ptm train configs/glove.py --data 'data/wikigiga/*.txt.zst' --epochs 100 --workdir runs/glove
    ptm train glove_mini --data TEXT --workdir runs/glove_mini

Paper: Pennington et al. 2014, EMNLP.
Data: Wikipedia 2014 and Gigaword 5, 6 billion words. The pattern in `data` is an example: `--data`
names your files.
Expected: 71.7% of the Google analogies, WordSim-353 65.8 (Spearman), Tables 2 and 3 (6 billion
words, width 300).
Measured: glove_mini on WikiText-2's validation text, 2% of the cells held out: loss 0.059 and 0.058
(two seeds). Beside Stanford's C code, `python -m benchmarks.glove --code BUILD --data pydocs
data/lm/wikitext-2/valid.txt --passes 2` on two cores, width 100: 2,669,162 cells/s against 583,937,
held-out loss 0.01972 against 0.01962.
Sizes: `glove` is this config's; the miniature trains in seconds.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("glove"),
    data=("data/wikigiga/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
