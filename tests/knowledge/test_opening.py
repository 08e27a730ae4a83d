"""Published files of graphs are compiled into the cache once, and give what stands in them."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.graphs import compiling, opening
from ptm_jax.knowledge.word_classes import senses_of

TRIPLES = "# a comment\nNew_York\tpart_of\tUSA\nBoston\tpart_of\tUSA\nNew_York\tpart_of\tUSA\n"


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """The folders into which graphs are compiled from now on, in a cache of their own."""
    folders, original = [], compiling.compile_graph
    monkeypatch.setattr(
        opening,
        "compile_graph",
        lambda sources, out, **options: folders.append(out) or original(sources, out, **options),
    )
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    return folders


def test_a_file_is_compiled_once_and_again_when_it_changes(tmp_path, counted):
    path = tmp_path / "train.tsv"
    path.write_text(TRIPLES)
    first, again = opening.opened(path, "triples"), opening.opened(path, "triples")
    assert first.dir == again.dir == counted[0] and len(counted) == 1
    assert first.dir.parent == tmp_path / "cache" / "graphs"
    copy = tmp_path / "copy.tsv"
    copy.write_text(TRIPLES)
    assert opening.opened(copy, "triples").dir == first.dir and len(counted) == 1
    path.write_text(TRIPLES + "a\tb\tc\n")
    assert len(opening.opened(path, "triples").triples()) == 4 and len(counted) == 2
    path.write_text("a\tb\tc\n")
    kinds = {opening.opened(path, kind).dir for kind in ("triples", "graph")}
    assert len(kinds) == 2, "a graph of sources has no comments and no repeated triples"


def test_lines_of_triples_are_as_they_stand(tmp_path, counted):
    """Neither underscores nor repeated lines are lost, which a graph of other sources drops."""
    path = tmp_path / "train.tsv"
    path.write_text(TRIPLES)
    lines = [tuple(line.split("\t")) for line in TRIPLES.splitlines()[1:]]
    assert list(opening.rows(path)) == list(opening.rows(path, "aliases")) == lines
    path.write_text("a\tb\n")
    with pytest.raises(UserError, match="train.tsv: line 1 is 'a.tb'; expected 3 cells with tabs"):
        opening.rows(path)


@pytest.mark.parametrize("cache", ["off", "/proc/nowhere"])
def test_without_a_cache_a_graph_is_compiled_for_the_process(tmp_path, counted, monkeypatch, cache):
    monkeypatch.setenv("PTM_CACHE", cache)
    path = tmp_path / "train.tsv"
    path.write_text(TRIPLES)
    assert opening.opened(path, "triples").dir == opening.opened(path, "triples").dir
    assert not (tmp_path / "cache").exists() and len(counted) <= 1


def test_sentiwordnet_keeps_the_numbers_of_senses(tmp_path, counted):
    """`good` has a gap in its numbers, and more adjective than noun senses."""
    rows = ["a\t1\t0.75\t0\tgood#1\tx", "n\t2\t0\t0.5\tgood#1\ty", "a\t3\t0\t0.5\tgood#3 fine#2\tz"]
    path = tmp_path / "swn.txt"
    path.write_text("# SentiWordNet v3.0.0\n" + "\n".join(rows) + "\n")
    senses = senses_of(opening.opened(path, "sentiwordnet"))
    assert [(s.part, s.number, s.score, s.gloss) for s in senses["good"]] == [
        ("a", 1, 0.75, "x"),
        ("a", 3, -0.5, "z"),
    ]
    assert [s.number for s in senses["fine"]] == [2]


def test_sense_keys_give_lemmas_types_and_glosses(tmp_path, counted):
    keys = ["dog%1:05:00:: 00000017 1 42", "hot_dog%1:13:00:: 00000099 2 0"]
    (tmp_path / "index.sense").write_text("\n".join(keys) + "\n")
    with pytest.raises(UserError, match="data.noun: cannot be read"):
        opening.compiled(opening.formats.sources([f"senses:{tmp_path}"]))
    alone = opening.opened(tmp_path / "index.sense", "senses")
    synsets = ["00000017 05 n 01 dog 0 000 | barks", "00000099 13 n 01 hot_dog 0 000 | is hot  "]
    (tmp_path / "data.noun").write_text("\n".join(["  1 licence", *synsets]) + "\n")
    graph = opening.compiled(opening.formats.sources([f"senses:{tmp_path}"]))
    assert list(graph.descriptions) == ["barks", "is hot"] != list(alone.descriptions)
    for each in (alone, graph):
        assert list(each.entities) == ["dog%1:05:00::", "hot_dog%1:13:00::"]
        assert list(each.alias_texts) == ["dog", "hot dog"]
        assert np.concatenate(list(each.alias_senses)).tolist() == [1, 2]
        assert list(each.type_names) == ["noun.animal", "noun.food"]
