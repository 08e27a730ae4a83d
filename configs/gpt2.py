"""GPT-2 small: a causal decoder over web text, used as it is. Row 43.

    ptm train configs/gpt2.py --data 'data/openwebtext/*.txt.zst' --workdir runs/gpt2
    ptm train gpt_mini --data TEXT --workdir runs/gpt_mini

Paper: Radford et al. 2019, Language models are unsupervised multitask learners.
Data: WebText, 8 million documents, 40 GB; OpenWebText stands in. The pattern in `data` is an
example: `--data` names your files.
Expected: without training on the set, perplexity 35.13 on LAMBADA, 29.41 on WikiText-2, 37.50 on
WikiText-103 (Table 3); the largest: 8.63, 18.34, 17.48.
Sizes: `ptm train gpt2_medium`, `gpt2_large`, `gpt2_xl` (`--mesh fsdp=8 --rules fsdp`).
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("gpt2"),
    data=("data/openwebtext/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
