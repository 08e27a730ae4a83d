"""What stands around a text: the special tokens of a published tokenizer, and where they go around one text and a pair."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from ptm_jax.core.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Added:
    """A piece that is looked for in the text itself: its id, and the blanks beside it that it takes with it."""

    id: int
    left: bool = False
    right: bool = False
    special: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """Pieces around one text and around a pair, each with its token type; `$A` and `$B` are the texts.

    BERT's pair is (("[CLS]", 0), ("$A", 0), ("[SEP]", 0), ("$B", 1), ("[SEP]", 1)).
    """

    single: tuple[tuple[str, int], ...] = (("$A", 0),)
    pair: tuple[tuple[str, int], ...] = (("$A", 0), ("$B", 0))

    def fill(
        self, ids: Mapping[str, int], first: Sequence[int], second: Sequence[int] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids [T] int32, token types [T] int32) of one text or a pair; `ids` has the id of every piece."""
        tokens, types = [], []
        for piece, kind in self.single if second is None else self.pair:
            part = first if piece == "$A" else second if piece == "$B" else [ids[piece]]
            tokens.append(np.asarray(part, np.int32))
            types.append(np.full(len(tokens[-1]), kind, np.int32))
        return np.concatenate(tokens), np.concatenate(types)

    @property
    def specials(self) -> tuple[str, ...]:
        """The pieces that stand around the texts, each once."""
        return tuple(dict.fromkeys(p for p, _ in (*self.single, *self.pair) if p not in ("$A", "$B")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """What a published tokenizer is beside its algorithm.

    family    whose rules its files follow: "bert", "xlm-roberta", ..
    roles     {role of `core.types.Vocab`: piece}
    added     {piece: `Added`}: what is looked for in texts when special tokens are asked for
    template  what stands around texts
    padding   the side on which rows are padded
    rows      of the checkpoint's table, where it has more than there are pieces; the rest have names of their own
    files     {name: bytes} of the directory it came from, as they were
    """

    family: str
    roles: Mapping[str, str]
    added: Mapping[str, Added]
    template: Template
    padding: Literal["right", "left"] = "right"
    rows: int = 0
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)

    def facts(self) -> str:
        """Everything that ids and frames depend on, as text."""
        added = sorted((piece, dataclasses.astuple(one)) for piece, one in self.added.items())
        return repr((sorted(self.roles.items()), added, self.template, self.padding, self.rows))


def guessed(pieces: Mapping[str, int]) -> Template:
    """The template of the family whose special tokens a vocabulary has: BERT, XLNet, RoBERTa, T5, or none."""
    styles = {
        ("[CLS]", "[SEP]"): template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        ("<cls>", "<sep>"): template("$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2"),
        ("<s>", "</s>"): template("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        ("</s>",): template("$A </s>", "$A </s> $B </s>"),
    }
    return next((known for names, known in styles.items() if all(n in pieces for n in names)), Template())


def template(single: str, pair: str) -> Template:
    """From a notation: pieces with blanks between them, `:1` behind those of another token type than 0."""

    def parsed(text: str) -> tuple[tuple[str, int], ...]:
        found = (re.fullmatch(r"(.+?)(?::(\d))?", part) for part in text.split())
        return tuple((match[1], int(match[2] or 0)) for match in found)

    return Template(single=parsed(single), pair=parsed(pair))


def split_added(
    texts: Sequence[str], added: Mapping[str, Added], encode: Callable[[Sequence[str]], list[np.ndarray]]
) -> list[np.ndarray]:
    """ids [T] int32 of every text, the longest pieces of `added` found first and the text between them by `encode`."""
    if not added:
        return encode(texts)
    ordered = sorted(added, key=lambda piece: (-len(piece), piece))
    pattern = re.compile("(" + "|".join(map(re.escape, ordered)) + ")")
    rows: list[list[str]] = [pattern.split(text) for text in texts]
    for parts in rows:
        for i in range(1, len(parts), 2):
            parts[i - 1] = parts[i - 1].rstrip() if added[parts[i]].left else parts[i - 1]
            parts[i + 1] = parts[i + 1].lstrip() if added[parts[i]].right else parts[i + 1]
    plain = iter(encode([text for parts in rows for text in parts[::2] if text]))
    result = []
    for parts in rows:
        ids = ([added[p].id] if i % 2 else next(plain) for i, p in enumerate(parts) if p)
        result.append(np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32))
    return result


def needed(pieces: Mapping[str, int], names: Sequence[str], where: object) -> None:
    """Raises UserError that names the file where the vocabulary lacks one of `names`."""
    missing = [name for name in names if name not in pieces]
    if missing:
        raise UserError(f"{where} has no {missing[0]!r}, which the tokenizer needs; is the file whole?")
