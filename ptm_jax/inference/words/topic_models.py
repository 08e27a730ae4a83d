"""Latent semantic analysis and latent Dirichlet allocation, by scikit-learn.
Row 28 of the survey's catalogue.

LSA     a truncated singular value decomposition of weighted counts (Deerwester et al. 1990)
LDA     topics by online variational Bayes (Blei et al. 2003; Hoffman et al. 2010)
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, read_json
from ptm_jax.inference import inputs
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words.word_vectors import WordVectors

if TYPE_CHECKING:
    import scipy.sparse

FIELDS, ARRAYS = "topics.json", "topics.npz"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSA:
    """The `width` largest singular values of the matrix of documents and words, X = U S V'.
    A document's vector is X V, a word's V S.

    weights     "tfidf": tf (ln((1 + N) / (1 + df)) + 1), rows of length 1 (scikit-learn's default)
                "logentropy": ln(1 + tf) (1 + sum over documents of p ln p / ln N), p = tf / gf
                (Dumais 1991)
    least       documents that have a word, at least; `most` words are kept
    """

    width: int = 300
    weights: Literal["tfidf", "logentropy"] = "tfidf"
    least: int = 2
    most: int | None = None
    seed: int = 0

    def fit(self, texts: Iterable[str]) -> TopicModel:
        """Returns the model of texts.
        Raises UserError for fewer words or documents than the width."""
        from sklearn.decomposition import TruncatedSVD

        words, counts = _counted(texts, self.least, self.most)
        if self.width >= min(counts.shape):
            raise UserError(
                f"{counts.shape[0]} documents with {counts.shape[1]} words have no "
                f"{self.width} singular values; "
                "give more text, or a smaller --width"
            )
        document_counts = np.asarray((counts > 0).sum(0)).ravel()
        if self.weights == "tfidf":
            scales = np.log((1 + counts.shape[0]) / (1 + document_counts)) + 1
        else:
            shares = counts.multiply(1 / np.asarray(counts.sum(0)).ravel()).tocsc()
            shares.data *= np.log(shares.data)
            scales = 1 + np.asarray(shares.sum(0)).ravel() / np.log(max(2, counts.shape[0]))
        svd = TruncatedSVD(self.width, random_state=self.seed).fit(
            _weighted(counts, scales, self.weights)
        )
        rows = (svd.components_ * svd.singular_values_[:, None]).T
        arrays = {"scales": scales, "components": svd.components_}
        return TopicModel(
            WordTable(words=words, rows=rows.astype(np.float32)), _record(self), arrays
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LDA:
    """`topics` topics.
    A document's vector is its expected shares of topics; a word's the probability of each topic
    given the word, for topics of equal weight.

    alpha, eta  parameters of the symmetric Dirichlet priors of a document's topics and of a topic's
                words (None: 1 / topics)
    passes      over the documents, `batch` at a time
    """

    topics: int = 100
    alpha: float | None = None
    eta: float | None = None
    passes: int = 10
    batch: int = 128
    least: int = 2
    most: int | None = None
    seed: int = 0

    def fit(self, texts: Iterable[str]) -> TopicModel:
        """Returns the model of texts."""
        words, counts = _counted(texts, self.least, self.most)
        model = _allocation(self).fit(counts)
        rows = (model.components_ / model.components_.sum(1, keepdims=True)).T
        rows /= rows.sum(1, keepdims=True)
        arrays = {"components": model.components_}
        return TopicModel(
            WordTable(words=words, rows=rows.astype(np.float32)), _record(self), arrays
        )


KINDS = {"lsa": LSA, "lda": LDA}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TopicModel(WordVectors):
    """Vectors of words and of texts.
    `fields` is the record of the LSA or LDA, `arrays` what texts are computed from."""

    fields: dict[str, Any]
    arrays: dict[str, np.ndarray]

    encodes: ClassVar[bool] = True

    @classmethod
    def read(cls, folder: str | os.PathLike) -> TopicModel:
        """Reads a folder that `save` wrote. Raises UserError for a damaged one."""
        folder = Path(folder)
        fields, table = read_json(folder / FIELDS, "its content"), wordfiles.read(folder)
        try:
            KINDS[fields["kind"]](
                **{name: value for name, value in fields.items() if name != "kind"}
            )
            with np.load(folder / ARRAYS, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            fits = arrays["components"].shape == (table.width, len(table.words))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise broken(
                folder, f"is no model of topics ({str(error)[:100]}); fit it again"
            ) from None
        if not fits:
            raise broken(
                folder, f"has {len(table.words):,} words and {ARRAYS} another number; fit it again"
            )
        return cls(table, fields, arrays)

    def __repr__(self) -> str:
        return f"TopicModel {self.fields['kind']}: {len(self):,} words of width {self.width}"

    def encode(self, texts: Sequence[str], normalize: bool | None = None) -> np.ndarray:
        """Returns the vectors [n, D] float32 of texts; `normalize`: to length 1."""
        _, counts = _counted(inputs.texts_of(texts), 1, None, list(self.words))
        if self.fields["kind"] == "lsa":
            vectors = (
                _weighted(counts, self.arrays["scales"], self.fields["weights"])
                @ self.arrays["components"].T
            )
        else:
            vectors = self._allocated.transform(counts)
        vectors = np.asarray(vectors, np.float32)
        return unit(vectors) if normalize else vectors

    def top_words(self, topic: int, top: int = 10) -> list[str]:
        """Returns the words with the greatest weight in a dimension."""
        if not 0 <= topic < self.width:
            raise UserError(f"topic is {topic}; there are 0 to {self.width - 1}")
        return [
            self.words[n]
            for n in np.argsort(-self.arrays["components"][topic], kind="stable")[:top]
        ]

    def save(self, path: str | os.PathLike, format: str | None = None) -> list[Path]:
        """Writes a folder, or the words' vectors in a format of `WordVectors.save`.
        The folder is the default without an ending."""
        files = super().save(path, format)
        if not Path(path).is_dir():
            return files
        (Path(path) / FIELDS).write_text(json.dumps(self.fields, indent=1) + "\n")
        np.savez(Path(path) / ARRAYS, **self.arrays)
        return [*files, Path(path) / FIELDS, Path(path) / ARRAYS]

    @functools.cached_property
    def _allocated(self) -> Any:
        """scikit-learn's model with the fitted topics."""
        lda = LDA(**{name: value for name, value in self.fields.items() if name != "kind"})
        model, topics = _allocation(lda), self.arrays["components"]
        from scipy.special import psi

        model.components_, model.n_features_in_ = topics, topics.shape[1]
        model.exp_dirichlet_component_ = np.exp(psi(topics) - psi(topics.sum(1, keepdims=True)))
        model.doc_topic_prior_ = 1 / lda.topics if lda.alpha is None else lda.alpha
        return model


def is_topics(path: str | os.PathLike) -> bool:
    """Whether a path is a folder of `TopicModel.save`."""
    return (Path(path) / FIELDS).is_file()


def _allocation(lda: LDA) -> Any:
    from sklearn.decomposition import LatentDirichletAllocation

    return LatentDirichletAllocation(
        lda.topics,
        doc_topic_prior=lda.alpha,
        topic_word_prior=lda.eta,
        learning_method="online",
        max_iter=lda.passes,
        batch_size=lda.batch,
        random_state=lda.seed,
    )


def _record(value: LSA | LDA) -> dict[str, Any]:
    return {"kind": type(value).__name__.lower(), **dataclasses.asdict(value)}


def _counted(
    texts: Iterable[str], least: int, limit: int | None, words: Sequence[str] | None = None
) -> tuple[Any, Any]:
    """Returns (words, counts [N, V] sparse).
    A word has two letters or digits at least; case does not count."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(
        min_df=least, max_features=limit, vocabulary=words, dtype=np.float64
    )
    try:
        counts = (
            vectorizer.transform(texts) if words is not None else vectorizer.fit_transform(texts)
        )
    except ValueError as error:
        raise UserError(
            f"the texts have no words ({str(error)[:100]}); give more text, or a smaller `least`"
        ) from None
    return words or vectorizer.get_feature_names_out().tolist(), counts


def _weighted(
    counts: scipy.sparse.csr_matrix, scales: np.ndarray, weights: str
) -> scipy.sparse.csr_matrix:
    """Returns the weighted counts of `LSA.weights`."""
    if weights == "logentropy":
        return counts.log1p().multiply(scales).tocsr()
    weighted = counts.multiply(scales).tocsr()
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1)).ravel())
    from scipy.sparse import diags

    return diags(1 / np.maximum(lengths, 1e-12)) @ weighted
