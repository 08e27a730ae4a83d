"""GPT: a causal decoder over books, then fine-tuned. Row 42.

    ptm train configs/gpt.py --data 'data/books/*.txt.zst' --workdir runs/gpt
    ptm train gpt_mini --data TEXT --workdir runs/gpt_mini

Paper: Radford et al. 2018, Improving language understanding by generative pre-training.
Data: BooksCorpus, about 7,000 books. The pattern in `data` is an example: `--data` names your
files.
Expected: GLUE average 72.8 (also the survey's Table 2), MNLI-m 82.1, RACE 59.0, Story Cloze 86.5.
The miniature is GPT-2's block, shared by both.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("gpt"),
    data=("data/books/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
