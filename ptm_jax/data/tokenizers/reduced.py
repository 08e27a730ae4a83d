"""A tokenizer.json with fewer pieces.
The other pieces keep their order and are numbered anew."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers.published_json import files_of
from ptm_jax.data.tokenizers.tokenizing import Tokenizer


def whole_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the tokenizer.json of a tokenizer that has one, or that is converted to one.
    Raises UserError otherwise."""
    try:
        published_file = tokenizer.published is not None and tokenizer.published.files.get(
            "tokenizer.json"
        )
        return json.loads(published_file or files_of(tokenizer)["tokenizer.json"])
    except (AttributeError, KeyError, ValueError):
        raise UserError(
            f"a {tokenizer.kind} tokenizer of this family has no tokenizer.json, which is "
            "needed here"
        ) from None


def reduced(content: dict[str, Any], dropped: Collection[str]) -> tuple[bytes, list[str]]:
    """Returns (tokenizer.json, its pieces in order) without the pieces `dropped`.
    Frames, truncation and padding are left out.

    Raises UserError for a piece of BPE that merges need.
    """
    model, dropped = dict(content["model"]), set(dropped)
    added = [dict(one) for one in content.get("added_tokens", ()) if one["content"] not in dropped]
    vocab = model["vocab"]
    pairs = (
        list(enumerate(vocab))
        if isinstance(vocab, list)
        else [(i, piece) for piece, i in vocab.items()]
    )
    names = {(pair[0] if isinstance(vocab, list) else pair): i for i, pair in pairs}
    everything = {**names, **{one["content"]: one["id"] for one in content.get("added_tokens", ())}}
    pieces = [piece for piece in sorted(everything, key=everything.get) if piece not in dropped]
    ids = {piece: i for i, piece in enumerate(pieces)}
    if model.get("merges"):
        merges = [
            merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]
        ]
        if used := next(
            (part for a, b in merges for part in (a, b, a + b) if part in dropped), None
        ):
            raise UserError(
                f"the piece {used!r} belongs to merges of the tokenizer and cannot be taken "
                "out; leave it in"
            )
    if isinstance(vocab, list):
        model["vocab"] = [pair for pair in vocab if pair[0] not in dropped]
        unk = model.get("unk_id")
        model["unk_id"] = None if unk is None else ids.get(vocab[unk][0])
    else:
        model["vocab"] = {piece: ids[piece] for piece in pieces if piece in names}
    for one in added:
        one["id"] = ids[one["content"]]
    fields = {
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "model": model,
    }
    return json.dumps({**content, **fields}, ensure_ascii=False).encode(), pieces
