"""Wikipedia dumps, Common Crawl's WET and OpenWebText's archives: what is text, and files that are
damaged."""

import bz2
import gzip
import io
import lzma
import tarfile

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import sources, textfiles
from ptm_jax.data.text.documents import Document

PAGE = """<page><title>{title}</title><ns>{ns}</ns><id>1</id>{redirect}<revision><id>2</id>
<model>{model}</model><format>text/x-wiki</format>\
<text bytes="9" xml:space="preserve">{text}</text>\
</revision></page>"""


def page(title, text, ns=0, redirect="", model="wikitext"):
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return PAGE.format(title=title, ns=ns, redirect=redirect, model=model, text=text)


def dump(*pages):
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" '
        'version="0.11"><siteinfo></siteinfo>'
    )
    return (head + "\n".join(pages) + "</mediawiki>").encode()


def read(path):
    return [document.sentences for document in sources.documents([str(path)])]


@pytest.fixture(scope="module")
def wikitext():
    pytest.importorskip("mwparserfromhell", reason="of the extra [clean]")
    from ptm_jax.data.text import wiki

    return wiki.plain


@pytest.mark.parametrize("markup, text", [
    ("'''Bold''' and ''slanted'' and '''''both'''''.", "Bold and slanted and both."),
    ("A [[link]], a [[page|label]], [[plural]]s, [[Star Trek: Picard]], [[CSI: Miami]].",
     "A link, a label, plurals, Star Trek: Picard, CSI: Miami."),
    ("See [http://a.b the site] and [http://a.b].", "See the site and ."),
    ("{{Infobox|a={{b|c=[[d]]}}\n|e}}Text{{cn}} goes on.", "Text goes on."),
    ("Seen.<ref name=a>Book [[x]].</ref> Again.<ref name=a/> End.", "Seen. Again. End."),
    ("One.\n{| class=w\n! h\n|-\n| a || {{b}}\n{|\n| nested\n|}\n|}\nTwo.", "One.\nTwo."),
    ("One.\n{| never closed\n| cell\nTwo.", "One.\nTwo."),
    ("== Heading ==\nText.\n=== More ===\nEnd.", "Text.\nEnd."),
    ("[[File:A.jpg|thumb|Caption with [[link]].]]Text.[[Category:X]][[fr:Y]][[Datei:Z.png]]",
    "Text."),
    ("Text.\n* item\n** more\n# first\n: in\n; term\nEnd.", "Text.\nEnd."),
    ("5 &lt; 6&nbsp;m, H<sub>2</sub>O <!-- no --> <math>x^2</math> <nowiki>[[as is]]</nowiki>.",
    "5 < 6 m, H2O [[as is]]."),
    ("Rome ({{lang|it|Roma}}; {{IPA|x}}, old) is a city (''{{x}}'').__NOTOC__",
    "Rome (old) is a city."),
    ("[[:Category:Birds|Birds]] and [[:fr:Oiseau]].", "Birds and fr:Oiseau."),
])  # fmt: skip
def test_wikitext(wikitext, markup, text):
    assert wikitext(markup) == text


@pytest.fixture(scope="module")
def articles(tmp_path_factory, wikitext):
    """A dump of two articles among pages that are none."""
    path = tmp_path_factory.mktemp("wiki") / "xxwiki-20260101-pages-articles1.xml-p1p9.bz2"
    whole = dump(
        page("One", "'''One''' is a number. It is [[odd]].\n\n== Use ==\nIt counts."),
        page("Talk:One", "Is it?", ns=1),
        page("Uno", "#REDIRECT [[One]]", redirect='<redirect title="One" />'),
        page("Eins", "#redirect [[One]]"),
        page("Code", "x = {}", model="javascript"),
        page("Two", "Two is a number & more."),
    )
    path.write_bytes(bz2.compress(whole[:700]) + bz2.compress(whole[700:]))  # a multistream
    return path


def test_a_dump(articles):
    assert read(articles) == [
        ("One is a number.", "It is odd.", "It counts."),
        ("Two is a number & more.",),
    ]


def test_damaged_dumps(articles, tmp_path):
    whole = bz2.decompress(articles.read_bytes())
    cut = tmp_path / "cut-pages-articles.xml"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut-pages-articles\.xml:\d+ is damaged or cut off XML"):
        read(cut)
    broken = tmp_path / "wiki-pages.xml.bz2"
    broken.write_bytes(articles.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"wiki-pages\.xml\.bz2 is a damaged archive"):
        read(broken)
    other = tmp_path / "pages.xml"
    other.write_text("<html></html>")
    with pytest.raises(
        UserError, match=r"pages\.xml is no dump of a wiki \(it begins with <html>\)"
    ):
        read(other)


def record(kind, body, url="http://a.example/"):
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


CRAWL = [record("warcinfo", b"Software: x\r\n"), record("conversion",
    "Größe zählt.\nNext line.\n".encode()),
         record("conversion", b"WARC/1.0 is a format.\nIt is old.",
             "http://b.example/")]  # fmt: skip


def test_wet(tmp_path):
    path = tmp_path / "CC-MAIN-1.warc.wet.gz"
    path.write_bytes(
        b"".join(map(gzip.compress, CRAWL))
    )  # one member for each record, as they are published
    assert read(path) == [("Größe zählt.", "Next line."), ("WARC/1.0 is a format.", "It is old.")]
    assert next(sources.documents([str(path)])).lines == (1, 1)


def tar(**files):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            name = name.replace("__", ".")
            entry = tarfile.TarInfo(f"openwebtext/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


WEB = {
    f"subset0{n}_data__xz": lzma.compress(
        tar(a__txt=b"First of %d.\n\nStill it.\n" % n, b__txt=b"Second.")
    )
    for n in (0, 1)
}


def test_openwebtext(tmp_path):
    outer, inner = tmp_path / "openwebtext.tar.xz", tmp_path / "subset00_data.xz"
    outer.write_bytes(lzma.compress(tar(**WEB, README__md=b"No text of it.")))
    inner.write_bytes(WEB["subset00_data__xz"])
    wanted = [
        ("First of 0.", "Still it."),
        ("Second.",),
        ("First of 1.", "Still it."),
        ("Second.",),
    ]
    assert read(outer) == wanted and read(inner) == wanted[:2]


@pytest.mark.parametrize("name, content, message", [
    ("x.wet", b"".join(CRAWL)[:-12], r"x\.wet ends within a record \(byte \d+"),
    ("x.wet", CRAWL[0] + b"<html>", r"x\.wet is not a WET file at byte \d+"),
    ("x.wet", CRAWL[0] + b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\nText.",
    r"x\.wet has a record without its length"),
    ("x.wet.gz", gzip.compress(CRAWL[2].replace(b": 32", b": " + b"9" * 18)),
    r"ends within a record"),
    ("x.wet.gz", gzip.compress(CRAWL[2].replace(b": 32", b": " + b"9" * 50)),
    r"a record of length '9+' before byte"),
    ("x.wet.gz", gzip.compress(CRAWL[2].replace(b": 32", b": -5")),
    r"a record of length '-5' before byte"),
    ("x.wet.gz", gzip.compress(CRAWL[2].replace(b": 32", b": 4")),
    r"is not a WET file at byte \d+"),
    ("x.wet", record("conversion", b"abc \xff"),
    r"the page http://a.example/ of .*x\.wet is not UTF-8 at byte 4"),
    ("x.wet", CRAWL[0], r"x\.wet holds no text"),
    ("x.wet.gz", b"".join(map(gzip.compress, CRAWL))[:-9], r"x\.wet\.gz is a damaged archive"),
    ("x.tar.xz", lzma.compress(tar(**WEB))[:-40], r"x\.tar\.xz is a damaged archive"),
    ("x.tar.xz", lzma.compress(tar(**WEB))[:-200], r"x\.tar\.xz is a damaged archive"),
    ("x.tar", tar(a__txt=b"Good.", **WEB)[:-10280],
    r"x\.tar (is a damaged archive|cannot be read)"),
    ("x.tar", tar(a__txt=b"Good.", **WEB)[:-10440],
    r"x\.tar (is a damaged archive|cannot be read)"),
])  # fmt: skip
def test_damaged_crawls(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_which_files_are_read(tmp_path):
    for name in (
        "pom.xml",
        "enwiki-latest-pages-articles.xml.bz2",
        "a.warc.wet.gz",
        "b_data.xz",
        "c.tar",
        "d.html",
    ):
        (tmp_path / name).write_bytes(b"")
    found = {
        name.rpartition("/")[2]: textfiles.file_format(tmp_path / name)
        for _, name in sources.expand(str(tmp_path))
    }
    assert found == {
        "a.warc.wet.gz": ".wet", "b_data.xz": ".tar", "c.tar": ".tar",
        "enwiki-latest-pages-articles.xml.bz2": ".xml",
    }  # fmt: skip


def test_documents_know_their_lines(tmp_path):
    (tmp_path / "a.txt").write_text("One. Two here.\nThree.\n\nFour.")
    assert [d.lines for d in sources.documents([str(tmp_path / "a.txt")])] == [(2, 1), (1,)]
    assert Document(("One.",), (1,)) == Document(("One.",))


def test_a_sparse_member_of_an_archive_is_refused(tmp_path):
    """1,536 bytes that claim a text of a terabyte (GNU's old form of a sparse file)."""
    info = tarfile.TarInfo("a.txt")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[386:410] = b"00000000000\0" + b"00000001000\0"
    head[483:495] = b"77777777777\0"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "x.tar").write_bytes(bytes(head) + b"x" * 512 + b"\0" * 512)
    with pytest.raises(UserError, match="x.tar holds the sparse file 'a.txt'"):
        read(tmp_path / "x.tar")
