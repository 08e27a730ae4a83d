"""Published checkpoints, tiny, of several families, and damage to them: each a function of a seed
and a number."""

import collections
import copy
import faulthandler
import json
import os
import pathlib
import resource
import shutil
import struct
import types
from unittest import mock

import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers.published_json import files_of
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.loading import load
from support.tiny_checkpoint import WORDS
from support.tiny_models import drawn

BERT = dict(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=20,
)
GPT = dict(n_embd=8, n_head=2, n_layer=1, n_positions=16)
BART = dict(d_model=8, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=9, decoder_ffn_dim=9)
BART |= dict(encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=16)
XL = dict(
    cutoffs=[5, 10],
    div_val=2,
    d_model=8,
    d_embed=8,
    n_head=2,
    d_head=4,
    d_inner=9,
    n_layer=1,
    mem_len=4,
)
PIECES = ("unigram", "t5", 32)
# name: (model_type, (kind of tokenizer, its specials, its size), tokenizer.json or the older files,
# fields)
FOLDERS = {
    "bert": ("bert", ("wordpiece", "bert", 60), False,
    {**BERT, "architectures": ["BertForSequenceClassification"]}),
    "shards": ("bert", ("wordpiece", "bert", 60), True,
    {**BERT, "architectures": ["BertForMaskedLM"]}),
    "roberta": ("roberta", ("bytebpe", "roberta", 290), False, BERT),
    "mobilebert": ("mobilebert", ("wordpiece", "bert", 60), False, {
        **BERT, "embedding_size": 6, "intra_bottleneck_size": 4}),
    "albert": ("albert", ("unigram", "xlnet", 36), True,
    {**BERT, "embedding_size": 6, "num_hidden_groups": 1}),
    "electra": ("electra", ("wordpiece", "bert", 60), True, {**BERT, "embedding_size": 6}),
    "gpt2": ("gpt2", ("bytebpe", "gpt2", 280), False,
    {**GPT, "architectures": ["GPT2LMHeadModel"]}),
    "bart": ("bart", ("bytebpe", "roberta", 290), True,
    {**BART, "architectures": ["BartForConditionalGeneration"]}),
    "pegasus": ("pegasus", PIECES, True,
    {**BART, "architectures": ["PegasusForConditionalGeneration"]}),
    "t5": ("t5", PIECES, False, dict(d_model=8, num_heads=2, d_kv=4, d_ff=9, num_layers=1,
    extra_ids=0)),
    "xlnet": ("xlnet", ("unigram", "xlnet", 36), False,
    dict(d_model=8, n_head=2, n_layer=1, d_inner=12)),
    "xlm": ("xlm", ("wordpiece", "bert", 60), True,
    dict(emb_dim=8, n_heads=2, n_layers=1, n_langs=2)),
    "transfo-xl": ("transfo-xl", ("word", "bert", 19), True, XL),
    "distilbert": ("distilbert", ("wordpiece", "bert", 60), False, dict(
        dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=20)),
}  # fmt: skip


def write(root) -> list:
    """Writes the folders and returns their paths."""
    return [_written(root / name, *parts) for name, parts in FOLDERS.items()]


def _written(folder, family, tokenizer, whole, fields):
    kind, specials, size = tokenizer
    tokenizer = make(
        TokenizerSpec(kind=kind, specials=specials, vocab=size), [" ".join(WORDS)] * 20
    )
    fields = {"model_type": family, "vocab_size": len(tokenizer.pieces), **fields}
    system, _ = checkpoint.record_of(Config(fields))
    checkpoint.write(
        folder, system, drawn(system), config=fields, max_shard_bytes=2000 if whole else 1 << 30
    )
    for name, content in (files_of(tokenizer) if whole else _older(tokenizer)).items():
        (folder / name).write_bytes(content)
    fields = {"num_beams": 2, "length_penalty": 0.8, "max_length": 20, "eos_token_id": [1, 2]}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    steps = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


def _older(tokenizer) -> dict[str, bytes]:
    """The files of a tokenizer before there was tokenizer.json."""
    named = {
        f"{role}_token": tokenizer.piece(i)
        for role in ("pad", "mask")
        if (i := tokenizer.vocab.id(role)) is not None
    }
    size = len(tokenizer.pieces)
    files = {
        "special_tokens_map.json": named,
        "tokenizer_config.json": {"do_lower_case": True, "extra_ids": 0, "model_max_length": 20},
        "added_tokens.json": {},
    }
    files = {name: json.dumps(value).encode() for name, value in files.items()}
    if tokenizer.kind == "unigram":
        return files | {"spiece.model": tokenizer._backend.bytes}
    if tokenizer.kind == "bytebpe":
        model = json.loads(tokenizer._backend.bytes)["model"]
        merges = "\n".join(m if isinstance(m, str) else " ".join(m) for m in model["merges"])
        return files | {
            "vocab.json": json.dumps(model["vocab"]).encode(),
            "merges.txt": merges.encode(),
        }
    return files | {"vocab.txt": "\n".join(tokenizer.pieces[:size]).encode()}


class Raw(str):
    """Text that stands in a JSON file as it is."""


DEEP = Raw("[" * 100_000 + "]" * 100_000)
HOSTILE = (
    10**6, 10**9, 10**12, 2**31, 2**31 + 1, 2**32, 2**63, 2**64, 10**30, Raw("9" * 5000), 0, -1,
        -(2**31) - 1, -(10**12),
    2, 3, 7, 0.5, 1.0, 1e6, 1e308, -1e308, float("nan"), float("inf"), -float("inf"), None, True,
    False, "",
    "x", "1", "gelu", "\ud800", "\0", "a" * 100_000, "../../x", [], [1], [-1], [10**12, 2**63],
    [[1]],
    ["a", 1], [None], {}, {"a": 1}, {"0": [1]}, {"content": "x"}, {"content": 5}, [{"id": 10**9}],
    {"x": 10**9}, DEEP,
)  # fmt: skip
SPECIAL = ("fifo", "zero", "loop", "folder", "absent", "dangling", "socket", "sparse")


def dumped(value) -> str:
    """JSON of a value with `Raw` parts, in one line."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(name)}: {dumped(part)}" for name, part in value.items())
            + "}"
        )
    return (
        "[" + ", ".join(map(dumped, value)) + "]" if isinstance(value, list) else json.dumps(value)
    )


def _nodes(tree, above=()):
    """Every (container, key) of a JSON tree."""
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in list(items):
        yield tree, key
        yield from _nodes(value)


def _value(draw, before):
    """A value in the place of another, two thirds of the time of its type."""
    alike = [value for value in HOSTILE if type(value) is type(before)]
    pool = alike if alike and draw.random() < 0.66 else HOSTILE
    return copy.deepcopy(pool[draw.integers(len(pool))])  # the next change may be inside of it


def _of_json(draw, text: str) -> str:
    """A JSON text with a value or two changed, taken away, named otherwise or given twice."""
    tree = json.loads(text)
    for _ in range(1 + (draw.random() < 0.3)):
        nodes = list(_nodes(tree))
        # A vocabulary has many entries, which are alike: fields of small objects are more telling.
        few = [node for node in nodes if len(node[0]) < 40]
        pool = few if few and draw.random() < 0.8 else nodes
        if not pool:
            return dumped(_value(draw, tree))
        at, key = pool[draw.integers(len(pool))]
        what = draw.random()
        if what < 0.8:
            at[key] = _value(draw, at[key])
        elif what < 0.86:
            del at[key]
        elif what < 0.9 and isinstance(at, dict):
            at[f"{key}x"] = at.pop(key)
        elif what < 0.94 and at is tree and isinstance(at, dict):
            return f"{dumped(tree)[:-1]}, {json.dumps(key)}: {dumped(_value(draw, at[key]))}}}"
        else:
            at[key] = [at[key]] * int(draw.integers(0, 4))
    return dumped(tree)


def _of_bytes(draw, content: bytes) -> bytes:
    """Bytes that are cut off, replaced, repeated, or of another kind."""
    what = draw.integers(8)
    if what == 0:
        return content[: draw.integers(len(content) + 1)]
    if what == 1:
        return b""
    if what == 2:
        return (b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\0" * 100, b"PK\x03\x04", b"\x80\x02")[
            draw.integers(6)
        ] + content
    if what == 3:
        return content + (b"\n", b"\0", b"x", content)[draw.integers(4)]
    if what == 4:
        return b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    if what == 5:
        return (
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"9" * 100_000,
            b'"',
            b"{}",
            b"[]",
            b"null",
            b"1",
        )[draw.integers(8)]
    damaged = bytearray(content)
    for _ in range(draw.integers(1, 9) if damaged else 0):
        damaged[draw.integers(len(damaged))] = draw.integers(256)
    return bytes(damaged)


def _of_weights(draw, content: bytes) -> bytes:
    """A safetensors file whose header has other values, or whose numbers are others."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + length].decode(), content[8 + length :]
    what = draw.integers(5)
    if what < 2:
        header = _of_json(draw, header)
    elif what == 2:
        dtype = ("F64", "F16", "I8", "BOOL", "U64", "F8_E4M3", "C64", "BF16")[draw.integers(8)]
        header = header.replace("F32", dtype, draw.integers(1, 3))
    elif what == 3:
        return struct.pack("<Q", int(draw.integers(1 << 63))) + content[8:]
    else:
        data = (b"\xff" * len(data), b"\0" * len(data), data[:-4], data + b"\0\0\0\0")[
            draw.integers(4)
        ]
    header = header.encode("utf8", "surrogatepass")
    return struct.pack("<Q", len(header)) + header + data


def special(path, kind: str) -> None:
    """Puts what is no file of text in the place of a file."""
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind in ("zero", "dangling", "loop"):
        path.symlink_to(
            {"zero": "/dev/zero", "dangling": path.parent / "nothing", "loop": path}[kind]
        )


def damaged(folder, target, seed: int, number: int) -> str:
    """Writes a damaged copy of a folder and returns what was done to it."""
    draw = np.random.default_rng([seed, number])
    shutil.copytree(folder, target)
    done = []
    for _ in range(1 + (draw.random() < 0.25)):
        paths = sorted(
            path for path in target.rglob("*") if path.is_file() and not path.is_symlink()
        )
        # Half of the time config.json, which decides most.
        path = target / "config.json" if draw.random() < 0.4 else paths[draw.integers(len(paths))]
        if (
            not path.is_file() or path.is_symlink() or path.stat().st_size > 1 << 30
        ):  # it was damaged before
            continue
        what, content = draw.random(), path.read_bytes()
        if what < 0.06:
            kind = SPECIAL[draw.integers(len(SPECIAL))]
            special(path, kind)
            done.append(f"{path.name}: {kind}")
            continue
        after = content
        try:
            if path.suffix == ".json" and what < 0.85:
                after = _of_json(draw, content.decode()).encode("utf8", "surrogatepass")
            elif path.suffix == ".safetensors" and what < 0.7:
                after = _of_weights(draw, content)
            else:
                after = _of_bytes(draw, content)
        except (ValueError, RecursionError, struct.error):  # it was damaged before
            after = _of_bytes(draw, content)
        path.write_bytes(after)
        done.append(f"{path.name}: {after[:200]!r}" if len(after) < 2000 else path.name)
    return "; ".join(done)


SHAPES = {}


def _abstract(modules, batch):
    """`towers.abstract`, once for every record: most damage leaves the towers as they are."""
    key = spec.to_line(modules)
    if key not in SHAPES:
        SHAPES[key] = towers.abstract(modules, batch)
    return SHAPES[key]


def outcome(folder) -> str:
    """ "loaded", "refused", or what was raised instead of the line for the user."""
    try:
        with mock.patch.object(
            checkpoint, "towers", types.SimpleNamespace(abstract=_abstract, init=towers.init)
        ):
            model = load(folder)
        if model.tokenizer is not None:
            model.tokenizer.frame(" ".join(WORDS))
        return "loaded"
    except UserError as error:
        line = str(error)
        return "refused" if "\n" not in line and len(line) < 700 else f"a long line: {line[:300]}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        return f"{type(error).__name__}: {str(error).splitlines()[:1]}"[:300]


def survey(root, numbers) -> tuple[collections.Counter, list]:
    """Returns (counts of "loaded" and "refused", [(number, what was done, what was raised)]) of
    damaged checkpoints.

    A load of more than a minute ends the process of the test with a traceback. Memory is bounded
    to 6 GB more.
    """
    folders, counts, wrong = write(root / "whole"), collections.Counter(), []
    limits, used = (
        resource.getrlimit(resource.RLIMIT_AS),
        int(pathlib.Path("/proc/self/statm").read_text().split()[0]),
    )
    resource.setrlimit(resource.RLIMIT_AS, (used * resource.getpagesize() + (6 << 30), limits[1]))
    try:
        for number in numbers:
            target = root / "damaged"
            shutil.rmtree(target, ignore_errors=True)
            done = damaged(folders[number % len(folders)], target, 0, number)
            faulthandler.dump_traceback_later(60, exit=True)
            found = outcome(target)
            faulthandler.cancel_dump_traceback_later()
            counts[found] += 1
            wrong += [] if found in ("loaded", "refused") else [(number, done, found)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return counts, wrong
