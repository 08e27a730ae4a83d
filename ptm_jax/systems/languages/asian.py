"""Arabic and Japanese models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.systems.languages.european import small
from ptm_jax.systems.recurrent.elmo import FILTERS, elmo, network
from ptm_jax.systems.recurrent.ulmfit import ulmfit, without_dropout
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, bert, miniature
from ptm_jax.systems.transformers.bert_variants import WORDS, bert_wwm

ARABERT = dataclasses.replace(BERT_CASED, size=64_000)
JAPANESE = dataclasses.replace(BERT_CASED, size=32_000)
JAPANESE_CHARACTERS = dataclasses.replace(BERT_CASED, size=4_000)
BATAA_PIECES = Vocab(size=32_000, pad=0, eos=1, unk=2)
BATAA_WORDS = Vocab(size=200_000, pad=0, eos=1, unk=2)


def arabert(
    name: str, layers: int, width: int, heads: int, phases: tuple[Phase, ...] = ()
) -> System:
    """AraBERT (Antoun et al. 2020, section 3): BERT for Arabic with masks of whole words.

    Row 139. This is the variant without segmentation, of which versions 0.1 and 0.2 are: Farasa,
    which divides words into prefixes, stem and suffixes for versions 1 and 2, cannot be had as a
    package; text that it has divided can be trained on all the same. 64,000 pieces; 900,000 steps
    of 512 rows of 128 tokens and 350,000 of 128 rows of 512. `phases`: those of another version.
    """
    parent = bert_wwm(name, layers, width, heads, ARABERT)
    published = (
        Phase(steps=900_000, batch=512, length=128),
        Phase(steps=350_000, batch=128, length=512),
    )
    return dataclasses.replace(
        parent,
        paper="Antoun et al. 2020, arXiv 2003.00104",
        section="4.2.2",
        rows=(139,),
        recipe=dataclasses.replace(parent.recipe, phases=phases or published),
    )


def japanese(
    name: str, layers: int, width: int, heads: int, *, by_words: bool, characters: bool = False
) -> System:
    """Japanese BERT (cl-tohoku/bert-japanese, README of 2019): MeCab's words, then pieces.

    Row 140. 32,000 WordPieces or 4,000 characters of MeCab's words with the dictionary IPAdic;
    `by_words`: the pieces, or characters, of a word are masked together. A million steps of 256
    rows of 512 tokens of Wikipedia.
    """
    vocab = JAPANESE_CHARACTERS if characters else JAPANESE
    parent = (bert_wwm if by_words else bert)(name, layers, width, heads, vocab)
    segmenter = "ipadic" if characters else None
    return dataclasses.replace(
        parent,
        paper="Bataa and Wu 2019, arXiv 1905.09642",
        section="4.2.2",
        rows=(140,),
        tokenizer=TokenizerSpec(
            kind="characters" if characters else "wordpiece",
            vocab=vocab.size,
            lowercase=False,
            segmenter="ipadic",
        ),
        examples=dataclasses.replace(parent.examples, segmenter=segmenter)
        if by_words
        else parent.examples,
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=1_000_000, batch=256, length=512),)
        ),
    )


def bataa_bert(name: str, layers: int, width: int, heads: int) -> System:
    """BERT of Bataa and Wu (2019, section 3): unigram pieces without MeCab, BERT's recipe.

    Row 140. 32,000 pieces of Japanese Wikipedia; the sizes of the vocabularies of these three
    models are from memory of the paper.
    """
    parent = bert(name, layers, width, heads, JAPANESE)
    return dataclasses.replace(
        parent,
        paper="Bataa and Wu 2019, arXiv 1905.09642",
        section="4.2.2",
        rows=(140,),
        tokenizer=dataclasses.replace(parent.tokenizer, kind="unigram", lowercase=False),
    )


def bataa_ulmfit(name: str, width: int = 400, hidden: int = 1150) -> System:
    """ULMFiT of Bataa and Wu (2019, section 3): unigram pieces of Japanese Wikipedia. Row 140."""
    parent = ulmfit(name, BATAA_PIECES, width, hidden)
    return dataclasses.replace(
        parent,
        paper="Bataa and Wu 2019, arXiv 1905.09642",
        section="4.2.2",
        rows=(140,),
        tokenizer=TokenizerSpec(
            kind="unigram", vocab=BATAA_PIECES.size, lowercase=False, specials="t5"
        ),
    )


def bataa_elmo(
    name: str,
    vocab: Vocab,
    width: int,
    cells: int,
    filters: tuple[tuple[int, int], ...] = FILTERS,
    *,
    spelling: int = 50,
    sampled: int = 8192,
) -> System:
    """ELMo of Bataa and Wu (2019, section 3): MeCab's words, spelled in bytes. Row 140."""
    parent = elmo(name, network(vocab, width, cells, filters=filters), spelling, sampled)
    return dataclasses.replace(
        parent,
        paper="Bataa and Wu 2019, arXiv 1905.09642",
        section="4.2.2",
        rows=(140,),
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=vocab.size, segmenter="ipadic"),
    )


def systems() -> Iterator[System]:
    base, large, tiny = (12, 768, 12), (24, 1024, 16), (2, 128, 2)
    longer = (
        Phase(steps=250_000, batch=13_440, length=128),
        Phase(steps=300_000, batch=2056, length=512),
    )
    yield arabert("arabert_v01", *base)
    yield arabert("arabert_v02_large", *large, longer)
    yield japanese("bert_japanese", *base, by_words=False)
    yield japanese("bert_japanese_wwm", *base, by_words=True)
    yield japanese("bert_japanese_char", *base, by_words=False, characters=True)
    yield japanese("bert_japanese_char_wwm", *base, by_words=True, characters=True)
    yield bataa_bert("bert_japanese_pieces", *base)
    yield bataa_ulmfit("ulmfit_japanese")
    yield bataa_elmo("elmo_japanese", BATAA_WORDS, 512, 4096)
    words = Annotated(examples=Packed(), fields=WORDS)
    yield small(arabert("", *tiny), "arabert_mini", words, ("pool", "nsp"))
    parent = japanese("", *tiny, by_words=True)
    yield small(parent, "bert_japanese_mini", words, ("pool", "nsp"))
    parent = japanese("", *tiny, by_words=True, characters=True)
    rows = dataclasses.replace(words, segmenter="ipadic")
    spelled = small(parent, "bert_japanese_char_mini", rows, ("pool", "nsp"))
    fewer = dataclasses.replace(spelled.tokenizer, vocab=1024)
    yield dataclasses.replace(spelled, tokenizer=fewer)
    yield small(bataa_bert("", *tiny), "bert_japanese_pieces_mini", Packed(), length=64)
    parent = without_dropout(bataa_ulmfit("", 64, 128))
    yield miniature(parent, "ulmfit_japanese_mini", steps=300, lr=8e-3, batch=8, length=32)
    vocab = dataclasses.replace(BATAA_WORDS, size=4096)
    filters = ((1, 16), (2, 32), (3, 48))
    parent = bataa_elmo("", vocab, 64, 128, filters, spelling=12, sampled=0)
    yield miniature(parent, "elmo_japanese_mini", steps=120, lr=8e-3, length=32)
