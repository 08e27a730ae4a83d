"""Tokenizers in the folder of a corpus or of a run: `load` reads what `Tokenizer.save` writes."""

from __future__ import annotations

import functools
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_fields, inside, read_bytes, read_json
from ptm_jax.data.tokenizers import published
from ptm_jax.data.tokenizers.backends import HuggingFace, SentencePiece
from ptm_jax.data.tokenizers.tokenizing import Tokenizer
from ptm_jax.data.tokenizers.words import WORDS, OpenWords

LARGEST = 1 << 28
"""Bytes of a file of a tokenizer at most."""


def load(folder: str | Path) -> Tokenizer:
    """Returns the tokenizer that `Tokenizer.save` wrote.
    Raises UserError where files are absent, damaged or changed."""
    folder = Path(folder)
    try:
        file = folder / "tokenizer_spec.json"
        facts = read_json(file, "the file")
        check_fields(
            file,
            facts,
            {"hash": str, "family?": str, "kind?": str, "files?": list, "segmenter?": str},
        )
        if "family" in facts:
            files = {
                name: read_bytes(inside(folder, name, file), LARGEST) for name in facts["files"]
            }
            build = functools.partial(
                published.build, files, facts["family"], rows=facts["rows"], folder=folder
            )
            tokenizer = build()
            if tokenizer.hash != facts["hash"]:  # a T5 of version 0.1.0
                tokenizer = build(sentinels=False)
        else:
            backend = (
                HuggingFace if facts["kind"] in ("wordpiece", "bytebpe", "word") else SentencePiece
            )
            if not (folder / backend.file).exists() and backend is SentencePiece:
                backend = HuggingFace  # a unigram model that was read from a tokenizer.json
            read = backend.read(folder / backend.file)
            options = {name: facts[name] for name in ("kind", "sentinels", "lowercase")}
            options["segmenter"] = facts.get("segmenter")
            if (folder / WORDS).exists():
                known = read_json(folder / WORDS, "the list of words")
                del options["kind"], options["sentinels"]
                tokenizer = OpenWords(read, known=known, **options)
            else:
                tokenizer = Tokenizer(read, **options)
    except UserError:
        raise
    except Exception as error:  # both libraries raise bare Exceptions for damaged files
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{folder} holds no readable tokenizer ({reason}); prepare the corpus again"
        ) from None
    if tokenizer.hash != facts["hash"]:
        raise UserError(
            f"the tokenizer in {folder} was changed after it was written; prepare the corpus again"
        )
    return tokenizer
