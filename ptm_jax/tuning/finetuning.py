"""Downstream tasks as experiments: an encoder, a task head, the task's data, the usual recipe."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ptm_jax.adapt.base import keeping_words
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.convert.records import ends
from ptm_jax.core import slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment, System, adapted
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.backward import is_backward
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.encoders.encoder_traits import turned
from ptm_jax.encoders.model import Model
from ptm_jax.inference.loading import system_of
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import TaskHead, pooling_of
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.mixed import parts_of
from ptm_jax.tasks.formats.taskdata import TaskExamples
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.training.start.init_models import Init, Initial, Initials, opened
from ptm_jax.tuning import text_heads

if TYPE_CHECKING:
    from ptm_jax.core.networks import Encoder
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


def experiment(
    task: str,
    init: str | os.PathLike | tuple[tuple[str, str], ...],
    data: Sequence[str],
    *,
    epochs: float | None = None,
    batch: int | None = None,
    length: int | None = None,
    lr: float | None = None,
    adapt: Sequence[Any] = (),
    compress: Sequence[Any] = (),
    seed: int = 0,
    steps: int | None = None,
    tagger: Literal["linear", "crf"] = "linear",
    examples: TaskExamples | None = None,
) -> Experiment:
    """A model's encoder with a head for a task, fine-tuned as BERT was.
    Devlin et al. 2019, appendix A.3.

    AdamW with bias correction, warm-up over a tenth of the steps, linear decay to 0, clipped at 1,
    dropout as in the model.

    init      the model, or (tower, model) pairs with one for "main" (`Experiment.init`). Other
              towers are kept if an adaptation or the objective uses them
    batch     examples per batch; length: tokens per row, at most the length of the position table.
              Options that are None get the task's default
    adapt     the wrappers of the system (`System.adapt`); compress: its compressions
              (`System.compress`)
    steps     in place of the epochs; the data are then not counted
    tagger    "crf": a conditional random field over the tags of the task's scheme
    examples  the reader of the data, where it is not the task's (`tuning.own_data`)

    Raises UserError for an unknown task, data in another format, or a model without a text encoder.
    """
    value, sources = catalogue.get(task), opened(init)
    model = _model(sources, bool(compress))
    epochs, batch, lr = _numbers(value, epochs, batch, lr)
    examples = (value.examples if examples is None else examples).settled(data)
    examples = _with_start(examples, model).with_models(sources.paths)
    tokenizer = model.tokenizer()
    system = _with_specials(_with_head(model, examples), tokenizer)
    kind, examples = kind_of(examples, system.towers["main"].encoder), _read(examples, system)
    objective = kind.objective(examples)
    if tagger != "linear":
        system, objective = _tagged(system, examples, tagger)
    length = fitting(value.length, length, system.towers["main"].encoder.limit, model.path)
    steps = steps or math.ceil(epochs * math.ceil(examples.count(data, tokenizer, length) / batch))
    system = dataclasses.replace(
        system,
        name=f"{task}_{Path(model.path).name}",
        examples=examples,
        corruption=None,
        objective=objective,
        adapt=tuple(adapt),
        compress=tuple(compress),
        recipe=usual(Phase(steps=steps, batch=batch * examples.readings, length=length), lr),
    )
    system = keeping_words(keeping_towers(system, sources))
    begin = init if isinstance(init, tuple) else _start_of(model.path, compress)
    return Experiment(system=system, data=tuple(data), init=begin, seed=seed)


def _with_start(examples: TaskExamples, model: Initial) -> TaskExamples:
    """Returns the examples of a kind that writes with the first token of the model's decoder, and
    those of a sentence encoder with its prompts and the pieces of its vocabulary."""
    kind = kind_of(examples)
    if kind.writes and examples.start is None:
        start = ends(model.config, "decoder_start_token_id", None) if model.published else None
        return dataclasses.replace(examples, start=start)
    if not kind.of_sentences:
        return examples
    return examples.with_settings(model.sentence()).with_pieces(model.tokenizer())


def _read(examples: TaskExamples, system: System) -> TaskExamples:
    """Returns the examples with the spellings or the rows that a system reads."""
    if (kind := kind_of(examples)).of_sentences:
        return examples.with_head(system.towers["main"].heads[kind.head])
    return _spelled(examples, system.examples)


def _numbers(
    task: Task, epochs: float | None, batch: int | None, lr: float | None
) -> tuple[float, int, float]:
    """Returns epochs, batch and learning rate, with the task's in the place of None."""
    epochs = task.epochs if epochs is None else epochs
    batch = task.batch if batch is None else batch
    lr = task.lr if lr is None else lr
    if not 0 < epochs < math.inf or batch < 1 or not 0 <= lr < math.inf:
        raise UserError(
            f"epochs is {epochs}, batch {batch}, lr {lr}; they must be positive, lr finite "
            "and at least 0"
        )
    return epochs, batch, lr


def usual(phase: Phase, lr: float) -> Recipe:
    """The recipe of BERT's fine-tuning."""
    return Recipe(
        phases=(phase,),
        lr=lr,
        optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
        schedule=Linear(warmup=max(1, phase.steps // 10)),
        clip=1.0,
    )


def from_scratch(
    parent: System, task: str, recipe: Recipe, data: Sequence[str], *, min_count: int = 1,
    dropout: float = 0.5,
    tagger: Literal["linear", "crf"] = "linear", adapt: Sequence[Any] = (), **fields: Any,
) -> Experiment:  # fmt: skip
    """Trains a network of the catalogue on a task from random values.

    It is an encoder with a head for the task, or an encoder with a decoder as it is.

    min_count  occurrences that a word needs among the training examples to be in the vocabulary
    dropout    before the last layer
    adapt      wrappers in addition to the system's; fields: of the Experiment

    Raises UserError for an unknown task, or classes that are only in data which cannot be read.
    """
    examples = _spelled(catalogue.get(task).examples.settled(data), parent.examples)
    kind = kind_of(examples)
    system = _writer(parent, parent.name) if kind.writes else headed(parent, examples)
    objective = kind_of(examples, system.towers["main"].encoder).objective(examples)
    system = with_field(system, "dropout", dropout, TaskHead)
    if tagger != "linear":
        system, objective = _tagged(system, examples, tagger)
    system = dataclasses.replace(
        system,
        name=f"{parent.name}_{task}",
        tokenizer=dataclasses.replace(parent.tokenizer, min_count=min_count),
        examples=examples,
        corruption=None,
        objective=objective,
        adapt=(*parent.adapt, *adapt),
        recipe=recipe,
    )
    return Experiment(system=system, data=tuple(data), precision="float32", save_every=0, **fields)


def _spelled(examples: TaskExamples, before: Any) -> TaskExamples:
    """The examples with words spelled as those that a model read before, if it reads spellings."""
    if before.alphabet is None:
        return examples
    if isinstance(before, TaskExamples):
        spelling = before.spelling
    else:
        spelling = Spelled(length=before.length, style=before.style, letters=before.letters)
    return dataclasses.replace(examples, spelling=spelling)


def _start_of(model: str, compress: Sequence[Any]) -> Any:
    """Returns `init` for a model and the compressions that fill their towers from it."""
    begin: Any = model
    for wrapper in compress:
        begin = wrapper.start(begin) if isinstance(begin, str) else begin
    return begin


def _model(init: Initials, made: bool) -> Initial:
    """Returns the model that provides the fine-tuned encoder: the model of the tower main, or, if
    it is `made` by a compression, its teacher's. Raises UserError."""
    model = init.model_of("", "main") or (init.model_of("teacher") if made else None)
    if model is not None:
        return model
    if init.models:
        raise UserError("init names no model for the tower main; give main=MODEL beside the others")
    path = init.sources[0].path
    raise UserError(
        f"{path} gives vectors of tokens; name the model that they fill: --init "
        f"main=MODEL embeddings={path}"
    )


def _system(model: Initial) -> System:
    """Returns the system of a published checkpoint or of a run."""
    if model.published:
        return checkpoint.record_of(model.config)[0]
    return system_of(model.record["config"]["system"], kinds=model.kinds)


def keeping_towers(system: System, init: Init | Initials) -> System:
    """Returns the system with the other towers that the objective or the wrappers need.
    They come from the run of `init` and from its other models."""
    init = opened(init)
    towers = _system(_model(init, bool(system.compress))).towers
    others = {name: tower for name, tower in towers.items() if name != _tuned(towers)}
    for model in init.models:
        if model.at not in ("", "main") and "/" not in model.at:
            towers = _system(model).towers
            others[model.at] = towers[model.at if model.at in towers else _tuned(towers)]
    if not others:
        return system
    objective = slots.objective(
        adapted(dataclasses.replace(system, towers={**others, **system.towers})).objective
    )
    used = {*objective.given}.union(*(wrapper.towers or () for wrapper in system.wrappers))
    others = {name: tower for name, tower in others.items() if name in used}
    return dataclasses.replace(system, towers={**system.towers, **others})


def fitting(length: int, asked: int | None, limit: int | None, model: object) -> int:
    """Returns the row length: `asked`, or a task's `length`, which is cut to the position table.
    Raises UserError where the caller asked for a longer one."""
    if limit is not None and asked is not None and asked > limit:
        raise UserError(
            f"length is {asked}, the position table of {model} has {limit} rows; give "
            f"{limit} or less, or a model of longer texts"
        )
    length = length if asked is None else asked
    return min(length, limit or length)


def _tuned(towers: Mapping[str, Any]) -> str:
    """The tower that is fine-tuned: "main", or the last."""
    return "main" if "main" in towers else list(towers)[-1]


def _tagged(system: System, examples: TaskExamples, tagger: str) -> tuple[System, Any]:
    """(the system with another head, its objective).
    Raises UserError for a kind of task without such a tagger."""
    kind, tower = kind_of(examples), system.towers["main"]
    if tagger not in kind.taggers:
        raise UserError(
            f"the tagger {tagger} is for tasks that tag words; this one reads "
            f"{type(examples).__name__}"
        )
    head, objective = kind.taggers[tagger](examples, tower.heads[kind.head])
    towers = {"main": Model(encoder=tower.encoder, heads={kind.head: head})}
    return dataclasses.replace(system, towers=towers), objective


def per_epoch(config: Experiment) -> int:
    """Steps of an epoch of a task's experiment, or of several tasks'."""
    examples, phase = config.system.examples, config.system.recipe.phases[-1]
    spec = None if config.tokenizer is None else config.tokenizer.path
    parts = parts_of(examples) or {"": examples}
    files = examples.files(config.data) if parts_of(examples) else {"": config.data}
    model = Initial("", spec) if spec else _model(opened(config.init), bool(config.system.compress))
    tokenizer = model.tokenizer()
    counts = (parts[name].count(files[name], tokenizer, phase.length) for name in parts)
    return sum(math.ceil(count * examples.readings / phase.batch) for count in counts)


def _with_specials(system: System, tokenizer: Tokenizer) -> System:
    """The system with the special tokens of the tokenizer, which config.json lacks.
    Its vocabulary keeps its size. One that is too small for the tokenizer stays as it is, and the
    run refuses it."""
    if tokenizer is None:
        return system

    def named(old):
        if old.size < tokenizer.vocab.size:
            return old
        return dataclasses.replace(tokenizer.vocab, size=old.size)

    return dataclasses.replace(system, towers=spec.respell(dict(system.towers), Vocab, named))


def with_head(init: Init | Initials, examples: TaskExamples) -> System:
    """Replaces the heads of a model's system by the head of a task.

    The head of the published class, so that the export loads as it. A family without one gets a
    head on the mean of the states if the checkpoint was trained for that (Reimers and Gurevych
    2019). Raises UserError.
    """
    return _with_head(_model(opened(init), False), examples)


def _with_head(model: Initial, examples: TaskExamples) -> System:
    if kind_of(examples).of_sentences:
        return _encoder_of_texts(model, examples)
    if model.published:
        return _published(model, examples)
    system, kind = _system(model), kind_of(examples)
    return _writer(system, model.path) if kind.writes else headed(system, examples)


def _encoder_of_texts(model: Initial, examples: TaskExamples) -> System:
    """Returns the system of a model with a head of vectors. Raises UserError."""
    head = kind_of(examples).new_head(examples, model.sentence())
    system = text_heads.published(model, head) if model.published else _system(model)
    tower = system.towers[_tuned(system.towers)]
    heads = text_heads.heads_of(tower, head, kind_of(examples).head, model.path)
    return _with_tower(system, tower.encoder.without_memory(), heads)


def _with_tower(system: System, encoder: Encoder, heads: Mapping[str, Any]) -> System:
    """Returns a system of one tower without adaptations."""
    towers = {"main": Model(encoder=encoder, heads=heads)}
    return dataclasses.replace(system, towers=towers, ties=(), adapt=())


def headed(system: System, examples: TaskExamples) -> System:
    """Returns a system's encoder with the head of a task, which reads as the system's own head."""
    name = _tuned(system.towers)
    tower = system.towers[name]
    encoder = tower.encoder.without_memory()  # texts of a task do not follow one another
    kind, heads = kind_of(examples, encoder), tower.heads
    if is_backward(system.examples):
        encoder = turned(encoder)
    # A fine-tuned run keeps its pooling (STILTs), a convolutional encoder that of its task.
    if kind.keeps and kind.head in heads:
        return _with_tower(system, encoder, {kind.head: heads[kind.head]})
    summary = pooling_of(heads, _summary(encoder))
    return _with_tower(system, encoder, {kind.head: kind.new_head(examples, summary)})


def _published(model: Initial, examples: TaskExamples) -> System:
    kind, config = kind_of(examples), model.config
    family = family_of(config)
    if kind.writes:
        return _writer(checkpoint.record_of(config, family.pretraining)[0], model.path)
    config = Config({**config, **kind.config(examples.outputs)}, config.file)
    named = [name for name, heads in family.heads.items() if heads == (kind.head,)]
    if not named and not kind.bare:
        raise UserError(
            f"{model.path}: the family {family.model_type} has no class with a head {kind.head!r} "
            "on texts"
        )
    system = checkpoint.record_of(config, named[0] if named else family.bare)[0]
    kind = kind_of(examples, system.towers["main"].encoder)
    if reading := [
        name for name, heads in family.heads.items() if heads == (kind.head,) and name not in named
    ]:
        return checkpoint.record_of(config, reading[0])[0]
    if named:
        return system
    encoder, averages = system.towers["main"].encoder, kind.pooled and _averages(model)
    summary = Summary("none", at="mean") if averages else _summary(encoder)
    head = kind.new_head(examples, summary)
    return dataclasses.replace(
        system, towers={"main": Model(encoder=encoder, heads={kind.head: head})}
    )


def _writer(system: System, init: str) -> System:
    """A system that writes answers. Raises UserError for one without a decoder."""
    tower = system.towers["main"]
    if not tower.encoder.reads_source or "lm" not in tower.heads:
        raise UserError(
            f"{init} has no encoder with a decoder that writes; take a T5, BART, mBART, "
            "PEGASUS or RNNsearch"
        )
    return system


def _averages(model: Initial) -> bool:
    """Whether a checkpoint was trained to represent a sentence by the mean of its states
    (Sentence-BERT)."""
    sentence = model.sentence()
    return sentence is not None and sentence.modes == ("mean",)


def _summary(encoder: Encoder) -> Summary:
    """The last token of a causal encoder, the first token of others."""
    return Summary(at="last" if encoder.direction == "causal" else "first")
