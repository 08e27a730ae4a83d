"""A loaded model: arrays or texts in, NumPy arrays and texts out.
`inference.arrays` is for arrays."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.core.errors import UserError
from ptm_jax.inference import inputs
from ptm_jax.inference.arrays import ArrayModel
from ptm_jax.inference.forward_pass import token_nll
from ptm_jax.inference.retrieval import other_vectors
from ptm_jax.inference.spans import named_entities
from ptm_jax.inference.text import (
    answering,
    classifying,
    filling,
    generating,
    tags,
    token_states,
    tokens,
    vectors,
)
from ptm_jax.inference.words.word_vectors import Similar
from ptm_jax.nn.heads.text_vector import Pooling
from ptm_jax.runs import growing, writing

if TYPE_CHECKING:
    from ptm_jax.inference.saliency.html_pages import Page
    from ptm_jax.inference.words.triple_models import TripleModel


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pretrained(ArrayModel):
    """A loaded model on texts, and on arrays as `ArrayModel`, whose fields it has.

    sentence   the settings of a sentence-transformers folder, for `encode`; None: means
    """

    sentence: Sentence | None = None

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model as a workdir, from which `ptm_jax.load` loads it.
        Adaptations are merged into the network.

        Raises UserError if the folder exists and is not empty, or cannot be written.
        """
        writing.save(path, self)

    @property
    def generates(self) -> bool:
        """Whether `generate` works.
        It needs a causal model or a decoder, with a vocabulary head and a cache."""
        return generating.refusal(self) is None

    @functools.cached_property
    def _agreeing(self) -> dict[int, bool]:
        """{length: whether a small batch gives the bits of a large one}, for
        `inference.text.vectors`."""
        return {}

    def encode(
        self,
        texts: Sequence[str],
        pooling: Pooling | None = None,
        batch_size: int = 32,
        normalize: bool | None = None,
        specials: bool = False,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        exact: bool = False,
        progress: bool | None = None,
        query: bool = False,
        layers: bool = False,
        carry: bool = False,
    ) -> Any:
        """Returns vectors [n, D] float32 of texts, pooled from all tokens, also special ones.
        See `inference.text.vectors`. A model of sparse vectors (SPLADE) returns a SciPy matrix
        [n, V], one with a vector for each token (ColBERT) a list of arrays [tokens, F].

        pooling    "cls", "max", "mean", "mean_sqrt_len", "weightedmean" or "lasttoken". Default:
                   the pooling of the model's sentence-transformers folder (several modes are
                   concatenated: [n, modes * D]) and its dense layers, else "mean"
        normalize  whether vectors have unit length. Default: the folder's setting, else False
        specials   whether special tokens that a text spells, as "[MASK]", are those tokens.
                   Default: they are ordinary text
        prompt     text before every text; prompt_name: the name of one of the folder. Default: the
                   folder's, or none
        truncate   whether longer texts than the folder or the model allows are cut. Default: they
                   raise UserError
        exact      whether a text's vector has the same bits whatever the other texts are. Then its
                   batch has a shape of its own length, and batch_size has no effect
        progress   whether a bar on stderr shows it. Default: at a terminal, after a second
        query      whether the texts are queries, which a late-interaction model reads otherwise
        layers     returns for each text the states [N+1, T, D] of its tokens without special ones,
                   the embeddings first
        carry      with `layers`: `texts` are lists of as many texts each, which follow one another:
                   a text begins with the state after the text in its place of the list before
                   (ELMo). Returns a list for each

        Texts of similar length share a batch. Note that the first token of a causal model does not
        depend on other tokens. Raises UserError for an unknown pooling or prompt, or where the
        folder has a step that is not supported and none is given.
        """
        if layers or carry:
            return token_states.encode(self, texts, batch_size, specials, carry)
        options = {
            "pooling": pooling,
            "batch_size": batch_size,
            "normalize": normalize,
            "specials": specials,
            "prompt": prompt,
            "prompt_name": prompt_name,
            "truncate": truncate,
            "exact": exact,
            "progress": progress,
            "query": query,
        }
        return vectors.encode(self, texts, **options)

    def expanded(self, vectors: Any) -> Pretrained:
        """Returns the model with the words of `WordVectors` added to its own
        (`runs.growing.expanded`). Raises UserError."""
        return growing.expanded(self, vectors.table)

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Returns the similarity [n, m] float32 of vectors [n, D] and [m, D].
        A sentence-transformers folder may choose "cosine", "dot" or a negative distance; the
        default is the cosine. Sparse vectors have the dot product, vectors of tokens MaxSim."""
        form = other_vectors.form_of(self)
        if form is not None:
            return form.similarity(a, b)
        return vectors.similarity(a, b, vectors.settings(self).similarity)

    def search(
        self,
        queries: Sequence[str],
        corpus: Sequence[str] | np.ndarray,
        top: int = 5,
        **options: Any,
    ) -> list[list[vectors.Found]]:
        """Returns the `top` texts of `corpus` for each query, most similar first.
        A result is (index, score, text).

        corpus   texts, or their vectors [n, D] from `encode`
        options  those of `encode`. A folder's prompts "query", and "document", "passage" or
                 "corpus", stand before the texts unless a prompt is given

        Raises UserError as `encode` does, or for `top` below 1.
        """
        return vectors.search(self, queries, corpus, top, **options)

    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[list[list[filling.Filling]]]:
        """Returns the `top` fillings for each mask of each text, most probable first.
        A filling is (token, probability, sentence).

        A mask is the tokenizer's mask token, [MASK] or <mask>. Fillings are never special tokens.
        BART's mask stands for any number of tokens; its filling is the first one. Raises UserError
        for a text without a mask, or a model that was not trained to fill masks.
        """
        return filling.fill(self, inputs.texts_of(texts), top)

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = 32
    ) -> list[dict[str, float]]:
        """Returns {class name: probability} of each text, or of each pair with `pairs`.

        Classes are in the model's order. Probabilities add up to 1, unless labels are independent.
        A regression model has one class, with the predicted number. Raises UserError for a model
        without a classification head.
        """
        seconds = None if pairs is None else inputs.texts_of(pairs, "pairs")
        return classifying.classify(self, inputs.texts_of(texts), seconds, batch_size)

    def tag(self, texts: Sequence[str], batch_size: int = 32) -> list[list[tuple[str, str]]]:
        """Returns (word, tag) for the words of each text, separated by blanks.
        A text longer than a row continues in the next row. Raises UserError for a model without a
        tagging head or without tag names."""
        return tags.tag(self, inputs.texts_of(texts), batch_size)

    def entities(
        self,
        texts: Sequence[str],
        types: Sequence[str],
        *,
        threshold: float = 0.5,
        nested: bool = False,
        batch_size: int = 32,
    ) -> list[list[dict[str, Any]]]:
        """Returns the spans of each text that are of one of the `types`, which are words such as
        "person". The model may never have seen a type (GLiNER).

        A span has "start" and "end" in characters, "text", "type", and "score", its probability,
        which is above the `threshold`. Spans do not overlap; with `nested`, one may lie inside
        another. Raises UserError for a model without the head "spans".
        """
        return named_entities.entities(
            self, inputs.texts_of(texts), types, threshold=threshold, nested=nested,
            batch=batch_size,
        )  # fmt: skip

    def answer(
        self, questions: Sequence[str], contexts: Sequence[str], batch_size: int = 32
    ) -> list[answering.Answer]:
        """Returns the `inference.text.answering.Answer` (text, null, best) to each question from
        its context. Long contexts are read in windows. The text is "" if a model of SQuAD 2.0
        predicts no answer. Raises UserError without a span head."""
        return answering.answer(
            self, inputs.texts_of(questions), inputs.texts_of(contexts, "contexts"), batch_size
        )

    def generate(
        self,
        prompts: Sequence[str],
        max_new_tokens: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
        start: int | str | None = None,
        **options: Any,
    ) -> list[Any]:
        """Returns each prompt with its continuation.
        With an encoder and decoder, the answer to each source. If answers=A is above 1, returns a
        list of A texts for each.

        start    first token of an answer: a piece, or its id. `start`, `forced_bos` and
                 `forced_eos` default to the settings of the published or trained model (mBART's
                 `start`: the last token of the source)
        options  those of `inference.decoding.settings.Generation`. Their defaults, and that of
                 max_new_tokens (else 64), are the checkpoint's published settings, with the answers
                 of `transformers` (`inference.decoding.defaults`)

        `answer_language="en"` is the language of the answers, for a model with vectors of languages
        that `load(PATH, language="de")` opened. `bad_words=["word", ...]` are words, or lists of
        ids, that no answer has. Special tokens in a source are recognised. Answers have no special
        tokens except T5's sentinels. Raises UserError for a model that does not generate,
        contradictory options, or texts that leave no room in the position table.
        """
        return generating.generate(
            self, prompts, seed, batch_size, start, max_new_tokens=max_new_tokens, **options
        )

    def complete(
        self,
        head: str | None = None,
        relation: str | None = None,
        tail: str | None = None,
        top: int = 10,
    ) -> list[Similar]:
        """Returns (name, score) of the `top` answers that complete a triple of a graph, of a model
        that scores the texts of triples (KG-BERT) or descriptions of entities (KEPLER): the tail of
        (head, relation, ?), the head of (?, relation, tail), or the relation of (head, ?, tail)
        where the model was trained to score relations. Raises UserError for an unknown name, and
        for another model."""
        from ptm_jax.inference.words import triple_models

        return triple_models.complete(self._triples, head, relation, tail, top)

    @functools.cached_property
    def _triples(self) -> TripleModel:
        from ptm_jax.inference.words import triple_models

        return triple_models.of_system(
            self.system, self.params, self._tokenizer(), self.system.name
        )

    def view(self, text: str, by: str = "saliency", **options: Any) -> Page:
        """Returns a page about a text, which a notebook shows and `page.write("page.html")` writes.

        by       "saliency": the tokens that a prediction rests on; "attention": the maps of all
                 heads; "neurons": queries, keys and their products; "contexts": the nearest tokens
                 of `sentences=[...]`, lists of words
        options  those of the view (`inference.saliency.text_pages`)

        Raises UserError for a model that a view does not fit.
        """
        from ptm_jax.inference.saliency import text_pages

        return text_pages.view(self, *inputs.texts_of([text]), by, **options)

    def perplexity(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Returns the perplexity [n] of each text under a causal model.
        It is exp of the mean negative log-probability per token.

        The first token counts only if the vocabulary has a `bos` to predict it from.
        """
        if not self.causal or self.head is None:
            others = generating.generators(pairs=False)
            raise UserError(
                f"{self.system.name} is no left-to-right model and has no perplexity; {others} "
                f"have; {generating.LOAD}"
            )
        begin = [] if self.vocab.bos is None else [self.vocab.bos]
        plain = self._tokenizer().encode_batch(inputs.texts_of(texts))
        rows = [np.array([*begin, *row], np.int32) for row in plain]
        means = np.zeros(len(rows))
        self._check(rows, least=2)
        for chosen, ids, mask in inputs.padded_batches(rows, batch_size, self.vocab.pad):
            nll = token_nll(self.module, self.head, self.weights, self._batch(ids, mask))
            means[chosen] = np.asarray(nll)[: len(chosen)]
        return np.exp(means)

    def ids_of(self, texts: Sequence[str], specials: bool = False) -> list[np.ndarray]:
        """Returns ids [l] int32 of each text between the special tokens; `specials` as in `encode`.
        Raises UserError for a text that is too long."""
        texts = inputs.texts_of(texts)
        rows = [inputs.framed(self, row) for row in self._tokenizer().encode_batch(texts, specials)]
        self._check(rows)
        return rows

    def tokens(self, text: str) -> tokens.Tokens:
        """Returns the tokens of a text, without special ones: `ids`, `pieces`, and the `starts` and
        `ends` of their characters, `text[start:end]`, without blanks around them."""
        return tokens.tokens(self._tokenizer(), *inputs.texts_of([text]))

    def _check(self, rows: Sequence[np.ndarray], least: int = 1) -> None:
        for number, row in enumerate(rows, 1):
            if len(row) < least:
                raise UserError(f"text {number} has {len(row)} tokens; at least {least} are needed")
            if self.limit is not None:
                inputs.check_length(len(row), self.limit, f"text {number}")
