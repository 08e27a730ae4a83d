"""Files of trees: CoNLL-U, and brackets (Penn Treebank, Stanford Sentiment Treebank).

A source `trees:PATH` names a file or a directory of them (.conllu, else brackets: .mrg, .ptb,
.txt); `binary:PATH` makes binary trees of them (`data.trees.parses.binary`). Each tree is a
document (`statistics.trees`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import decoded, read_bytes, shown
from ptm_jax.data.text.documents import Document
from ptm_jax.data.trees.parses import Tree, binary
from ptm_jax.statistics import trees

STARTS = ("trees:", "binary:")
BRACKETED = (".mrg", ".ptb", ".txt")
LARGEST = 1_000_000_000
"""Bytes of a file of trees at most."""
_TOKEN = re.compile(r"[()]|[^\s()]+")


def files_of(source: str) -> list[Path]:
    """Returns the files of a source. Raises UserError where there are none."""
    path = Path(source.partition(":")[2]).expanduser()
    if path.is_file():
        return [path]
    files = (
        sorted(p for p in path.rglob("*") if p.suffix in (".conllu", *BRACKETED))
        if path.is_dir()
        else []
    )
    if not files:
        raise UserError(
            f"{source} names no trees; give a file, or a directory with .conllu, "
            f"{', '.join(BRACKETED)}"
        )
    return files


def fingerprint(source: str) -> str:
    """Returns the hash of the files of a source."""
    digest = hashlib.sha256(source.partition(":")[0].encode())
    for file in files_of(source):
        digest.update(hashlib.sha256(read_bytes(file, LARGEST)).digest())
    return digest.hexdigest()


def documents(source: str) -> Iterator[Document]:
    """Yields the trees of a source as documents. Raises UserError with file and line."""
    for file in files_of(source):
        for tree in read(file):
            tree = binary(tree) if source.startswith("binary:") else tree
            words = " ".join("_".join(word.split()) or trees.PHRASE for word in tree.words)
            numbers = [
                n
                for h, label in zip(tree.heads, tree.labels, strict=True)
                for n in (h + 1, trees.number_of(label))
            ]
            yield Document((words, trees.marks(numbers)))


def read(path: Path) -> Iterator[Tree]:
    """Yields the trees of a file. Raises UserError with file and line."""
    text = decoded(path, read_bytes(path, LARGEST))
    trees = _conllu(path, text) if path.suffix == ".conllu" else _bracketed(path, text)
    empty = True
    for tree in trees:
        empty = False
        yield tree
    if empty:
        raise UserError(f"{path}: has no trees; expected CoNLL-U in .conllu, else brackets")


def _conllu(path: Path, text: str) -> Iterator[Tree]:
    """Trees of the words with whole numbers; 1-2 joins two words, 1.1 is an empty one."""
    words, first = [], 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.rstrip("\r")
        if not line.strip():
            if words:
                columns = zip(*words, strict=True)
                yield Tree(*(tuple(column) for column in columns), f"{path}:{first}")
            words = []
        elif not line.startswith("#"):
            fields = line.split("\t")
            if len(fields) != 10:
                raise UserError(f"{path}:{number}: {len(fields)} columns; a line of CoNLL-U has 10")
            if not fields[0].isdecimal():
                continue
            if int(fields[0]) != len(words) + 1:
                raise UserError(
                    f"{path}:{number}: word {fields[0]} follows word {len(words)}; number "
                    "the words from 1"
                )
            if not fields[6].isdecimal():
                raise UserError(
                    f"{path}:{number}: word {fields[0]} has no head ({shown(fields[6])}); "
                    "expected a number"
                )
            first = first if words else number
            words.append((fields[1], int(fields[6]) - 1, fields[7]))


def _bracketed(path: Path, text: str) -> Iterator[Tree]:
    """Trees of brackets: (label word) and (label child ...); an outer bracket without a label is
    left out."""
    stack: list[tuple[list[str], list[int], int]] = []
    words: list[str] = []
    heads: list[int] = []
    labels: list[str] = []
    first, line = 1, 1
    for line, content in enumerate(text.split("\n"), 1):
        for token in _TOKEN.findall(content):
            if token == "(":
                first = first if stack else line
                stack.append(([], [], line))
                if len(stack) > trees.MOST:
                    raise UserError(
                        f"{path}:{line}: brackets in {len(stack):,} levels; expected at most "
                        f"{trees.MOST:,}"
                    )
                continue
            if not stack:
                raise UserError(
                    f"{path}:{line}: {shown(token)} stands outside of brackets; expected ("
                )
            if token != ")":
                stack[-1][0].append(token)
                continue
            texts, children, start = stack.pop()
            _check(f"{path}:{start}", texts, children, outer=not stack)
            if texts:
                for child in children:
                    heads[child] = len(words)
                (stack[-1][1] if stack else []).append(len(words))
                words.append(texts[1] if len(texts) == 2 else "")
                heads.append(-1)
                labels.append(texts[0])
            if not stack:
                yield Tree(tuple(words), tuple(heads), tuple(labels), f"{path}:{first}")
                words, heads, labels = [], [], []
    if stack:
        raise UserError(
            f"{path}:{stack[0][2]}: a bracket is not closed before the file ends (line "
            f"{line}); add )"
        )


def _check(place: str, texts: list[str], children: list[int], outer: bool) -> None:
    """Raises UserError for a bracket that is no node."""
    if outer and not texts and len(children) == 1:
        return
    if outer and not texts and len(children) > 1:
        raise UserError(f"{place}: {len(children)} trees in one bracket; expected one root")
    if not texts:
        raise UserError(
            f"{place}: a bracket without a label; expected (label word) or (label child ...)"
        )
    if len(texts) > 2 or (len(texts) == 2) == bool(children):
        what = shown(" ".join(texts))
        raise UserError(
            f"{place}: {what} with {len(children)} children; expected (label word) or (label "
            "child ...)"
        )
