"""Preparation: the same bytes whatever the workers and interruptions, nothing half written,
refusals in one line."""

import fcntl
import io
import json
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import block_records, prepare, shards, spool, store, worker
from ptm_jax.data.text import sources
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from support.cutting import stored
from support.tiny_runs import files as contents


def all_documents(corpus, split):
    """Documents as tuples of decoded sentences, pieces of a divided one apart."""
    tokenizer, found = corpus.tokenizer(), []
    for block in stored(corpus.paths(split)):
        texts = [
            tokenizer.decode(ids) for ids in np.split(block.tokens, block.sentence_starts[1:-1])
        ]
        cuts = block.document_starts.tolist()
        found += [tuple(texts[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    return found


def test_everything_is_there_once(corpus, text_file):
    tokenizer = corpus.tokenizer()
    wanted = [
        tuple(tokenizer.decode(ids) for ids in tokenizer.encode_batch(d.sentences))
        for d in sources.documents([str(text_file)])
    ]
    train, held = all_documents(corpus, "train"), all_documents(corpus, "heldout")
    assert sorted(train + held) == sorted(wanted) and not set(train) & set(held)
    assert 0.08 < len(held) / len(wanted) < 0.14
    assert train != [d for d in wanted if d in set(train)]  # shuffled


@pytest.mark.parametrize("split", store.SPLITS)
def test_manifest_counts(corpus, split):
    found = stored(corpus.paths(split))
    facts = corpus.size(split)
    tokens = np.concatenate([b.tokens for b in found])
    assert facts["tokens"] == len(tokens) and facts["blocks"] == len(found)
    assert facts["sentences"] == sum(len(b.sentences) for b in found)
    assert facts["documents"] == sum(np.sum(~b.continued) for b in found)
    assert np.array_equal(corpus.counts(split), np.bincount(tokens, minlength=corpus.vocab.size))
    assert all(len(b.tokens) <= 512 for b in found)


@pytest.mark.full
def test_same_bytes_whatever_the_workers(tmp_path, corpus, text_file, options):
    prepare.prepare([str(text_file)], tmp_path / "b", workers=2, **options)
    assert contents(tmp_path / "b") == contents(corpus.dir)


def test_several_shards_and_the_progress(tmp_path, corpus, text_file, options, monkeypatch):
    monkeypatch.setattr(prepare, "SHARD_BYTES", 20_000)
    events = []
    parts = prepare.prepare(
        [str(text_file)], tmp_path / "c", progress=lambda *event: events.append(event), **options
    )
    assert len(parts.paths("train")) > 3
    assert sorted(all_documents(parts, "train")) == sorted(all_documents(corpus, "train"))
    assert ("training the tokenizer", 0, 0) in events and events[-1] == ("tokenizing", 400, 400)


def test_second_call_returns_at_once(corpus, text_file, options, monkeypatch):
    monkeypatch.setattr(spool, "write", None)
    assert prepare.prepare([str(text_file)], corpus.dir, **options).manifest == corpus.manifest


def test_a_corpus_from_before_a_field_of_the_tokenizer_is_the_same(corpus):
    request = corpus.manifest["request"]
    older = {name: value for name, value in request.items() if name != "tokenizer.min_count"}
    assert len(older) == len(request) - 1 and prepare._same(
        types.SimpleNamespace(manifest={"request": older}), request, "--out"
    )


def test_other_inputs_are_named(corpus, text_file, tmp_path):
    (tmp_path / "other.txt").write_text("Other text.")
    with pytest.raises(UserError, match="other inputs: .*choose another --out") as caught:
        prepare.prepare(
            [str(tmp_path / "other.txt")],
            corpus.dir,
            tokenizer=TokenizerSpec(vocab=99),
            heldout=0.1,
        )
    for field in (
        "sources",
        "tokenizer.vocab (it has 160, given 99)",
        "block_tokens (it has 512, given 8192)",
    ):
        assert field in str(caught.value)
    assert "heldout" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["Word one two three. " * 2000, "\n".join(f"Line {i} of text." for i in range(4000))]
)
def test_one_giant_and_two_small_documents_leave_something_to_hold_out(tmp_path, text):
    (tmp_path / "x.txt").write_text(text)
    found = prepare.prepare(
        [str(tmp_path / "x.txt")], tmp_path / "c", tokenizer=TokenizerSpec(vocab=30)
    )
    assert found.size("heldout")["blocks"] >= 1 and found.size("train")["documents"] > 10
    assert found.size("heldout")["tokens"] < 0.2 * found.size("train")["tokens"]
    (tmp_path / "y.txt").write_text("It is here now.\n\nIt is there now.\n")
    found = prepare.prepare(
        [str(tmp_path / "y.txt")], tmp_path / "d", tokenizer=TokenizerSpec(vocab=19)
    )
    assert [found.size(s)["documents"] for s in store.SPLITS] == [1, 1]


def test_long_document_is_divided_and_flagged(tmp_path):
    lengths = np.array([5, 30, 70, 4], np.int32)  # the third is longer than a block
    tokens = np.arange(109, dtype=np.int32)
    shard = shards.Shard(tmp_path, "train-0", 200, 32)
    shard.add(worker.Tokens(tokens, lengths, np.array([4], np.int32)))
    shard.finish()
    found = stored([str(tmp_path / "train-0.array_record")])
    assert np.array_equal(np.concatenate([b.tokens for b in found]), tokens)
    assert [bool(b.continued[0]) for b in found] == [False] + [True] * (len(found) - 1)
    assert all(len(b.tokens) <= 32 and b.sentences.sum() == len(b.tokens) for b in found)


@pytest.mark.parametrize("largest", [300, 70_000])
def test_record_round_trip(largest):
    ones = np.ones(2, np.int32)
    block = block_records.Block(
        np.array([1, largest, 3], np.int32),
        np.array([2, 1], np.int32),
        ones,
        np.array([True, False]),
    )
    again = block_records.from_bytes(block_records.to_bytes(block))
    for name in ("tokens", "sentences", "documents", "continued"):
        assert np.array_equal(getattr(again, name), getattr(block, name))
    with pytest.raises(UserError, match="damaged"):
        block_records.from_bytes(block_records.to_bytes(block)[:-1])


class Killed(BaseException):
    """What no handler in the code may swallow."""


def killer(function, calls):
    left = [calls]

    def wrapped(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.full
@pytest.mark.parametrize("place, calls", [
    ((spool, "_index"), 0), ((vocabularies, "make"), 0), ((shards.Shard, "_write"), 0),
    ((shards.Shard, "_write"), 9),
    ((shards.Shard, "finish"), 0), ((shards.Shard, "finish"), 1), ((store, "digest"), 0),
    ((shutil, "rmtree"), 0),
])  # fmt: skip
def test_killed_and_run_again(tmp_path, corpus, text_file, options, monkeypatch, place, calls):
    out = tmp_path / "c"
    with monkeypatch.context() as patch:
        patch.setattr(*place, killer(getattr(*place), calls))
        with pytest.raises(Killed):
            prepare.prepare([str(text_file)], out, **options)
    assert not out.exists()
    if (tmp_path / ".c.preparing" / "tokenizer").exists():
        monkeypatch.setattr(vocabularies, "make", None)  # a finished stage is not repeated
    prepare.prepare([str(text_file)], out, **options)
    assert contents(out) == contents(corpus.dir)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_leftovers_of_other_inputs_are_cleared(tmp_path, corpus, text_file, options):
    partial = tmp_path / ".c.preparing"
    (partial / "tokenizer").mkdir(parents=True)
    (partial / "train-00000-of-00001.done.json").write_text("{}")
    (partial / "request.json").write_text("{}")
    prepare.prepare([str(text_file)], tmp_path / "c", **options)
    assert contents(tmp_path / "c") == contents(corpus.dir)


@pytest.mark.full
@pytest.mark.parametrize("limit", [20_000, 100_000], ids=["text", "records"])
def test_full_disk(tmp_path, text_file, limit):
    """A real refusal of the system: files may not grow past `limit` bytes; record files have
    131,072 at least."""
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text()[:60_000])
    code = (
        "import resource, sys; from ptm_jax.data.corpora import prepare; from "
        "ptm_jax.data.tokenizers import tokenizing\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try: prepare.prepare([sys.argv[1]], sys.argv[2], "
        "tokenizer=tokenizing.TokenizerSpec(vocab=160))\n"
        "except prepare.UserError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(text), str(tmp_path / "c")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert "no space left to write" in result.stdout and result.stdout.count("\n") == 1, result
    assert list(tmp_path.iterdir()) == [text]


def test_two_at_once(tmp_path, text_file, spec):
    (tmp_path / ".c.preparing").mkdir()
    with (tmp_path / ".c.preparing" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is preparing"):
            prepare.prepare([str(text_file)], tmp_path / "c", tokenizer=spec)


@pytest.mark.parametrize("out, changes, message", [
    ("/proc/ptm/c", {}, "cannot write /proc/ptm/c"),
    ("", {}, "is not a prepared corpus"),  # a folder of something else
    ("c", {"heldout": 1.0}, "expected a share"),
    ("c", {"heldout": -0.1}, "expected a share"),
    ("c", {"block_tokens": 4}, "expected a share"),
])  # fmt: skip
def test_bad_requests(tmp_path, text_file, spec, out, changes, message):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match=message):
        prepare.prepare([str(text_file)], tmp_path / out, **({"tokenizer": spec} | changes))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_bad_source_leaves_nothing(tmp_path, spec):
    (tmp_path / "x.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare.prepare([str(tmp_path / "x.txt")], tmp_path / "c", tokenizer=spec)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name, damage, message", [
    ("manifest.json", None, "not a prepared corpus"),
    ("manifest.json", lambda d: d[:9], "is damaged"),
    ("manifest.json", lambda d: b"[]", "is damaged"),
    ("manifest.json", lambda d: b'{"format": 99, "digest": ""}', "has format 99"),
    ("manifest.json", lambda d: d.replace(b'"mask": 4', b'"mask": 9'), "was changed"),
    ("train-00000-of-00001.array_record", lambda d: d[:-100], "bytes long instead of"),
    ("heldout-00000-of-00001.array_record", None, "is missing"),
    ("tokenizer/tokenizer.json", lambda d: b"{}", "no readable tokenizer"),
    ("counts.npy", lambda d: b"", "counts.npy is missing or damaged"),
    ("counts.npy", lambda d: d[:-1] + bytes([d[-1] ^ 1]),
    "counts.npy was changed after it was written"),
    ("counts.npy", lambda d: saved_counts(np.load(io.BytesIO(d))[:, ::-1]),
    "counts.npy was changed"),
    ("train-00000-of-00001.array_record", lambda d: d[:9999] + bytes(len(d) - 9999),
    "a shard of .*c is damaged .*prepare"),
    ("train-00000-of-00001.array_record", lambda d: d[:99] + bytes([d[99] ^ 1]) + d[100:],
    "a shard of .*c is damaged"),
])  # fmt: skip
def test_damage(tmp_path, corpus, name, damage, message):
    path = shutil.copytree(corpus.dir, tmp_path / "c") / name
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    with pytest.raises(UserError, match=message):
        found = store.open_corpus(tmp_path / "c")
        found.tokenizer()
        found.counts()
        blocks = store.Blocks(found, "train")
        assert [blocks[i] for i in range(len(blocks))]


def saved_counts(counts):
    np.save(file := io.BytesIO(), counts)
    return file.getvalue()


@pytest.mark.parametrize(
    "change", [lambda c: c[:, :-1], lambda c: c + np.eye(*c.shape, dtype=c.dtype), lambda c: c[0]]
)
def test_counts_of_a_corpus_without_their_hash_are_compared_with_the_manifest(
    tmp_path, corpus, change
):
    folder = shutil.copytree(corpus.dir, tmp_path / "c")
    manifest = {
        name: part for name, part in corpus.manifest.items() if name != "arrays"
    }  # as older versions wrote it
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert np.array_equal(store.open_corpus(folder).counts(), corpus.counts())
    (folder / "counts.npy").write_bytes(saved_counts(change(np.load(folder / "counts.npy"))))
    with pytest.raises(UserError, match="counts.npy was changed"):
        store.open_corpus(folder).counts()


class Mine:
    """A kind of corpus of a user's own."""

    def __init__(self, folder, manifest):
        self.folder, self.manifest = folder, manifest


def test_other_kinds_of_corpora_are_opened_by_registration(tmp_path, monkeypatch):
    monkeypatch.setitem(store.formats, "mine-1", Mine)
    manifest = {"format": "mine-1"}
    manifest["digest"] = store.digest(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = store.open_corpus(tmp_path)
    assert isinstance(found, Mine) and found.folder == tmp_path and found.manifest == manifest


def test_another_tokenizer_is_noticed(tmp_path, corpus, text_file):
    other = prepare.prepare([str(text_file)], tmp_path / "o", tokenizer=TokenizerSpec(vocab=150))
    shutil.copytree(corpus.dir, tmp_path / "c")
    shutil.copytree(other.dir / "tokenizer", tmp_path / "c" / "tokenizer", dirs_exist_ok=True)
    with pytest.raises(UserError, match="is not the one of its manifest"):
        store.open_corpus(tmp_path / "c").tokenizer()


@pytest.mark.full
def test_dead_worker_is_an_error(corpus):
    chunks = [[b"one two"], [b"three"]]
    with pytest.raises(UserError, match="tokenizer process ended with status"):
        list(worker.tokenize(chunks, corpus.dir / "nowhere", workers=2))
