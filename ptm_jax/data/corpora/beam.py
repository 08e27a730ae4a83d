"""`prepare` as an Apache Beam pipeline.
It writes the same bytes as one machine, because order depends on documents alone.

    parts -> documents -> steps of the cleaning -> parts of long ones -> index -> layout
                                                        |                           |
                                                        +-> tokenizer, shards <-----+

One worker reads a part (one file), and one writes a shard. The index (32 bytes for each distinct
text) and the text that trains the tokenizer are collected on one worker. Workers rename a file when
it is complete, so another worker, or another run of the command, replaces one that died; finished
shards are kept.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import logging
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import splits, spool, worker
from ptm_jax.data.corpora.jobs import CHUNK_BYTES, REPORT, Job
from ptm_jax.data.corpora.runners import Runner
from ptm_jax.data.text import cleaning, remote, sources
from ptm_jax.data.text.documents import Document
from ptm_jax.data.tokenizers import saved, tokenizing, vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences Beam's warnings on import, which add a handler to the root logger."""
    handlers, level = list(logging.root.handlers), logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        logging.root.handlers[:] = handlers


try:
    with quiet():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise UserError(
        f"--runner needs Apache Beam ({error}); run pip install 'ptm_jax[beam]'"
    ) from None

_TOKENIZER = "tokenizer.done.json"


def options(runner: Runner) -> PipelineOptions:
    """Returns Beam's options of a runner. Raises UserError for one that Beam does not know."""
    lines, log = [], logging.getLogger("apache_beam.options.pipeline_options")
    listener = logging.Handler()
    listener.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(listener)
    log.propagate = False
    try:
        pipeline_options = PipelineOptions(runner.flags())
        pipeline_options.get_all_options()
    finally:
        log.removeHandler(listener)
        log.propagate = True
    if unknown := [
        word for line in lines if "unparseable" in line for word in re.findall(r"--\w+", line)
    ]:
        raise UserError(
            f"Apache Beam knows no option {unknown[0]}; see the options of its {runner.kind} runner"
        )
    return pipeline_options


def submit(job: Job, runner: Runner) -> None:
    """Runs the pipeline from this process to its end. Raises UserError where it fails."""
    for left in job.folder.glob(".*"):  # of a worker that died
        left.unlink()
    run(lambda pipeline: build(pipeline, job), runner)


def run(steps: Callable[[beam.Pipeline], None], runner: Runner) -> None:
    """Runs a pipeline, to which `steps` adds its transforms, from this process to its end.
    Raises UserError where it fails."""
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    try:
        pipeline = beam.Pipeline(options=options(runner))
    except ValueError as error:  # a runner refuses its options
        raise UserError(
            f"--runner {runner.kind}: {' '.join(str(error).split())}; see --runner-options"
        ) from None
    steps(pipeline)
    try:
        pipeline.run().wait_until_finish()
    except UserError as error:  # of a worker that is this process
        raise UserError(re.sub(r" \[while running .*", "", str(error))) from None
    except Exception as error:  # the error of a worker arrives as the text of its traceback
        messages = re.findall(r"UserError: (.*?)(?: \[while running.*)?$", str(error), re.MULTILINE)
        if messages:
            raise UserError(messages[-1]) from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UserError(
            f"the pipeline on {runner.kind} failed ({reason}); run the command again to continue"
        ) from error


def build(pipeline: beam.Pipeline, job: Job) -> None:
    """Adds all steps of a job to the pipeline."""
    documents = (
        pipeline
        | "parts"
        >> beam.Create(
            [(number, *part, job.document_bytes) for number, part in enumerate(job.parts)]
        )
        | "spread" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(_read)
    )
    if job.steps:
        documents = _cleaned(documents, job)
    raw = documents | "to bytes" >> beam.MapTuple(
        lambda place, plain: spool.to_bytes(_document(plain))
    )
    total = raw | "sizes" >> beam.Map(len) | "total" >> beam.CombineGlobally(sum)
    texts = (
        raw
        | "divide" >> beam.FlatMap(_divide, beam.pvalue.AsSingleton(total), job.seed)
        | "equal texts" >> beam.GroupByKey()
        | "copies" >> beam.MapTuple(_copies)
    )
    plan = beam.pvalue.AsSingleton(
        texts
        | "entries"
        >> beam.MapTuple(
            lambda hashes, text, copies: struct.pack("<QQQQ", *hashes, len(text), copies)
        )
        | "layout"
        >> beam.CombineGlobally(_Layout(job.heldout, job.shard_bytes, job.spec.train_bytes))
    )
    tokenizer = beam.pvalue.AsSingleton(_tokenizer(pipeline, texts, plan, job))
    (
        texts
        | "to shards" >> beam.FlatMap(_to_shards, plan)
        | "shards" >> beam.GroupByKey()
        | "write" >> beam.Map(_write, job, tokenizer, plan)
    )


def _read(part: tuple[int, str, str, int]) -> Iterator[tuple[tuple[int, int], tuple]]:
    """Yields (place, document) of everything in a part."""
    number, *source = part
    for count, item in enumerate(sources.read(*source)):
        yield (number, count), (item.sentences, item.lines)


def _document(plain: tuple) -> Document:
    return Document(tuple(plain[0]), tuple(plain[1]))


def _cleaned(documents, job: Job):
    """Returns the documents after the cleaning; writes the counts into the report."""
    counts = [documents | "read ones" >> beam.Map(lambda _: ("read", 1))]
    for number, step in enumerate(job.steps):
        name = f"{number} {type(step).__name__.lower()}"
        settled = (_compared if isinstance(step, cleaning.Duplicates) else _judged)(
            documents, step, name
        )
        documents = settled["documents"]
        counts.append(settled["counts"])
    clean_ones = documents | "kept ones" >> beam.Map(lambda _: ("kept", 1))
    (
        [*counts, clean_ones]
        | "all counts" >> beam.Flatten()
        | "sum counts" >> beam.CombinePerKey(sum)
        | "one list" >> beam.combiners.ToList()
        | "report" >> beam.Map(lambda counts: json.dumps(cleaning.report(dict(counts))))
        | "write report" >> beam.Map(_put, f"{job.place}/{REPORT}")
    )
    return documents


def _judged(documents, step: cleaning.Rule, name: str):
    """A rule on each document: the documents that pass, and the counts of removals ('counts')."""

    def judge(place, plain):
        return _verdict(place, step(_document(plain)))

    return documents | name >> beam.FlatMapTuple(judge).with_outputs("counts", main="documents")


def _verdict(place: tuple[int, int], verdict: cleaning.Verdict) -> Iterator[Any]:
    for name, count in verdict.counts.items():
        yield beam.pvalue.TaggedOutput("counts", (name, count))
    if verdict.document is not None:
        yield place, (verdict.document.sentences, verdict.document.lines)


def _compared(documents, step: cleaning.Duplicates, name: str):
    """A search for duplicates: claims are grouped by key, and lost claims joined with their
    documents."""

    def claims(element):
        place, plain = element
        for number, (key, evidence) in enumerate(step.claims(_document(plain))):
            yield key, (place, number, evidence)

    def lost(key, claims):
        holders = []
        for place, number, evidence in sorted(claims):
            if cleaning.loses(holders, evidence, step):
                yield place, number

    def settle(element):
        place, joined_values = element
        (plain,) = joined_values["documents"]
        yield from _verdict(place, step.settle(_document(plain), sorted(joined_values["lost"])))

    joined_values = (
        documents
        | f"{name}: claims" >> beam.FlatMap(claims)
        | f"{name}: keys" >> beam.GroupByKey()
        | f"{name}: lost" >> beam.FlatMapTuple(lost)
    )
    joined = {
        "documents": documents,
        "lost": joined_values,
    } | f"{name}: join" >> beam.CoGroupByKey()
    return joined | f"{name}: settle" >> beam.FlatMap(settle).with_outputs(
        "counts", main="documents"
    )


def _put(text: str, target: str) -> None:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        remote.put(Path(file.name), target)


def _divide(raw: bytes, total: int, seed: int) -> Iterator[tuple[tuple[bytes, bytes], bytes]]:
    """Yields ((order, share), text) of the parts of a document, as bytes, which Beam can
    compare."""
    for part in spool.parts(raw, spool.longest_part(total)):
        order, share = spool.hashes(part, seed)
        yield (order.to_bytes(8, "big"), share.to_bytes(8, "big")), part


def _copies(key: tuple[bytes, bytes], texts: Iterable[bytes]) -> tuple[tuple[int, int], bytes, int]:
    """Returns ((order, share), text, number of equal texts)."""
    for count, text in enumerate(texts, 1):  # noqa: B007
        pass
    return (int.from_bytes(key[0], "big"), int.from_bytes(key[1], "big")), text, count


class _Layout(beam.CombineFn):
    """Combines the packed entries of all texts into their layout."""

    def __init__(self, heldout: float, shard_bytes: int, train_bytes: int):
        self._how = (heldout, shard_bytes, train_bytes)

    def create_accumulator(self):
        return bytearray()

    def add_input(self, accumulator, entry):
        accumulator += entry
        return accumulator

    def merge_accumulators(self, accumulators):
        return bytearray(b"".join(accumulators))

    def extract_output(self, accumulator):
        index = np.frombuffer(bytes(accumulator), "<u8").reshape(-1, 4).T
        return splits.layout(index, *self._how)


def _to_shards(
    text, plan: splits.Layout
) -> Iterator[tuple[tuple[str, int], tuple[bytes, bytes, int]]]:
    (order, share), raw, copies = text
    where = collections.Counter((split, shard) for split, shard, _ in plan.of(order, share, copies))
    for key, count in where.items():
        yield key, (order.to_bytes(8, "big"), raw, count)


def _to_training(text, plan: splits.Layout) -> Iterator[tuple[int, tuple[bytes, bytes, int]]]:
    (order, share), raw, copies = text
    if count := sum(trains for _, _, trains in plan.of(order, share, copies)):
        yield 0, (order.to_bytes(8, "big"), raw, count)


def _in_order(texts: Iterable[tuple[bytes, bytes, int]]) -> Iterator[bytes]:
    for _, raw, copies in sorted(texts):
        for _ in range(copies):
            yield raw


def _tokenizer(pipeline, texts, plan, job: Job):
    """Returns the files of the tokenizer, {name: base 64}: of an earlier run, of `spec.path`, or
    trained."""
    target = f"{job.place}/{_TOKENIZER}"
    if job.spec.path is not None and not remote.exists(target):
        _put(json.dumps(_packed(vocabularies.read(job.spec))), target)
    if remote.exists(target):
        with (
            remote.local(target)
            if remote.is_remote(target)
            else contextlib.nullcontext(Path(target)) as path
        ):
            return pipeline | "tokenizer" >> beam.Create([json.loads(path.read_text())])
    return (
        texts
        | "to training" >> beam.FlatMap(_to_training, plan)
        | "training text" >> beam.GroupByKey()
        | "train" >> beam.Map(_train, job.spec, target)
    )


def _train(
    numbered: tuple[int, Iterable[tuple[bytes, bytes, int]]], spec: TokenizerSpec, target: str
) -> dict[str, str]:
    trained = vocabularies.make(
        spec, (line for raw in _in_order(numbered[1]) for line in spool.from_bytes(raw))
    )
    files = _packed(trained)
    _put(json.dumps(files), target)
    return files


def _packed(tokenizer: tokenizing.Tokenizer) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer.save(Path(temporary) / "saved")
        files = sorted((Path(temporary) / "saved").iterdir())
        return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}


def _write_files(files: dict[str, str], folder: Path) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(base64.b64decode(content))


def unpack(folder: Path) -> None:
    """Writes the tokenizer's folder from the file that a pipeline wrote into `folder`."""
    if not (folder / "tokenizer").exists():
        _write_files(json.loads((folder / _TOKENIZER).read_text()), folder / "tokenizer.partial")
        (folder / "tokenizer.partial").rename(folder / "tokenizer")


def _write(element: tuple, job: Job, files: dict[str, str], plan: splits.Layout) -> None:
    """Tokenizes the texts of one shard and writes it."""
    (split, number), texts = element
    count = plan.shards(split)
    name = job.shard_name(split, number, count)
    if remote.exists(f"{job.place}/{name}.done.json"):
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write_files(files, folder / "tokenizer")
        tokenizer = saved.load(folder / "tokenizer")
        shard = job.shard(split, number, count, len(tokenizer.pieces), folder)
        for chunk in spool.chunks(_in_order(texts), CHUNK_BYTES):
            shard.add(worker.encode(tokenizer, chunk))
        shard.finish()
        for path in sorted(folder.glob(f"{name}.*"), key=lambda path: path.suffix == ".json"):
            remote.put(path, f"{job.place}/{path.name}")  # the mark of a finished shard comes last
