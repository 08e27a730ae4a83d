"""Tokenizers of published checkpoints, read from and written to Hugging Face directories.
Needs neither torch nor transformers.

A tokenizer.json is used where there is one; otherwise the rules of `published_families` build the
same pipeline from older files. Ids equal those of transformers 5.23 with three exceptions, which
follow the tokenizer of the original training: mBART's text is normalized by the table of its
sentencepiece file, PEGASUS has no piece for a space at the end, and sentencepiece files of BPE, or
with bytes for unknown characters, run on sentencepiece itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_encoding, read_bytes, shown
from ptm_jax.data.tokenizers.backends import HuggingFace
from ptm_jax.data.tokenizers.framing import Added, Published, Template, content_of, needed
from ptm_jax.data.tokenizers.published_families import CLASSES, FAMILIES, Family, Source
from ptm_jax.data.tokenizers.published_json import files_of, lowers, serialized
from ptm_jax.data.tokenizers.published_pieces import SENTINELS, sentinels_of
from ptm_jax.data.tokenizers.tokenizing import ROLES, Tokenizer

FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json",
    "merges.txt", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm",
    "vocab.pkl",
)  # fmt: skip
"""The files of a tokenizer, beside any other *.model."""

_ROLES = tuple(ROLES)
_LARGEST = 1 << 28  # bytes of a tokenizer file at most
_UNUSED = 100_000  # rows that may be unused, in addition to four times the pieces


def read_published(folder: str | Path) -> Tokenizer:
    """Returns the tokenizer of a Hugging Face model directory.

    Its `vocab` has `vocab_size` rows of config.json where that exceeds the pieces. Raises
    UserError, naming the file, where one is absent, damaged or of an unknown kind.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"no such directory: {folder}; expected one with the files of a Hugging Face tokenizer"
        )
    paths = {p.name: p for p in folder.iterdir() if p.name in FILES or p.suffix == ".model"}
    files = {name: read_bytes(path, _LARGEST) for name, path in sorted(paths.items())}
    for name in ("vocab.txt", "merges.txt"):
        check_encoding(folder / name, files.get(name, b""))
    if not set(files) - {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}:
        raise UserError(
            f"no tokenizer in {folder}; expected tokenizer.json, or vocab.txt, vocab.json or "
            "a .model file"
        )
    beside = (
        {"config.json": read_bytes(folder / "config.json")}
        if (folder / "config.json").exists()
        else {}
    )
    model = _json(beside, "config.json", folder)
    rows = model.get("vocab_size", 0)
    return build(
        files,
        _family(files, model, folder),
        rows=rows if isinstance(rows, int) else 0,
        folder=folder,
    )


def is_published(folder: Path) -> bool:
    """Whether a directory names the family of its tokenizer."""
    named, config = folder / "tokenizer_config.json", folder / "config.json"
    return named.is_file() or (config.is_file() and b'"model_type"' in read_bytes(config))


def build(
    files: Mapping[str, bytes],
    family: str,
    *,
    rows: int = 0,
    folder: Any = ".",
    sentinels: bool = True,
) -> Tokenizer:
    """Returns the tokenizer of `family` from the bytes of its files; `folder` is named in errors.

    `sentinels=False` reads the bare sentencepiece file of a T5 as version 0.1.0 did, which took
    sentinels for plain pieces.
    """
    config = _json(files, "tokenizer_config.json", folder)
    source = Source(files=files, config=config, folder=folder)
    rules = FAMILIES.get(family)
    if sentinels and family in SENTINELS and "tokenizer.json" not in files:
        extra = source.guard("tokenizer_config.json", lambda: tuple(sentinels_of(config)))
        rules = dataclasses.replace(rules, extra=extra)
    naming = next(
        (n for n in FILES[1:4] if n in files), _main(files)
    )  # the file of the special tokens
    file_roles, wanted = source.guard(naming, lambda: _tokens(source, rules))
    spelled = {**(rules.roles if rules else {}), **file_roles}
    if "tokenizer.json" in files:
        read = source.read("tokenizer.json", lambda data: serialized(data, config))
    else:
        read = source.guard("tokenizer_config.json", lambda: rules.read(family, source, spelled))
    kind, backend, template = read if len(read) == 3 else (*read, None)
    if isinstance(backend, Backend):
        added = source.guard(naming, lambda: _extend(backend, wanted, source))
        backend = source.guard(_main(files), lambda: HuggingFace(backend))
        lowercase = lowers(json.loads(backend.bytes)["normalizer"])
    else:
        added = source.guard(naming, lambda: _collected(backend.pieces, wanted, source))
        lowercase = bool(config.get("do_lowercase_and_remove_accent", family == "xlm"))
    known = {piece: i for i, piece in enumerate(backend.pieces)} | {
        p: one.id for p, one in added.items()
    }
    roles = _roles(spelled, known, rules)
    if rules is not None and (template is None or family.startswith("mbart")):  # not trained here
        framed = source.guard(naming, lambda: rules.template(spelled, config))
        template = framed if template is None or known.keys() >= {*framed.specials} else template
    if rows > 4 * len(known) + _UNUSED:
        raise UserError(
            f"{folder}/config.json has vocab_size {rows}, the tokenizer has {len(known)} pieces"
        )
    published = Published(
        family=family, roles=roles, added=added, template=template or Template(), rows=rows,
        files=dict(files),
        padding=_side(config, folder) or (rules.padding if rules else "right"),
    )  # fmt: skip
    tokenizer = Tokenizer(backend, kind=kind, lowercase=lowercase, published=published)
    special = (piece for piece, one in added.items() if one.special)
    needed(
        dict.fromkeys(tokenizer.pieces),
        [*published.template.specials, *roles.values(), *special],
        f"{folder}/{_main(files)}",
    )
    return tokenizer


def _roles(
    spelled: Mapping[str, str], known: Mapping[str, int], rules: Family | None
) -> dict[str, str]:
    """Returns {role: special piece} of the pieces that are known. Without rules of a family, roles
    that no file names have their usual pieces."""
    roles = {role: piece for role, piece in spelled.items() if piece in known}
    if rules is None:
        usual = {
            role: next((n for n in names if n in known), None) for role, names in ROLES.items()
        }
        roles = {role: piece for role, piece in usual.items() if piece is not None} | roles
    if roles.get("unk") in (roles.get("eos"), roles.get("bos")):
        roles.pop("unk", None)  # GPT-2: bytes have no unknown piece
    return roles


def _side(config: Mapping[str, Any], folder: Any) -> Literal["right", "left"] | None:
    side = config.get("padding_side")
    if side not in (None, "right", "left"):
        raise UserError(
            f"{folder}/tokenizer_config.json: padding_side is {shown(side)}; expected right or left"
        )
    return side


def write_published(
    tokenizer: Tokenizer, folder: str | Path, *, typed: bool = False, begin: str | None = None
) -> None:
    """Writes a directory that transformers loads with the same ids.
    It holds the original files, or tokenizer.json and tokenizer_config.json for a tokenizer trained
    here.

    typed  whether the model has token types: a tokenizer without a class of its own then names them
           among its outputs, as transformers leaves them out otherwise
    begin  the piece before a text, if it is another one than in the family (</s> in XLM's text,
           <s> in transformers' class)
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = (
        tokenizer.published.files if tokenizer.published is not None else files_of(tokenizer, begin)
    )
    for name, content in files.items():
        (folder / name).write_bytes(content)
    name = "tokenizer_config.json"
    fields = _json(files, name, folder)
    if typed and fields.get("tokenizer_class") == "PreTrainedTokenizerFast":
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        text = json.dumps({**names, **fields}, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf8")


def _main(files: Mapping[str, bytes]) -> str:
    ordered = [
        n
        for n in FILES
        if n in files and n.split(".")[0] not in ("tokenizer_config", "special_tokens_map")
    ]
    return next(iter([*ordered, *files]), "tokenizer.json")


def _json(files: Mapping[str, bytes], name: str, folder: Any) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name].decode())
        if not isinstance(value, dict):
            raise ValueError("it holds no object")
        return value
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{folder}/{name} is not a tokenizer file that can be read ({error})"
        ) from None


def _family(files: Mapping[str, bytes], model: Mapping[str, Any], folder: Path) -> str:
    """Returns the family by the class in tokenizer_config.json, else by model_type; a lone
    vocab.txt is BERT's."""
    named = str(
        _json(files, "tokenizer_config.json", folder).get("tokenizer_class")
        or model.get("tokenizer_class")
        or ""
    )
    family = CLASSES.get(
        named.removesuffix("Fast").removesuffix("Tokenizer"), str(model.get("model_type") or "")
    )
    if "tokenizer.json" in files:
        return family
    generic = not named or named.startswith(("PreTrainedTokenizer", "TokenizersBackend"))
    if family not in FAMILIES or not (
        generic or named.removesuffix("Fast").removesuffix("Tokenizer") in CLASSES
    ):
        what = (
            f"names {named[:100]}"
            if named
            else f"is of model_type {shown(family)}"
            if family
            else "names no model_type"
        )
        where = "tokenizer_config.json" if named else "config.json"
        raise UserError(
            f"{folder}/{where} {what}, whose tokenizer files are not known here; add a "
            "tokenizer.json"
        )
    if (
        "vocab.txt" in files
        and family not in ("esm", "transfo-xl")
        and not any(n.endswith((".model", "vocab.json")) for n in files)
    ):
        return family if FAMILIES[family].read is FAMILIES["bert"].read else "bert"
    return family


def _tokens(source: Source, rules: Family | None) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Returns ({role: piece} of the files, pieces to search in texts: content, id if given,
    flags)."""
    config, named = source.config, _json(source.files, "special_tokens_map.json", source.folder)
    decoder = config.get("added_tokens_decoder") or {}
    values = {**named, **config} if decoder else {**config, **named}
    roles = {role: piece for role in _ROLES if (piece := content_of(values.get(f"{role}_token")))}
    blank = {"lstrip": True} if rules is not None and rules.blank else {}
    flags: dict[str, dict] = {}
    for role, piece in roles.items():
        value = values[f"{role}_token"]
        settings = value if isinstance(value, dict) else blank if role == "mask" else {}
        flags.setdefault(
            piece,
            {
                "special": True,
                **{k: settings[k] for k in ("lstrip", "rstrip", "single_word") if k in settings},
            },
        )
    others = [
        *(values.get("additional_special_tokens") or []),
        *_listed(values.get("extra_special_tokens")),
    ]
    for piece in filter(None, map(content_of, others)):
        flags.setdefault(piece, {"special": True})
    wanted = []
    numbered = {i: t for i, t in decoder.items() if isinstance(t, dict) and content_of(t)}
    if not decoder:
        legacy = _json(source.files, "added_tokens.json", source.folder)
        numbered = {
            i: {"content": p, "special": p in flags, "normalized": p not in flags}
            for p, i in legacy.items()
        }
    for index in sorted(numbered, key=int):
        token = numbered[index]
        keys = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
        wanted.append({"id": int(index)} | {k: token[k] for k in keys if k in token})
    stated = {one["content"] for one in wanted}
    wanted += [
        {"content": piece, **settings} for piece, settings in flags.items() if piece not in stated
    ]
    stated |= set(flags)
    if rules is not None:
        searched = [
            (piece, blank if role == "mask" else {})
            for role, piece in rules.roles.items()
            if role not in roles
        ]
        searched += [(piece, {}) for piece in rules.extra]
        for piece, settings in dict(reversed(searched)).items():
            if piece not in stated:
                wanted.append({"content": piece, "special": True, "optional": True, **settings})
    return roles, wanted


def _listed(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value or []


def _extend(backend, wanted: Sequence[Mapping[str, Any]], source: Source) -> dict[str, Added]:
    """Adds the pieces to a `tokenizers.Tokenizer`, optional ones only where the vocabulary has
    them."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for one in wanted:
        piece = one["content"]
        if piece in present or (one.get("optional") and backend.token_to_id(piece) is None):
            continue
        options = {
            k: v for k, v in one.items() if k not in ("content", "id", "optional", "special")
        }
        add = backend.add_special_tokens if one.get("special") else backend.add_tokens
        add([AddedToken(piece, **{"normalized": not one.get("special"), **options})])
        if one.get("id", backend.token_to_id(piece)) != backend.token_to_id(piece):
            raise _misplaced(source, piece, one["id"], backend.token_to_id(piece))
    return {
        token.content: Added(id=index, left=token.lstrip, right=token.rstrip, special=token.special)
        for index, token in backend.get_added_tokens_decoder().items()
    }


def _collected(
    pieces: Sequence[str], wanted: Sequence[Mapping[str, Any]], source: Source
) -> dict[str, Added]:
    """Returns the pieces for a backend that does not search them itself."""
    ids, size = {piece: i for i, piece in enumerate(pieces)}, len(pieces)
    added = {}
    for one in wanted:
        piece = one["content"]
        if piece not in ids:
            if one.get("optional"):
                continue
            ids[piece], size = size, size + 1
        if one.get("id", ids[piece]) != ids[piece]:
            raise _misplaced(source, piece, one["id"], ids[piece])
        left, right = bool(one.get("lstrip")), bool(one.get("rstrip"))
        added[piece] = Added(
            id=ids[piece], left=left, right=right, special=bool(one.get("special"))
        )
    return added


def _misplaced(source: Source, piece: str, stated: int, actual: int) -> UserError:
    name = (
        "tokenizer_config.json"
        if source.config.get("added_tokens_decoder")
        else "added_tokens.json"
    )
    return UserError(
        f"{source.folder}/{name} gives {shown(piece)} the id {shown(stated)}, its vocabulary "
        f"{actual}; "
        "are the files one model's?"
    )
