"""Scaling laws of a causal and of a masked language model on `pydocs`: six sizes, two lengths of training, a law for each.

    ptm study scaling --workdir runs/scaling --dry-run
    ptm study scaling --workdir runs/scaling

Papers: Kaplan et al. 2020 (arXiv 2001.08361); Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, L(N, D) = E + A N^-alpha
+ B D^-beta with N without the vocabulary. Both tasks run on GPT-2's block (norm first) with one recipe. The run of each task
with the most operations is held out of its law, which predicts it.
Status: planned; no result is recorded yet.
"""

import dataclasses

from ptm_jax.core.system import Experiment, System
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.systems import get
from ptm_jax.systems.compose import compose
from ptm_jax.systems.transformers import gpt2, miniature
from ptm_jax.tuning.scaling_laws import Parametric
from ptm_jax.tuning.studies import Axis, Budget, Law, Study


def size(layers: int, width: int) -> System:
    return miniature(gpt2("", layers, width, max(1, width // 32)), "", steps=400, lr=3e-3, std=0.04, batch=16, length=64)


def masked(system: System) -> System:
    """The same network without the causal mask, on RoBERTa's task."""
    main = system.towers["main"]
    encoder = dataclasses.replace(main.encoder, direction="bidirectional")
    both = dataclasses.replace(system, towers={"main": dataclasses.replace(main, encoder=encoder)})
    return compose(both, get("roberta_mini"))


tokenizer = TokenizerSpec(kind="unigram", vocab=2048, lowercase=True, specials="xlnet")

study = Study(
    name="scaling",
    base=Experiment(system=dataclasses.replace(size(1, 32), tokenizer=tokenizer), save_every=0),
    axes=(
        Axis(name="task", values={"LM": lambda system: system, "MLM": masked}),
        Axis(
            name="size", values={f"{n}x{d}": size(n, d) for n, d in ((1, 32), (2, 32), (2, 64), (4, 64), (4, 96), (4, 128))}
        ),
        Axis(name="budget", values=(500_000, 2_000_000)),
    ),
    budget=Budget(kind="tokens", amount=500_000),
    laws=(Law(form=Parametric(variables=("body", "tokens")), by="task"),),
)
