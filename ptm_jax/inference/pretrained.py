"""A loaded model: arrays or texts in, NumPy arrays and texts out.

A method runs one jitted program for each bucket of shapes (powers of two) and each set of outputs:
requests of other lengths do not recompile, and outputs that are not requested are not computed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ptm_jax.convert.config import Config
from ptm_jax.convert.libraries.sentence_folder import Pooling, Sentence
from ptm_jax.core import paths, slots
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.types import Params, Vocab
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.inference import inputs
from ptm_jax.inference.forward_pass import forward, token_nll
from ptm_jax.inference.layerwise import layerwise
from ptm_jax.inference.outputs import Output
from ptm_jax.inference.text import (
    answering,
    classifying,
    filling,
    generating,
    tags,
    token_states,
    vectors,
)
from ptm_jax.nn.attention.multihead import with_maps
from ptm_jax.runs import growing, writing


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pretrained:
    """A system with its parameters {tower: tree} and its tokenizer (None: arrays only).

    vocab      default: that of the embeddings
    tower      the network that is used
    published  the fields of the config of a published checkpoint: names of classes, first token and
               settings of answers
    sentence   the settings of a sentence-transformers folder, for `encode`; None: means
    """

    system: Any
    params: Params
    tokenizer: Any = None
    vocab: Vocab | None = None
    tower: str = "main"
    published: Config = dataclasses.field(default_factory=lambda: Config({}))
    sentence: Sentence | None = None

    def __post_init__(self):
        if self.tower not in self.system.towers:
            raise unknown("tower", self.tower, self.system.towers)
        if self.vocab is None:
            embeddings = self.module.encoder.embeddings
            known = embeddings.vocab if embeddings is not None else Vocab(size=1)
            if embeddings is None and self.tokenizer is not None:
                known = self.tokenizer.vocab
            object.__setattr__(self, "vocab", known)
        # A published table may have rows that no piece uses.
        if self.tokenizer is not None and self.tokenizer.vocab.size > self.vocab.size:
            raise UserError(
                f"the tokenizer has {self.tokenizer.vocab.size} pieces and the model "
                f"{self.vocab.size}; "
                "load the tokenizer that the model was trained with"
            )

    def __repr__(self) -> str:
        """A few lines; `core.spec.to_text(model.system)` has the whole record."""
        heads, size = ", ".join(self.module.heads) or "none", paths.count(self.params[self.tower])
        words = "no tokenizer" if self.tokenizer is None else f"{self.tokenizer.kind} tokenizer"
        rows = (
            "rows of any length" if self.limit is None else f"rows of up to {self.limit:,} tokens"
        )
        return (
            f"Pretrained {self.system.name!r}: {type(self.module.encoder).__name__}, "
            f"{size:,} parameters, heads {heads}\n"
            f"  vocabulary of {self.vocab.size:,}, {words}, {rows}"
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model as a workdir, from which `ptm_jax.load` loads it. Adaptations are merged
        into the network.

        Raises UserError if the folder exists and is not empty, or cannot be written.
        """
        writing.save(path, self)

    @property
    def module(self) -> Any:
        """The network of `tower`."""
        return self.system.towers[self.tower]

    @functools.cached_property
    def weights(self) -> Any:
        """The parameters of `tower` in the shape that this device reads fastest
        (`inference.layerwise`)."""
        return layerwise(self.module, self.params[self.tower])

    @property
    def examples(self) -> slots.Examples:
        """The examples of the system. If their kind is unknown, the slot's defaults."""
        own = self.system.examples
        return own if isinstance(own, slots.Examples) else slots.Examples()

    @property
    def causal(self) -> bool:
        """Whether a token depends on earlier tokens only."""
        return self.module.encoder.direction == "causal"

    @property
    def generates(self) -> bool:
        """Whether `generate` works: a causal model or one with a decoder, with a vocabulary head
        and a cache."""
        return generating.refusal(self) is None

    @property
    def pair(self) -> bool:
        """Whether the model is an encoder with a decoder."""
        return isinstance(self.module.encoder, EncoderDecoder)

    @property
    def limit(self) -> int | None:
        """The longest sequence in tokens; None without a position table."""
        return self.module.encoder.limit

    @property
    def head(self) -> str | None:
        """The vocabulary head: "mlm" or "lm", or None."""
        return next((name for name in ("mlm", "lm") if name in self.module.heads), None)

    def __call__(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        language_ids=None,
        decoder_input_ids=None,
        *,
        fields: Mapping[str, Any] | None = None,
        layers: bool = False,
        attention: bool = False,
        logits: bool = True,
    ) -> Output:
        """Runs a forward pass on integer arrays [B, L]. Tokens with mask 0 have no effect on
        others.

        language_ids       default: the `lang_id` of the published config, or none (with a warning
                           on stderr)
        decoder_input_ids  [B, T], the input of the decoder, if any; task heads then have no scores.
                           Default: the row, shifted by one to the right
        fields             other fields that the model's examples declare (`Examples.spec`), of the
                           declared shape and type: features, regions, columns of tokens. An encoder
                           that reads only these needs no input_ids

        Raises UserError for unequal shapes, ids out of range, or a sequence longer than the
        position table.
        """
        batch = self._batch(
            input_ids, attention_mask, token_type_ids, position_ids, language_ids, fields=fields
        )
        rows, length = inputs.shape_of(input_ids, fields)
        target = length
        if decoder_input_ids is not None:
            batch |= inputs.decoder_of(
                self.module.encoder, self.vocab, decoder_input_ids, rows, len(batch["rows"])
            )
            target = np.shape(decoder_input_ids)[1]
        asked = {
            "hidden": True,
            "layers": layers,
            "attention": attention,
            "pooled": "pool" in self.module.heads,
        }
        asked["logits"] = logits and self.head is not None
        asked["vectors"] = self.module.encoder.gives_vectors
        if self.pair:
            asked |= {
                "source": True,
                "source_layers": layers,
                "source_attention": attention,
                "cross_attention": attention,
            }
        scored = self.scored if logits and decoder_input_ids is None else ()
        wanted = (
            *(name for name, yes in asked.items() if yes),
            *(f"scores/{name}" for name in scored),
        )
        module = with_maps(self.module) if attention else self.module
        try:
            found = forward(module, self.head, wanted, self.weights, batch)
        except KeyError as error:
            if self.examples is not self.system.examples or error.args[0] not in self.examples.spec(
                length, self.vocab
            ):
                raise
            raise UserError(
                f"{self.system.name} reads the field {error} of a batch; give it in fields={{...}}"
            ) from error
        cut, scores = inputs.cuts(rows, length, target), {}
        for name in scored:
            head, value = self.module.heads[name], found.pop(f"scores/{name}")
            per_row = np.s_[: rows // head.readings]
            part = np.s_[:rows, :length] if head.per_token else per_row
            scores[name] = jax.tree.map(lambda array, part=part: np.asarray(array)[part], value)
        arrays = {name: np.asarray(value)[cut[name]] for name, value in found.items()}
        if (
            self.head is None
            and len(scores) == 1
            and isinstance(only := next(iter(scores.values())), np.ndarray)
        ):
            arrays["logits"] = only
        return Output(**arrays, scores=scores)

    def _batch(
        self,
        input_ids,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        language_ids=None,
        *,
        fields=None,
    ):
        """Returns the checked batch of arrays [B, L], padded to its bucket, with the other fields
        that the model reads."""
        encoder = self.module.encoder
        if input_ids is None:
            return inputs.fields_of(
                self.examples, self.vocab, fields or {}, {}, inputs.shape_of(None, fields)
            )
        if language_ids is None and encoder.languages and self._language is not None:
            language_ids = np.full(np.shape(input_ids), self._language)
        given = input_ids, attention_mask, token_type_ids, position_ids, language_ids
        batch = inputs.batch_of(encoder, self.vocab, *given, multiple=self._readings)
        if self.examples.alphabet is not None:  # words are read by their characters
            ids, places = np.unique(batch["input_ids"], return_inverse=True)
            table = self.examples.table(self._tokenizer(), ids).astype(np.int32)
            batch["characters"] = table[places.reshape(batch["input_ids"].shape)]
        return inputs.fields_of(self.examples, self.vocab, fields or {}, batch, np.shape(input_ids))

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the task heads: all but the vocabulary head and heads that read only the first
        token."""
        heads = self.module.heads.items()
        return tuple(name for name, head in heads if not (head.scores_words or head.reads_first))

    @functools.cached_property
    def _agreeing(self) -> dict[int, bool]:
        """{length: whether a small batch gives the bits of a large one}, for
        `inference.text.vectors`."""
        return {}

    @functools.cached_property
    def _language(self) -> int | None:
        """The language of the published config. Without one, a line on stderr, once for a model."""
        found, count = self.published("lang_id", int, None), self.module.encoder.languages
        if found is None:
            names = ", ".join(
                f"{name} {i}"
                for name, i in list((self.published("lang2id", dict, None) or {}).items())[:20]
            )
            print(
                f"{self.system.name} has {count} languages and the input has none, so no "
                "language vector is added; give "
                "language_ids [B, L], or for texts the field lang_id of config.json: 0 to "
                f"{count - 1}" + (f" ({names})" if names else ""),
                file=sys.stderr,
            )
        return found

    @property
    def _readings(self) -> int:
        """Rows of an example: the choices of a question."""
        return max((head.readings for head in self.module.heads.values()), default=1)

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
        layers: bool = False,
        carry: bool = False,
    ) -> Any:
        """Returns vectors [n, D] float32 of texts, pooled from all tokens, including special ones
        (`inference.text.vectors`).

        pooling    "cls", "max", "mean", "mean_sqrt_len", "weightedmean" or "lasttoken". Default:
                   that of the model's sentence-transformers folder (several modes are concatenated:
                   [n, modes * D]) and its dense layers, else "mean"
        normalize  whether vectors have unit length. Default: that of the folder, else False
        specials   whether special tokens that a text spells, as "[MASK]", are those tokens.
                   Default: they are ordinary text
        prompt     text before every text; prompt_name: the name of one of the folder. Default: the
                   folder's, or none
        truncate   whether longer texts than the folder or the model allows are cut. Default: they
                   raise UserError
        exact      whether a text's vector has the same bits whatever the other texts are. Then its
                   batch has a shape of its own length, and batch_size has no effect
        progress   whether a bar on stderr shows the progress. Default: at a terminal, after a
                   second
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
            "prompt": prompt,
            "prompt_name": prompt_name,
            "truncate": truncate,
            "exact": exact,
            "progress": progress,
        }
        return vectors.encode(self, texts, pooling, batch_size, normalize, specials, **options)

    def expanded(self, vectors: Any) -> Pretrained:
        """Returns the model with the words of `WordVectors` beside its own
        (`runs.growing.expanded`). Raises UserError."""
        return growing.expanded(self, vectors.table)

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Returns the similarity [n, m] float32 of vectors [n, D] and [m, D]: that of the model's
        sentence-transformers folder ("cosine", "dot", or a negative distance), else the cosine."""
        return vectors.similarity(a, b, (self.sentence or Sentence()).similarity)

    def search(
        self,
        queries: Sequence[str],
        corpus: Sequence[str] | np.ndarray,
        top: int = 5,
        **options: Any,
    ) -> list[list[vectors.Found]]:
        """Returns the `top` texts of `corpus` for each query, as (index, score, text), most similar
        first.

        corpus   texts, or their vectors [n, D] from `encode`
        options  those of `encode`. A folder's prompts "query", and "document", "passage" or
                 "corpus", stand before the texts unless a prompt is given

        Raises UserError as `encode` does, or for `top` below 1.
        """
        return vectors.search(self, queries, corpus, top, **options)

    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[list[list[filling.Filling]]]:
        """Returns for each mask of each text the `top` fillings (token, probability, sentence),
        most probable first.

        A mask is the tokenizer's mask token, [MASK] or <mask>. Fillings are never special tokens.
        BART's mask stands for any number of tokens; its filling is the first one. Raises UserError
        for a text without a mask, or a model that was not trained to fill masks.
        """
        return filling.fill(self, inputs.texts_of(texts), top)

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = 32
    ) -> list[dict[str, float]]:
        """Returns {class name: probability} of each text, or of each text with its second text in
        `pairs`.

        Classes are in the model's order. Probabilities add up to 1, unless labels are independent.
        A regression model has one class, with the predicted number. Raises UserError for a model
        without a classification head.
        """
        seconds = None if pairs is None else inputs.texts_of(pairs, "pairs")
        return classifying.classify(self, inputs.texts_of(texts), seconds, batch_size)

    def tag(self, texts: Sequence[str], batch_size: int = 32) -> list[list[tuple[str, str]]]:
        """Returns (word, tag) for the words of each text, separated by blanks. A text longer than a
        row continues in the next row. Raises UserError for a model without a tagging head or
        without tag names."""
        return tags.tag(self, inputs.texts_of(texts), batch_size)

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
        """Returns each prompt with its continuation; with an encoder and decoder, the answer to
        each source. If answers=A is above 1, returns a list of A texts for each.

        start    first token of an answer: a piece, or its id. The defaults of `start`, `forced_bos`
                 and `forced_eos` are those of the published or trained model (mBART's `start`: the
                 last token of the source)
        options  those of `inference.decoding.settings.Generation`. Their defaults, and that of
                 max_new_tokens (else 64), are the checkpoint's published settings, with the answers
                 of `transformers` (`inference.decoding.defaults`)

        Special tokens in a source are recognised. Answers have no special tokens except T5's
        sentinels. Raises UserError for a model that does not generate, contradictory options, or
        texts that leave no room in the position table.
        """
        return generating.generate(
            self, prompts, seed, batch_size, start, max_new_tokens=max_new_tokens, **options
        )

    def perplexity(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Returns the perplexity [n] of each text under a causal model: exp of the mean negative
        log-probability per token.

        The first token counts only if the vocabulary has a `bos` to predict it from.
        """
        if not self.causal or self.head is None:
            others = generating.generators(pairs=False)
            raise UserError(
                f"{self.system.name} is no left-to-right model and has no perplexity; {others} have"
            )
        begin = [] if self.vocab.bos is None else [self.vocab.bos]
        plain = self._tokenizer().encode_batch(inputs.texts_of(texts))
        rows = [np.array([*begin, *row], np.int32) for row in plain]
        means = np.zeros(len(rows))
        self._check(rows, least=2)
        for chosen, ids, mask in inputs.padded_batches(rows, batch_size, self.vocab.pad):
            found = token_nll(self.module, self.head, self.weights, self._batch(ids, mask))
            means[chosen] = np.asarray(found)[: len(chosen)]
        return np.exp(means)

    def ids_of(self, texts: Sequence[str], specials: bool = False) -> list[np.ndarray]:
        """Returns ids [l] int32 of each text between the special tokens; `specials` as in `encode`.
        Raises UserError for a text that is too long."""
        texts = inputs.texts_of(texts)
        rows = [inputs.framed(self, row) for row in self._tokenizer().encode_batch(texts, specials)]
        self._check(rows)
        return rows

    def _check(self, rows: Sequence[np.ndarray], least: int = 1) -> None:
        for number, row in enumerate(rows, 1):
            if len(row) < least:
                raise UserError(f"text {number} has {len(row)} tokens; at least {least} are needed")
            if self.limit is not None:
                inputs.check_length(len(row), self.limit, f"text {number}")

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UserError(
                "this model has no tokenizer, so it takes arrays only; give Pretrained one "
                "to use texts"
            )
        return self.tokenizer
