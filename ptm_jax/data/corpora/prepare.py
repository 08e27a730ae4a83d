"""Preparation of a corpus: split, tokenizer, tokens in parallel, shards.

Everything is written into `.NAME.preparing` in the output's parent folder and renamed at the end,
so the output is complete or absent. Every stage renames its result when it is complete, and an
interrupted run continues with the first unfinished stage or shard. The result is a function of the
inputs alone, byte for byte, for any number of workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core import cache
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import direct, jobs, store
from ptm_jax.data.corpora.jobs import REPORT, Job, Progress, request_of
from ptm_jax.data.corpora.runners import Runner
from ptm_jax.data.corpora.shards import Shard
from ptm_jax.data.languages import mix
from ptm_jax.data.languages.codes import grouped
from ptm_jax.data.stores import fetched, working
from ptm_jax.data.text import cleaning as clean_text
from ptm_jax.data.text import remote
from ptm_jax.data.text import sources as text_sources
from ptm_jax.data.text.bounded import DOCUMENT_BYTES
from ptm_jax.data.tokenizers import saved
from ptm_jax.data.tokenizers.tokenizing import Tokenizer, TokenizerSpec
from ptm_jax.statistics import cooccurrences as pairs

SHARD_BYTES = 64_000_000


def prepare(
    sources: Sequence[str],
    out: str | Path,
    *,
    tokenizer: TokenizerSpec,
    heldout: float = 0.02,
    seed: int = 0,
    workers: int | None = None,
    block_tokens: int = 8192,
    cleaning: Sequence[clean_text.Rule | clean_text.Duplicates] = (),
    cooccurrence: int | None = None,
    document_bytes: int = DOCUMENT_BYTES,
    runner: Runner | None = None,
    progress: Progress | None = None,
    option: str = "--out",
) -> store.Corpus:
    """Prepares the corpus of `sources` in `out` and returns it.
    Returns at once where it is prepared already.

    out           a folder, or a URL of an object store (gs://, s3://)
    heldout       share of the text for evaluation, in whole documents
    workers       processes (None: one per core, or one for little text); no effect on the result
    block_tokens  tokens of a block, the unit of reading and shuffling
    cleaning      steps that documents pass in order; counts of what they remove are in the
                  manifest's `cleaning`
    cooccurrence  words to either side whose co-occurrences are counted now (`Corpus.cooccurrence`;
                  None: when needed)
    document_bytes   bytes of one document of a file at most, decompressed; no effect on the result
    runner        the runner of an Apache Beam pipeline (None: this machine, without Beam); no
                  effect on the result
    progress      called as (stage, done, total), total 0 where it is unknown
    option        the option that named `out`, for errors

    Raises UserError for bad sources, for an `out` of other inputs (naming them), and for a full or
    read-only disk.
    """
    pairs.check(cooccurrence)
    out = working.opened(out, "out").expanduser()
    request = request_of(sources, tokenizer, heldout, seed, block_tokens)
    request |= {"cleaning": clean_text.described(cleaning)} if cleaning else {}
    languages = _languages(sources, runner)
    request |= {"languages": [*languages]} if languages else {}
    if fetched.is_corpus(fetched.corpus(out)):
        return _counted(_same(store.open_corpus(out), request, option), cooccurrence)
    _check_free(out, option)
    partial = out.absolute().parent / f".{out.name}.preparing"
    with _plain_errors(out, partial, option), _locked(partial, out, option):
        if (out / "manifest.json").exists():  # another run finished while this one waited
            return _counted(_same(store.open_corpus(out), request, option), cooccurrence)
        job = Job(
            tuple(text_sources.parts(sources)), partial, str(partial), tokenizer, heldout, seed,
            block_tokens, tuple(cleaning), SHARD_BYTES, document_bytes,
        )  # fmt: skip
        make = functools.partial(_made, job, languages, workers, runner, progress)
        _write(partial, out, request, make)
    working.push(out)
    return _counted(store.open_corpus(out), cooccurrence)


def _languages(sources: Sequence[str], runner: Runner | None) -> dict[str, list[str]]:
    """Returns {language, or pair: its sources}. Raises UserError for a pipeline of several."""
    languages = grouped(sources)
    if languages and runner is not None:
        raise UserError(
            "a pipeline prepares text without languages; leave --runner out, or give the text "
            "without language:"
        )
    return languages


def _made(
    job: Job,
    languages: dict[str, list[str]],
    workers: int | None,
    runner: Runner | None,
    progress: Progress | None,
) -> dict[str, dict[str, list[Shard]]]:
    """Writes the shards of each language; without languages its name is ""."""
    if runner is not None:
        return {"": _there(job, runner, progress)}
    each = {name: _job_of(job, name, group) for name, group in languages.items()} or {"": job}
    return dict(zip(each, jobs.write([*each.values()], workers, progress), strict=True))


def _job_of(job: Job, name: str, sources: Sequence[str]) -> Job:
    """Returns the job of a language. Sentences of translations stay in pairs: no cleaning."""
    parts = tuple(text_sources.parts(sources))
    steps = () if "-" in name else job.steps
    return dataclasses.replace(job, parts=parts, language=name, steps=steps)


def _check_free(out: Path, option: str) -> None:
    """Raises UserError for a path that is neither free nor an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} exists and is not a prepared corpus; choose another {option} or delete it"
        )


def _write(partial: Path, out: Path, request: dict[str, Any], make: Callable[[], Any]) -> None:
    """Writes the shards of `make()` and the manifest into `partial`, then renames it to `out`.

    After a UserError, which is a bad input, nothing is left to continue; after any other stop the
    next run continues."""
    try:
        _begin(partial, request)
        _write_manifest(partial, make(), request)
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _clear(partial)
    if out.exists():
        out.rmdir()
    partial.rename(out)


def _counted(corpus: store.Corpus, window: int | None) -> store.Corpus:
    """Returns the corpus; the co-occurrences of a window are counted if they are wanted and not
    there."""
    if window is not None:
        corpus.cooccurrence(window)
    return corpus


def _there(job: Job, runner: Runner, progress: Progress | None) -> dict[str, list[Shard]]:
    """Writes the shards by a pipeline, whose workers may have another working directory."""
    here = [kind == "file" and not remote.is_remote(name) for kind, name in job.parts]
    if runner.kind == "dataflow" and (runner.staging is None or any(here)):
        raise UserError(
            "the workers of dataflow see no folder of this machine; give --staging and "
            "--data as gs:// URLs"
        )
    from ptm_jax.data.corpora import beam  # Apache Beam is an optional dependency

    beam.options(runner)
    if progress:
        progress(f"running on {runner.kind}", 0, 0)
    run = direct.run if runner.kind == "direct" else beam.submit
    parts = [
        (kind, str(Path(name).absolute()) if of_user else name)
        for of_user, (kind, name) in zip(here, job.parts, strict=True)
    ]
    job = dataclasses.replace(job, parts=tuple(parts))
    if runner.staging is None:
        run(job, runner)
    else:  # a folder of its own for every request, so that files in it are of this request
        name = hashlib.sha256((job.folder / "request.json").read_bytes()).hexdigest()[:16]
        job = dataclasses.replace(job, place=f"{runner.staging.rstrip('/')}/ptm-prepare-{name}")
        remote.make(job.place)
        run(job, runner)
        remote.fetch(job.place, job.folder)
        remote.delete(job.place)
    jobs.refuse_nothing(job.report)
    beam.unpack(job.folder)
    vocab, shards = len(saved.load(job.folder / "tokenizer").pieces), {}
    for split in store.SPLITS:
        count = len(list(job.folder.glob(f"{split}-*.done.json")))
        shards[split] = [job.shard(split, number, count, vocab) for number in range(count)]
    return shards


def _write_manifest(
    folder: Path, written: dict[str, dict[str, list[Shard]]], request: dict[str, Any]
) -> None:
    """Writes the sums over all shards: `counts.npy` and `manifest.json`.

    written   {language: {split: shards}}; one of the name "" in a corpus without languages
    """
    tokenizer = saved.load(folder / "tokenizer")
    size = len(tokenizer.pieces)
    counts = {name: _counts(shards, size) for name, shards in written.items()}
    np.save(folder / store.COUNTS, sum(counts.values()))
    together = {
        split: [shard for shards in written.values() for shard in shards[split]]
        for split in store.SPLITS
    }
    manifest = {
        "format": store.FORMAT,
        "vocab": dataclasses.asdict(tokenizer.vocab),
        "tokenizer": {"hash": tokenizer.hash, "kind": tokenizer.kind},
        "splits": _sizes(together),
        "request": request,
    }
    if "" not in written:
        manifest["languages"] = {
            name: mix.facts(_sizes(shards), counts[name], tokenizer.vocab)
            for name, shards in written.items()
        }
        manifest["words"] = _words(tokenizer, counts)
    if reports := [json.loads(path.read_text()) for path in sorted(folder.glob(f"*{REPORT}"))]:
        manifest["cleaning"] = clean_text.total(reports)
    manifest["arrays"] = {
        store.COUNTS: hashlib.sha256((folder / store.COUNTS).read_bytes()).hexdigest()
    }
    manifest["digest"] = store.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _words(tokenizer: Tokenizer, counts: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Returns {language: pieces that begin a word}; {} of a tokenizer that marks the ends."""
    try:
        begins = tokenizer.word_starts()
    except UserError:
        return {}
    return {name: int(both[:, begins].sum()) for name, both in counts.items()}


def _counts(shards: dict[str, list[Shard]], size: int) -> np.ndarray:
    """Returns [2, V] int64: the counts of ids in each split."""
    counts = np.zeros((len(store.SPLITS), size), np.int64)
    for row, split in enumerate(store.SPLITS):
        for shard in shards[split]:
            counts[row] += shard.counts()
    return counts


def _sizes(shards: dict[str, list[Shard]]) -> dict[str, dict[str, Any]]:
    """Returns the sums of each split, and its shards."""
    facts = {split: [shard.facts() for shard in shards[split]] for split in store.SPLITS}
    return {
        split: {
            name: sum(shard[name] for shard in facts[split])
            for name in ("documents", "sentences", "tokens", "blocks")
        }
        | {"shards": [{k: s[k] for k in ("file", "bytes", "blocks")} for s in facts[split]]}
        for split in store.SPLITS
    }


def _clear(partial: Path) -> None:
    """Deletes everything that is not part of the result."""
    for folder in partial.glob("*spool"):
        shutil.rmtree(folder, ignore_errors=True)
    for path in [
        partial / "request.json",
        partial / "lock",
        *partial.glob("*.done*"),
        *partial.glob(".*"),
    ]:
        path.unlink()


def _same(corpus: store.Corpus, request: dict[str, Any], option: str) -> store.Corpus:
    """Returns the corpus if it was prepared from `request`, comparing sources by hash.
    Raises UserError otherwise."""
    old = {
        f"tokenizer.{field.name}": field.default for field in dataclasses.fields(TokenizerSpec)
    }  # of older corpora
    old |= {
        name: value for name, value in corpus.manifest["request"].items() if name != "cooccurrence"
    }  # of older corpora
    changed = []
    for field in sorted(old.keys() | request.keys()):
        before, now = old.get(field), request.get(field)
        if field == "sources":
            if [s["sha256"] for s in before] != [s["sha256"] for s in now]:
                names = ", ".join(sorted({s["source"] for s in before}))
                changed.append(
                    f"sources (it holds {names if len(names) < 200 else f'{len(before)} files'})"
                )
        elif before != now:
            changed.append(f"{field} (it has {before}, given {now})")
    if changed:
        facts = "; ".join(changed)
        raise UserError(
            f"{corpus.dir} was prepared with other inputs: {facts}; choose another {option}, or "
            "give the same inputs again"
        )
    return corpus


def _begin(partial: Path, request: dict[str, Any]) -> None:
    """Deletes the files of earlier runs unless they had the same inputs."""
    path, text = partial / "request.json", json.dumps(request, sort_keys=True)
    if path.exists() and path.read_text() == text:
        return
    for entry in partial.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    path.write_text(text)


@contextlib.contextmanager
def _locked(partial: Path, out: Path, option: str) -> Iterator[None]:
    partial.mkdir(parents=True, exist_ok=True)
    with cache.locked(partial / "lock", wait=False) as handle:
        if handle is None:
            raise UserError(
                f"another process is preparing {out}; wait for it or choose another {option}"
            )
        yield


@contextlib.contextmanager
def _plain_errors(out: Path, partial: Path, option: str) -> Iterator[None]:
    """Raises UserError for OSError; on a full disk the written files are deleted."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            shutil.rmtree(partial, ignore_errors=True)
            free = f"free some space or choose a {option} on another disk ({reason})"
            raise UserError(f"no space left to write {out}; nothing was kept: {free}") from None
        raise UserError(
            f"cannot write {out}: {reason}; choose a {option} that can be written"
        ) from None
