"""word2vec's binary format.
A line `V D`, then for each word its bytes, a blank, and D float32 numbers, little-endian.

word2vec.c ends each vector by a line break; gensim does not. Both are read; files are written
without.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptm_jax.convert.words.cursor import Cursor
from ptm_jax.convert.words.fasttext_bin import blocks
from ptm_jax.convert.words.textual import check_header, check_names, header_of
from ptm_jax.convert.words.wordtable import WordTable, decoded, encoded
from ptm_jax.core.reading import shown


def read(path: Path) -> WordTable:
    """Reads a file. Raises UserError with the file and the byte."""
    cursor = Cursor(path)
    count, width = header_of(cursor.map[:100])
    check_header(path, count, width, 4)
    cursor.at = cursor.map.find(b"\n") + 1
    rows, words = np.empty((count, width), np.float32), []
    for number in range(count):
        while cursor.map[cursor.at : cursor.at + 1] == b"\n":
            cursor.at += 1
        words.append(decoded(cursor.text(b" ", f"word {number + 1:,} of {count:,}")))
        cursor.room(width, 4, f"the vector of {shown(words[-1])}")
        rows[number] = np.frombuffer(cursor.map, "<f4", width, cursor.at)
        cursor.at += 4 * width
        if not np.isfinite(rows[number]).all():
            raise cursor.fail(
                f"the vector of word {number + 1:,}, {shown(words[-1])}, holds NaN or infinity"
            )
    if cursor.map[cursor.at : cursor.at + 1] == b"\n":
        cursor.at += 1
    cursor.end()
    return WordTable(words=words, rows=rows, format="word2vec-binary")


def write(file: BinaryIO, table: WordTable) -> None:
    """Writes a file that gensim and word2vec's own tools read.
    Raises UserError for a word with a blank."""
    check_names(table.words)
    file.write(b"%d %d\n" % (len(table.words), table.width))
    at = 0
    for block in blocks([table.whole()]):
        for row in block:
            file.write(encoded(table.words[at]) + b" " + row.tobytes())
            at += 1
