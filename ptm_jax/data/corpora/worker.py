"""Tokenization of many documents, in this process or in several.

Workers are `python -m ptm_jax.data.corpora.worker` processes that communicate over pipes. Unlike
forked processes they are safe with JAX's threads, and unlike `multiprocessing`'s they need no guard
in the caller's script.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import spool
from ptm_jax.data.tokenizers import saved, tokenizing


class Tokens(NamedTuple):
    """Documents as ids, all int32.
    Tokens [T], tokens of every sentence [S], sentences of every document [N]."""

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


def tokenize(chunks: Iterable[list[bytes]], folder: str | Path, workers: int) -> Iterator[Tokens]:
    """Yields the ids of every chunk, in order. A document is UTF-8 with one sentence on every line.

    `folder` holds the tokenizer. At most `2 * workers` chunks are in memory. Raises UserError where
    a worker dies.
    """
    if workers <= 1:
        tokenizer = saved.load(folder)
        yield from (encode(tokenizer, chunk) for chunk in chunks)
        return
    processes: list[subprocess.Popen] = []
    local = threading.local()

    def start() -> None:
        command = [sys.executable, "-m", __name__, str(folder)]
        local.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        processes.append(local.process)

    pool = concurrent.futures.ThreadPoolExecutor(workers, initializer=start)

    def work(chunk):
        return _ask(local.process, chunk)

    try:
        chunks, pending = iter(chunks), collections.deque()
        for chunk in itertools.islice(chunks, 2 * workers):
            pending.append(pool.submit(work, chunk))
        while pending:
            result = pending.popleft().result()
            for chunk in itertools.islice(chunks, 1):
                pending.append(pool.submit(work, chunk))
            yield result
    finally:
        for process in list(processes):
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(OSError):  # unsent data have no reader
                process.stdin.close()
            process.stdout.close()
            process.wait()


def encode(tokenizer: tokenizing.Tokenizer, chunk: list[bytes]) -> Tokens:
    """Returns the ids of a chunk; sentences and documents without ids are left out."""
    texts = [spool.from_bytes(document) for document in chunk]
    rows = tokenizer.encode_batch([sentence for document in texts for sentence in document])
    lengths = np.array([len(row) for row in rows], np.int32)
    ends = np.cumsum([len(document) for document in texts])
    filled = np.concatenate([[0], np.cumsum(lengths > 0)])[np.concatenate([[0], ends])]
    documents = np.diff(filled).astype(np.int32)
    tokens = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return Tokens(tokens.astype(np.int32), lengths[lengths > 0], documents[documents > 0])


def environment() -> dict[str, str]:
    """Returns the environment of a process that imports what this one can."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return os.environ | {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}


def _ask(process: subprocess.Popen, chunk: list[bytes]) -> Tokens:
    try:
        pickle.dump(chunk, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        return Tokens(*pickle.load(process.stdout))
    except (EOFError, OSError, pickle.UnpicklingError):
        status = process.wait()
        raise UserError(
            f"a tokenizer process ended with status {status}, perhaps out of memory; run "
            "again with fewer workers"
        ) from None


def main() -> None:
    """Reads pickled chunks from stdin and writes their ids to stdout until stdin ends."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not get between the answers
    tokenizer = saved.load(sys.argv[1])
    while True:
        try:
            chunk = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(tuple(encode(tokenizer, chunk)), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    main()
