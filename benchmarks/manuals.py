"""Text of many languages from packages of Debian: manual pages and the messages of LibreOffice.

    python -m benchmarks.manuals fr ru --out text

writes `text/fr.txt` and `text/ru.txt`: a page a document, a paragraph a line. The packages come
with `apt-get download` and are unpacked, not installed; they are free to use (GPL, LGPL, MPL), and
no text of theirs is in this project. Paragraphs that occur twice, and those that are still English,
are left out. Without apt, or a network, the languages whose text is absent are named in one line.
"""

from __future__ import annotations

import gettext
import gzip
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tyro

from ptm_jax.core.errors import UserError, unknown

PACKAGES = {
    **{one: (f"manpages-{one}",) for one in "de es fr it ja pl ru sv uk zh".split()},
    **{one: (f"manpages-{one}", f"libreoffice-l10n-{one}") for one in ("cs", "fi", "nl")},
    **{one: (f"libreoffice-l10n-{one}",) for one in ("ar", "bg", "th")},
}
"""{language: the Debian packages of its text}."""
FOLDERS = {"zh": "zh_CN"}
"""{language: its folder of manuals, where that has another name}."""
BYTES = 2_000_000
"""UTF-8 bytes of a language's text, at most."""
ENGLISH = frozenset("the of is to and in that for this with be are it on as by or not an".split())

_DROPPED = re.compile(r"[.']\s*(so|de|ds|ie|el|if|ig|tr|nr|mso|hy|ad|SM|ft|in|ti|sp)\b")
_BREAK = re.compile(r"[.']\s*(TH|SH|SS|P|[PLTIH]P|TQ|RS|RE|br|nf|fi|EX|EE|S[hs]|Pp|It)\b")
_FONT = re.compile(r"[.']\s*([BIR]{1,2}|SB|Nm|Fl|Ar|Em|Sy|Xr|Pa)\s+")
_ESCAPES = (
    (re.compile(r"\\f(\[\w*\]|\(..|.)|\\s[-+]?\d|\\[&/,|^%:!{}]|\\m\[\w*\]"), ""),
    (re.compile(r"\\\((em|en)|\\\[(em|en)\]"), "–"),
    (re.compile(r"\\\(aq|\\\[aq\]|\\'|\\`"), "'"),
    (re.compile(r"\\\((lq|rq|dq)|\\\[(lq|rq|dq)\]|\\\*\([lr]q|\\\*\[[lr]q\]"), '"'),
    (re.compile(r"\\\*?\(..|\\\*?\[[^\]]*\]|\\\*."), ""),
    (re.compile(r"\\-"), "-"),
    (re.compile(r"\\[ ~0]"), " "),
    (re.compile(r"\\e|\\\\"), "/"),
    (re.compile(r"\\."), ""),
)


def paragraphs(roff: str) -> Iterator[str]:
    """Yields the paragraphs of a manual page without titles, examples and tables."""
    gathered: list[str] = []
    skipped = None
    for line in [*roff.splitlines(), ".PP"]:
        if skipped:
            skipped = None if line.startswith(skipped) else skipped
            continue
        begun = re.match(r"[.'](nf|EX|TS|ig)\b", line)
        if begun:
            skipped = {"nf": ".fi", "EX": ".EE", "TS": ".TE", "ig": ".."}[begun[1]]
        if begun or not line.strip() or _BREAK.match(line):
            text = " ".join(" ".join(gathered).split())
            gathered = []
            if text:
                yield text
            continue
        if line.startswith((".", "'")):
            if _DROPPED.match(line) or not (font := _FONT.match(line)):
                continue
            words = re.findall(r'"([^"]*)"|(\S+)', line[font.end() :])
            joined = "" if len(font[1]) == 2 else " "
            line = joined.join(quoted or bare for quoted, bare in words)
        for pattern, text in _ESCAPES:
            line = pattern.sub(text, line)
        gathered.append(line)


def messages(path: Path) -> Iterator[str]:
    """Yields the translations of a .mo file, without marks of keys and of places for values."""
    with path.open("rb") as stream:
        catalogue = gettext.GNUTranslations(stream)._catalog
    for key, text in catalogue.items():
        if key and isinstance(text, str):
            yield " ".join(re.sub(r"[~_]|<[^>]*>|%\w+|\$\([^)]*\)", "", text).split())


def pages(folder: Path, language: str) -> Iterator[list[str]]:
    """Yields the paragraphs of each page, or file of messages, of the unpacked packages."""
    seen: set[str] = set()
    manuals = sorted(folder.glob(f"usr/share/man/{FOLDERS.get(language, language)}/man*/*.gz"))
    for path in [*manuals, *sorted(folder.rglob("*.mo"))]:
        if path.is_symlink():
            continue
        try:
            if path.suffix == ".mo":
                read = messages(path)
            else:
                read = paragraphs(gzip.decompress(path.read_bytes()).decode())
            texts = [text for text in read if text not in seen and _is_prose(text)]
        except UnicodeDecodeError:
            continue  # another encoding
        seen.update(texts)
        if texts:
            yield texts


def _is_prose(text: str) -> bool:
    """Whether a paragraph has four letters in five characters, 20 characters, and no English."""
    if len(text) < 20 or sum(c.isalpha() or c.isspace() for c in text) < 0.8 * len(text):
        return False
    words = re.findall(r"[a-z]+", text.lower())
    english = sum(word in ENGLISH for word in words)
    return english < 2 or english < 0.12 * len(words)


def write(language: str, out: Path) -> Path:
    """Returns `out/LANGUAGE.txt`, and writes it if it is absent. Raises UserError."""
    if language not in PACKAGES:
        raise unknown("language", language, tuple(PACKAGES))
    path = out / f"{language}.txt"
    if path.exists():
        return path
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["apt-get", "download", "-qq", *PACKAGES[language]]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            for package in folder.glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, folder], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            raise UserError(
                f"no text of {language}: {' '.join(command)} fails here; write "
                f"{path} yourself, a paragraph a line"
            ) from None
        size, lines = 0, []
        for page in pages(folder, language):
            lines += [*page, ""]
            size += sum(len(text.encode()) + 1 for text in page)
            if size > BYTES:
                break
    path.write_text("\n".join(lines), encoding="utf8")
    return path


def main(languages: tyro.conf.Positional[tuple[str, ...]], out: Path) -> None:
    """Write the text of languages. `out`: folder."""
    for language in languages:
        try:
            path = write(language, out)
            print(f"{path}: {path.stat().st_size:,} bytes")
        except UserError as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    tyro.cli(main)
