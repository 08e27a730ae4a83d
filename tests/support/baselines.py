"""Baselines of the trainings of miniatures, each a pair (metric, function of the result).

A training must end below its baseline by a margin (`tests/systems/test_training.py`).
"""

import collections
import json
import math

import numpy as np

from ptm_jax import systems
from ptm_jax.core import facts
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora.store import Blocks, open_corpus
from ptm_jax.data.rows.trees import Trees
from ptm_jax.data.rows.windows import kept
from ptm_jax.encoders.words.logistic import LogisticEncoder
from ptm_jax.knowledge.languages import WordLanguages
from ptm_jax.knowledge.triples import Triples
from ptm_jax.statistics import cooccurrences
from ptm_jax.statistics.counts import noise_of
from ptm_jax.statistics.trees import UNIVERSAL
from ptm_jax.training.start import setup


def constant(metric, value):
    """Against a number."""
    return metric, lambda result: value


def unigram(metric):
    """Nats per token against the unigram distribution of the training text."""
    return metric, lambda result: result.baseline


def classes(metric, count):
    """Against a guess among classes of one size."""
    return metric, lambda result: math.log(count)


def share(stem):
    """Against the share of 1s, which is known to a guess that sees nothing."""

    def entropy(result):
        p = result.heldout[f"{stem}_share"]
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    return f"{stem}_nll", entropy


def frequencies(tree=False, k=5, metric="pair_loss", split="heldout", power=0.75, sample=1e-3):
    """Against scores that depend on the word alone, at their best for the training text: of noise
    words, or of a tree."""

    def loss(result):
        corpus = open_corpus(
            json.loads((result.workdir / "config.json").read_text())["corpus"]["path"]
        )
        train, text = (corpus.counts(part).astype(float) for part in ("train", split))
        rates = kept(train, sample, corpus.vocab.unk) if sample else 1.0
        for counts in (train, text):
            counts[[corpus.vocab.unk, *corpus.vocab.specials]] = 0
        noise = noise_of(train, corpus.vocab, power)
        p, text = (train + (train > 0)) * rates, np.where(train > 0, text, 0) * rates
        p, text = p / p.sum(), text / text.sum()
        there = p > 0
        if tree:
            return float(-text[there] @ np.log(p[there]))
        odds = p[there] / (k * noise[there])
        return float(text[there] @ np.log1p(1 / odds) + k * noise[there] @ np.log1p(odds))

    return metric, loss


def two_languages(k=5):
    """As `frequencies`, of words and noise words of each language; half of the predictions are in
    each."""

    def loss(result):
        corpus = open_corpus(
            json.loads((result.workdir / "config.json").read_text())["corpus"]["path"]
        )
        train, text = (corpus.counts(split).astype(float) for split in ("train", "heldout"))
        rates, languages, total = (
            kept(train, 1e-3, corpus.vocab.unk),
            WordLanguages().read(corpus),
            0.0,
        )
        for language in (1, 2):
            own = languages == language
            noise = noise_of(np.where(own, train, 0), corpus.vocab, 0.75)
            p, seen = (
                np.where(own & (train > 0), counts, 0) * rates for counts in (train + 1, text)
            )
            p, seen, there = p / p.sum(), seen / seen.sum(), p > 0
            odds = p[there] / (k * noise[there])
            total += float(seen[there] @ np.log1p(1 / odds) + k * noise[there] @ np.log1p(odds)) / 2
        return total

    return "pair_loss", loss


def second_pieces():
    """Nats per piece of the second vocabulary against its unigram distribution in the training
    text."""

    def loss(result):
        corpus = open_corpus(
            json.loads((result.workdir / "config.json").read_text())["corpus"]["path"]
        )
        fact = systems.get("dual_train_mini").corruption.second
        table = corpus.second_vocabulary(fact.vocabulary, fact.longest)
        table[list(corpus.vocab.specials)] = -1
        train, text = (np.zeros(fact.vocabulary) for _ in range(2))
        for split, found in (("train", train), ("heldout", text)):
            for column in table.T:
                np.add.at(found, column[column >= 0], corpus.counts(split)[column >= 0])
        p = (train + 1) / (train + 1).sum()
        return float(-(text / text.sum()) @ np.log(p))

    return "student_nll", loss


def relations():
    """Against the frequencies of the relations of phrases in the training trees."""

    def loss(result):
        corpus = open_corpus(
            json.loads((result.workdir / "config.json").read_text())["corpus"]["path"]
        )
        cut, found = facts.fill(Trees(classes="phrases"), lambda: corpus), {}
        for split in ("train", "heldout"):
            rows = (
                cut.rows(
                    corpus.blocks(split)[n],
                    length=64,
                    vocab=corpus.vocab,
                    rng=np.random.default_rng(0),
                )
                for n in range(corpus.size(split)["blocks"])
            )
            labels = np.concatenate([row["token_labels"][row["token_weights"] > 0] for row in rows])
            found[split] = np.bincount(labels, minlength=len(UNIVERSAL))
        p = (found["train"] + 1) / (found["train"] + 1).sum()
        return float(-(found["heldout"] @ np.log(p)) / found["heldout"].sum())

    return "nll", loss


def parts_of_triples(k=10):
    """Against scores that depend on the head, the tail or the relation alone, at their best for the
    training triples. Noise is uniform; where it is the truth it does not count."""

    def loss(result):
        corpus = open_corpus(
            json.loads((result.workdir / "config.json").read_text())["corpus"]["path"]
        )
        found = []
        for block in map(Blocks(corpus, "train").__getitem__, range(len(Blocks(corpus, "train")))):
            starts, sizes = block.document_tokens[:-1], np.diff(block.document_tokens)
            found.append(
                block.tokens[starts[(block.documents == 1) & (sizes == 3)][:, None] + np.arange(3)]
            )
        triples, total = np.concatenate(found), 0.0
        for place, others in ((0, (0, 2)), (1, (1,)), (2, (0, 2))):
            _, counts = np.unique(triples[:, place], return_counts=True)
            p, noise = counts / counts.sum(), 1 / len(np.unique(triples[:, others]))
            odds = p / (k * noise)
            total += float(p @ np.log1p(1 / odds) + k * noise * ((1 - p) @ np.log1p(odds))) / 3
        return total

    return "triple_loss", loss


def noise_words(k):
    """Against scores of a word's own probability, which make NCE's classifier guess 1 in k + 1."""
    return "pair_loss", lambda result: math.log(1 + k) + k * math.log(1 + 1 / k)


def frequent_words(result):
    """The cross-entropy of the bits of held-out texts and the shares of training texts that have
    each word."""
    corpus = open_corpus(json.loads((result.workdir / "config.json").read_text())["corpus"]["path"])
    config = Experiment(system=systems.get("greedy_rbm_mini"), data=())
    bags = LogisticEncoder(vocab=corpus.vocab, widths=()).bags
    train, text = (
        np.concatenate([np.asarray(bags(batch)).reshape(-1, corpus.vocab.size) for batch in stream])
        for stream in (
            setup.stream(config, corpus, 0, split, epochs=1) for split in ("train", "heldout")
        )
    )
    train, text = train[train.any(1)], text[text.any(1)]
    p = (train.sum(0) + 0.5) / (len(train) + 1)
    return float(-(text @ np.log(p) + (1 - text) @ np.log1p(-p)).mean())


def additive(result):
    """GloVe's loss with biases alone, w = 0, fitted to the training cells."""
    config = json.loads((result.workdir / "config.json").read_text())
    matrix = open_corpus(config["corpus"]["path"])
    examples = systems.get("glove_mini").examples
    train, text = (examples.blocks(matrix, split).cells for split in ("train", "heldout"))

    def share(cells):
        return np.minimum(1, (cells["weight"] / 10) ** 0.75)

    train, bias = cooccurrences.both(np.array(train)), np.zeros(matrix.vocab.size)
    weights, logs = share(train), np.log(train["weight"])
    total = np.bincount(train["row"], weights, len(bias))
    for _ in range(30):
        rest = np.bincount(
            train["row"], weights * (logs - bias[train["column"]]), len(bias)
        ) / np.maximum(total, 1e-9)
        bias = (bias + rest) / 2
    text = cooccurrences.both(np.array(text))
    return 0.5 * np.mean(
        share(text) * (np.log(text["weight"]) - bias[text["row"]] - bias[text["column"]]) ** 2
    )


def frequent_relations(result):
    """The entropy of the relations of the package's triples, of which a row draws one."""
    lines = Triples().path.read_text(encoding="utf8").splitlines()
    share = np.array([*collections.Counter(line.split("\t")[1] for line in lines).values()]) / len(
        lines
    )
    return float(-share @ np.log(share))
