"""Translations as text: documents in which the sentences of two languages alternate.

`language:de-en=PATH` reads

    DIR/train          the files DIR/train.de and DIR/train.en, line by line (Moses)
    FILE,FILE          two files, line by line, whatever their names
    FILE.tmx           units of Translation Memory eXchange
    FILE.jsonl         objects {"de": text, "en": text}, also below the key "translation"
    FILE.xml           WMT's test sets with both sides
    DIR                files of the same names in DIR/de and DIR/en, line by line

Files of one side may have the markup of WMT and IWSLT (`data.languages.marked_up`). An empty line
on both sides ends a document. A document has at most `LONGEST` bytes, so that no stage of `ptm
prepare` divides it; a longer pair is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, decoded, parse_json, reading, size_of
from ptm_jax.data.corpora.spool import SHORTEST
from ptm_jax.data.languages import codes, marked_up
from ptm_jax.data.text.documents import Document

LONGEST = SHORTEST
"""Bytes of a document at most."""
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

Pair = tuple[str, str]


def documents(source: str) -> Iterator[Document]:
    """Yields the documents of a source. Raises UserError with the file and the line."""
    for group in _groups(source):
        sentences: list[str] = []
        for texts in group:
            size = sum(len(text.encode()) + 1 for text in texts)
            taken = sum(len(text.encode()) + 1 for text in sentences)
            if sentences and (taken + size > LONGEST or not any(texts)):
                yield Document(tuple(sentences))
                sentences = []
            if all(texts) and size <= LONGEST:
                sentences += texts
        if sentences:
            yield Document(tuple(sentences))


def pairs(source: str) -> Iterator[Pair]:
    """Yields the pairs of a source, and a pair of "" where a document ends. Raises UserError."""
    for group in _groups(source):
        yield from group
        yield "", ""


def is_source(source: str) -> bool:
    """Returns whether a source is `language:CODE-CODE=PATH`. Raises UserError."""
    return source.startswith(codes.START) and len(codes.parsed(source)[0]) == 2


def _groups(source: str) -> Iterator[Iterator[Pair]]:
    """Yields the pairs of each file, or pair of files, with single blanks."""
    languages, _ = codes.parsed(source)
    for paths in files_of(source):
        yield ((_spaced(a), _spaced(b)) for a, b in _pairs(paths, languages))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def fingerprint(source: str) -> str:
    """Returns the hash of the languages and of the files of a source."""
    digest = hashlib.sha256("-".join(codes.parsed(source)[0]).encode())
    for paths in files_of(source):
        for path in paths:
            with reading(path), path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def files_of(source: str) -> list[tuple[Path, ...]]:
    """Returns the pairs of files, or single files, of a source. Raises UserError."""
    languages, text = codes.parsed(source)
    path = Path(text).expanduser()
    if "," in text and not path.exists():
        groups = [tuple(Path(name).expanduser() for name in text.split(","))]
    elif path.is_dir():
        groups = _folders(path, languages)
    elif path.suffix in (".tmx", ".jsonl", ".xml"):
        groups = [(path,)]
    else:
        named = path.suffix == f".{'-'.join(languages)}" and not _side(path, languages[0]).is_file()
        base = path.with_suffix("") if named else path
        groups = [tuple(_side(base, code) for code in languages)]
    if any(len(paths) > 2 for paths in groups):
        raise UserError(f"{source} names more than two files; write FILE,FILE")
    for file in (file for paths in groups for file in paths):
        if not file.is_file():
            raise UserError(
                f"{source} needs the file {file}, which is not there; give DIR/NAME of DIR/NAME."
                f"{languages[0]}, FILE,FILE, a .tmx, a .jsonl, a .xml or a folder"
            )
        size_of(file)
    return groups


def _side(path: Path, language: str) -> Path:
    return path.with_name(f"{path.name}.{language}")


def _folders(path: Path, languages: Pair) -> list[tuple[Path, ...]]:
    sides = [path / code for code in languages]
    names = [
        {file.relative_to(side) for file in side.rglob("*") if file.is_file()} for side in sides
    ]
    if lonely := sorted(names[0] ^ names[1]):
        here, other = sides if lonely[0] in names[0] else sides[::-1]
        raise UserError(f"{here / lonely[0]} has no translation {other / lonely[0]}; add it")
    if not names[0]:
        raise UserError(f"{path} has no files in {sides[0]} and {sides[1]}; see ptm list --sources")
    return [tuple(side / name for side in sides) for name in sorted(names[0])]


def _pairs(paths: tuple[Path, ...], languages: Pair) -> Iterable[Pair]:
    if len(paths) == 2:
        return _aligned(*paths)
    if paths[0].suffix == ".xml":
        return marked_up.both_sides(paths[0], _text(paths[0]), languages)
    return (
        _units(paths[0], languages) if paths[0].suffix == ".tmx" else _objects(paths[0], languages)
    )


def _aligned(first: Path, second: Path) -> Iterator[Pair]:
    sides = [_lines(path) for path in (first, second)]
    if len(sides[0]) != len(sides[1]):
        raise broken(
            second,
            f"has {len(sides[1]):,} lines; {first.name} has {len(sides[0]):,}: they are no "
            "translations line by line; align them, an empty line on both sides ends a document",
        )
    for number, pair in enumerate(zip(*sides, strict=True), 1):
        filled = [bool(line.strip()) for line in pair]
        if filled[0] != filled[1]:
            here, other = (second, first) if filled[0] else (first, second)
            raise broken(
                here,
                f"line {number:,} is empty, and line {number:,} of {other.name} has text: they are "
                "no translations line by line; align them, or delete the line in both",
            )
        yield pair


def _lines(path: Path) -> list[str]:
    return marked_up.lines_of(path, _text(path))


def _text(path: Path) -> str:
    with reading(path):
        return decoded(path, path.read_bytes())


def _objects(path: Path, languages: Pair) -> Iterator[Pair]:
    with reading(path), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            value = parse_json(path, line, f"line {number:,}") if line.strip() else {}
            value = value.get("translation", value) if isinstance(value, dict) else None
            if value == {}:
                yield "", ""
                continue
            texts = [value.get(code) if isinstance(value, dict) else None for code in languages]
            if not all(isinstance(text, str) and text.strip() for text in texts):
                fields = ", ".join(f'"{code}": text' for code in languages)
                raise broken(path, f"line {number:,} is no object {{{fields}}}")
            yield texts[0], texts[1]


def _units(path: Path, languages: Pair) -> Iterator[Pair]:
    try:
        with reading(path), path.open("rb") as stream:
            for _, unit in ElementTree.iterparse(stream):
                if unit.tag != "tu":
                    continue
                texts = dict(_variants(unit))
                texts |= {name.partition("-")[0]: text for name, text in texts.items()}
                names = [code.lower().replace("_", "-") for code in languages]
                if all(name in texts for name in names):
                    yield texts[names[0]], texts[names[1]]
                unit.clear()
    except ElementTree.ParseError as error:
        raise broken(path, f"line {error.position[0]:,} is no XML ({error.msg})") from None


def _variants(unit: ElementTree.Element) -> Iterator[Pair]:
    """Yields (language in lower case, text) of a unit's variants with text."""
    for variant in unit.iter("tuv"):
        segment = variant.find("seg")
        if segment is not None and (text := "".join(segment.itertext()).strip()):
            yield (variant.get(_LANGUAGE) or variant.get("lang") or "").lower(), text
