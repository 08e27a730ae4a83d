"""CTRL: a large causal decoder whose text begins with the code of where it comes from. Row 59.

    ptm train configs/ctrl.py --data 'data/coded/*.txt.zst' --workdir runs/ctrl --mesh fsdp=8 \
        --rules fsdp
    ptm train ctrl_mini --data TEXT --workdir runs/ctrl_mini

Paper: Keskar et al. 2019, arXiv 1909.05858.
Data: 140 GB: Wikipedia, Gutenberg, Reddit, OpenWebText, reviews; the first word of each document is
its code. The pattern in `data` is an example: `--data` names your files.
Expected: 1.63 billion parameters. The paper shows samples; no figure of a benchmark was found to
compare with.
Measured: ctrl_mini on WikiText-2's validation text, 2% of it held out: nll 6.046; unigram baseline
6.422 (nats per token); 24 CPU-seconds on 2 cores.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("ctrl"),
    data=("data/coded/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
