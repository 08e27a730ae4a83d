"""Sources of text: files, globs, directories, `tfds:name/config` and `pydocs`, as one stream of
documents."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.reading import size_of
from ptm_jax.data.graphs import folders as graphs
from ptm_jax.data.graphs import triple_sentences as sentences
from ptm_jax.data.text import bitext, pydocs, remote, textfiles
from ptm_jax.data.text.bounded import DOCUMENT_BYTES
from ptm_jax.data.text.documents import Document, document
from ptm_jax.data.trees import treebanks as trees

_FORMATS = f"{', '.join(textfiles.FORMATS)} (or {', '.join(textfiles.COMPRESSIONS)})"


def documents(sources: Sequence[str], document_bytes: int = DOCUMENT_BYTES) -> Iterator[Document]:
    """Yields the documents of `sources`, in the given order (files of a glob or directory by name).

    A source is a path or glob of txt, jsonl, csv, tsv or parquet files, Wikipedia dumps
    (pages-articles.xml), Common Crawl's text (wet) or OpenWebText's tars, also compressed (gz, bz2,
    zst, xz), a directory of them, such files at a URL that Beam reads (gs://bucket/part-*.txt.gz),
    `tfds:name/config`, `parallel:DIR/train.de-en` (`data.text.bitext`), `graph:DIR` or
    `triples:DIR` (`data.graphs.folders`), `sentences:DIR` or `descriptions:DIR`
    (`data.graphs.triple_sentences`), `trees:PATH` or `binary:PATH` (`data.trees.treebanks`), or
    `pydocs`. Raises UserError for a source that is missing, empty, damaged or not UTF-8, and for a
    document of more than `document_bytes` (decompressed).
    """
    for kind, name in parts(sources):
        yield from read(kind, name, document_bytes)


def parts(sources: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (kind, name) of everything that `sources` name, in reading order. Raises UserError as
    `expand`."""
    return [part for source in [expand(source) for source in _listed(sources)] for part in source]


def fingerprints(sources: Sequence[str]) -> list[dict[str, str]]:
    """Returns [{'source', 'sha256'}]: the hash of every file, and of the version of `pydocs` or a
    tfds dataset."""
    hashes = []
    for source in _listed(sources):
        for kind, name in expand(source):
            if kind == "file":
                digest = remote.sha256(name) if remote.is_remote(name) else _file_hash(Path(name))
            else:
                own = {
                    "pydocs": lambda _: pydocs.fingerprint(),
                    "parallel": bitext.fingerprint,
                    "graph": graphs.fingerprint,
                }
                own |= {"trees": trees.fingerprint, "sentences": sentences.fingerprint}
                digest = own.get(kind, tfds_fingerprint)(name)
            hashes.append({"source": name, "sha256": digest})
    return hashes


def expand(source: str) -> list[tuple[str, str]]:
    """Returns one source as [(kind, name)], kind file, tfds, parallel, graph, sentences, trees or
    pydocs. Raises UserError."""
    if source == "pydocs":
        return [("pydocs", source)]
    if source.startswith("tfds:"):
        return [("tfds", source)]
    if source.startswith(bitext.START):
        bitext.parts_of(source)
        return [("parallel", source)]
    if source.startswith((graphs.START, graphs.BARE)):
        graphs.files_of(source)
        return [("graph", source)]
    if source.startswith(sentences.STARTS):
        sentences.folder_of(source)
        return [("sentences", source)]
    if source.startswith(trees.STARTS):
        trees.files_of(source)
        return [("trees", source)]
    if remote.is_remote(source):
        return _expand_url(source)
    path = Path(source).expanduser()
    if path.is_dir():
        files = _once(p for p in path.rglob("*") if p.is_file() and textfiles.file_format(p))
        if not files:
            raise UserError(f"no text files below {source}; expected {_FORMATS}")
    elif path.exists():
        files = [path]
    else:
        files = _once(Path(p) for p in _globbed(path) if Path(p).is_file())
        if not files:
            raise UserError(_missing(source, path))
    for file in files:
        if textfiles.file_format(file) is None:
            raise UserError(f"{file} has no format that is read; expected {_FORMATS}: rename it")
        size_of(file)
    return [("file", str(file)) for file in files]


def _once(found: Iterable[Path]) -> list[Path]:
    """Returns the files, sorted; of the names of one file that which is no link, else the
    shortest."""
    names: dict[str, Path] = {}
    for file in sorted(
        found, key=lambda p: (os.path.realpath(p) != os.path.abspath(p), len(p.parts), p)
    ):
        names.setdefault(os.path.realpath(file), file)
    return sorted(names.values())


def _globbed(path: Path) -> Iterator[str]:
    """Yields what a pattern matches, as `glob.glob(recursive=True)`, but `**` enters a directory
    with many names once."""
    if "**" not in path.parts:
        yield from glob.glob(str(path))
        return
    at = path.parts.index("**")
    head, tail = path.parts[:at], path.parts[at + 1 :] or ("*",)
    for root in glob.glob(str(Path(*head))) if head else ["."]:
        for folder in _folders(root):
            yield from _globbed(Path(glob.escape(folder), *tail))


def _folders(root: str) -> Iterator[str]:
    """Yields a directory and all below it that are not hidden: real ones first, then those that
    only a link reaches."""
    links, seen = [root] if os.path.isdir(root) else [], set()
    while links:
        pending = [links.pop(0)]
        while pending:
            folder = pending.pop()
            if (real := os.path.realpath(folder)) in seen:
                continue
            seen.add(real)
            yield folder
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    if not entry.name.startswith(".") and entry.is_dir():
                        (links if entry.is_symlink() else pending).append(entry.path)


def _expand_url(source: str) -> list[tuple[str, str]]:
    found = remote.match(source)
    names = [name for name in found if textfiles.file_format(Path(name))]
    if not names:
        what = f"{found[0]} has no format that is read" if found else f"nothing matches {source}"
        raise UserError(
            f"{what}; expected {_FORMATS}, a pattern of them or a folder that ends in /"
        )
    return [("file", name) for name in names]


def _listed(sources: Sequence[str]) -> list[str]:
    sources = [sources] if isinstance(sources, str) else list(sources)
    if not sources:
        raise UserError("no data source was given; name a file, a glob, tfds:NAME or pydocs")
    return sources


def _missing(source: str, path: Path) -> str:
    if any(c in source for c in "*?["):
        return f"no file matches {source}; check the pattern (and quote it in the shell)"
    near = (
        closest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
    )
    return (
        f"no such data source: {source}; expected a file, a glob, a directory, tfds:NAME or "
        f"pydocs.{near}"
    )


def read(kind: str, name: str, document_bytes: int = DOCUMENT_BYTES) -> Iterator[Document]:
    """Yields the documents of one part, of at most so many bytes in a file (`textfiles.read`)."""
    if kind == "pydocs":
        return pydocs.documents()
    if kind == "tfds":
        return _tfds(name)
    if kind == "parallel":
        return bitext.documents(name)
    if kind == "graph":
        return graphs.documents(name)
    if kind == "sentences":
        return sentences.documents(name)
    if kind == "trees":
        return trees.documents(name)
    return (
        _read_url(name, document_bytes)
        if remote.is_remote(name)
        else textfiles.read(Path(name), document_bytes)
    )


def _read_url(name: str, document_bytes: int) -> Iterator[Document]:
    with remote.local(name) as path:
        try:
            yield from textfiles.read(path, document_bytes)
        except UserError as error:
            raise UserError(str(error).replace(str(path), name)) from None


def _file_hash(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check its permissions") from None


@contextlib.contextmanager
def _tfds_errors(source: str) -> Iterator[None]:
    """Raises UserError for the many kinds of errors of tfds, and sends what it prints to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{source} cannot be loaded ({reason}); check the name and TFDS_DATA_DIR"
        ) from None


def _builder(source: str):
    """Returns the prepared tfds builder of `tfds:name/config`, as array_record, which needs no
    TensorFlow."""
    with _tfds_errors(source):
        import tensorflow_datasets as tfds

        options = (
            {"data_dir": os.environ["TFDS_DATA_DIR"]} if os.environ.get("TFDS_DATA_DIR") else {}
        )
        builder = tfds.builder(source.removeprefix("tfds:"), file_format="array_record", **options)
        builder.download_and_prepare()
    if "train" not in builder.info.splits:
        raise UserError(f"{source} has no split 'train'; it has {', '.join(builder.info.splits)}")
    return builder


def tfds_fingerprint(source: str) -> str:
    info = _builder(source).info
    split = info.splits["train"]
    facts = f"{info.full_name} {split.num_examples} {split.num_bytes} {list(split.shard_lengths)}"
    return hashlib.sha256(facts.encode()).hexdigest()


def _tfds(source: str) -> Iterator[Document]:
    builder, found = _builder(source), False
    with _tfds_errors(source):
        rows = builder.as_data_source(split="train")
    for row in rows:
        texts = {
            k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in row.items()
        }
        names = [n for n in textfiles.TEXT_FIELDS if isinstance(texts.get(n), str)]
        names += [k for k, v in texts.items() if isinstance(v, str)]
        if not names:
            raise UserError(f"{source} has no text feature; its features are {', '.join(row)}")
        if item := document(texts[names[0]].splitlines()):
            found = True
            yield item
    if not found:
        raise UserError(f"{source} holds no text in its split 'train'")
