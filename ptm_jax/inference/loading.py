"""Loads a model from a training run or a published checkpoint: `ptm_jax.load(path)`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from ptm_jax.convert import adapterfile, checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.formats.untyped import is_published
from ptm_jax.convert.hub import locate
from ptm_jax.convert.layouts import LAYOUTS, Layout
from ptm_jax.convert.libraries import flair_files
from ptm_jax.convert.libraries.retrieval_folders import with_sparse
from ptm_jax.convert.libraries.sentence_folder import (
    Sentence,
    classifier,
    model_folder,
    sentence_of,
)
from ptm_jax.convert.records import record_with
from ptm_jax.convert.words import static_folder, wordfiles
from ptm_jax.core import facts, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.precision import Compute, Precision
from ptm_jax.core.spec.classes import Kinds, kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import System, adapted, in_effect, tied
from ptm_jax.core.types import Params
from ptm_jax.data.stores import working
from ptm_jax.inference.decoding import defaults
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.words import graph_vectors, trained_words, two_languages
from ptm_jax.inference.words.paragraph_vectors import ParagraphModel, is_paragraphs
from ptm_jax.inference.words.static_model import StaticModel
from ptm_jax.inference.words.topic_models import TopicModel, is_topics
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.runs.run import Run
from ptm_jax.training.hosts import devices
from ptm_jax.training.start import other_files
from ptm_jax.training.workdirs import SENTENCE

OPEN_SLOTS = ("examples", "corruption", "objective", "recipe", "tokenizer")
"""Slots that inference does not run. If the class of one is unknown, the slot holds its record."""


def load(
    path: str | os.PathLike,
    *,
    precision: Compute = "float32",
    tower: str | None = None,
    adapter: str | os.PathLike | None = None,
    architecture: str | None = None,
    allow_pickle: bool = False,
    revision: str | None = None,
    language: str | None = None,
) -> Pretrained | WordVectors | ParagraphModel:
    """Loads a training run, a published checkpoint, or a file of word vectors.

    A run or checkpoint gives a `Pretrained` model. A run of skip-gram, CBOW, fastText or GloVe
    gives `WordVectors`, one of paragraph vectors a `ParagraphModel`.

    path          a workdir of `ptm train` (its newest intact checkpoint), or one checkpoint
                  (WORKDIR/checkpoints/step_...); a directory with config.json and tensors; a name
                  on the Hugging Face Hub ("bert-base-uncased"); or a file of word vectors
                  (word2vec, GloVe, fastText, gensim) or folder of them, which gives `WordVectors`,
                  or model2vec's layout, which gives a `StaticModel`; or a folder of `ptm topics`,
                  which gives a `TopicModel`; or AllenNLP's folder of ELMo (options.json,
                  lm_weights.hdf5), or one with Flair's two language models (*forward*.pt,
                  *backward*.pt), or fastai's AWD-LSTM (one .pth)
    precision     compute type of matrix products: float32 or bfloat16
    tower         the network to use if the system has several (default: "main", or the last)
    adapter       a file written by `ptm export --adapter` for a run on this model; its parameters
                  are applied to the model
    architecture  another class of the checkpoint's family, as "BertForMaskedLM"; a missing head
                  begins randomly
    allow_pickle  reads a torch or gensim pickle, without running it, if there is no other file;
                  revision: on the Hub
    language      language of the texts, for a model with vectors or adapters of languages (XLM,
                  X-MOD): a name of `model.languages`, or its number

    Raises UserError for an unknown model, no intact checkpoint, a tokenizer of another checkpoint,
    a damaged file, or an adapter of another model.
    """
    request = Request(
        path=model_folder(working.opened(path)),
        precision=precision,
        tower=tower,
        adapter=adapter,
        architecture=architecture,
        allow_pickle=allow_pickle,
        revision=revision,
    )
    with devices.checking_platform():
        model = next(form for form in FORMATS if form.detect(request.path)).read(request)
    if language is None:
        return model
    if not has_encoder(model):
        raise UserError(f"{path} holds no network that reads a language; leave it out")
    return model.for_language(language)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `load`."""

    path: Path
    precision: Compute
    tower: str | None
    adapter: str | os.PathLike | None
    architecture: str | None
    allow_pickle: bool
    revision: str | None

    @property
    def published(self) -> dict[str, Any]:
        """The options of published checkpoints."""
        names = "architecture", "allow_pickle", "revision"
        return {name: vars(self)[name] for name in names}


Model = Pretrained | WordVectors | ParagraphModel | TopicModel | StaticModel


def has_encoder(model: Model) -> TypeGuard[Pretrained]:
    """Returns whether a loaded model is a network with an encoder."""
    return isinstance(model, Pretrained)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A form in which a model is stored.

    detect  whether a path has it
    read    raises UserError
    """

    detect: Callable[[Path], bool]
    read: Callable[[Request], Model]


def _of_layout(layout: Layout) -> Format:
    """Returns the format of another library's layout."""

    def read(request: Request) -> Pretrained:
        system, *parts = layout.read(request.path, request.allow_pickle)
        return Pretrained(with_precision(system, request.precision), *parts)

    return Format(detect=layout.detect, read=read)


def _of_words(detect: Callable[[Path], bool], read: Callable[[Path, bool], Model]) -> Format:
    """Returns a format of word vectors, which refuses the options of models with an encoder."""

    def checked(request: Request) -> Model:
        for name in ("adapter", "architecture", "tower", "revision"):
            if vars(request)[name] is not None:
                raise UserError(
                    f"{request.path} holds word vectors; {name} is for models with an encoder: "
                    "leave it out"
                )
        return read(request.path, request.allow_pickle)

    return Format(detect=detect, read=checked)


def _is_published(path: Path) -> bool:
    """Whether a path is a published checkpoint, or else may be a name on the Hub."""
    return not path.exists() or is_published(path)


def _published(request: Request) -> Model:
    model, _ = from_published(request.path, precision=request.precision, **request.published)
    return model if request.adapter is None else _network(request, model.system, model)


def _run(request: Request) -> Model:
    if options := [name for name, value in request.published.items() if value]:
        raise UserError(
            f"{request.path} is the directory of a run; {options[0]} is for published checkpoints"
        )
    run = Run.at(request.path)
    config = _with_generation(Config(run.published, run.folder / "config.json"))
    adapted_later = request.adapter is not None
    system = None if adapted_later else system_of(run.system, request.precision, run.kinds)
    params, meta, _ = run.restore()
    tokenizer, sentence = run.tokenizer(meta), sentence_of(run.folder / SENTENCE)
    return _network(request, system, Stored(params, tokenizer, config, sentence))


@dataclasses.dataclass(frozen=True)
class Stored:
    """The parts of a model without its system, as `Pretrained` names them."""

    params: Params
    tokenizer: Any
    published: Config
    sentence: Sentence | None


def _network(request: Request, system: System | None, stored: Stored | Pretrained) -> Model:
    """Returns the model of a run, or of an adapter on it; a table of words as word vectors."""
    params, run = stored.params, Run.at(request.path)
    if request.adapter is not None:
        file = adapterfile.read(request.adapter)
        system = system_of(file.system, request.precision, run.kinds if run.exists else None)
        params = unflatten(adapterfile.joined(file, flatten(params), str(request.path)))
    params = in_effect(system, tied(params, system.ties))
    if is_paragraphs(system):
        return ParagraphModel.read(run, system, params, stored.tokenizer)
    main = "main" if "main" in system.towers else list(system.towers)[-1]
    model = Pretrained(
        system,
        params,
        stored.tokenizer,
        tower=request.tower or main,
        published=stored.published,
        sentence=stored.sentence,
    )
    if isinstance(model.module.encoder, trained_words.TABLES) and model.tokenizer is not None:
        return _vectors(model, run)
    system = facts.known(system, stored.tokenizer)
    examples = other_files.within(system.examples, run.folder)
    system = dataclasses.replace(system, examples=examples)
    if run.exists and any(facts.lacks(tower.encoder) for tower in system.towers.values()):
        system = dataclasses.replace(system, towers=facts.fill(system.towers, run.corpus))
    return dataclasses.replace(model, system=system)


FORMATS = (
    *map(_of_layout, LAYOUTS),
    _of_words(is_topics, lambda path, allow_pickle: TopicModel.read(path)),
    _of_words(static_folder.is_static, lambda path, allow_pickle: StaticModel.read(path)),
    _of_words(
        wordfiles.is_words,
        lambda path, allow_pickle: WordVectors(wordfiles.read(path, allow_pickle)),
    ),
    Format(detect=_is_published, read=_published),
    Format(detect=Path.exists, read=_run),
)
"""The formats that `load` knows. The first that detects a path reads it."""


def strings(model: Pretrained, name: str) -> Pretrained:
    """Returns contextual string embeddings of words from a language model of bytes.
    Akbik et al. 2018, section 2.2. Raises UserError for another model."""
    return Pretrained(*flair_files.of_model(model.system, model.params, model.tokenizer, name))


def vectors_of(path: str | os.PathLike, language: str | None = None) -> WordVectors:
    """Returns the word vectors of a file, a folder or the table of a run; of one language of it.
    Raises UserError."""
    model = load(path)
    model = model if isinstance(model, WordVectors) else WordVectors.of_model(model)
    return model if language is None else two_languages.of_language(model, language)


def _vectors(model: Pretrained, run: Run) -> WordVectors:
    """Returns the word vectors of a run, with the counts of words where its corpus is still
    there."""
    counts = None
    with contextlib.suppress(UserError):
        counts = run.corpus().counts("train")
    return graph_vectors.of_model(model, counts)


def from_published(
    path: str | os.PathLike,
    *,
    precision: Compute = "float32",
    architecture: str | None = None,
    allow_pickle: bool = False,
    revision: str | None = None,
) -> tuple[Pretrained, checkpoint.Checkpoint]:
    """Returns (model, checkpoint) of a published checkpoint: a directory, or a name on the Hub.
    Raises UserError.

    Prints a line on stderr for every parameter that only the model or only the checkpoint has.
    """
    folder = locate(path, revision=revision, allow_pickle=allow_pickle)
    tokenizer = checkpoint.tokenizer_of(folder)
    imported = checkpoint.read(
        folder,
        architecture=architecture,
        vocab=None if tokenizer is None else tokenizer.vocab,
        allow_pickle=allow_pickle,
    )
    for line in imported.report.lines():
        print(f"{folder}: {line}", file=sys.stderr)
    system = with_precision(imported.system, precision)
    published, sentence = _with_generation(imported.config), sentence_of(folder, allow_pickle)
    if sentence is not None and (Path(folder) / "modules.json").is_file():
        system, sentence = with_sparse(Path(folder), system, sentence)
    if sentence is not None and "problem_type" in published:
        main, params, remaining = classifier(
            system.towers["main"], imported.params["main"], sentence, published.labels
        )
        if remaining is not sentence:
            system, sentence = (
                record_with(published, system, main.encoder, main.heads, main.heads),
                remaining,
            )
            imported = dataclasses.replace(imported, system=system, params={"main": params})
    return Pretrained(
        system, imported.params, tokenizer, published=published, sentence=sentence
    ), imported


def _with_generation(config: Config) -> Config:
    """Adds the fields of generation_config.json to a published config.
    Newer checkpoints store them there; settings of generation in their config.json are then without
    effect, as in `transformers`."""
    file = Path(config.file).with_name("generation_config.json")
    if not os.path.lexists(file):
        return config
    fields = {name: value for name, value in config.items() if name not in defaults.FIELDS}
    return Config(
        {
            **fields,
            **{name: value for name, value in Config.read(file).items() if value is not None},
        },
        config.file,
    )


def system_of(record: Any, precision: Compute = "float32", kinds: Kinds | None = None) -> System:
    """Returns the System of a run's record, with wrapped towers, at the given precision.

    `kinds` are the kinds that the run knows (`Run.kinds`; default: the kinds of ptm_jax). Raises
    UserError if a tower, a tie or an adaptation is of an unknown kind.
    """
    kinds = kinds_of() if kinds is None else kinds
    slots = {
        name: _lenient(part, kinds)
        if name in OPEN_SLOTS
        else rebuild(part, kinds, f"system.{name}")
        for name, part in record.items()
        if name != "kind"
    }
    return with_precision(adapted(System(**slots)), precision)


def with_precision(system: System, precision: Compute) -> System:
    """Returns the system with another compute type of matrix products."""
    return dataclasses.replace(
        system, towers=spec.respell(dict(system.towers), Precision, Precision(precision))
    )


def _lenient(part: Any, kinds: Any) -> Any:
    try:
        return rebuild(part, kinds)
    except UserError:
        return part
