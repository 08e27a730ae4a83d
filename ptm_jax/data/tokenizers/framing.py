"""Special tokens of a published tokenizer, and their places around one text and around a pair."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown


class Spans(NamedTuple):
    """ids [T] int32 of a text, and the characters [T, 2] int32 (start, end) of each."""

    ids: np.ndarray
    characters: np.ndarray


def spans(ids: Sequence[int], characters: Sequence[tuple[int, int]]) -> Spans:
    """Returns the `Spans` of lists."""
    return Spans(np.array(ids, np.int32), np.array(characters, np.int32).reshape(-1, 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Added:
    """A piece that is searched in texts: its id, and whether it absorbs spaces left and right."""

    id: int
    left: bool = False
    right: bool = False
    special: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """Pieces around one text and around a pair, each with its token type.
    `$A` and `$B` are the texts.

    BERT's pair is (("[CLS]", 0), ("$A", 0), ("[SEP]", 0), ("$B", 1), ("[SEP]", 1)).
    """

    single: tuple[tuple[str, int], ...] = (("$A", 0),)
    pair: tuple[tuple[str, int], ...] = (("$A", 0), ("$B", 0))

    def fill(
        self, ids: Mapping[str, int], first: Sequence[int], second: Sequence[int] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids [T] int32, token types [T] int32) of one text or a pair.
        `ids` has the id of every piece."""
        tokens, types = [], []
        for piece, kind in self.single if second is None else self.pair:
            part = first if piece == "$A" else second if piece == "$B" else [ids[piece]]
            tokens.append(np.asarray(part, np.int32))
            types.append(np.full(len(tokens[-1]), kind, np.int32))
        return np.concatenate(tokens), np.concatenate(types)

    def beginning(self, piece: str | None) -> Template:
        """Returns the template with another first piece (None: the same), if it has one."""
        if piece is None or "$A" in (self.single[0][0], self.pair[0][0]):
            return self
        single, pair = (((piece, row[0][1]), *row[1:]) for row in (self.single, self.pair))
        return Template(single=single, pair=pair)

    @property
    def specials(self) -> tuple[str, ...]:
        """The distinct pieces around the texts."""
        return tuple(
            dict.fromkeys(p for p, _ in (*self.single, *self.pair) if p not in ("$A", "$B"))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A published tokenizer without its algorithm.

    family    the family whose rules its files follow: "bert", "xlm-roberta", ..
    roles     {role of `core.types.Vocab`: piece}
    added     {piece: `Added`}: pieces that are searched in texts
    template  pieces around texts
    padding   the side on which rows are padded
    rows      rows of the checkpoint's table, where there are more than pieces; the others get
              generated names
    files     {name: bytes} of its directory, unchanged
    """

    family: str
    roles: Mapping[str, str]
    added: Mapping[str, Added]
    template: Template
    padding: Literal["right", "left"] = "right"
    rows: int = 0
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)

    def facts(self) -> str:
        """Returns everything that ids and frames depend on, as text."""
        added = sorted((piece, dataclasses.astuple(one)) for piece, one in self.added.items())
        return repr((sorted(self.roles.items()), added, self.template, self.padding, self.rows))


def guessed(pieces: Mapping[str, int]) -> Template:
    """Returns the template of the family whose special tokens a vocabulary has.
    Families are BERT, XLNet, RoBERTa, T5, or none."""
    styles = {
        ("[CLS]", "[SEP]"): template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        ("<cls>", "<sep>"): template("$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2"),
        ("<s>", "</s>"): template("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        ("</s>",): template("$A </s>", "$A </s> $B </s>"),
    }
    return next(
        (known for names, known in styles.items() if all(n in pieces for n in names)), Template()
    )


def template(single: str, pair: str) -> Template:
    """Returns the template of a notation: pieces separated by spaces.
    `:1` follows a piece of token type 1."""

    def parsed(text: str) -> tuple[tuple[str, int], ...]:
        matches = (re.fullmatch(r"(.+?)(?::(\d))?", part) for part in text.split())
        return tuple((match[1], int(match[2] or 0)) for match in matches)

    return Template(single=parsed(single), pair=parsed(pair))


class Searching:
    """Base of an encoder that encodes plain texts by `_plain`; pieces are searched here."""

    def encode(
        self, texts: Sequence[str], added: Mapping[str, Added] | None = None
    ) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text; pieces in `added` are found first, longest first."""
        if not added:
            return self._plain(texts)
        rows = [self._parts(text, added) for text in texts]
        plain = iter(self._plain([text for parts in rows for text in parts[::2] if text]))
        result = []
        for parts in rows:
            ids = ([added[p].id] if i % 2 else next(plain) for i, p in enumerate(parts) if p)
            result.append(np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32))
        return result

    def spans(self, texts: Sequence[str], added: Mapping[str, Added] | None = None) -> list[Spans]:
        """Returns the ids of `encode` with the characters of each."""
        result = []
        for text in texts:
            ids, characters, at = [np.zeros(0, np.int32)], [np.zeros((0, 2), np.int32)], 0
            for number, part in enumerate(self._parts(text, added) if added else [text]):
                if not part:
                    continue
                start = text.index(part, at)
                at = start + len(part)
                single = spans([added[part].id], [(0, len(part))]) if number % 2 else None
                row = single or self._plain_spans(part)
                ids.append(row.ids)
                characters.append(row.characters + start)
            result.append(Spans(np.concatenate(ids), np.concatenate(characters)))
        return result

    def _parts(self, text: str, added: Mapping[str, Added]) -> list[str]:
        """Returns a text divided at the pieces in `added`; those have odd places."""
        ordered = sorted(added, key=lambda piece: (-len(piece), piece))
        parts: list[str] = re.split("(" + "|".join(map(re.escape, ordered)) + ")", text)
        for i in range(1, len(parts), 2):
            parts[i - 1] = parts[i - 1].rstrip() if added[parts[i]].left else parts[i - 1]
            parts[i + 1] = parts[i + 1].lstrip() if added[parts[i]].right else parts[i + 1]
        return parts

    def _plain_spans(self, text: str) -> Spans:
        raise NotImplementedError

    def _plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        raise NotImplementedError


def content_of(token: Any) -> str | None:
    """Returns the piece of a token in a configuration: a string, or an object's `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def needed(pieces: Mapping[str, int], names: Sequence[str], where: object) -> None:
    """Raises UserError, naming the file, where the vocabulary lacks one of `names`."""
    missing = [name for name in names if name not in pieces]
    if missing:
        raise UserError(
            f"{where} has no {shown(missing[0])}, which the tokenizer needs; is the file whole?"
        )
