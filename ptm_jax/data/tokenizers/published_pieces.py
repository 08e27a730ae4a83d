"""Sentencepiece models of published checkpoints: the file's parser, and pipelines with its ids.

The file is a protocol buffer; the few needed fields are parsed here, without generated code. A
unigram model runs on `tokenizers` (Kudo 2018), like the published fast tokenizers. BPE, and a model
that spells unknown characters as bytes (mT5), run on `sentencepiece`, because their conversion is
not exact.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ptm_jax.core.reading import shown
from ptm_jax.data.tokenizers.framing import Searching, Spans, content_of, spans

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

UNIGRAM, BPE = 1, 2
SENTINELS = ("t5", "mt5")
"""Families with sentinels, which their sentencepiece file does not hold."""

LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR "
    "lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()
"""mBART's languages in the order of their ids."""
LANGUAGES_50 = (
    LANGUAGES
    + (
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL "
        "ps_AF pt_XX sv_SE sw_KE ta_IN "
        "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ).split()
)

LANGUAGES_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
).split()
"""M2M100's languages in the order of their ids, which follow those of vocab.json."""
CODES = {"m2m100": LANGUAGES_100, "wmt21": "en ha is ja cs ru zh de".split()}
"""M2M100's languages by `language_codes` of tokenizer_config.json."""


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (number, value) of the fields of a protocol buffer message.
    Raises ValueError for other bytes."""
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= end or shift > 63:
                raise ValueError("it ends inside a field or is no sentencepiece model")
            byte, at = data[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < end:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if key & 7 == 2 else {1: 8, 5: 4}.get(key & 7, -1)
        if size < 0 or size > end - at:
            raise ValueError("it ends inside a field or is no sentencepiece model")
        yield key >> 3, data[at : at + size]
        at += size


def piece_spans(processor: SentencePieceProcessor, text: str) -> Spans:
    """Returns the ids of a text by a `sentencepiece` processor, with the characters of each.

    Every version of the library writes the same message (field 2: a piece with its id in field 2,
    its first and last byte in fields 4 and 5).
    """
    pieces = _pieces_of(processor, text)
    characters = _characters(text, pieces)
    return spans([piece.get(2, 0) for piece in pieces], characters)


def _pieces_of(processor: SentencePieceProcessor, text: str) -> list[dict[int, Any]]:
    """Returns the fields of each piece of a text."""
    message = processor.encode(text, out_type="serialized_proto")
    return [dict(_fields(value)) for number, value in _fields(message) if number == 2]


def _characters(text: str, pieces: Sequence[Mapping[int, Any]]) -> np.ndarray:
    """Returns the first character of each piece and the one after its last, [T, 2]."""
    before = np.cumsum([0, *(len(c.encode("utf-8", "surrogatepass")) for c in text)])
    ends = [(piece.get(4, 0), piece.get(5, 0)) for piece in pieces]
    first, last = np.array(ends, np.int64).reshape(-1, 2).T
    starts = np.searchsorted(before, first, "right") - 1
    return np.stack([starts, np.maximum(starts, np.searchsorted(before, last))], 1)


@dataclasses.dataclass(frozen=True)
class PieceModel:
    """A parsed sentencepiece file: (piece, score, type) of every id, algorithm, character table."""

    pieces: tuple[tuple[str, float, int], ...]
    algorithm: int
    unk: int
    bytes_for_unknown: bool
    characters: bytes

    @classmethod
    def parse(cls, data: bytes) -> PieceModel:
        """Returns the model of a file.
        Raises ValueError where `data` is no sentencepiece model or only a part of one."""
        pieces, algorithm, unk, spelled, characters = [], UNIGRAM, 0, False, b""
        for number, value in _fields(data):
            if number == 1:
                part = dict(_fields(value))
                score = struct.unpack("<f", part[2])[0] if 2 in part else 0.0
                pieces.append((part.get(1, b"").decode(), score, part.get(3, 1)))
            elif number == 2:
                trainer = dict(_fields(value))
                algorithm, unk, spelled = (
                    trainer.get(3, UNIGRAM),
                    trainer.get(40, 0),
                    bool(trainer.get(35, 0)),
                )
            elif number == 3:
                characters = dict(_fields(value)).get(2, b"")
        if not pieces:
            raise ValueError("it holds no pieces")
        if algorithm not in (UNIGRAM, BPE):
            raise ValueError("it is neither a unigram nor a BPE model")
        if not 0 <= unk < len(pieces):
            raise ValueError("its unknown piece lies outside of its pieces")
        whole_table(characters)
        return cls(tuple(pieces), algorithm, unk, spelled, characters)


def whole_table(characters: bytes) -> None:
    """Raises ValueError for an incomplete table of characters (its size, a trie, text).
    The Rust library panics on one."""
    if not characters:
        return
    size = int.from_bytes(characters[:4], "little")
    if len(characters) < 4 or size % 4 or 4 + size > len(characters):
        raise ValueError("its table of characters is not whole")
    characters[4 + size :].decode()


def sentinels_of(config: Mapping[str, Any]) -> list[str]:
    """Returns the sentinels of a T5, number 0 first.
    Raises ValueError for an impossible number of them."""
    return [f"<extra_id_{i}>" for i in range(_number(config, "extra_ids", 100))]


def _number(config: Mapping[str, Any], name: str, default: int) -> int:
    """Returns the number of pieces of a kind, 0 to 10,000."""
    value = config.get(name, default)
    if not isinstance(value, int) or not 0 <= value <= 10_000:
        raise ValueError(f"{name} is {shown(value)}; expected 0 to 10,000")
    return int(value)


def _comma_last(piece: str) -> bool:
    """Whether a piece is a number and a comma, which ALBERT and XLNet divide before the comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def layout(
    model: PieceModel, family: str, config: Mapping[str, Any]
) -> tuple[list[tuple[str, float]], list[int], int]:
    """Returns (piece, score) in the order of the checkpoint's ids, the ids of pieces, `unk`.
    The second value is the checkpoint's id of every piece of the model.

    fairseq's dictionaries begin with four tokens of their own and end with <mask> (XLM-R,
    CamemBERT, mBART); PEGASUS has `offset` = 103 tokens of its pre-training first; T5 has its
    sentinels last, in reverse.
    """
    plain = [(piece, score) for piece, score, _ in model.pieces]
    count = len(plain)
    if family in ("xlm-roberta", "mbart", "mbart50"):
        codes = {"mbart": LANGUAGES, "mbart50": LANGUAGES_50}.get(family, [])
        rows = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *plain[3:]]
        ids = [3, 0, 2, *range(4, count + 1)][:count]
        return rows + [(p, 0.0) for p in [*codes, "<mask>"]], ids, 3
    if family == "camembert":
        unused = [
            ("<s>NOTUSED", 0.0),
            ("<pad>", 0.0),
            ("</s>NOTUSED", 0.0),
            ("<unk>", 0.0),
            ("<unk>NOTUSED", -100.0),
        ]
        return [*unused, *plain[1:], ("<mask>", 0.0)], [3, *range(5, count + 4)], 3
    if family == "pegasus":
        offset = _number(config, "offset", 103)
        sentence, word = (
            config.get("mask_token_sent", "<mask_1>"),
            config.get("mask_token", "<mask_2>"),
        )
        masks = [p for p in (content_of(sentence), content_of(word)) if p] if offset else []
        placeholders = [*masks, *(f"<unk_{i}>" for i in range(2, 2 + offset - len(masks)))]
        rows = [
            *plain[:2],
            *((p, -100.0 if p.startswith("<unk") else 0.0) for p in placeholders),
            *plain[2:],
        ]
        return rows, [0, 1, *range(2 + offset, count + offset)][:count], model.unk + offset
    if family in ("albert", "xlnet"):
        plain = [(piece, score - 100.0 if _comma_last(piece) else score) for piece, score in plain]
    if family in SENTINELS:
        plain += [(piece, 0.0) for piece in reversed(sentinels_of(config))]
    return plain, list(range(count)), model.unk


def unigram(model: PieceModel, family: str, config: Mapping[str, Any]):
    """Returns the `tokenizers.Tokenizer` of a unigram model."""
    rows, _, unk = layout(model, family, config)
    backend = Tokenizer(models.Unigram(rows, unk_id=unk, byte_fallback=False))
    steps = []
    if family in ("albert", "xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps += (
            []
            if config.get("keep_accents", False)
            else [normalizers.NFKD(), normalizers.StripAccents()]
        )
        steps += (
            [normalizers.Lowercase()] if config.get("do_lower_case", family == "albert") else []
        )
    if model.characters:
        steps.append(normalizers.Precompiled(model.characters))
    if family == "pegasus":
        steps.append(normalizers.Replace(Regex(r"[\n ]+"), " "))
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    mark = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return backend


def merges_of(model: PieceModel) -> list[tuple[str, str]]:
    """Returns the merges of a BPE model in the order of its scores."""
    ranks = {piece: i for i, (piece, _, kind) in enumerate(model.pieces) if kind == 1}
    order = sorted(ranks, key=lambda piece: (-model.pieces[ranks[piece]][1], ranks[piece]))
    cuts = ((piece[:i], piece[i:]) for piece in order for i in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in ranks and right in ranks]


class OffsetPieces(Searching):
    """The `sentencepiece` library with the ids of a checkpoint."""

    def __init__(self, data: bytes, model: PieceModel, family: str, config: Mapping[str, Any]):
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        rows, ids, _ = layout(model, family, config)
        self.pieces = [piece for piece, _ in rows]
        self._ids = np.array(ids, np.int32)
        self._back = {int(i): k for k, i in enumerate(self._ids)}
        self._clean = family in ("albert", "xlnet")
        self._lower, self._accents = (
            config.get("do_lower_case", family == "albert"),
            config.get("keep_accents", False),
        )
        facts = json.dumps([family, self.pieces, bool(self._lower), bool(self._accents)])
        self.bytes = data + facts.encode()

    def _text(self, text: str) -> str:
        if not self._clean:
            return text
        text = text.replace("``", '"').replace("''", '"')
        if not self._accents:
            text = "".join(
                c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
            )
        return text.lower() if self._lower else text

    def _plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        rows = self._processor.encode([self._text(text) for text in texts])
        return [self._ids[np.array(row, np.int32)] for row in rows]

    def _plain_spans(self, text: str) -> Spans:
        ids, characters = piece_spans(self._processor, self._text(text))
        # `_text` changes one character after the other, but for the length of a quotation mark.
        plain = text.replace("``", '"\0').replace("''", '"\0') if self._clean else text
        sizes = [0 if self._clean and c == "\0" else len(self._text(c)) for c in plain]
        owner = np.repeat(np.arange(len(text)), sizes)
        start, end = characters.T
        ends = np.where(end > start, np.append(owner, 0)[np.maximum(end, 1) - 1] + 1, 0)
        starts = np.append(owner, len(text))[start]
        return Spans(self._ids[ids], np.stack([starts, np.maximum(starts, ends)], 1))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without ids that only the checkpoint has."""
        return self._processor.decode([self._back[int(i)] for i in ids if int(i) in self._back])


class ListedPieces(Searching):
    """The `sentencepiece` library with a list of pieces of its own (M2M100, Marian).

    `pieces` are the checkpoint's by id; a piece of the model that it lacks is `unk`. With `coded` a
    text may begin with the code of its target language, as ">>fr<<", which is one piece.
    """

    def __init__(self, data: bytes, pieces: Sequence[str], unk: str, coded: bool):
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        self.pieces, self._coded = list(pieces), coded
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._unk = self._ids[unk]
        self.bytes = data + json.dumps([self.pieces, unk, coded]).encode()

    def _code(self, text: str) -> str:
        """Returns the code at the beginning of a text, or ""."""
        end = text.find("<<") if self._coded and text.startswith(">>") else -1
        return text[: end + 2] if end >= 0 else ""

    def _listed(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.get(piece, self._unk) for piece in pieces]

    def _plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        codes = [self._code(text) for text in texts]
        plain = [text.removeprefix(code) for text, code in zip(texts, codes, strict=True)]
        rows = self._processor.encode(plain, out_type=str)
        rows = ([code] * bool(code) + row for code, row in zip(codes, rows, strict=True))
        return [np.array(self._listed(row), np.int32) for row in rows]

    def _plain_spans(self, text: str) -> Spans:
        code = self._code(text)
        pieces = _pieces_of(self._processor, text.removeprefix(code))
        names = [piece.get(1, b"").decode() for piece in pieces]
        characters = _characters(text.removeprefix(code), pieces) + len(code)
        first = [(0, len(code))] * bool(code)
        ends = np.concatenate([np.array(first, np.int64).reshape(-1, 2), characters])
        return spans(self._listed([code] * bool(code) + names), ends)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""
        text: str = self._processor.decode_pieces([self.pieces[int(i)] for i in ids])
        return text.replace("▁", " ").strip()
