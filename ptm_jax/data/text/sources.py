"""Sources of text, as one stream of documents. `SOURCES` lists their kinds.

To add a kind: write a module with its functions and an entry of `SOURCES`. A file of the user's own
calls `add` (`ptm new reader`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ptm_jax.core.errors import UserError
from ptm_jax.data.graphs import folders, triple_sentences
from ptm_jax.data.languages import codes, fake, translations
from ptm_jax.data.text import bitext, file_sources, pydocs, tfds_sources
from ptm_jax.data.text.bounded import DOCUMENT_BYTES
from ptm_jax.data.text.documents import Document
from ptm_jax.data.trees import treebanks


def _one(source: str) -> list[str]:
    return [source]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A kind of source.

    kind         its name in prepared corpora
    forms        its spellings on the command line; the text before a colon is its prefix
    help         one line for `ptm list --sources`
    documents    name of a part -> its documents. With `bounded` it also takes the largest number of
                 bytes of a document
    fingerprint  name of a part -> a hash of its content
    check        raises UserError for a source that cannot be read
    parts        source -> the names of its parts, in reading order. Raises UserError
    """

    kind: str
    forms: tuple[str, ...]
    help: str
    documents: Callable[..., Iterator[Document]]
    fingerprint: Callable[[str], str]
    check: Callable[[str], object] = _one
    parts: Callable[[str], Sequence[str]] = _one
    bounded: bool = False

    def detect(self, source: str) -> bool:
        """Whether a source is of this kind, by its prefix."""
        starts = [f"{form.partition(':')[0]}:" for form in self.forms if ":" in form]
        return source in self.forms or source.startswith(tuple(starts))


FILES = Source(
    kind="file",
    forms=("PATH", "GLOB", "DIR", "gs://BUCKET/PATH"),
    help="txt, jsonl, csv, tsv, parquet, folders of `datasets`, Wikipedia dumps "
    "(pages-articles.xml), Common Crawl's WET, OpenWebText's tars; also compressed (gz, bz2, zst, "
    "xz); at a URL by Apache Beam",
    documents=file_sources.documents,
    fingerprint=file_sources.fingerprint,
    parts=file_sources.names_of,
    bounded=True,
)
"""The kind of every source that no entry of `SOURCES` detects."""

SOURCES = (
    Source(
        kind="pydocs",
        forms=("pydocs",),
        help="documentation of the installed Python packages",
        documents=lambda _: pydocs.documents(),
        fingerprint=lambda _: pydocs.fingerprint(),
    ),
    Source(
        kind="tfds",
        forms=("tfds:NAME/CONFIG",),
        help="split `train` of a dataset of TensorFlow Datasets",
        documents=tfds_sources.documents,
        fingerprint=tfds_sources.fingerprint,
    ),
    Source(
        kind="parallel",
        forms=("parallel:DIR/train.de-en",),
        help="two files, line by line translations, as words with their language, for word vectors",
        documents=bitext.documents,
        fingerprint=bitext.fingerprint,
        check=bitext.parts_of,
    ),
    Source(
        kind="language",
        forms=("language:de=SOURCE", "language:de-en=PATH"),
        help="text of one language, or translations: DIR/train for DIR/train.de and DIR/train.en, "
        "FILE,FILE, .tmx, .jsonl, or a folder with DIR/de and DIR/en",
        documents=translations.documents,
        fingerprint=translations.fingerprint,
        check=codes.parsed,
    ),
    Source(
        kind="domain",
        forms=("domain:NAME=SOURCE",),
        help="text of one domain, in a corpus of several (`ptm train --mix`)",
        documents=lambda name: documents([name]),
        fingerprint=lambda name: str(fingerprints([name])),
        check=codes.of_domain,
    ),
    Source(
        kind="fake",
        forms=("fake:SOURCE",),
        help="text of another source with other letters (language:en_Fake=fake:en.txt)",
        documents=lambda name: map(fake.document, documents([fake.inside(name)])),
        fingerprint=lambda name: str(fingerprints([fake.inside(name)])),
        check=lambda name: expand(fake.inside(name)),
    ),
    Source(
        kind="graph",
        forms=("graph:DIR", "triples:DIR"),
        help="triples of a graph with the descriptions of entities, or the triples alone",
        documents=folders.documents,
        fingerprint=folders.fingerprint,
        check=folders.files_of,
    ),
    Source(
        kind="sentences",
        forms=("sentences:DIR", "descriptions:DIR"),
        help="triples of a graph of `ptm prepare --graph` as sentences, or its descriptions",
        documents=triple_sentences.documents,
        fingerprint=triple_sentences.fingerprint,
        check=triple_sentences.folder_of,
    ),
    Source(
        kind="trees",
        forms=("trees:PATH", "binary:PATH"),
        help="trees of CoNLL-U or bracketed files, as they are or made binary",
        documents=treebanks.documents,
        fingerprint=treebanks.fingerprint,
        check=treebanks.files_of,
    ),
)
"""The kinds of sources, each detected by its own prefix."""

KINDS = {source.kind: source for source in (*SOURCES, FILES)}
"""{kind: source}, with the sources of the user's own files."""


def add(source: Source) -> None:
    """Adds a kind of source of the user's own file to this process.

    Raises UserError if a form has no prefix, or if another source has the kind or a prefix.
    """
    prefixes = {form.partition(":")[0] for form in source.forms if ":" in form}
    if not prefixes or len(prefixes) < len({*source.forms}):
        raise UserError(
            f"the source {source.kind!r} has a form without a prefix; write PREFIX:NAME"
        )
    taken = {
        form.partition(":")[0]: known.kind
        for known in KINDS.values()
        if known.kind != source.kind or known in (*SOURCES, FILES)
        for form in known.forms
    }
    if source.kind in {*taken.values()}:
        raise UserError(f"there is a source {source.kind!r} already; give yours another kind")
    if clash := sorted(prefixes & taken.keys()):
        raise UserError(f"--data {clash[0]}: is a source already; give yours another prefix")
    KINDS[source.kind] = source


def documents(sources: Sequence[str], document_bytes: int = DOCUMENT_BYTES) -> Iterator[Document]:
    """Yields the documents of `sources`, in their order (files of a glob or directory by name).
    `SOURCES` and `FILES` list the spellings.

    Raises UserError for a source that is missing, empty, damaged or not UTF-8, and for a document
    of more than `document_bytes` (decompressed).
    """
    for kind, name in parts(sources):
        yield from read(kind, name, document_bytes)


def parts(sources: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (kind, name) of each part of the sources, in reading order. Raises UserError."""
    return [part for source in [expand(source) for source in _listed(sources)] for part in source]


def fingerprints(sources: Sequence[str]) -> list[dict[str, str]]:
    """Returns [{'source', 'sha256'}] with a hash for each part of the sources."""
    return [
        {"source": name, "sha256": KINDS[kind].fingerprint(name)}
        for source in _listed(sources)
        for kind, name in expand(source)
    ]


def expand(source: str) -> list[tuple[str, str]]:
    """Returns the parts of one source as [(kind, name)]. Raises UserError."""
    kind = next((kind for kind in KINDS.values() if kind.detect(source)), FILES)
    kind.check(source)
    if kind.kind == "domain":
        return expand(codes.of_domain(source)[1])
    if kind.kind == "language":
        languages, text = codes.parsed(source)
        if len(languages) == 1:
            return expand(text)
        translations.files_of(source)
    return [(kind.kind, name) for name in kind.parts(source)]


def read(kind: str, name: str, document_bytes: int = DOCUMENT_BYTES) -> Iterator[Document]:
    """Yields the documents of one part, of at most so many bytes in a file (`textfiles.read`)."""
    source = KINDS[kind]
    return source.documents(name, document_bytes) if source.bounded else source.documents(name)


def _listed(sources: Sequence[str]) -> list[str]:
    sources = [sources] if isinstance(sources, str) else list(sources)
    if not sources:
        raise UserError("no data source was given; name a file, a glob, tfds:NAME or pydocs")
    return sources
