"""A loaded model on arrays: integer arrays in, NumPy arrays out.

A call runs one jitted program for each bucket of shapes (powers of two) and each set of outputs:
requests of other lengths do not recompile, and outputs that are not requested are not computed.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from ptm_jax.convert.config import Config
from ptm_jax.core import paths, slots
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.types import Params, Vocab
from ptm_jax.data.rows.languages.multilingual import languages_of
from ptm_jax.encoders.context import read_languages
from ptm_jax.encoders.transformer.seq2seq import is_pair
from ptm_jax.inference import head_scores, html_tables, inputs
from ptm_jax.inference.forward_pass import forward
from ptm_jax.inference.layerwise import layerwise
from ptm_jax.inference.outputs import Output
from ptm_jax.kernels import stored_programs
from ptm_jax.nn.attention.multihead import with_maps
from ptm_jax.nn.embeddings.summed import languages_of as languages_of_vectors
from ptm_jax.nn.heads.task_heads import readings_of


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ArrayModel:
    """A system with its parameters {tower: tree} and its tokenizer (None: arrays only).

    vocab      default: the vocabulary of the embeddings
    tower      the network that is used
    published  the fields of the config of a published checkpoint: names of classes, first token and
               settings of answers
    language   number of the language of texts, for a model with vectors or adapters of languages
    """

    system: Any
    params: Params
    tokenizer: Any = None
    vocab: Vocab | None = None
    tower: str = "main"
    published: Config = dataclasses.field(default_factory=lambda: Config({}))
    language: int | None = None

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

    def _facts(self) -> dict[str, str]:
        """{name: value} of what a notebook shows."""
        tokenizer, limit = self.tokenizer, self.limit
        return {
            "encoder": type(self.module.encoder).__name__,
            "parameters": f"{paths.count(self.params[self.tower]):,}",
            "heads": ", ".join(self.module.heads) or "none",
            "vocabulary": f"{self.vocab.size:,}",
            "tokenizer": "no tokenizer" if tokenizer is None else f"{tokenizer.kind} tokenizer",
            "rows": "rows of any length" if limit is None else f"rows of up to {limit:,} tokens",
        }

    def __repr__(self) -> str:
        """A few lines; `core.spec.to_text(model.system)` has the whole record."""
        facts = self._facts()
        return (
            f"Pretrained {self.system.name!r}: {facts['encoder']}, {facts['parameters']} "
            f"parameters, heads {facts['heads']}\n"
            f"  vocabulary of {facts['vocabulary']}, {facts['tokenizer']}, {facts['rows']}"
        )

    def _repr_html_(self) -> str:
        facts = self._facts().items()
        return html_tables.table(("", ""), facts, f"Pretrained {self.system.name}")

    @property
    def module(self) -> Any:
        """The network of `tower`."""
        return self.system.towers[self.tower]

    @functools.cached_property
    def weights(self) -> Any:
        """The parameters of `tower` in the layout that this device reads fastest (`layerwise`)."""
        return layerwise(self.module, self.params[self.tower])

    @property
    def examples(self) -> slots.Examples:
        """The examples of the system. If their kind is unknown, the slot's defaults."""
        examples = self.system.examples
        return examples if isinstance(examples, slots.Examples) else slots.Examples()

    @property
    def causal(self) -> bool:
        """Whether a token depends on earlier tokens only."""
        return self.module.encoder.direction == "causal"

    @property
    def pair(self) -> bool:
        """Whether the model is an encoder with a decoder."""
        return is_pair(self.module.encoder)

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
        *,
        decoder_input_ids=None,
        fields: Mapping[str, Any] | None = None,
        layers: bool = False,
        attention: bool = False,
        logits: bool = True,
    ) -> Output:
        """Runs a forward pass on integer arrays [B, L].
        Tokens with mask 0 have no effect on others.

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
        scored = self.scored if logits and decoder_input_ids is None else ()
        logits = logits and self.head is not None
        wanted = (
            *self._wanted(layers=layers, attention=attention, logits=logits),
            *(f"scores/{name}" for name in scored),
        )
        module = with_maps(self.module) if attention else self.module
        outputs = self._outputs(module, wanted, batch, length)
        scores = {
            name: self._scores(name, outputs.pop(f"scores/{name}"), rows, length) for name in scored
        }
        cut = inputs.cuts(rows, length, target)
        arrays = {name: np.asarray(value)[cut[name]] for name, value in outputs.items()}
        if (
            self.head is None
            and len(scores) == 1
            and isinstance(only := next(iter(scores.values())), np.ndarray)
        ):
            arrays["logits"] = only
        return Output(**arrays, scores=scores)

    def _outputs(self, module, wanted, batch, length: int):
        """Returns {name: output}. Raises UserError if the batch lacks a field of the examples."""
        try:
            plan = (module, self.head, wanted)
            return stored_programs.call(forward, plan, self.weights, batch)
        except KeyError as error:
            if self.examples is not self.system.examples or error.args[0] not in self.examples.spec(
                length, self.vocab
            ):
                raise
            raise UserError(
                f"{self.system.name} reads the field {error} of a batch; give it in fields={{...}}"
            ) from error

    def _scores(self, name, value, rows: int, length: int):
        """Returns the scores of a task head without those of padding."""
        head = self.module.heads[name]
        per_row = np.s_[: rows // readings_of(head)]
        part = np.s_[:rows, :length] if head.per_token else per_row
        return jax.tree.map(lambda array: np.asarray(array)[part], value)

    def _wanted(self, *, layers: bool, attention: bool, logits: bool) -> list[str]:
        """Returns the names of the outputs that are not scores of task heads."""
        asked = {
            "hidden": True,
            "layers": layers,
            "attention": attention,
            "pooled": "pool" in self.module.heads,
            "logits": logits,
            "vectors": self.module.encoder.gives_vectors,
            "source": self.pair,
            "source_layers": self.pair and layers,
            "source_attention": self.pair and attention,
            "cross_attention": self.pair and attention,
        }
        return [name for name, value in asked.items() if value]

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
        if language_ids is None and read_languages(encoder) and self._language is not None:
            language_ids = np.full(np.shape(input_ids), self._language)
        batch = inputs.batch_of(
            encoder,
            self.vocab,
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            language_ids=language_ids,
            multiple=self._readings,
        )
        if self.examples.alphabet is not None:  # words are read by their characters
            ids, places = np.unique(batch["input_ids"], return_inverse=True)
            table = self.examples.table(self._tokenizer(), ids).astype(np.int32)
            batch["characters"] = table[places.reshape(batch["input_ids"].shape)]
        return inputs.fields_of(self.examples, self.vocab, fields or {}, batch, np.shape(input_ids))

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the task heads.
        The vocabulary head and heads that read only the first token are not among them."""
        heads = self.module.heads.items()
        return tuple(name for name, head in heads if head_scores.is_of_task(head))

    @property
    def languages(self) -> dict[str, int]:
        """{name: number} of the languages that the model reads; {} where they have no names."""
        published = self.published("lang2id", dict, None)
        return published or {name: i for i, name in enumerate(languages_of(self.examples))}

    def for_language(self, name: str) -> Self:
        """Returns the model with the language of its texts. Raises UserError for another one, and
        for a model without vectors or adapters of languages."""
        count = read_languages(self.module.encoder)
        if not count:
            raise UserError(f"{self.system.name} reads no language beside a text; leave it out")
        if name.isdecimal() and int(name) < count and name not in self.languages:
            return dataclasses.replace(self, language=int(name))
        if name not in self.languages:
            raise unknown("language", name, self.languages or map(str, range(count)))
        return dataclasses.replace(self, language=self.languages[name])

    @functools.cached_property
    def _language(self) -> int | None:
        """The language of texts: the chosen one, or that of the published config. Without one, a
        line on stderr, once for a model."""
        if self.language is not None:
            return self.language
        language = self.published("lang_id", int, None)
        if language is None:
            count = read_languages(self.module.encoder)
            names = ", ".join(list(self.languages)[:20]) or f"0 to {count - 1}"
            vectors = languages_of_vectors(self.module.encoder.embeddings)
            read = "no language vector is added" if vectors else "the first one's adapters are used"
            print(
                f"{self.system.name} has {count} languages and the input has none, so {read}; "
                "give --language, load(PATH, language=NAME) or "
                f"language_ids [B, L]: {names}",
                file=sys.stderr,
            )
        return language

    @property
    def _readings(self) -> int:
        """Rows of an example: the choices of a question."""
        return max(map(readings_of, self.module.heads.values()), default=1)

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UserError(
                "this model has no tokenizer, so it takes arrays only; give Pretrained one "
                "to use texts"
            )
        return self.tokenizer
