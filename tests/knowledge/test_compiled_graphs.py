"""Formats of graphs, compiled: what is read, what is broken and where, which graph is refused."""

import json

import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.data.graphs.linking import Linker
from ptm_jax.knowledge.graphs import graph_store
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources


def built(tmp_path, *names, **options):
    return compile_graph(sources(names), tmp_path / "out", **options)


def named(graph, split="train"):
    return [
        (graph.entities[h], graph.relations[r], graph.entities[t])
        for h, r, t in graph.triples(split).tolist()
    ]


def files(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return str(folder)


def test_triples_texts_and_splits(tmp_path):
    folder = files(
        tmp_path / "g",
        train__tsv="a\tlikes\tb\nb\tlikes\tc d\n",
        dev__tsv="a\tmakes\tc d\n",
        entity2text__txt="a\tcat\nb\tdog\n",
        entity2textlong__txt="a\ta small animal\n",
        relation2text__txt="likes\tis fond of\n",
        entity2type__txt="a\tpet\tanimal\n",
        aliases__txt="a\tcat\tpuss\nb\tpuss\n",
    )
    graph = built(tmp_path, folder)
    assert named(graph) == [("a", "likes", "b"), ("b", "likes", "c d")] and named(
        graph, "valid"
    ) == [("a", "makes", "c d")]
    assert list(graph.names) == ["cat", "puss", "c d"] and list(graph.descriptions) == [
        "a small animal",
        "",
        "",
    ]
    assert list(graph.relation_names) == ["is fond of", "makes"] and len(graph.triples("test")) == 0
    assert [graph.type_names[i] for i in graph.entity_types[0]] == ["pet", "animal"] and len(
        graph.entity_types[2]
    ) == 0
    puss = graph.alias_texts.places["puss"]
    assert graph.alias_entities[puss].tolist() == [0, 1] and graph.alias_priors[puss].tolist() == [
        0.5,
        0.5,
    ]
    assert [graph.alias_texts[i] for i in graph.entity_aliases[0]] == ["cat", "puss"]
    assert [graph.triples()[i].tolist() for i in graph.outgoing[1]] == [[1, 0, 2]]
    assert isinstance(graph.triples(), np.memmap) and graph.checked() is graph
    assert graph.manifest["faults"]["duplicate alias"] == {
        "count": 1,
        "first": f"{tmp_path}/g/entity2text.txt: line 1: 'cat' again",
    }
    assert built(tmp_path, folder).digest == graph.digest


def test_wordnet_has_synsets_supersenses_and_priors(tmp_path):
    notice = "  1 This software and database is being provided to you\n"
    folder = files(
        tmp_path / "wn",
        data__noun=notice + "00000010 05 n 02 cat 0 true_cat 0 001 @ 00000020 n 0000 | a feline  \n"
        "00000020 03 n 01 animal 0 000 | a living thing  \n00000030 18 n 01 cat 1 000 | a man  \n",
        data__adj=notice + "00000040 00 s 01 feline(p) 0 001 \\ 00000010 n 0101 | of cats  \n",
        index__noun=notice + "cat n 2 1 @ 2 1 00000010 00000030  \nanimal n 1 0 1 0 00000020  \n",
        index__adj=notice + "feline a 1 1 \\ 1 0 00000040  \n",
        cntlist__rev="cat%1:05:00:: 1 18\n",
    )
    scores = tmp_path / "SentiWordNet_3.0.0.txt"
    scores.write_text(
        "# POS\tID\nn\t00000030\t0.25\t0.5\tcat#2\ta man\nn\t00000099\t0\t0\tx#1\tnone\n"
    )
    graph = built(tmp_path, folder, str(scores))
    assert named(graph) == [
        ("00000010-n", "hypernym", "00000020-n"),
        ("00000040-a", "pertainym", "00000010-n"),
    ]
    assert [graph.type_names[t[0]] for t in graph.entity_types] == [
        "noun.animal",
        "noun.Tops",
        "noun.person",
        "adj.all",
    ]
    cat = graph.alias_texts.places["cat"]
    assert graph.alias_entities[cat].tolist() == [0, 2]
    np.testing.assert_allclose(graph.alias_priors[cat], [19 / 20, 1 / 20])
    assert (
        graph.alias_texts.places.keys() == {"cat", "true cat", "animal", "feline"}
        and graph.descriptions[3] == "of cats"
    )
    np.testing.assert_array_equal(graph.value("negative"), [np.nan, np.nan, 0.5, np.nan])
    assert (
        "SentiWordNet_3.0.0.txt: line 3: scores of '00000099-n'"
        in graph.manifest["faults"]["dangling"]["first"]
    )
    with pytest.raises(UserError, match="unknown value of entities 'polarity'"):
        graph.value("polarity")


def test_conceptnet_atomic_umls_and_wikidata5m(tmp_path):
    (tmp_path / "conceptnet.csv").write_text(
        "/a/x\t/r/IsA\t/c/en/hot_dog/n\t/c/en/food\t{}\n/a/y\t/r/IsA\t/c/fr/chat\t/c/en/cat\t{}\n"
    )
    graph = compile_graph(sources([str(tmp_path / "conceptnet.csv")]), tmp_path / "c")
    assert named(graph) == [("/c/en/hot_dog/n", "/r/IsA", "/c/en/food")] and list(
        graph.alias_texts
    ) == ["food", "hot dog"]
    (tmp_path / "v4_atomic_all.csv").write_text(
        'event,xWant,oReact,prefix,split\n"PersonX eats","[""to rest"", '
        '""none""]","[""glad""]","[]",tst\n'
    )
    graph = compile_graph(sources([str(tmp_path / "v4_atomic_all.csv")]), tmp_path / "a")
    assert named(graph, "test") == [
        ("PersonX eats", "xWant", "to rest"),
        ("PersonX eats", "oReact", "glad"),
    ]

    def row(cui, language, text, flag="N"):
        return "|".join([cui, language, *["x"] * 12, text, "0", flag, "", ""]) + "\n"

    folder = files(
        tmp_path / "u",
        MRCONSO__RRF=row("C1", "ENG", "Cold")
        + row("C1", "ENG", "cold")
        + row("C1", "SPA", "frio")
        + row("C2", "ENG", "Virus"),
        MRREL__RRF="C1|A|S|RO|C2|A|S|causes|R|\nC1|A|S|PAR|C9|A|S||R|\n",
        MRSTY__RRF="C2|T005|A1|Virus|AT|\n",
        MRDEF__RRF="C2|A|AT||NCI|an agent|N|\n",
    )
    graph = compile_graph(sources([folder]), tmp_path / "m")
    assert named(graph) == [("C2", "causes", "C1")] and list(graph.alias_texts) == ["Cold", "Virus"]
    assert graph.descriptions[1] == "an agent" and graph.manifest["faults"]["dangling"][
        "first"
    ].endswith("MRREL.RRF: line 2: a triple of 'C9', which is not declared")
    folder = files(
        tmp_path / "w",
        wikidata5m_entity__txt="Q1\tuniverse\tcosmos\nQ2\tEarth\n",
        wikidata5m_relation__txt="P1\tpart of\tin\n",
        wikidata5m_text__txt="Q1\tall of space\n",
        wikidata5m_transductive_train__txt="Q2\tP1\tQ1\n",
        wikidata5m_transductive_test__txt="Q1\tP1\tQ2\n",
    )
    graph = compile_graph(sources([folder]), tmp_path / "q")
    assert named(graph) == [("Q2", "P1", "Q1")] and named(graph, "test") == [("Q1", "P1", "Q2")]
    assert list(graph.names) == ["universe", "Earth"] and list(graph.relation_names) == ["part of"]


def test_faults_are_counted_with_file_and_line(tmp_path):
    folder = files(
        tmp_path / "g",
        entities__txt="".join(f"{x}\n" for x in ["a", "b", "c", *range(2000)]),
        train__tsv="a\tisa\tb\nb\tisa\tc\nc\tisa\ta\na\tisa\tz\na\tisa\tb\n",
        relation2text__txt="isa\tis\nmakes\tmakes\n",
        aliases__txt="a\tone\tone\n" + "".join(f"{x}\tmany\n" for x in range(2000)),
    )
    graph = built(tmp_path, folder, per_alias=50)
    faults = graph.manifest["faults"]
    assert {
        kind: (fault["count"], fault["first"].rpartition("/")[2]) for kind, fault in faults.items()
    } == {
        "dangling": (1, "train.tsv: line 4: a triple of 'z', which is not declared"),
        "duplicate triple": (1, "train.tsv: line 5: the triple stands above"),
        "empty relation": (1, "relation2text.txt: line 2: 'makes' has no triples"),
        "cycle": (1, "train.tsv: line 1: 'isa' leads back to its head"),
        "duplicate alias": (1, "aliases.txt: line 1: 'one' again"),
        "crowded alias": (
            1,
            "aliases.txt: line 52: 'many' names 2,000 entities; the 50 of the highest priors stay",
        ),
    }
    assert len(graph.alias_entities[graph.alias_texts.places["many"]]) == 50
    with pytest.raises(UserError, match=r"line 4: a triple of 'z'.*leave --strict out"):
        compile_graph(sources([folder]), tmp_path / "strict", strict=True)


BROKEN = {
    "v4_atomic_all.csv": ("event,split\nx\n", "line 2"),
    "conceptnet.csv": ("a\tb\tc\td\te\n", "line 1 has the relation 'b'"),
    "SentiWordNet.txt": ("n\t1\tx\t0\ta#1\tg\n", "line 1"),
    "data.noun": ("00000010 99 n 01 cat 0 000 | x\n", "line 1"),
    "MRCONSO.RRF": ("C1|ENG|x\n", "line 1 has 3 cells"),
    "train.tsv": ("a\tb\tc\na\tb\n", "line 2"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line_with_file_and_line(tmp_path, name):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / name
    path.write_text(BROKEN[name][0])
    whole = name in ("data.noun", "MRCONSO.RRF", "train.tsv")
    with pytest.raises(UserError, match=BROKEN[name][1]) as error:
        built(tmp_path, str(path.parent if whole else path))
    assert (
        "\n" not in str(error.value)
        and str(path) in str(error.value)
        and not (tmp_path / "out").exists()
    )


def test_the_command_prints_counts_and_another_graph_is_refused(tmp_path, capsys):
    folder = files(tmp_path / "g", train__tsv="a\tisa\tb\nb\tisa\ta\n")
    out = str(tmp_path / "out")
    assert main(["prepare", "--graph", folder, "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entities"], found["triples"], found["faults"]["cycle"]["count"]) == (2, 2, 1)
    assert main(["prepare", "--graph", folder, "--out", out]) == 0
    assert "2 entities, 1 relations, 2 triples" in capsys.readouterr().out
    files(tmp_path / "g", train__tsv="a\tisa\tc\n")
    assert main(["prepare", "--graph", folder, "--out", out]) == 1
    assert "holds the graph of other sources" in capsys.readouterr().err
    assert main(["prepare", "--graph", f"wordnets:{folder}", "--out", out]) == 1
    assert "Did you mean 'wordnet'?" in capsys.readouterr().err
    digest = graph_store.open_graph(out).digest
    with pytest.raises(UserError, match=f"holds the graph {digest[:12]}; expected {'0' * 12}"):
        graph_store.open_graph(out, "0" * 64)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"entities": 2', '"entities": 3'))
    with pytest.raises(UserError, match="was changed after it was written"):
        graph_store.open_graph(out)
    (tmp_path / "out" / "triples-train.npy").write_bytes(b"")
    with pytest.raises(UserError, match="no compiled graph"):
        graph_store.open_graph(tmp_path)


@pytest.mark.full
def test_an_alias_of_a_million_entities_is_cut_and_reported(tmp_path):
    names = "".join(f"e{number}\tthing\n" for number in range(10**6))
    folder = files(tmp_path / "g", train__tsv="e0\tisa\te1\n", aliases__txt=names)
    graph = built(tmp_path, folder)
    assert graph.manifest["faults"] == {
        "crowded alias": {
            "count": 1,
            "first": f"{folder}/aliases.txt: line 101: 'thing' names 1,000,000 entities; the 100 "
            "of the highest priors stay",
        }
    }
    assert graph.counts["entities"] == 10**6 and len(graph.alias_entities[0]) == 100
    np.testing.assert_allclose(graph.alias_priors[0], 1e-6)
    (linked,) = Linker.of(graph)(["A thing"])
    assert len(linked.mentions[0].entities) == 30
