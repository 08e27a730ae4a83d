"""Rows of text in several languages, and of translations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.languages.mix import Mixture, Part, shares_of
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import Around, Fields, Packed, Spec, WholeSentences
from ptm_jax.data.rows.text_pairs import truncated
from ptm_jax.knowledge.languages import LanguageNames

LANGUAGES = "language_ids"
"""[R, L] int32: the number of a token's language (`LanguageNames`); 0 on padding."""


class Sentence(NamedTuple):
    """The tokens of a sentence of a translated document; `side` is 0 or 1."""

    side: int
    tokens: np.ndarray


Text = list[Sentence]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translated(WholeSentences):
    """Rows of translations: documents in which the sentences of two languages alternate.

    Several documents of a row are segments of their own (in XLM a row has one). `language_ids` are
    0 and 1.

    kind    "tlm": a pair is a document. Each sentence stands between `begin` and `end` and has
            positions from 0: </s> a </s> </s> b </s> with "eos", XLM's four separators (Lample and
            Conneau 2019, section 3.3; facebookresearch/XLM, utils.py, concat_batches)
            "alternating": a document is the sentences in order, each in the language that the one
            before it has not; the first language is drawn (Huang et al. 2019, section 3.3)

    Pairs longer than a row, and a sentence without a translation, are documents of one language.
    "alternating" leaves the other sentence of each pair out.
    """

    kind: Literal["tlm", "alternating"] = "tlm"

    def __post_init__(self):
        if self.kind not in ("tlm", "alternating"):
            raise ValueError(f"kind is {self.kind!r}; expected tlm or alternating")

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `WholeSentences` does."""
        return {**super().spec(length, vocab), LANGUAGES: Field((length,))}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in random order."""
        frame = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        texts: list[Text] = []
        for document in documents_of(block):
            if self.kind == "tlm":
                texts += _pairs(document, length)
            else:
                texts += _filled(_alternated(document, int(rng.integers(2))), length - 2)
        parts = [self._fields(text, *frame) for text in texts]
        row, column, count = packing.best_fit(
            np.array([len(part["input_ids"]) for part in parts]), length
        )
        row = rng.permutation(count)[row]
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions", LANGUAGES)
        numbers = np.zeros(count, np.int32)
        for index in np.lexsort((column, row)):
            r, start = row[index], column[index]
            numbers[r] += 1
            for name, values in parts[index].items():
                out[name][r, start : start + len(values)] = values
            out["segment_ids"][r, start : start + len(values)] = numbers[r]
        return out

    def _fields(self, text: Text, begin: int, end: int) -> Fields:
        """Returns the fields of a document, [n] each."""
        if self.kind == "tlm":
            pieces = [[begin, *sentence.tokens, end] for sentence in text]
        else:
            pieces = [[*sentence.tokens] for sentence in text]
            pieces[0].insert(0, begin), pieces[-1].append(end)
        sizes = [len(piece) for piece in pieces]
        starts = sizes if self.kind == "tlm" else [sum(sizes)]
        return {
            "input_ids": np.concatenate(pieces),
            "positions": np.concatenate([np.arange(size) for size in starts]),
            LANGUAGES: np.repeat([sentence.side for sentence in text], sizes),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paraphrases(WholeSentences):
    """Pairs of sentences that are translations or not: Unicoder's classification of paraphrases
    (Huang et al. 2019, section 3.2).

    A row is begin a end b end with token types 0 and 1. `next_label` is 0 for translations. It is
    1, with `other_probability`, for b of another pair of the block, drawn from the `near` ones
    whose length is nearest. Deviation: the paper's negatives are nearest in a trained model.
    """

    other_probability: float = 0.5
    near: int = 8

    def __post_init__(self):
        if not 0 <= self.other_probability <= 1 or self.near < 1:
            raise ValueError(
                f"other_probability is {self.other_probability} and near {self.near}; expected a "
                "probability and at least 1"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `WholeSentences` does."""
        packing.room(length, 4)
        fields = packing.fields(length, "token_type_ids", LANGUAGES)
        return {**super().spec(length, vocab), **fields, "next_label": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, ...], a row for each pair. Long pairs lose tokens at their ends."""
        begin, end = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        pairs = [pair for document in documents_of(block) for pair in _twos(document)]
        pairs = [pair for pair in pairs if len(pair) == 2]
        names = "segment_ids", "positions", "token_type_ids", LANGUAGES
        out = packing.empty(len(pairs), length, vocab.pad, *names)
        out["next_label"] = (rng.random(len(pairs)) < self.other_probability).astype(np.int32)
        if len(pairs) == 1:
            out["next_label"][:] = 0
        sizes = np.array([len(second.tokens) for _, second in pairs])
        for r, ((_, first), (side, second)) in enumerate(pairs):
            if out["next_label"][r]:
                distance = np.abs(sizes - sizes[r]).astype(float)
                distance[r] = np.inf
                nearest = np.argsort(distance, kind="stable")[: min(self.near, len(pairs) - 1)]
                second = pairs[int(rng.choice(nearest))][1].tokens
            a, n, b, m = truncated((0, len(first)), (0, len(second)), length - 3)
            ids = [begin, *first[a : a + n], end, *second[b : b + m], end]
            cells = (r, slice(0, len(ids)))
            out["input_ids"][cells], out["segment_ids"][cells] = ids, 1
            out["positions"][cells] = np.arange(len(ids))
            out["token_type_ids"][r, n + 2 : len(ids)] = 1
            out[LANGUAGES][r, n + 2 : len(ids)] = side
        return out


def documents_of(block: Block) -> list[Text]:
    """Returns the sentences of each document of translations."""
    starts = block.sentence_starts.tolist()
    return [
        [
            Sentence(n % 2, block.tokens[starts[first + n] : starts[first + n + 1]])
            for n in range(last - first)
        ]
        for first, last in itertools.pairwise(block.document_starts.tolist())
    ]


def _twos(document: Text) -> list[Text]:
    return [document[n : n + 2] for n in range(0, len(document), 2)]


def _pairs(document: Text, length: int) -> list[Text]:
    """Returns the pairs that fit into a row of frames, and pieces of the other sentences."""
    texts = []
    for pair in _twos(document):
        if sum(len(sentence.tokens) + 2 for sentence in pair) <= length:
            texts.append(pair)
        else:
            texts += [piece for sentence in pair for piece in _filled([sentence], length - 2)]
    return texts


def _alternated(document: Text, drawn: int) -> Text:
    """Returns one sentence of each pair, in turn of one and of the other language."""
    return [pair[min((n + drawn) % 2, len(pair) - 1)] for n, pair in enumerate(_twos(document))]


def _filled(sentences: Text, room: int) -> list[Text]:
    """Returns texts of at most `room` tokens. A longer sentence is cut."""
    texts, left = [], 0
    for side, tokens in sentences:
        for start in range(0, len(tokens), room):
            piece = Sentence(side, tokens[start : start + room])
            if len(piece.tokens) > left:
                texts.append([])
                left = room
            texts[-1].append(piece)
            left -= len(piece.tokens)
    return texts


def languages_of(examples: slots.Examples) -> tuple[str, ...]:
    """Returns the languages of a model by number; () where its examples name none."""
    return examples.languages if isinstance(examples, Multilingual) else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Multilingual(Around, Mixture):
    """The rows of each language of a corpus, with `language_ids`.

    A language of n tokens has the probability n^sampling / sum_j n_j^sampling. Of a corpus of
    translations alone, or of text alone, all batches are of these.

    examples       rows of text of one language
    parallel       rows of translations; None: a corpus with translations is refused
    batches        a draw for each batch, which has one language (XLM), or for each group of rows
                   (mBERT, XLM-R, mBART)
    counted        n is the number of tokens, or of sentences (XLM)
    translations   share of translations in a corpus that has text too
    capacity       languages that the model can number at most; None: any number
    languages      the languages of a model in the order of their numbers; (): `names`
    names          the languages of the training text, sorted. Other text has to name its own too
    """

    examples: slots.Examples = Packed()
    parallel: slots.Examples | None = Translated()
    sampling: float = 0.7
    batches: bool = False
    counted: Literal["tokens", "sentences"] = "tokens"
    translations: float = 0.5
    capacity: int | None = None
    languages: tuple[str, ...] = ()
    names: LanguageNames = LanguageNames()

    def __post_init__(self):
        if not (0 <= self.sampling <= 1 and 0 <= self.translations <= 1):
            raise UserError(
                f"examples.sampling is {self.sampling} and translations {self.translations}; "
                "expected a power and a share in [0, 1]"
            )
        if self.counted not in ("tokens", "sentences") or self.examples.continuing:
            raise UserError(
                f"examples.counted is {self.counted!r}; expected tokens or sentences, and rows "
                "that do not continue each other"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of both kinds of rows. Raises UserError as they do."""
        parallel = {} if self.parallel is None else self.parallel.spec(length, vocab)
        both = {**parallel, **self.examples.spec(length, vocab)}
        return {**both, LANGUAGES: Field((length,))}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the rows of text of one language, number 0."""
        part = _Numbered(examples=self.examples, mixture=self, numbers=(0, 0))
        return part.rows(block, length=length, vocab=vocab, rng=rng)

    def parts(self, corpus: Corpus, split: str) -> Sequence[Part]:
        """Returns the languages and pairs of a split that have text. Raises UserError."""
        known = [*self.languages] or [name.decode() for name in self.names.values.tolist()]
        if not corpus.languages and self.names.values.size:
            raise UserError(
                f"the text has no language, and the model has {', '.join(known)}; give "
                "language:CODE=SOURCE"
            )
        if self.capacity is not None and len(known) > self.capacity:
            raise UserError(
                f"the text has {len(known)} languages, and the model numbers {self.capacity}; "
                "leave some out, or set examples.capacity and the model's languages"
            )
        if not corpus.languages:
            return [Part("", corpus, self._part((0, 0), pair=False), 1.0)]
        filled = {
            name: tuple(self._number(code, known) for code in name.split("-"))
            for name, facts in corpus.languages.items()
            if facts["splits"][split]["blocks"]
        }
        if not filled:
            raise UserError(
                f"the split {split} of {corpus.dir} is empty; prepare it with a greater heldout "
                "share"
            )
        pair = np.array([len(numbers) == 2 for numbers in filled.values()])
        sizes = np.array([corpus.language(name).size(split)[self.counted] for name in filled])
        text, translated = (shares_of(sizes * mask, self.sampling) for mask in (~pair, pair))
        share = self.translations if 0 < pair.sum() < len(pair) else float(pair.any())
        shares = (1 - share) * text + share * translated
        return [
            Part(name, corpus.language(name), self._part(numbers, len(numbers) == 2), float(one))
            for (name, numbers), one in zip(filled.items(), shares, strict=True)
            if one > 0
        ]

    def _part(self, numbers: tuple[int, ...], pair: bool) -> slots.Examples:
        if pair and self.parallel is None:
            raise UserError(
                "these examples read no translations; leave the pairs of languages out, or set "
                "examples.parallel"
            )
        examples = self.parallel if pair else self.examples
        return _Numbered(examples=examples, mixture=self, numbers=numbers)

    @staticmethod
    def _number(code: str, known: list[str]) -> int:
        if code not in known:
            raise unknown("language of this model", code, known)
        return known.index(code)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Numbered(Around):
    """The rows of a language of a mixture, or of a pair, with its numbers and all fields."""

    mixture: Multilingual
    numbers: tuple[int, ...]

    def spec(self, length: int, vocab) -> Spec:
        return self.mixture.spec(length, vocab)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        out = dict(self.examples.rows(block, length=length, vocab=vocab, rng=rng))
        segments = out["segment_ids"]
        sides = out.get(LANGUAGES, np.zeros_like(segments))
        out[LANGUAGES] = np.where(segments > 0, np.array(self.numbers, np.int32)[sides], 0)
        for name, (shape, dtype) in self.spec(length, vocab).items():
            out.setdefault(name, np.zeros((len(segments), *shape), dtype))
        return out
