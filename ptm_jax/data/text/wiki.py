"""Wikipedia's dumps (`*-pages-articles*.xml`): articles of the XML as plain text.

Leaves out what WikiExtractor leaves out: templates, tables, references, files, categories, headings
and lists. The words of links are kept. mwparserfromhell parses the wikitext, because patterns
cannot find where nested markup ends.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown
from ptm_jax.data.text.bounded import Bounded
from ptm_jax.data.text.documents import Document, document

# Elements that are removed with their contents.
_GONE = frozenset(
    "table tr td th caption ref references gallery timeline math chem score imagemap "
    "syntaxhighlight source pre code "
    "div form input select option textarea ul ol li dl dt dd menu dir img small noinclude "
    "includeonly "
    "indicator mapframe maplink templatestyles graph section".split()
)
# Namespaces whose links are not words of a sentence.
_NAMESPACES = frozenset(
    "file image media category wikipedia template portal help draft user talk module "
    "mediawiki special "
    "datei bild kategorie fichier catégorie archivo categoría imagen immagine categoria "
    "arquivo ficheiro imagem "
    "bestand categorie plik kategoria "
    "файл категория изображение ファイル 画像 カテゴリ 分类 文件 檔案 分類".split()
)
# [[fr:Nom]] is the article in another language, [[CSI: Miami]] an article.
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple")
_LIST = "\0"
_MAGIC = re.compile(r"__[A-Z]+__")
_EMPTY = re.compile(r"(?:(?<!\s)\s+)?[(（][\s,;:/–-]*[)）]")
_REST = re.compile(r"([(（])[\s,;:]+")
OPEN = 1000
"""Pieces of markup of a page that may stay open: the parser reads the page after each anew."""
_MARKUP = re.compile(
    r"(?P<open>\{\{|\[\[?|<!--|^[ \t:]*\{\||<[a-z]+)|"
    r"(?P<close>\}\}|\]\]?|-->|^[ \t:]*\|\}(?!\})|</[a-z]+|/>)",
    re.IGNORECASE | re.MULTILINE,
)
_CLOSED = {"{{": "}}", "[[": "]]", "[": "]", "<!--": "-->", "{|": "|}"}
_SINGLE = frozenset("<br <wbr <hr <meta <link <img <li <dt <dd <th <td <tr <p".split())
_REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)


def documents(stream: Bounded, path: Path) -> Iterator[Document]:
    """Yields the articles of a dump: pages of namespace 0 that are no redirects.
    Raises UserError where it is damaged."""
    _grammar()
    try:
        for title, text in pages(stream, path):
            if unclosed(text) > OPEN:
                raise UserError(
                    f"{path}: the markup of {shown(title)} has more than {OPEN:,} pieces that are "
                    "not closed; take that page out"
                )
            try:
                item = document(plain(text).splitlines())
            except RecursionError:
                raise UserError(
                    f"{path}: the markup of {shown(title)} is nested too deeply; take that page out"
                ) from None
            if item:
                yield item
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise UserError(
            f"{path}:{line} is damaged or cut off XML ({error}); fetch the dump again"
        ) from None


def pages(stream: Bounded, path: Path) -> Iterator[tuple[str, str]]:
    """Yields (title, wikitext) of the articles; a page that was read is freed."""
    root = None
    for event, element in ElementTree.iterparse(stream, ("start", "end")):
        name = element.tag.rpartition("}")[2]
        if root is None:
            root = element
            if name != "mediawiki":
                raise UserError(
                    f"{path} is no dump of a wiki (it begins with <{name}>); expected "
                    "pages-articles.xml"
                )
        if event == "start" or name != "page":
            continue
        if _child(element, "ns") == "0" and element.find("{*}redirect") is None:
            revision = element.findall("{*}revision")[-1:]
            text = (_child(revision[0], "text") if revision else "") or ""
            model = _child(revision[0], "model") if revision else None
            if text and model in (None, "wikitext") and not _REDIRECT.match(text):
                yield _child(element, "title") or "", text
        root.clear()
        stream.mark()


def _child(element: ElementTree.Element, name: str) -> str | None:
    return element.findtext("{*}" + name)


def _grammar() -> Any:
    try:
        import mwparserfromhell
    except ImportError:
        raise UserError(
            "a Wikipedia dump needs mwparserfromhell; run pip install 'ptm_jax[clean]'"
        ) from None
    return mwparserfromhell


def plain(text: str) -> str:
    """Returns the running text of an article's wikitext, a paragraph on each line."""
    parts: list[str] = []
    _walk(_grammar().parse(text), parts)
    lines = []
    for line in "".join(parts).split("\n"):
        if _LIST in line or line.lstrip().startswith(("{|", "|", "!", "{{", "}}")):
            continue
        line = _REST.sub(r"\1", _EMPTY.sub("", _MAGIC.sub("", line)))
        line = " ".join(line.split())
        if re.search(r"\w", line):
            lines.append(line)
    return "\n".join(lines)


def unclosed(text: str) -> int:
    """Returns how many parts of a page are never closed.

    The parts are templates, links, tables, comments and tags; those that are closed only after what
    holds them count too.
    """
    waiting: list[str] = []
    kinds: collections.Counter[str] = collections.Counter()
    count = 0
    for match in _MARKUP.finditer(text):
        mark = match[0].strip(" \t:").lower()
        if match["open"]:
            if mark not in _SINGLE:
                waiting.append(_CLOSED.get(mark, mark.replace("<", "</")))
                kinds[waiting[-1]] += 1
        else:
            if mark == "/>" and waiting and waiting[-1].startswith("</"):
                mark = waiting[-1]
            while kinds[mark]:
                last = waiting.pop()
                kinds[last] -= 1
                if last == mark:
                    break
                count += 1
        if count + len(waiting) > OPEN:
            break
    return count + len(waiting)


def _walk(code: Any, parts: list[str]) -> None:
    """Appends the text of a piece of wikitext to `found`."""
    nodes = _grammar().nodes
    for node in code.nodes:
        if isinstance(node, nodes.Text):
            parts.append(str(node))
        elif isinstance(node, nodes.HTMLEntity):
            parts.append(node.normalize())
        elif isinstance(node, nodes.Heading):
            parts.append("\n")
        elif isinstance(node, nodes.Wikilink):
            if _stays(str(node.title)):
                shown = (
                    node.text
                    if node.text is not None
                    else _grammar().parse(str(node.title).removeprefix(":"))
                )
                _walk(shown, parts)
        elif isinstance(node, nodes.ExternalLink):
            if node.title is not None:
                _walk(node.title, parts)
            elif not node.brackets:
                parts.append(str(node.url))
        elif isinstance(node, nodes.Tag):
            _walk_tag(node, parts)


def _walk_tag(node: Any, parts: list[str]) -> None:
    name = str(node.tag).strip().lower()
    if node.wiki_markup in ("*", "#", ":", ";"):
        parts.append(_LIST)
    elif name in ("br", "hr"):
        parts.append("\n")
    elif name not in _GONE and node.contents is not None:
        _walk(node.contents, parts)


def _stays(title: str) -> bool:
    """Whether a link is to an article: not to a file, a category, or the same article in another
    language."""
    prefix, colon, target = title.strip().partition(":")
    if not colon or not prefix:
        return True
    space = prefix.strip().lower().replace("_", " ").removesuffix(" talk")
    return space not in _NAMESPACES and (target[:1] == " " or not _LANGUAGE.fullmatch(prefix))
