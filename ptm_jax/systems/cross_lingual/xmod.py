"""X-MOD: XLM-R with an adapter for each language in every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase
from ptm_jax.core.spec import override, values_of
from ptm_jax.core.system import System
from ptm_jax.nn.adapter_layers import LanguageAdapters, LanguageBlock
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.many_languages import xlm_r


def xmod(
    name: str,
    layers: int,
    width: int,
    heads: int,
    *,
    languages: int = 81,
    prenorm: bool = False,
) -> System:
    """X-MOD (Pfeiffer et al. 2022): XLM-R whose rows pass the adapter of their language.

    No row of the survey. An adapter has half of the width and is there from the start of the
    pre-training; the released models have 81 languages, a norm of the feed-forward layer that is
    used twice (`LanguageBlock`), and 125,000 to 269,000 steps. The rate, warm-up and batch are
    XLM-R's: not checked against the paper. Fine-tuning freezes embeddings and adapters (section
    3.3): `--adapt 'frozen(pattern="embed/|/adapters/")'`.
    """
    parent = xlm_r(name, layers, width, heads, lr=6e-4, warmup=24_000)
    main = parent.towers["main"]
    core, block = main.encoder, main.encoder.stack.block
    adapters = LanguageAdapters(languages, width // 2, initializer=block.ffn.initializer)
    adapted = LanguageBlock(**values_of(block), adapters=adapters)
    core = override(core, {"stack.block": adapted})
    if prenorm:
        final = {"stack.final_norm": LayerNorm(block.ffn_norm.eps)}
        core = override(core, {"stack.block.norm": "pre", **final})
    return dataclasses.replace(
        parent,
        paper="Pfeiffer et al. 2022, arXiv 2205.06266",
        rows=(),
        towers={"main": dataclasses.replace(main, encoder=core)},
        examples=dataclasses.replace(parent.examples, capacity=languages),
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=269_000, batch=2048, length=512),)
        ),
    )


def systems() -> Iterator[System]:
    yield xmod("xmod_base", 12, 768, 12)
    yield xmod("xmod_large_prenorm", 24, 1024, 16, prenorm=True)
    yield miniature(xmod("", 2, 128, 2, languages=8), "xmod_mini", steps=400, lr=2e-3, std=0.08)
