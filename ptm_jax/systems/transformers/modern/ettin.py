"""Ettin's encoders and mmBERT: ModernBERT in other sizes and languages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase, StableAdamW, WarmupStableDecay
from ptm_jax.core.spec import override, respell
from ptm_jax.core.system import ChangedPhase, System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import ScheduledMasking
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.systems.transformers.modern.modernbert import THETA, modernbert

GEMMA = Vocab(size=256_000, pad=0, unk=3, cls=2, sep=1, mask=4)
"""Gemma 2's BPE, whose "<bos>" and "<eos>" begin and end a text."""


ROTARY = "towers.main.encoder.stack.block.attention.rotary"
TRAINING_RATE = "corruption.training_rate"


def retimed(
    system: System,
    phases: tuple[Phase, ...],
    optimizer: StableAdamW,
    *,
    warmup: int,
    end: float = 0.0,
) -> System:
    """Returns a system with other phases, the last of which is the decay, and its optimizer.

    Masks are 30% until a phase changes them, and 15% in evaluation.
    """
    schedule = WarmupStableDecay(warmup=warmup, decay=phases[-1].steps, end=end)
    recipe = dataclasses.replace(
        system.recipe, phases=phases, optimizer=optimizer, schedule=schedule
    )
    masking = ScheduledMasking(vocab=system.corruption.vocab, rate=0.15, training_rate=0.3)
    system = override(system, {f"{ROTARY}.local_theta": 160_000.0})
    return dataclasses.replace(system, recipe=recipe, corruption=masking)


def ettin(
    name: str,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    *,
    lr: float,
    decay: float,
    warmup: int = 640,
    later: tuple[int, int] = (6_623, 1_325),
) -> System:
    """An encoder of Ettin (Weller et al. 2025), with the sizes and the recipe of its released
    configurations.

    The phases are 1.7 T tokens at length 1,024, 250 B and 50 B (the decay) at 8,192. The largest
    size has a third of the last two. Theta is 10,000 at length 1,024; in local layers it is 10,000
    until the decay. Masks are 30%, and 15% in the decay.
    Deviations: the rate is stable until the decay (it falls to half of the peak in the second phase
    there), no warm-up of the batch, dropout 0 (0.1 after the attention).

    Args:
      warmup: steps; 2 to 4 billion tokens.
      later: steps of the last two phases.
    """
    system = modernbert(name, layers, width, heads, hidden, lr=lr, decay=decay)
    extension, last = later
    local = (f"{ROTARY}.local_theta", 10_000.0)
    phases = (
        ChangedPhase(steps=360_000, batch=4608, length=1024, changes=((THETA, 10_000.0), local)),
        ChangedPhase(steps=extension, batch=4608, length=8192, changes=(local,)),
        ChangedPhase(steps=last, batch=4608, length=8192, changes=((TRAINING_RATE, 0.15),)),
    )
    system = retimed(system, phases, system.recipe.optimizer, warmup=warmup, end=0.02)
    return dataclasses.replace(system, paper="Weller et al. 2025, arXiv 2507.11412")


def mmbert(name: str, width: int, heads: int) -> System:
    """mmBERT (Marone et al. 2025): ModernBERT on 1,833 languages, with Gemma 2's vocabulary and
    theta 160,000 in all layers. The batch is not checked against the paper.

    The phases are 2.0 T tokens at length 1,024, 600 B and 100 B (the decay) at 8,192, with 30%, 15%
    and 5% masks. Deviations: those of ModernBERT, and no schedule of languages.
    """
    system = modernbert(name, 22, width, heads, 1152, lr=8e-4, decay=8e-5)
    system = respell(system, Vocab, GEMMA)
    phases = (
        Phase(steps=424_000, batch=4608, length=1024),
        ChangedPhase(steps=127_000, batch=576, length=8192, changes=((TRAINING_RATE, 0.15),)),
        ChangedPhase(steps=21_200, batch=576, length=8192, changes=((TRAINING_RATE, 0.05),)),
    )
    optimizer = StableAdamW(b1=0.9, b2=0.95, eps=1e-6, weight_decay=8e-5)
    system = retimed(system, phases, optimizer, warmup=2000)
    tokenizer = TokenizerSpec(kind="bytebpe", vocab=GEMMA.size, lowercase=False)
    paper = "Marone et al. 2025, arXiv 2509.06888"
    return dataclasses.replace(system, paper=paper, tokenizer=tokenizer)


def systems() -> Iterator[System]:
    small = {"lr": 3e-3, "decay": 3e-4}
    yield ettin("ettin_17m", 7, 256, 4, 384, **small, warmup=850)
    yield ettin("ettin_32m", 10, 384, 6, 576, **small, warmup=850)
    yield ettin("ettin_68m", 19, 512, 8, 768, **small)
    yield ettin("ettin_150m", 22, 768, 12, 1152, lr=8e-4, decay=1e-5)
    yield ettin("ettin_400m", 28, 1024, 16, 2624, lr=5e-4, decay=1e-5, warmup=425)
    largest = {"lr": 5e-4, "decay": 5e-5, "warmup": 425, "later": (2_208, 442)}
    yield ettin("ettin_1b", 28, 1792, 28, 3840, **largest)
    yield mmbert("mmbert_small", 384, 6)
    yield mmbert("mmbert_base", 768, 12)
