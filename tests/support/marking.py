"""A tokenizer of a text with marked entities, and the tokens of their marks, found by brute
force."""

from __future__ import annotations

from typing import Any

from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec


def tokenizer(*texts: str) -> Any:
    """A byte-level tokenizer with the special tokens of RoBERTa."""
    spec = TokenizerSpec(kind="bytebpe", vocab=261, specials="roberta", lowercase=False)
    return vocabularies.make(spec, texts)


def marked(own: Any, ids: Any, number: int) -> list[int]:
    """The tokens from the mark [E1] to the mark [/E1] of the ids of a row."""
    start = max(n for n in range(len(ids)) if f"[E{number}]" in own.decode(ids[n:]))
    end = min(n for n in range(len(ids)) if f"[/E{number}]" in own.decode(ids[: n + 1]))
    return [*range(start, end + 1)]
