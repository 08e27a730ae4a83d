"""Pages of a wiki whose markup would take the parser a time that grows with its square."""

import io

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import wiki
from ptm_jax.data.text.bounded import Bounded
from support.limits import cpu_limit

pytest.importorskip("mwparserfromhell")
UNCLOSED = [
    "<ref>", "<ref name=a>", "<ref a=", "{{a|b=", "{{a|", "[[a|", "{|a\n|-\n", "<b>", "<!--",
    "[http://a ", "<nowiki>", "{{a|[[b|}}]]", "<ref>{{a|</ref>", "<i/><ref>", "ftp://[",
]  # fmt: skip


@pytest.mark.parametrize("markup", UNCLOSED)
def test_markup_that_is_never_closed_is_refused_before_it_is_parsed(tmp_path, markup):
    page = "<page><title>A\x9b</title><ns>0</ns><revision><text>{}</text></revision></page>"
    text = (markup * 100_000).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    path = tmp_path / "wiki.xml"
    path.write_text(f"<mediawiki>{page.format(text)}</mediawiki>")
    with cpu_limit(30), path.open("rb") as file, pytest.raises(UserError) as error:
        list(wiki.documents(Bounded(file, path), path))
    assert "1,000 pieces that are not closed" in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "text, count",
    [
        ("{{a|{{b}}}} [[c|d]] <ref name=x>y</ref> <ref name=x/> <br> <li>", 0),
        ("{|\n|-\n| a || {{b|}}\n|}\n<!-- c --> [http://d e] {{{1|}}}", 0),
        ("{{a| [[b }} c", 1),
        ("a < b, [0, 1) and {{d", 2),
        ("}} ]] </ref> |} /> -->", 0),
        ("<ref>a {{b|</ref>", 1),
        ("<REF>a</ref>", 0),
    ],
)
def test_open_markup_is_counted(text, count):
    assert wiki.unclosed(text) == count


@pytest.mark.parametrize(
    "line", [" " * 200_000 + "a", "(" * 200_000, "( " * 100_000, " (" * 90_000]
)
def test_brackets_and_blanks_are_read_in_one_pass(line):
    with cpu_limit(30):
        assert wiki._EMPTY.sub("", line) and wiki._REST.sub(r"\1", line)


@pytest.mark.parametrize(
    "line, plain",
    [
        ("a  (, ) b", "a b"),
        ("a () () b", "a b"),
        ("() a", " a"),
        ("a\t(;)", "a"),
        ("a (b) (", "a (b) ("),
        ("a(（ ）)", "a()"),
    ],
)
def test_empty_brackets_go_with_the_blanks_before_them(line, plain):
    assert wiki._EMPTY.sub("", line) == plain


def test_a_dump_is_read(tmp_path):
    stream = io.BytesIO(
        b"<mediawiki><page><title>A</title><ns>0</ns><revision><text>One (, ) two {{x}}."
        b"</text></revision></page></mediawiki>"
    )
    (item,) = wiki.documents(Bounded(stream, tmp_path), tmp_path)
    assert "One two" in str(item)
