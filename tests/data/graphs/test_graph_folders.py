"""A folder of triples, names and descriptions as documents."""

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import sources
from support.graphs import write


def test_triples_and_texts_of_entities_are_documents(tmp_path):
    name = write(tmp_path)
    found = [document.sentences for document in sources.documents([name])]
    assert found[:2] == [("e:a r:likes e:b",), ("e:b r:makes e:c_d",)]
    assert found[2:] == [
        ("e:a", "cat", "cat , a small animal"),
        ("e:b", "dog", "dog"),
        ("e:c_d", "a long text", "a long text"),
    ]
    before = sources.fingerprints([name])
    write(tmp_path, long="c d\tanother text\n")
    assert sources.fingerprints([name]) != before


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"train": "a\tb\n"}, "line 1"),
        ({"train": "a\tr\tb\na\t\tb\n"}, "line 2"),
        ({"names": "a b c\n"}, "line 1"),
        ({"train": "c d\tr\tb\nc_d\tr\tb\n"}, "'c d' and 'c_d' differ in blanks and underscores"),
        ({"train": "a\tr s\tb\na\tr_s\tb\n"}, "'r s' and 'r_s' differ in blanks and underscores"),
    ],
)
def test_broken_graphs_are_one_line_with_file_and_line(tmp_path, fields, line):
    with pytest.raises(UserError, match=line) as error:
        list(sources.documents([write(tmp_path, **fields)]))
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)
    with pytest.raises(UserError, match="names no directory"):
        list(sources.documents([f"graph:{tmp_path}/nothing"]))
