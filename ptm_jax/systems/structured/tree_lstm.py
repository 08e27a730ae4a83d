"""Systems over trees and graphs of words (rows 23, 24, 25, 27), and S-LSTM.

Systems that read trees train on `--data trees:PATH` or `binary:PATH`. On other text a sentence is a
chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.recipe import Adagrad, AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System, Tie
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.trees import Trees
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.trees import TreeEncoder
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.graph.convolution import GCN, SyntacticGCN
from ptm_jax.nn.graph.sentence_state import SentenceStateLSTM
from ptm_jax.nn.graph.star import StarTransformer
from ptm_jax.nn.heads.pretraining import Detector
from ptm_jax.nn.heads.task_heads import TokenHead
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Normal, Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.nn.tree.recursive import RecursiveNN
from ptm_jax.nn.tree.tree_lstm import BinaryTreeLSTM, ChildSumTreeLSTM
from ptm_jax.objectives.tasks.downstream import NodeClasses
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.objectives.text.language import MLM
from ptm_jax.statistics import trees
from ptm_jax.systems.transformers.bert_gpt import miniature

SST = Vocab(size=21_701, pad=0, unk=1, cls=2, sep=3, mask=4)
"""The words of the Stanford Sentiment Treebank, and special tokens."""
WORDS = Vocab(size=40_000, pad=0, unk=1, cls=2, sep=3, mask=4)
SPACED = TokenizerSpec(kind="spaced", vocab=WORDS.size, specials="bert", min_count=2)


def recipe(steps: int, batch: int, lr: float, optimizer: Any, length: int = 64) -> Recipe:
    return Recipe(
        phases=(Phase(steps=steps, batch=batch, length=length),),
        lr=lr,
        optimizer=optimizer,
        schedule=Constant(),
        clip=5.0,
    )


def masked(
    name: str, paper: str, row: int, encoder: TreeEncoder, how: Recipe, *, examples: Any = None
) -> System:
    """Masked words, as BERT's, on the encoder of a paper that has no pre-training."""
    return System(
        name=name,
        paper=paper,
        section="2.3.1",
        group="Background encoders and word vectors",
        rows=(row,),
        towers={"main": Model(encoder=encoder, heads={"mlm": MLMHead(vocab=WORDS)})},
        tokenizer=SPACED if examples is None else dataclasses.replace(SPACED, kind="word"),
        examples=Trees() if examples is None else examples,
        corruption=TokenMasking(vocab=WORDS),
        objective=MLM(),
        recipe=how,
    )


def classified(
    name: str,
    paper: str,
    row: int,
    layer: Any,
    width: int,
    *,
    std: Any,
    dropout: float,
    how: Recipe,
) -> System:
    """The five classes of sentiment of all nodes of binary trees, `--data binary:SST/train.txt`."""
    encoder = TreeEncoder(
        embed=Embeddings(vocab=SST, width=width, initializer=std), layers=(layer,), dropout=dropout
    )
    return System(
        name=name,
        paper=paper,
        section="2.3.1",
        group="Background encoders and word vectors",
        rows=(row,),
        towers={"main": Model(encoder=encoder, heads={"tag": TokenHead(len(trees.SENTIMENT))})},
        tokenizer=dataclasses.replace(SPACED, vocab=SST.size),
        examples=Trees(labels=trees.SENTIMENT, classes="nodes"),
        objective=NodeClasses(),
        recipe=how,
    )


def recursive(name: str, tensor: bool) -> System:
    """Socher et al. 2013, sections 4.1, 4.3 and 5.

    Words of width 30 from U(-0.0001, 0.0001), AdaGrad at 0.01, sets of 25 sentences for under 5
    hours (here 50 epochs). Socher et al. 2012 is the network without the tensor.
    """
    how = recipe(17_000, 25, 0.01, Adagrad(initial=0.0))
    paper = "Socher et al. 2013, EMNLP" if tensor else "Socher et al. 2012, EMNLP"
    return classified(
        name, paper, 23, RecursiveNN(tensor=tensor), 30, std=Uniform(1e-4), dropout=0.0, how=how
    )


def tree_lstm_binary() -> System:
    """The constituency Tree-LSTM (Tai et al. 2015, section 5.3 and Table 1).

    150 units over words of width 300, AdaGrad at 0.05 in sets of 25, dropout 0.5. A gate has one
    bias vector here, theirs one for each of its products.
    """
    how = recipe(7_000, 25, 0.05, Adagrad(initial=0.0))
    return classified(
        "tree_lstm_binary",
        "Tai et al. 2015, arXiv 1503.00075",
        24,
        BinaryTreeLSTM(150),
        300,
        std=Normal(0.1),
        dropout=0.5,
        how=how,
    )


def tree_lstm(
    name: str = "tree_lstm", hidden: int = 150, width: int = 300, dropout: float = 0.5
) -> System:
    """The dependency Tree-LSTM (Tai et al. 2015, section 3.1 and Table 1).

    It has 150 units and words of width 300. It reads upwards and, as in Miwa and Bansal 2016,
    downwards, so that a masked word is read from its whole tree.
    """
    embed = Embeddings(vocab=WORDS, width=width, initializer=Normal(0.1))
    encoder = TreeEncoder(
        embed=embed, layers=(ChildSumTreeLSTM(hidden, both=True),), dropout=dropout
    )
    how = recipe(100_000, 25, 0.05, Adagrad(initial=0.0))
    return masked(name, "Tai et al. 2015, arXiv 1503.00075", 24, encoder, how)


def tree_lstm_replaced() -> System:
    """Replaced tokens on a tree: ELECTRA's objective on `tree_lstm`.
    Clark et al. 2020. The generator is half as wide."""
    judge, generator = tree_lstm(), tree_lstm(hidden=75)
    towers = {"main": dataclasses.replace(judge.towers["main"], heads={"rtd": Detector()})}
    return dataclasses.replace(
        judge,
        name="tree_lstm_replaced",
        towers={**towers, "generator": generator.towers["main"]},
        ties=(Tie(path="generator/encoder/embed/token", source="main/encoder/embed/token"),),
        objective=RTD(),
    )


def gcn() -> System:
    """The GCN of Kipf and Welling (2017, section 5.2) over the arcs of sentences.

    It has two layers of 16 units, dropout 0.5, Adam at 0.01. The paper has citations in place of
    arcs.
    """
    embed = Embeddings(vocab=WORDS, width=100, initializer=Normal(0.1))
    encoder = TreeEncoder(embed=embed, layers=(GCN(16), GCN(16)), dropout=0.5)
    how = recipe(100_000, 25, 0.01, AdamW(eps=1e-8, weight_decay=0.0))
    return masked("gcn", "Kipf and Welling 2017, arXiv 1609.02907", 25, encoder, how)


def syntactic_gcn() -> System:
    """The syntactic GCN on LSTM layers (Marcheggiani and Titov 2017, appendix).

    It has three bidirectional LSTM layers of 512 units and one layer of the GCN, words of width
    100, edge dropout 0.3, Adam at 0.01. Deviation: the paper labels semantic roles, ours reads
    masked words; it has predicate and part-of-speech embeddings.
    """
    embed = Embeddings(vocab=WORDS, width=100, initializer=Normal(0.1))
    both = Bidirectional(LSTM(512), LSTM(512, backward=True))
    layer = SyntacticGCN(512, len(trees.UNIVERSAL), edge_dropout=0.3)
    encoder = TreeEncoder(embed=embed, below=(both,) * 3, layers=(layer,), dropout=0.3)
    how = recipe(100_000, 100, 0.01, AdamW(eps=1e-8, weight_decay=0.0))
    return masked(
        "syntactic_gcn", "Marcheggiani and Titov 2017, arXiv 1703.04826", 25, encoder, how
    )


def s_lstm() -> System:
    """S-LSTM of 300 units, window 1, 9 steps, words of width 300, dropout 0.5, Adam at 0.001.
    Zhang et al. 2018."""
    embed = Embeddings(vocab=WORDS, width=300, initializer=Normal(0.1))
    encoder = TreeEncoder(embed=embed, layers=(SentenceStateLSTM(300, steps=9),), dropout=0.5)
    how = recipe(100_000, 10, 1e-3, AdamW(eps=1e-8, weight_decay=0.0), 128)
    return masked(
        "s_lstm", "Zhang et al. 2018, arXiv 1805.02474", 24, encoder, how, examples=Packed()
    )


def star_transformer() -> System:
    """Width 300, 4 cycles, 8 heads of width 32, dropout 0.1, 512 learned positions.

    FastNLP's `STSeqCls`, the authors' library (Guo et al. 2019).
    """
    embed = Embeddings(
        vocab=WORDS, width=300, position=LearnedPositions(512), initializer=Normal(0.1)
    )
    encoder = TreeEncoder(embed=embed, layers=(StarTransformer(4, 8, 32),), dropout=0.1)
    how = recipe(100_000, 32, 1e-3, AdamW(eps=1e-8, weight_decay=0.0), 128)
    return masked(
        "star_transformer", "Guo et al. 2019, arXiv 1902.09113", 27, encoder, how, examples=Packed()
    )


def small(parent: System, name: str, updates: int, lr: float, **fields: Any) -> System:
    """The parent in small: narrow layers, the 4,096 most frequent words.
    It takes a few epochs of Universal Dependencies."""
    for field, value in {"width": 64, "hidden": 64, **fields}.items():
        parent = with_field(parent, field, value)
    return miniature(parent, name, steps=updates, lr=lr, batch=16, length=64)


def relations(parent: System, name: str, lr: float, **fields: Any) -> System:
    """The kinds of phrases of binary trees from dependencies.
    A kind is the relation that joins the two parts."""
    tower = dataclasses.replace(
        parent.towers["main"], heads={"tag": TokenHead(len(trees.UNIVERSAL))}
    )
    parent = dataclasses.replace(parent, towers={"main": tower}, examples=Trees(classes="phrases"))
    return small(parent, name, 250, lr, **fields)


def systems() -> Iterator[System]:
    yield recursive("recursive_nn", tensor=False)
    yield recursive("rntn", tensor=True)
    yield tree_lstm()
    yield tree_lstm_binary()
    yield tree_lstm_replaced()
    yield gcn()
    yield syntactic_gcn()
    yield s_lstm()
    yield star_transformer()
    narrow = {"width": 16, "initializer": Normal(0.1)}
    yield relations(recursive("", tensor=False), "recursive_nn_mini", 5e-3, **narrow)
    yield relations(recursive("", tensor=True), "rntn_mini", 5e-3, **narrow)
    yield relations(tree_lstm_binary(), "tree_lstm_binary_mini", 5e-3)
    yield small(tree_lstm(), "tree_lstm_mini", 280, 5e-3)
    yield small(tree_lstm_replaced(), "tree_lstm_replaced_mini", 200, 5e-3)
    yield small(gcn(), "gcn_mini", 400, 5e-3)
    yield small(syntactic_gcn(), "syntactic_gcn_mini", 300, 5e-3)
    yield small(s_lstm(), "s_lstm_mini", 130, 5e-3, steps=5)
    yield small(star_transformer(), "star_transformer_mini", 300, 3e-3, cycles=2)
