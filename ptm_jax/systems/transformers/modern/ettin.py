"""Ettin's encoders and mmBERT: ModernBERT in other sizes and languages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase, StableAdamW, WarmupStableDecay
from ptm_jax.core.spec import override, respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.systems.transformers.modern.modernbert import modernbert

GEMMA = Vocab(size=256_000, pad=0, unk=3, cls=2, sep=1, mask=4)
"""Gemma 2's BPE, whose "<bos>" and "<eos>" begin and end a text."""


def retimed(system: System, phases: tuple[Phase, ...], optimizer: StableAdamW) -> System:
    """Returns a system with other phases, the last of which is the decay, and its optimizer."""
    schedule = WarmupStableDecay(warmup=2000, decay=phases[-1].steps)
    recipe = dataclasses.replace(
        system.recipe, phases=phases, optimizer=optimizer, schedule=schedule
    )
    return dataclasses.replace(system, recipe=recipe)


def ettin(
    name: str, layers: int, width: int, heads: int, hidden: int, *, lr: float, decay: float
) -> System:
    """An encoder of Ettin (Weller et al. 2025): its sizes. The number of steps is not
    checked against the paper.

    The phases are 1.7 T tokens at length 1,024, 250 B and 50 B (the decay) at 8,192. Deviations:
    those of ModernBERT, and 30% masks in the last phases too (15% and 5% there).
    """
    system = modernbert(name, layers, width, heads, hidden, lr=lr, decay=decay)
    system = override(
        system, {"towers.main.encoder.stack.block.attention.rotary.local_theta": 160_000.0}
    )
    phases = (
        Phase(steps=360_000, batch=4608, length=1024),
        Phase(steps=53_000, batch=576, length=8192),
        Phase(steps=10_600, batch=576, length=8192),
    )
    system = retimed(system, phases, system.recipe.optimizer)
    return dataclasses.replace(system, paper="Weller et al. 2025, arXiv 2507.11412")


def mmbert(name: str, width: int, heads: int) -> System:
    """mmBERT (Marone et al. 2025): ModernBERT on 1,833 languages, with Gemma 2's vocabulary and
    theta 160,000 in all layers. The number of steps is not checked against the paper.

    The phases are 2.0 T tokens at length 1,024, 600 B and 100 B (the decay) at 8,192. Deviations:
    those of ModernBERT, 30% masks in all phases (30%, 15% and 5% there), and no schedule of
    languages.
    """
    system = modernbert(name, 22, width, heads, 1152, lr=8e-4, decay=8e-5)
    system = respell(system, Vocab, GEMMA)
    system = override(
        system, {"towers.main.encoder.stack.block.attention.rotary.local_theta": 160_000.0}
    )
    phases = (
        Phase(steps=424_000, batch=4608, length=1024),
        Phase(steps=127_000, batch=576, length=8192),
        Phase(steps=21_200, batch=576, length=8192),
    )
    system = retimed(system, phases, StableAdamW(b1=0.9, b2=0.95, eps=1e-6, weight_decay=8e-5))
    tokenizer = TokenizerSpec(kind="bytebpe", vocab=GEMMA.size, lowercase=False)
    paper = "Marone et al. 2025, arXiv 2509.06888"
    return dataclasses.replace(system, paper=paper, tokenizer=tokenizer)


def systems() -> Iterator[System]:
    for name, *sizes in (
        ("17m", 7, 256, 4, 384),
        ("32m", 10, 384, 6, 576),
        ("68m", 19, 512, 8, 768),
    ):
        yield ettin(f"ettin_{name}", *sizes, lr=3e-3, decay=3e-4)
    yield ettin("ettin_150m", 22, 768, 12, 1152, lr=8e-4, decay=1e-5)
    yield ettin("ettin_400m", 28, 1024, 16, 2624, lr=5e-4, decay=1e-5)
    yield ettin("ettin_1b", 28, 1792, 28, 3840, lr=5e-4, decay=1e-5)
    yield mmbert("mmbert_small", 384, 6)
    yield mmbert("mmbert_base", 768, 12)
