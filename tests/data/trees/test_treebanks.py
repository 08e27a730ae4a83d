"""Trees from CoNLL-U and from brackets: what stands in the files, binary trees, broken files,
documents and rows."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.rows.trees import Trees
from ptm_jax.data.text import sources
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.trees.parses import Tree, binary
from ptm_jax.data.trees.treebanks import read
from ptm_jax.statistics import trees

SST = "(3 (2 It) (4 (4 (2 's) (4 (3 (2 a) (4 (3 lovely) (2 film))) (3 (2 with) (2 it)))) (2 .)))"
PENN = (
    "( (S (NP-SBJ (DT the) (NN dog))\n (VP (VBZ barks) (ADVP (RB very) (RB often) (RB "
    "here))) (. .)) )\n"
)


def conllu(*words):
    """Lines of (number, form, head, relation)."""
    return (
        "# text\n"
        + "".join(
            f"{n}\t{form}\t_\tX\t_\t_\t{head}\t{label}\t_\t_\n" for n, form, head, label in words
        )
        + "\n"
    )


def written(folder, text, name="a.conllu"):
    (folder / name).write_text(text)
    return folder / name


GOOD = conllu(
    (1, "dogs", 2, "nsubj:pass"),
    (2, "bark", 0, "root"),
    (3, "at", 4, "case"),
    (4, "cats", 2, "obl"),
)


def test_words_heads_and_labels(tmp_path):
    joined = conllu(("1-2", "dont", "_", "_")).strip() + "\n" + GOOD + GOOD
    found = list(read(written(tmp_path, joined)))
    assert found[1] == Tree(
        ("dogs", "bark", "at", "cats"),
        (1, -1, 3, 1),
        ("nsubj:pass", "root", "case", "obl"),
        found[1].place,
    )
    assert [tree.words for tree in found] == [found[1].words] * 2
    assert found[1].levels == [0, 2, 0, 1] and found[1].children == [[], [0, 3], [], [2]]


def brackets(tree):
    """The brackets of a tree in post-order."""
    built = []
    for word, label, children in zip(tree.words, tree.labels, tree.children, strict=True):
        built.append(f"({label} {word or ' '.join(built[child] for child in children)})")
    return built[-1]


def test_brackets_are_read_back(tmp_path):
    found = list(read(written(tmp_path, SST + "\n" + PENN, "a.mrg")))
    assert brackets(found[0]) == SST
    assert brackets(found[1]) == " ".join(PENN.split()).removeprefix("( ").removesuffix(" )")
    assert binary(found[0]) == found[0], "SST's trees are binary"
    expected = (
        "(S (S (NP-SBJ (DT the) (NN dog)) (VP (VBZ barks) (ADVP (ADVP (RB very) (RB "
        "often)) (RB here)))) (. .))"
    )
    assert brackets(binary(found[1])) == expected


def test_a_head_joins_its_right_dependents_first(tmp_path):
    found = binary(next(read(written(tmp_path, GOOD))))
    assert (
        brackets(found)
        == "(nsubj:pass (nsubj:pass dogs) (obl (root bark) (case (case at) (obl cats))))"
    )
    assert all(len(children) in (0, 2) for children in found.children)


DEEP = "(X " * 1100 + "a" + ")" * 1100
BROKEN = {
    "cycle": (
        conllu((1, "a", 2, "x"), (2, "b", 1, "x"), (3, "c", 0, "root")),
        "a.conllu:2: .* 1, 2 form a cycle",
    ),
    "own": (conllu((1, "a", 1, "x"), (2, "c", 0, "root")), "a.conllu:2: .* cycle"),
    "two roots": (
        conllu((1, "a", 0, "root"), (2, "b", 0, "root")),
        r"a.conllu:2: 2 roots \(words 1 and 2\)",
    ),
    "no head": (conllu((1, "a", 0, "root"), (2, "b", "_", "x")), "a.conllu:3: word 2 has no head"),
    "far head": (
        conllu((1, "a", 0, "root"), (2, "b", 7, "x")),
        "a.conllu:2: word 2 has head 7; there are 2",
    ),
    "columns": ("1\ta\n", "a.conllu:1: 2 columns"),
    "numbers": (conllu((1, "a", 0, "root"), (3, "b", 1, "x")), "a.conllu:3: word 3 follows word 1"),
    "empty": ("# nothing\n", "a.conllu: has no trees"),
    "long": (
        conllu(*((n, "a", n - 1, "x") for n in range(1, 1101))),
        "a.conllu:2: a tree of 1,100 nodes",
    ),
    "open": ("(S (NP a)\n", "a.mrg:1: a bracket is not closed"),
    "closed": ("(S a))\n", r"a.mrg:1: '\)' stands outside"),
    "two trees": ("(X a)\n((X a) (X b))\n", "a.mrg:2: 2 trees in one bracket"),
    "no label": ("(S ())\n", "a.mrg:1: a bracket without a label"),
    "word and child": ("(S a (NP b))\n", "a.mrg:1: 'S a' with 1 children"),
    "no child": ("(S)\n", "a.mrg:1: 'S' with 0 children"),
    "deep": (DEEP, "a.mrg:1: brackets in 1,024 levels"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_trees_are_one_line_with_file_and_place(name, tmp_path):
    text, message = BROKEN[name]
    file = written(tmp_path, text, "a.mrg" if ".mrg" in message else "a.conllu")
    with pytest.raises(UserError, match=message) as error:
        list(read(file))
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def block_of(documents):
    """The block and the marks of documents whose words are numbered in order."""
    pieces = [
        "[PAD]",
        "[UNK]",
        *dict.fromkeys(piece for d in documents for s in d.sentences for piece in s.split()),
    ]
    number = {piece: i for i, piece in enumerate(pieces)}
    ids = [[number[piece] for piece in s.split()] for d in documents for s in d.sentences]
    counts = np.array([len(d.sentences) for d in documents], np.int32)
    tokens = np.array([i for one in ids for i in one], np.int32)
    block = Block(
        tokens, np.array([len(one) for one in ids], np.int32), counts, np.zeros(len(counts), bool)
    )
    return block, trees.TreeMarks().filled(trees.digits(pieces)), pieces


def test_rows_hold_the_trees_of_the_files(tmp_path):
    file = written(tmp_path, GOOD + conllu((1, "Yes", 0, "root"), (2, "!", 1, "punct")))
    block, marks, pieces = block_of(list(sources.documents([f"trees:{file}"])))

    def rows(length, **options):
        return Trees(marks=marks, **options).rows(
            block,
            length=length,
            vocab=Vocab(size=len(pieces), pad=0, unk=1),
            rng=np.random.default_rng(0),
        )

    found = rows(8, classes="phrases")
    assert [pieces[i] for i in found["input_ids"][0]] == [
        "dogs",
        "bark",
        "at",
        "cats",
        "Yes",
        "!",
        "[PAD]",
        "[PAD]",
    ]
    assert found["heads"].tolist() == [[1, -1, 3, 1, -1, 4, -1, -1]]
    assert found["segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2, 0, 0]]
    names = [trees.UNIVERSAL[n - 1] if n else "" for n in found["relations"][0]]
    assert names == ["nsubj", "root", "case", "obl", "root", "punct", "", ""]
    assert found["token_weights"].tolist() == [[0, 1, 0, 1, 1, 0, 0, 0]]
    cut = rows(3)
    assert np.count_nonzero(cut["segment_ids"]) == 6
    row = next(r for r, ids in enumerate(cut["input_ids"]) if pieces[ids[0]] == "dogs")
    assert cut["heads"][row].tolist() == [1, -1, -1], "a head in another piece is none"
    block, marks, pieces = block_of(list(sources.documents([f"binary:{file}"])))
    found = rows(16)
    assert "".join(pieces[i][0] for i in found["input_ids"][0]) == "dbac⟦⟦⟦Y!⟦" + "[" * 6
    assert found["heads"][0, :10].tolist() == [6, 5, 4, 4, 5, 6, -1, 9, 9, -1]


def test_sources_name_their_files(tmp_path):
    file = written(tmp_path, GOOD)
    same = [
        sources.fingerprints([f"{kind}:{place}"])[0]["sha256"]
        for kind in trees_kinds
        for place in (file, tmp_path)
    ]
    assert same[0] == same[1] != same[2] == same[3]
    with pytest.raises(UserError, match="names no trees"):
        list(sources.documents([f"trees:{tmp_path}/nothing"]))


trees_kinds = ("trees", "binary")


def test_a_baseline_counts_the_words_alone(tmp_path):
    """The ids that a baseline leaves out are the special tokens and the marks, so that the rest are
    the forms of the treebank."""
    file = written(tmp_path, GOOD * 20)
    spec = TokenizerSpec(kind="spaced", vocab=100, min_count=2)
    corpus = prepare([f"binary:{file}"], tmp_path / "corpus", tokenizer=spec, heldout=0.2)
    pieces = corpus.tokenizer().pieces
    counted = set(range(len(pieces))) - set(corpus.uncounted)
    counts = corpus.counts("train") + corpus.counts("heldout")
    found = {pieces[number]: counts[number] for number in counted}
    assert found == {"dogs": 20, "bark": 20, "at": 20, "cats": 20, "[UNK]": 0}


@pytest.mark.full
def test_every_tree_of_universal_dependencies_is_read(data):
    count = 0
    for file in sorted((data / "ud").rglob("*.conllu")):
        for tree in read(file):
            pair = binary(tree)
            assert len(pair.words) == 2 * len(tree.words) - 1 and {
                len(c) for c in pair.children
            } <= {0, 2}
            assert sorted(filter(None, pair.words)) == sorted(tree.words)
            count += 1
    assert count == 1000 + 1200 + 156 + 400 + 412 + 500
