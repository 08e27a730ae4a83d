"""Rules of published families: special tokens, pieces around texts, reading of older files."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import Unpickler
from ptm_jax.data.tokenizers.framing import Template, needed, template
from ptm_jax.data.tokenizers.published_pieces import (
    CODES,
    LANGUAGES,
    LANGUAGES_50,
    LANGUAGES_100,
    UNIGRAM,
    ListedPieces,
    OffsetPieces,
    PieceModel,
    unigram,
)
from ptm_jax.data.tokenizers.published_words import (
    WordBPE,
    WordTable,
    ctrl_words,
    flaubert_words,
    transfo_xl_words,
    xlm_words,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A directory's files, its tokenizer_config.json, and its name for errors."""

    files: Mapping[str, bytes]
    config: Mapping[str, Any]
    folder: Any

    def read(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Returns `parse` of a file. Raises UserError, naming the file, for any failure."""
        if name not in self.files:
            raise UserError(f"{self.folder} has no {name}, which this tokenizer needs")
        return self.guard(name, lambda: parse(self.files[name]))

    def guard(self, name: str, work: Callable[[], Any]) -> Any:
        """Returns `work()`.
        Raises UserError, naming the file, for any exception, panics of the Rust library
        included."""
        try:
            return work()
        except (UserError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise UserError(
                f"{self.folder}/{name} is not a tokenizer file that can be read ({reason})"
            ) from None

    def vocabulary(self, name: str = "vocab.json") -> dict[str, int]:
        """Returns {piece: id} of a vocab.json."""

        def parse(data: bytes) -> dict[str, int]:
            vocab = json.loads(data.decode())
            valid = isinstance(vocab, dict) and all(
                isinstance(i, int) and i >= 0 for i in vocab.values()
            )
            if not valid or not vocab or len(set(vocab.values())) != len(vocab):
                raise ValueError("it does not give every piece an id of its own")
            if max(vocab.values()) > 2 * len(vocab) + 1000:
                raise ValueError(
                    f"it holds {len(vocab)} pieces with ids up to {max(vocab.values())}"
                )
            return vocab

        return self.read(name, parse)

    def merges(
        self, vocab: Mapping[str, int] | None, skip: int | None = None
    ) -> list[tuple[str, str]]:
        """Returns the pairs of merges.txt in order, without a header.
        Pieces must be in `vocab`, where given."""

        def parse(data: bytes) -> list[tuple[str, str]]:
            lines = data.decode().split("\n")
            lines = lines[:-1] if not lines[-1] else lines
            start = (
                skip if skip is not None else int(bool(lines) and lines[0].startswith("#version"))
            )
            # Blanks alone: a piece may hold a separator, as U+001C, at which str.split() cuts.
            blanks = re.compile(r"[ \t\r]+")
            pairs = [tuple(blanks.split(line.strip(" \t\r"))[:2]) for line in lines[start:] if line]
            for number, pair in enumerate(pairs, start + 1):
                if len(pair) != 2:
                    raise ValueError(f"line {number} is not a pair")
                if vocab is not None and any(p not in vocab for p in (*pair, pair[0] + pair[1])):
                    raise ValueError(f"line {number} merges what vocab.json lacks")
            return pairs

        return self.read("merges.txt", parse)


def _listed(data: bytes) -> dict[str, int]:
    """Returns {piece: id} of a vocab.txt."""
    lines = data.decode().replace("\r\n", "\n").split("\n")
    return {line: i for i, line in enumerate(lines[:-1] if not lines[-1] else lines)}


def _wordpiece(family: str, source: Source, roles: Mapping[str, str]):
    config = source.config
    vocab = source.read("vocab.txt", _listed)
    needed(vocab, [roles["unk"]], f"{source.folder}/vocab.txt")
    return "wordpiece", wordpiece(
        vocab,
        roles["unk"],
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )


def _residues(family: str, source: Source, roles: Mapping[str, str]):
    """ESM's pieces: each of the vocabulary's one-letter pieces is a token, without blanks between
    them. What is between them is unknown."""
    vocab = source.read("vocab.txt", _listed)
    needed(vocab, [roles["unk"]], f"{source.folder}/vocab.txt")
    letters = "".join(re.escape(piece) for piece in vocab if len(piece) == 1)
    backend = Tokenizer(models.WordLevel(vocab=vocab, unk_token=roles["unk"]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(f"[{letters}]|[^{letters}]+"), "isolated"),
        ]
    )
    return "word", backend


def wordpiece(vocab: Mapping[str, int], unk: str, **options) -> Tokenizer:
    """Returns BERT's WordPiece; `options` are those of `BertNormalizer`."""
    backend = Tokenizer(models.WordPiece(vocab=vocab, unk_token=unk, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(**options)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def _byte_bpe(family: str, source: Source, roles: Mapping[str, str]):
    vocab = source.vocabulary()
    merges = source.merges(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=source.config.get("add_prefix_space", False)
    )
    backend.decoder = decoders.ByteLevel()
    return "bytebpe", backend


def _gpt(family: str, source: Source, roles: Mapping[str, str]):
    """GPT with BERT's words, as transformers has it where spaCy and ftfy are not installed."""
    vocab = source.vocabulary()
    needed(vocab, [roles["unk"]], f"{source.folder}/vocab.json")
    merges = source.merges(vocab)
    backend = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=roles["unk"],
            end_of_word_suffix="</w>",
            fuse_unk=False,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return "bpe", backend


def _pieces(family: str, source: Source, roles: Mapping[str, str]):
    name = next((n for n in ("spiece.model", "sentencepiece.bpe.model") if n in source.files), None)
    name = name or next((n for n in sorted(source.files) if n.endswith(".model")), "spiece.model")
    model = source.read(name, PieceModel.parse)
    needed({piece: 0 for piece, _, _ in model.pieces}, ["<unk>"], f"{source.folder}/{name}")
    if model.algorithm == UNIGRAM and not model.bytes_for_unknown:
        return "unigram", source.guard(name, lambda: unigram(model, family, source.config))
    kind = "unigram" if model.algorithm == UNIGRAM else "bpe"
    return kind, source.guard(
        name, lambda: OffsetPieces(source.files[name], model, family, source.config)
    )


def _listed_pieces(family: str, source: Source, roles: Mapping[str, str]):
    """The pieces of a sentencepiece file with the ids of vocab.json; texts are sources."""
    name = "source.spm" if family == "marian" else "sentencepiece.bpe.model"
    model, vocab = source.read(name, PieceModel.parse), source.vocabulary()
    if source.config.get("separate_vocabs"):
        raise ValueError("two vocabularies are not supported")
    needed(vocab, [roles["unk"]], f"{source.folder}/vocab.json")
    pieces = [f"<unused_{i}>" for i in range(max(vocab.values()) + 1)]
    for piece, index in vocab.items():
        pieces[index] = piece
    if family == "m2m_100":
        codes = source.config.get("language_codes") or "m2m100"
        if codes not in CODES:
            raise ValueError(f"language_codes is {codes!r}; known are {', '.join(CODES)}")
        pieces += [f"__{code}__" for code in CODES[codes]]
    kind = "unigram" if model.algorithm == UNIGRAM else "bpe"
    parts = source.files[name], pieces, roles["unk"], family == "marian"
    return kind, source.guard(name, lambda: ListedPieces(*parts))


def _word_bpe(family: str, source: Source, roles: Mapping[str, str]):
    config, vocab = source.config, source.vocabulary()
    needed(vocab, [roles["unk"]], f"{source.folder}/vocab.json")
    merges = source.merges(None, skip=1 if family == "ctrl" else 0)
    if family == "ctrl":
        return "bpe", WordBPE(vocab, merges, ctrl_words, unk=roles["unk"], continued="@@")
    lower = (
        config.get("do_lowercase_and_remove_accent", True)
        if family == "xlm"
        else config.get("do_lowercase", False)
    )
    words = functools.partial(xlm_words if family == "xlm" else flaubert_words, lower=bool(lower))
    return "bpe", WordBPE(vocab, merges, words, unk=roles["unk"], facts=f"{family} {bool(lower)}")


def _transfo_xl(family: str, source: Source, roles: Mapping[str, str]):
    def listed(data: bytes) -> dict[str, int]:
        lines = [line.split() for line in data.decode().split("\n") if line.strip()]
        return {word: i for i, word in enumerate(dict.fromkeys(words[0] for words in lines))}

    def pickled(data: bytes) -> dict[str, int]:
        content = Unpickler(io.BytesIO(data)).load()
        if not isinstance(content, dict) or not isinstance(content.get("idx2sym"), list):
            raise ValueError(
                "it holds no list of words; a file that torch wrote must be saved as "
                "vocab.txt first"
            )
        return {str(word): i for i, word in enumerate(content["idx2sym"])}

    vocab = (
        source.read("vocab.txt", listed)
        if "vocab.txt" in source.files
        else source.read("vocab.pkl", pickled)
    )
    unk = next((name for name in ("<UNK>", roles["unk"], "<unk>") if name in vocab), roles["unk"])
    needed(vocab, [unk], source.folder)
    language, lower = (
        source.config.get("language", "en"),
        bool(source.config.get("lower_case", False)),
    )
    words = functools.partial(transfo_xl_words, language=language, lower=lower, unk=unk)
    return "word", WordTable(vocab, words, unk=unk, facts=f"transfo-xl {language} {lower}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    read      (family, source, roles) -> (kind, backend) from the older files; tokenizer.json is
              read alike for all families
    roles     default piece of every role that transformers gives the family
    single, pair   in the notation of `framing.template`, with `{cls}` for the piece of that role
    extra     further special pieces, where the vocabulary has them
    blank     whether <mask> absorbs the space before it
    """

    read: Callable
    roles: Mapping[str, str]
    single: str = "$A"
    pair: str = "$A $B"
    padding: str = "right"
    extra: tuple[str, ...] = ()
    blank: bool = False

    def template(self, roles: Mapping[str, str], config: Mapping[str, Any]) -> Template:
        """Returns its template with the pieces of a checkpoint."""
        language = config.get("src_lang")
        names = {**roles, "lang": language or "en_XX", "code": language or "en"}
        single, pair = self.single, self.pair
        if config.get("add_bos_token") and "bos" in roles and "{" not in single:  # GPT-2
            single, pair = "{bos} $A", "{bos} $A $B:1"
        return template(single.format(**names), pair.format(**names))


_ENGLISH = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
}
_BERT = Family(
    read=_wordpiece,
    roles={"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    single="{cls} $A {sep}",
    pair="{cls} $A {sep} $B:1 {sep}:1",
)
_ROBERTA = Family(
    read=_byte_bpe,
    roles=_ENGLISH,
    single="{cls} $A {sep}",
    pair="{cls} $A {sep} {sep} $B {sep}",
    blank=True,
)
_XLM_R = dataclasses.replace(
    _ROBERTA, read=_pieces, single="{bos} $A {eos}", pair="{bos} $A {eos} {eos} $B {eos}"
)
_XLM = Family(
    read=_word_bpe,
    roles={**_ENGLISH, "cls": "</s>", "mask": "<special1>"},
    single="{bos} $A {sep}",
    pair="{bos} $A {sep} $B:1 {sep}:1",
    extra=tuple(f"<special{i}>" for i in range(10)),
)
_T5 = Family(
    read=_pieces,
    roles={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    single="$A {eos}",
    pair="$A {eos} $B {eos}",
)
_MBART = dataclasses.replace(
    _XLM_R, single="$A {eos} {lang}", pair="$A $B {eos} {lang}", extra=tuple(LANGUAGES)
)
_replace = dataclasses.replace

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie", "megatron-bert", "mobilebert",
    "nezha"), _BERT),
    **dict.fromkeys(("lxmert", "visual_bert", "layoutlm"), _BERT),
    **dict.fromkeys(("roberta", "bart", "luke"), _ROBERTA),
    "gpt2": Family(read=_byte_bpe, roles=dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    pair="$A $B:1"),
    "openai-gpt": Family(read=_gpt, roles={"unk": "<unk>"}, pair="$A $B:1"),
    "xlm-roberta": _XLM_R,
    "camembert": _replace(_XLM_R, extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")),
    "mbart": _MBART,
    "mbart50": _replace(
        _MBART, single="{lang} $A {eos}", pair="{lang} $A $B {eos}", extra=tuple(LANGUAGES_50)
    ),
    "albert": _replace(
        _BERT, read=_pieces, roles={**_BERT.roles, "bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>",
        "pad": "<pad>"}
    ),
    "xlnet": Family(
        read=_pieces, roles={**_ENGLISH, "sep": "<sep>", "cls": "<cls>"}, single="$A {sep} {cls}:2",
        pair="$A {sep} $B:1 {sep}:1 {cls}:2", padding="left", extra=("<eop>", "<eod>"), blank=True,
    ),
    **dict.fromkeys(("t5", "mt5"), _T5),
    "pegasus": Family(
        read=_pieces, roles={**_T5.roles, "mask": "<mask_2>"}, single="$A {eos}",
        pair="$A $B {eos}",
        extra=("<mask_1>", *(f"<unk_{i}>" for i in range(2, 103))),
    ),
    "m2m_100": Family(
        read=_listed_pieces, roles={**_T5.roles, "bos": "<s>", "sep": "</s>"},
        single="__{code}__ $A {eos}", pair="__{code}__ $A $B {eos}",
        extra=tuple(f"__{code}__" for code in LANGUAGES_100),
    ),
    "marian": Family(read=_listed_pieces, roles=_T5.roles, single="$A {eos}", pair="$A $B {eos}"),
    **dict.fromkeys(("xlm", "flaubert"), _XLM),
    "esm": Family(
        read=_residues, roles={"cls": "<cls>", "pad": "<pad>", "eos": "<eos>", "unk": "<unk>",
        "mask": "<mask>"}, single="{cls} $A {eos}", pair="{cls} $A {eos} $B {eos}",
    ),
    "ctrl": Family(read=_word_bpe, roles={"unk": "<unk>"}),
    "transfo-xl": Family(read=_transfo_xl, roles={"unk": "<unk>", "eos": "<eos>"}, pair="$A $B:1",
    extra=("<formula>",)),
}  # fmt: skip

CLASSES = {
    "Bert": "bert", "DistilBert": "distilbert", "Electra": "electra", "MobileBert": "mobilebert",
    "Lxmert": "lxmert",
    "LayoutLM": "layoutlm", "Roberta": "roberta", "Bart": "bart", "Luke": "luke", "GPT2": "gpt2",
    "OpenAIGPT": "openai-gpt",
    "XLMRoberta": "xlm-roberta", "Camembert": "camembert", "MBart": "mbart", "MBart50": "mbart50",
    "Albert": "albert",
    "XLNet": "xlnet", "T5": "t5", "MT5": "mt5", "Pegasus": "pegasus", "XLM": "xlm",
    "M2M100": "m2m_100", "Marian": "marian",
    "Flaubert": "flaubert", "Esm": "esm",
    "CTRL": "ctrl", "TransfoXL": "transfo-xl",
}  # fmt: skip
"""Families by the class that tokenizer_config.json names (`BertTokenizer`, `BertTokenizerFast`)."""
