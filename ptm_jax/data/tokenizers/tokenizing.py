"""Tokenizers: `TokenizerSpec` describes one, `Tokenizer` is one that was trained or loaded.

WordPiece (BERT), byte-level BPE (GPT-2, RoBERTa) and whole words (`data.tokenizers.words`) run on
the `tokenizers` library, unigram and BPE (T5, XLNet, ALBERT) on `sentencepiece`. Special tokens are
found by their published names, in published and in trained vocabularies. Text that spells a special
token ("[MASK]", "</s>") is ordinary text by default; with `specials=True`, an option of `encode`,
`encode_batch` and `frame`, it is that token (the default of Transformers).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data.languages import segmenters
from ptm_jax.data.tokenizers import framing
from ptm_jax.data.tokenizers.backends import Segmented
from ptm_jax.data.tokenizers.framing import Published

Kind = Literal["wordpiece", "bytebpe", "unigram", "bpe", "word", "spaced", "characters"]

WHOLE = ("word", "spaced", "characters")
"""Kinds without pieces of words."""

STYLES = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "gpt2": ("<|endoftext|>",),
    "t5": ("<pad>", "</s>", "<unk>"),
    "xlnet": ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"),
}
"""Special tokens of each family in the order of their ids."""

ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
"""Names of each special token of `core.types.Vocab` in a vocabulary; the first that exists is
used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """How text becomes ids.

    kind        "word": words and punctuation marks; "spaced": whatever stands between blanks, for
                text divided already; "characters": each character but blanks
    vocab       size with special tokens and sentinels (ignored where `path` is given: the size is
                the file's)
    specials    family of the special tokens: bert, roberta, gpt2, t5, xlnet
    sentinels   number of `<extra_id_N>` pieces, at the end of the vocabulary in reverse, as in T5
    path        a given tokenizer: vocab.txt, tokenizer.json, a sentencepiece .model, or a directory
                with one of them; the files of a Hugging Face model override the other fields
    min_count   occurrences that a word needs, at least, to be in a vocabulary of whole words
                (word2vec: 5); `vocab` is then the largest size
    train_bytes UTF-8 bytes of text that train a vocabulary, at most
    sampling    in text of several languages: the share of n bytes in the training is in proportion
                to n^sampling
    strip_accents   whether WordPiece takes the accents from letters when it writes text in lower
                case (BERT); Finnish and Japanese keep them
    segmenter   name of a segmenter (`data.languages.segmenters`): text becomes its words with
                blanks between them, in training and in use; a WordPiece then divides no word of
                Chinese characters beforehand. Decoded text keeps these blanks
    """

    kind: Kind = "wordpiece"
    vocab: int = 8192
    lowercase: bool = True
    specials: str = "bert"
    sentinels: int = 0
    path: str | None = None
    min_count: int = 1
    train_bytes: int = 32_000_000
    sampling: float = 1.0
    strip_accents: bool = True
    segmenter: str | None = None

    def __post_init__(self):
        if self.kind not in get_args(Kind):
            raise unknown("tokenizer kind", str(self.kind), get_args(Kind))
        if self.specials not in STYLES:
            raise unknown("style of special tokens", str(self.specials), STYLES)
        if self.segmenter is not None:
            segmenters.check(self.segmenter, "tokenizer.segmenter")
            if self.path is not None:
                raise UserError(
                    f"tokenizer.segmenter={self.segmenter} with tokenizer.path; the files of a "
                    "tokenizer decide its words, so leave out one of the two"
                )
        if not 0 <= self.sampling <= 1:
            raise UserError(f"tokenizer.sampling={self.sampling}; expected a power in [0, 1]")
        if self.min_count < 1 or (self.min_count > 1 and self.kind not in WHOLE):
            raise UserError(
                f"tokenizer.min_count={self.min_count}; expected at least 1, and 1 for "
                f"pieces (kind {self.kind})"
            )
        if self.vocab < 1 or self.sentinels < 0:
            raise UserError(
                f"tokenizer.vocab={self.vocab}, sentinels={self.sentinels}; expected positive sizes"
            )


class Tokenizer:
    """Text to ids and back.
    `pieces[i]` is the piece of id i; `hash` identifies the tokenizer (sha256).

    `published` is set for the tokenizer of a checkpoint (`data.tokenizers.published`). It has the
    special tokens, frames and files, which are otherwise found by name.
    """

    def __init__(
        self,
        backend,
        *,
        kind: Kind,
        sentinels: int = 0,
        lowercase: bool = False,
        published: Published | None = None,
        segmenter: str | None = None,
    ):
        self.kind, self.sentinels, self.lowercase, self.published = (
            kind,
            sentinels,
            lowercase,
            published,
        )
        self.segmenter = segmenter
        self._undivided = backend
        self._backend = backend if segmenter is None else Segmented(backend, segmenter)
        self.pieces = [*backend.pieces, *(f"<extra_id_{i}>" for i in reversed(range(sentinels)))]
        facts = b"%s %d " % (kind.encode(), sentinels)
        if published is not None:
            beyond = {one.id: piece for piece, one in published.added.items()}
            last = max(published.rows, *(i + 1 for i in beyond), 0, 0)
            self.pieces += [beyond.get(i, f"<absent_{i}>") for i in range(len(self.pieces), last)]
            facts += published.facts().encode()
        facts += f"segmenter {segmenter}".encode() if segmenter is not None else b""
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self.hash = hashlib.sha256(facts + backend.bytes).hexdigest()

    @functools.cached_property
    def vocab(self):
        """`core.types.Vocab`: size, special ids, and the sentinels in `extra`, number 0 first."""
        from ptm_jax.core.types import Vocab

        if self.published is None:
            roles = {
                role: next((self._ids[n] for n in names if n in self._ids), None)
                for role, names in ROLES.items()
            }
        else:
            roles = {role: self._ids[piece] for role, piece in self.published.roles.items()}
        sentinels = (
            re.fullmatch(r"<extra_id_(0|[1-9]\d{,4})>", p)
            for p in self.pieces
            if p.startswith("<extra_id_")
        )
        extra = [
            self._ids[match[0]]
            for match in sorted(filter(None, sentinels), key=lambda match: int(match[1]))
        ]
        if self.published is not None:
            others = set(self.special_pieces.values()) - set(roles.values())
            extra += sorted(others - set(extra))
        return Vocab(size=len(self.pieces), extra=tuple(extra), **roles)

    @functools.cached_property
    def special_pieces(self) -> dict[str, int]:
        """{piece: id} of special tokens (`unk` included), sentinels, and rows without a piece."""
        if self.published is not None:
            named = [*self.published.roles.values(), *self.published.template.specials]
            named += [piece for piece, one in self.published.added.items() if one.special]
            named += [
                piece
                for piece in self.pieces
                if re.fullmatch(r"<absent_\d+>|<extra_id_\d+>", piece)
            ]
            return {piece: self._ids[piece] for piece in named}
        named = [name for names in ROLES.values() for name in names]
        return {
            p: self._ids[p]
            for p in [*named, *self.pieces[len(self.pieces) - self.sentinels :]]
            if p in self._ids
        }

    def encode_batch(self, texts: Sequence[str], specials: bool = False) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text without added special tokens.

        specials  whether special tokens that a text spells are recognised; default False: they are
                  ordinary text. For a published tokenizer, True is the default of transformers,
                  False its `split_special_tokens=True`
        """
        if self.published is not None:
            ordinary = {
                piece: one for piece, one in self.published.added.items() if not one.special
            }
            return self._backend.encode(texts, self.published.added if specials else ordinary)
        if not specials:
            return self._backend.encode(texts)
        pattern = re.compile("(" + "|".join(re.escape(p) for p in self.special_pieces) + ")")
        rows = []
        for text in texts:
            parts = (
                [part for part in pattern.split(text) if part.strip()]
                if self.special_pieces
                else [text]
            )
            plain = iter(self._backend.encode([p for p in parts if p not in self.special_pieces]))
            ids = [
                [self.special_pieces[p]] if p in self.special_pieces else next(plain) for p in parts
            ]
            rows.append(np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32))
        return rows

    def spans(self, texts: Sequence[str]) -> list[framing.Spans]:
        """Returns the ids of `encode_batch` with the characters that each spells.
        These may include blanks around it."""
        if self.published is None:
            return self._backend.spans(texts)
        ordinary = {piece: one for piece, one in self.published.added.items() if not one.special}
        return self._backend.spans(texts, ordinary)

    def encode(self, text: str, specials: bool = False) -> np.ndarray:
        """Returns ids [T] int32 of one text; `specials` as in `encode_batch`."""
        return self.encode_batch([text], specials)[0]

    def frame(self, first, second=None, specials: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids [T] int32, token types [T] int32) of a text or a pair.
        The special tokens of the family are around them.

        `first` and `second` are texts or their ids; `specials` as in `encode_batch`. Raises
        UserError where the vocabulary lacks one of those tokens.
        """
        parts = [
            self.encode(t, specials) if isinstance(t, str) else t
            for t in (first, second)
            if t is not None
        ]
        return self.template.fill(self._ids, parts[0], parts[1] if len(parts) > 1 else None)

    @functools.cached_property
    def template(self) -> framing.Template:
        """The pieces that `frame` puts around texts."""
        return self.published.template if self.published is not None else framing.guessed(self._ids)

    @property
    def padding(self) -> str:
        """The padded side of rows: "right", or "left" (XLNet)."""
        return self.published.padding if self.published is not None else "right"

    def decode(self, ids: Sequence[int], skip_specials: bool = True) -> str:
        """Returns the text of ids, without special tokens unless `skip_specials` is False."""
        special, parts, run = set(self.special_pieces.values()), [], []
        for i in [*map(int, ids), None]:
            if i is not None and i not in special:
                run.append(i)
                continue
            if run and not (skip_specials and i is not None):
                parts.append(self._backend.decode(run).strip())
                run = []
            if i is not None and not skip_specials:
                parts.append(self.pieces[i])
        return " ".join(parts)

    def piece(self, index: int) -> str:
        """Returns the piece of an id."""
        return self.pieces[int(index)]

    def id(self, piece: str) -> int | None:
        """Returns the id of a piece, None where the vocabulary lacks it."""
        return self._ids.get(piece)

    @functools.cached_property
    def continuations(self) -> np.ndarray:
        """[V] bool: whether a piece continues a word; False for special tokens.
        Whole-word masking reads it."""
        table = np.zeros(len(self.pieces), bool)
        for i, piece in enumerate(self.pieces if self.kind != "word" else ()):
            if self.kind == "wordpiece":
                table[i] = piece.startswith("##")
            else:
                table[i] = not piece.startswith(("Ġ", "Ċ") if self.kind == "bytebpe" else "▁")
        table[list(self.special_pieces.values())] = False
        return table

    def word_starts(self) -> np.ndarray:
        """Returns [V] bool: whether a piece begins a word.
        False for special tokens and sentinels, True for `unk`.

        WordPiece: pieces without `##`; byte-level BPE: pieces that begin with the mark of the
        space; sentencepiece: with U+2581. Limits: a punctuation mark is a word in WordPiece and
        part of the word before it in the others, as in published whole-word masks; each Chinese
        character is a word. Raises UserError for BPE with a mark at the end of words (GPT, XLM,
        CTRL), where the piece before decides.
        """
        ends = ("</w>", "@@") if self.kind == "bpe" else "</w>"
        if any(piece.endswith(ends) for piece in self.pieces if piece not in self.special_pieces):
            raise UserError(
                "this tokenizer marks the end of words (</w> or @@), not their beginning; "
                "prepare the corpus with a "
                "wordpiece, byte-level or sentencepiece tokenizer, or choose a corruption "
                "that does without words"
            )
        table = ~self.continuations
        table[[i for i in self.special_pieces.values() if i != self.vocab.unk]] = False
        return table

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer into `folder`, which is made if absent; `saved.load` reads it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = (
            {self._backend.file: self._backend.bytes}
            if self.published is None
            else self.published.files
        )
        for name, content in files.items():
            (folder / name).write_bytes(content)
        facts = {
            "kind": self.kind,
            "sentinels": self.sentinels,
            "lowercase": self.lowercase,
            "hash": self.hash,
        }
        facts |= {"segmenter": self.segmenter} if self.segmenter is not None else {}
        if self.published is not None:
            facts |= {
                "family": self.published.family,
                "rows": self.published.rows,
                "files": sorted(self.published.files),
            }
        (folder / "tokenizer_spec.json").write_text(json.dumps(facts, indent=1) + "\n")
