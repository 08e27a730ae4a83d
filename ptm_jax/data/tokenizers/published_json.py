"""tokenizer.json: read with tokenizer_config.json, and written for a tokenizer trained here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, models, processors
from tokenizers import Tokenizer as Backend

from ptm_jax.core.reading import shown
from ptm_jax.data.tokenizers.framing import Template
from ptm_jax.data.tokenizers.published_pieces import (
    UNIGRAM,
    PieceModel,
    merges_of,
    unigram,
    whole_table,
)
from ptm_jax.data.tokenizers.tokenizing import Tokenizer

KINDS = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "word"}


def serialized(data: bytes, config: Mapping[str, Any]):
    """Returns (kind, `tokenizers.Tokenizer`, template or None) of a tokenizer.json.

    tokenizer_config.json overrides lower-casing, accents, Chinese characters and the space before
    the first word.
    """
    content = json.loads(data.decode())
    model, normalizer, cut = (
        content["model"],
        content.get("normalizer"),
        content.get("pre_tokenizer") or {},
    )
    names = {"lowercase": "do_lower_case", "handle_chinese_chars": "tokenize_chinese_chars"}
    names |= {"strip_accents": "strip_accents"}
    changed = False
    for step in _steps(normalizer):
        if step.get("type") == "Precompiled":
            whole_table(base64.b64decode(step["precompiled_charsmap"] or ""))
    if (
        isinstance(normalizer, dict)
        and normalizer.get("type") == "BertNormalizer"
        and model.get("type") != "BPE"
    ):
        for ours, theirs in names.items():
            if theirs in config and config[theirs] != normalizer.get(ours):
                normalizer[ours], changed = config[theirs], True
    if cut.get("type") == "ByteLevel" and isinstance(blank := config.get("add_prefix_space"), bool):
        changed = changed or cut.get("add_prefix_space") != blank
        cut["add_prefix_space"] = blank
    backend = Backend.from_str(json.dumps(content) if changed else data.decode())
    suffix = model.get("end_of_word_suffix")
    default = "bpe" if suffix or "ByteLevel" not in json.dumps(cut) else "bytebpe"
    shapes = {"vocab": "Unigram"} if isinstance(model.get("vocab"), list) else {}
    kind = KINDS.get(
        model.get("type") or shapes.get("vocab") or ("BPE" if "merges" in model else "WordPiece"),
        default,
    )
    return kind, backend, processed(content.get("post_processor"))


def processed(step: Mapping[str, Any] | None) -> Template | None:
    """Returns the template of a tokenizer.json's post-processor, None where it has none."""
    if not step:
        return None
    if step["type"] == "Sequence":
        return next(filter(None, map(processed, step["processors"])), None)
    if step["type"] in ("BertProcessing", "RobertaProcessing"):
        cls, sep = step["cls"][0], step["sep"][0]
        apart, second = ([], 1) if step["type"] == "BertProcessing" else ([(sep, 0)], 0)
        single = ((cls, 0), ("$A", 0), (sep, 0))
        return Template(single=single, pair=(*single, *apart, ("$B", second), (sep, second)))
    if step["type"] != "TemplateProcessing":
        return None

    def parts(items) -> tuple[tuple[str, int], ...]:
        named = [
            ("$" + i["Sequence"]["id"], i["Sequence"])
            if "Sequence" in i
            else (None, i["SpecialToken"])
            for i in items
        ]
        tokens = step["special_tokens"]
        flat = [
            (n, v["type_id"]) if n else [(t, v["type_id"]) for t in tokens[v["id"]]["tokens"]]
            for n, v in named
        ]
        template = tuple(p for f in flat for p in (f if isinstance(f, list) else [f]))
        if wrong := [kind for _, kind in template if type(kind) is not int or not 0 <= kind < 256]:
            raise ValueError(f"its template has the type_id {shown(wrong[0])}; expected 0 to 255")
        return template

    return Template(single=parts(step["single"]), pair=parts(step["pair"]))


def lowers(normalizer: Any) -> bool:
    """Whether a tokenizer.json's normalizer lower-cases."""
    return any(
        step.get("type") == "Lowercase" or step.get("lowercase") for step in _steps(normalizer)
    )


def _steps(normalizer: Any) -> list[Mapping[str, Any]]:
    if not isinstance(normalizer, dict):
        return []
    return [s for n in normalizer.get("normalizers", []) for s in _steps(n)] or [normalizer]


def files_of(tokenizer: Tokenizer, begin: str | None = None) -> dict[str, bytes]:
    """Returns {name: bytes} of a tokenizer trained here, with its ids.
    The files are tokenizer.json and tokenizer_config.json. `begin` as in `write_published`."""
    data = tokenizer._backend.bytes
    backend = (
        Backend.from_str(data.decode())
        if tokenizer._backend.file == "tokenizer.json"
        else _converted(data)
    )
    backend.encode_special_tokens = False
    for piece in tokenizer.pieces[len(tokenizer._backend.pieces) :]:
        backend.add_special_tokens([piece])
    known = [
        piece
        for piece in tokenizer.special_pieces
        if backend.token_to_id(piece) == tokenizer.id(piece)
    ]
    # A blank before the mask belongs to the filling, as in `fill_mask`.
    mask = None if tokenizer.vocab.mask is None else tokenizer.piece(tokenizer.vocab.mask)
    backend.add_special_tokens([AddedToken(piece, lstrip=piece == mask) for piece in known])
    frame = tokenizer.template.beginning(begin)
    if frame.specials:

        def parts(items):
            return [f"{piece}:{kind}" for piece, kind in items]

        ids = [(piece, tokenizer.id(piece)) for piece in frame.specials]
        backend.post_processor = processors.TemplateProcessing(
            single=parts(frame.single), pair=parts(frame.pair), special_tokens=ids
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        index = tokenizer.vocab.id(role)
        config |= {f"{role}_token": tokenizer.piece(index)} if index is not None else {}
    config |= {"padding_side": tokenizer.padding}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {
        "tokenizer.json": backend.to_str(pretty=True).encode(),
        "tokenizer_config.json": text.encode(),
    }


def _converted(data: bytes):
    """Returns the `tokenizers.Tokenizer` of a sentencepiece model."""
    model = PieceModel.parse(data)
    backend = unigram(model, "", {})
    if model.algorithm == UNIGRAM:
        return backend
    vocab = {piece: i for i, (piece, _, _) in enumerate(model.pieces)}
    unk = model.pieces[model.unk][0]
    other = Backend(models.BPE(vocab=vocab, merges=merges_of(model), unk_token=unk, fuse_unk=True))
    other.normalizer, other.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    other.decoder = backend.decoder
    return other
