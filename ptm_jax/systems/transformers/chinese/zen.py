"""ZEN: BERT with a Transformer of the n-grams of its text beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase
from ptm_jax.core.spec import override, values_of, with_field
from ptm_jax.core.system import System
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.knowledge.ngram_transformer import NGramTransformer, SummedBlock
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import BERT_CHINESE, bert, miniature
from ptm_jax.systems.transformers.bert_variants import headed


def zen(
    name: str, layers: int, width: int, heads: int, *, ngram_layers: int, lexicon: NGramLexicon
) -> System:
    """ZEN (Diao et al. 2019): BERT with n-grams of the text, section 2.

    Row 132. The n-grams have a Transformer of half the depth without positions; after each layer
    the states of the n-grams of a character are added to its own. In the upper half the last ones
    are added again, as released (the default); `zen_base_published` adds nothing there, as the
    paper's "first L layers". At most 128 n-grams a row, as the released dictionary class; its data
    had 20. Batch and epochs of the released command; 20 epochs are BERT's million steps here.
    """
    parent = bert(name, layers, width, heads, BERT_CHINESE)
    plain = parent.towers["main"].encoder
    beside = bert("", ngram_layers, width, heads, BERT_CHINESE).towers["main"].encoder
    block = SummedBlock(**values_of(plain.stack.block))
    core = NGramTransformer(
        embed=plain.embed,
        stack=plain.stack.clone(block=block),
        ngram_stack=beside.stack,
        lexicon=lexicon,
    )
    return dataclasses.replace(
        parent,
        paper="Diao et al. 2019, arXiv 1911.00720",
        section="4.2.2",
        rows=(132,),
        towers={"main": parent.towers["main"].clone(encoder=core)},
        tokenizer=dataclasses.replace(parent.tokenizer, lowercase=True),
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=1_000_000, batch=128, length=128),)
        ),
    )


def published(parent: System, name: str) -> System:
    """Returns a ZEN whose upper layers get no states of n-grams."""
    return dataclasses.replace(with_field(parent, "above", "none"), name=name)


def systems() -> Iterator[System]:
    base = zen("zen_base", 12, 768, 12, ngram_layers=6, lexicon=NGramLexicon())
    yield base
    yield published(base, "zen_base_published")
    lexicon = NGramLexicon(size=2048, least=5)
    tiny = zen("", 2, 128, 2, ngram_layers=1, lexicon=lexicon)
    tiny = override(tiny, {"towers.main.encoder.capacity": 64})
    text = dataclasses.replace(
        tiny, towers=headed(tiny, ("pool", "nsp")), examples=Packed(), objective=MLM()
    )
    yield miniature(text, "zen_mini", steps=300, lr=2e-3, std=0.08)
