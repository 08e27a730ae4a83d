"""Vectors of the lines of a file, kept in a folder: built once, searched exactly.

DIR/vectors.npy    [n, D] float32, mapped into memory
DIR/offsets.npy    [n+1] int64, the place of each line in the file
DIR/index.json     hashes of the model and of the file, the options, the number of lines
"""

from __future__ import annotations
