"""`pydocs`: the documentation of the Python packages that every install of ptm_jax has.
Real English, no download.

Docstrings come from the standard library and the run-time dependencies only, so other packages on
the machine do not change the text. A pattern finds them, not `ast`, which takes twenty times as
long: a docstring is a string in triple quotes that begins a file or follows a line ending in a
colon.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.data.text.documents import Document, split_sentences

MAX_BYTES = 12_000_000
SHORTEST = 120
"""Characters of clean text below which a docstring is left out."""

PACKAGES = (
    "jax", "flax", "optax", "orbax", "chex", "grain", "tensorflow_datasets", "numpy", "matplotlib",
    "scipy", "pyarrow",
    "tyro", "absl", "etils", "tokenizers", "safetensors", "sentencepiece", "tqdm", "rich",
)  # fmt: skip

_DOCSTRING = re.compile(
    r"""(?:\A(?:\s*\#[^\n]*\n|\s*\n)*|:[ \t]*(?:\#[^\n]*)?\n\s*)[rRuU]?(\"{3}|'{3})(.*?)\1""", re.S
)
_SKIPPED = {
    "tests",
    "test",
    "testing",
    "idlelib",
    "lib2to3",
    "site-packages",
    "__pycache__",
    "_vendor",
    "turtledemo",
}
_RULE = re.compile(
    r"^\s*(?:([-=~^*+#`'\"_.])\1{2,}|(?:Parameters|Returns|Yields|Raises|Args|Attributes|Notes?"
    r"|Examples?|References|See Also|Other Parameters|Warns|Methods):?)\s*$"
)
_CODE = re.compile(
    r"^\s*(?:>>>|\.\.\.|\$|%|@|\.\. |:\w+[^:]*:|\||#|import |from \w+ import|def |class |return\b)"
    r"|[{};=]\s*$|^\s*\w+\s*:\s*\S{0,40}$"
)
_MARKUP = re.compile(
    r":\w+(?::\w+)?:`~?([^`<]*?)(?:\s*<[^`>]*>)?`|``([^`\n]*)``|`([^`\n<]*?)(?:\s*<[^`>]*>)?`_{0,2}"
)


def documents(max_bytes: int = MAX_BYTES) -> Iterator[Document]:
    """Yields the documents, at most about `max_bytes` of text.
    Their order depends only on the installed versions."""
    seen, total = set(), 0
    for raw in _raw():
        sentences = tuple(s for paragraph in _paragraphs(raw) for s in split_sentences(paragraph))
        size = sum(map(len, sentences)) + len(sentences)
        if size < SHORTEST:
            continue
        key = hashlib.blake2b("\n".join(sentences).encode(), digest_size=12).digest()
        if key in seen:
            continue
        seen.add(key)
        total += size
        yield Document(sentences)
        if total >= max_bytes:
            return


def fingerprint(max_bytes: int = MAX_BYTES) -> str:
    """Returns a hash of all that determines the text: interpreter, package versions, size."""
    parts = [f"pydocs 1 {max_bytes}", sys.version.split()[0]]
    for package in PACKAGES:
        names = {
            "tensorflow_datasets": "tensorflow-datasets",
            "orbax": "orbax-checkpoint",
            "absl": "absl-py",
        }
        try:
            parts.append(f"{package} {importlib.metadata.version(names.get(package, package))}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _raw() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions lack it
        topics = {}
    yield from (topics[name] for name in sorted(topics))
    for root in _roots():
        for path in _files(root):
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if path.suffix == ".py":
                yield from (match[2] for match in _DOCSTRING.finditer(text))
            else:
                yield text


def _roots() -> Iterator[Path]:
    yield Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for place in sorted(spec.submodule_search_locations or ()) if spec else ():
            yield Path(place)


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda p: p.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if entry.name not in _SKIPPED and not entry.name.startswith((".", "config-")):
                yield from _files(entry)
        elif entry.suffix in (".py", ".rst", ".md") and not entry.name.endswith(
            ("_test.py", "LICENSE.md")
        ):
            yield entry


def _paragraphs(raw: str) -> Iterator[str]:
    """Yields paragraphs of prose with wrapped lines joined.
    Code, doctests, rules, tables and signatures are dropped."""
    for block in re.split(r"\n\s*\n", raw):
        lines = [line for line in block.split("\n") if line.strip() and not _RULE.match(line)]
        if not lines or sum(bool(_CODE.search(line)) for line in lines) * 2 > len(lines):
            continue
        text = " ".join(line.strip() for line in lines if not _CODE.search(line))
        text = (
            _MARKUP.sub(lambda m: m[1] or m[2] or m[3] or "", text)
            .replace("**", "")
            .replace("\\", "")
        )
        words = text.split()
        prose = sum(word.strip(".,;:!?()\"'").isalpha() for word in words)
        if len(words) >= 4 and prose >= 0.7 * len(words):
            yield text
