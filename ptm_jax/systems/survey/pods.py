"""Experiments that need a pod, with their meshes.
`ptm plan NAME` plans them; the files in `configs/` train them.

    experiment("megatron_8b")     # an Experiment with system, mesh and rules; set `data` before
                                  training

Meshes are from the papers if they name one. Megatron-LM splits its models of 1.2, 2.5, 4.2 and 8.3
billion parameters over 1, 2, 4 and 8 devices, with 64 data-parallel copies (Shoeybi et al. 2019,
section 5.1); Turing-NLG over 4, with ZeRO over 64 (Rosset 2020). The others are ours: they shard
parameters and optimizer state over all devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ptm_jax import systems
from ptm_jax.core.errors import unknown
from ptm_jax.core.recipe import Linear, Phase
from ptm_jax.core.spec import respell
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.nn.blocks import Stack
from ptm_jax.systems.transformers.bert_gpt import ROBERTA, roberta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod experiment.
    `accumulate` is the number of micro-batches per update; `remat` applies to every stack (None: as
    in the system)."""

    system: str
    mesh: tuple[tuple[str, int], ...]
    rules: str
    accumulate: int = 1
    remat: str | None = None


PODS: Mapping[str, Pod] = {
    "megatron_1b": Pod(system="megatron_gpt2_1200m", mesh=(("fsdp", 64),), rules="fsdp"),
    "megatron_2b": Pod(
        system="megatron_gpt2_2500m", mesh=(("fsdp", 64), ("model", 2)), rules="megatron_sp_fsdp"
    ),
    "megatron_4b": Pod(
        system="megatron_gpt2_4200m", mesh=(("fsdp", 64), ("model", 4)), rules="megatron_sp_fsdp"
    ),
    "megatron_8b": Pod(
        system="megatron_gpt2_8300m", mesh=(("data", 64), ("model", 8)), rules="megatron_sp"
    ),
    "megatron_bert_336m": Pod(system="megatron_bert_336m", mesh=(("fsdp", 64),), rules="fsdp"),
    "megatron_bert_1300m": Pod(system="megatron_bert_1300m", mesh=(("fsdp", 64),), rules="fsdp"),
    "megatron_bert_3900m": Pod(
        system="megatron_bert_3900m", mesh=(("fsdp", 64), ("model", 8)), rules="megatron_sp_fsdp"
    ),
    "turing_nlg": Pod(
        system="turing_nlg",
        mesh=(("data", 2), ("fsdp", 32), ("model", 4)),
        rules="megatron_sp_fsdp",
    ),
    "t5_11b": Pod(
        system="t5_11b", mesh=(("fsdp", 64), ("model", 8)), rules="megatron_fsdp", remat="full"
    ),
    "xlm_roberta_large": Pod(
        system="xlm_roberta_large", mesh=(("data", 8), ("fsdp", 64)), rules="fsdp", remat="full"
    ),
    "roberta_large": Pod(
        system="roberta_large", mesh=(("data", 8), ("fsdp", 64)), rules="fsdp", remat="full"
    ),
}

ALIASES: Mapping[str, str] = {
    "megatron_gpt2_1200m": "megatron_1b",
    "megatron_gpt2_2500m": "megatron_2b",
    "megatron_gpt2_4200m": "megatron_4b",
    "megatron_gpt2_8300m": "megatron_8b",
    "megatron_lm": "megatron_8b",
    "roberta": "roberta_large",
}

FAMILY: tuple[tuple[str, int], ...] = (
    ("megatron_1b", 1),
    ("megatron_2b", 2),
    ("megatron_4b", 4),
    ("megatron_8b", 8),
)
"""Megatron-LM's scaling study: each size and its number of devices per model copy (Shoeybi et al.
2019, Table 1)."""


def experiment(name: str) -> Experiment:
    """Returns the experiment of a name or alias. Raises UserError for an unknown name."""
    name = ALIASES.get(name, name)
    if name not in PODS:
        raise unknown("pod config", name, (*PODS, *ALIASES))
    pod = PODS[name]
    system = xlm_roberta_large() if pod.system == "xlm_roberta_large" else systems.get(pod.system)
    if pod.remat is not None:
        system = respell(system, Stack, lambda stack: dataclasses.replace(stack, remat=pod.remat))
    if pod.accumulate > 1:
        recipe = dataclasses.replace(system.recipe, accumulate=pod.accumulate)
        system = dataclasses.replace(system, recipe=recipe)
    return Experiment(system=system, mesh=pod.mesh, rules=pod.rules)


def xlm_roberta_large() -> System:
    """XLM-R large (Conneau et al. 2020): RoBERTa on 100 languages.
    250,002 entries, 1.5 million updates of 8192 rows.

    Row 122; 560 million parameters. Deviation: peak rate and warm-up are RoBERTa-large's; the paper
    gives none.
    """
    parent = roberta("xlm_roberta_large", 24, 1024, 16, lr=4e-4, warmup=30_000)
    vocab = dataclasses.replace(ROBERTA, size=250_002, mask=250_001)
    recipe = dataclasses.replace(
        parent.recipe,
        phases=(Phase(steps=1_500_000, batch=8192, length=512),),
        schedule=Linear(warmup=30_000),
    )
    system = respell(parent, Vocab, vocab)
    return dataclasses.replace(
        system, paper="Conneau et al. 2020, arXiv 1911.02116", rows=(122,), recipe=recipe
    )
