"""Downstream tasks as experiments: a model's encoder, a task head, the task's data and the usual recipe."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.convert.hub import locate
from ptm_jax.convert.pairs import ends
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment, System
from ptm_jax.data import tokenizers
from ptm_jax.data.mixed import MixedTasks
from ptm_jax.data.tagged import Tagged
from ptm_jax.data.targets import Targets
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.nn.answer_heads import RationaleHead, VerifiedSpanHead
from ptm_jax.nn.crf import CRFHead
from ptm_jax.nn.hop_heads import HopHead, PairRanker
from ptm_jax.nn.task_heads import ChoiceHead, SequenceHead, SpanHead, Summary, TokenHead
from ptm_jax.objectives.crf import CRFTagging
from ptm_jax.tasks import inputs
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.kinds import kind_of
from ptm_jax.tasks.loading import record_system, system_of, tokenizer_of

__all__ = ["Task", "catalogue", "experiment", "with_head"]


def experiment(
    task: str,
    init: str | os.PathLike,
    data: Sequence[str],
    *,
    epochs: float | None = None,
    batch: int | None = None,
    length: int | None = None,
    lr: float | None = None,
    adapt: Sequence[Any] = (),
    seed: int = 0,
    tagger: Literal["linear", "crf"] = "linear",
) -> Experiment:
    """A model's encoder with a head for a task, fine-tuned as BERT was (Devlin et al. 2019, appendix A.3).

    AdamW without bias correction left out, warm-up over a tenth of the steps, linear decay to 0, clipped at 1, dropout as in
    the model; what is not given is the task's own. `batch` counts examples, `length` is at most what the model's position
    table holds; `adapt` are the wrappers of the system (`System.adapt`); a `tagger` "crf" knows what tags may follow each
    other in the scheme of the task. Raises UserError: an unknown task, data in another format, a model without an encoder
    of texts.
    """
    task_, init = catalogue.get(task), os.fspath(init)
    own = lambda value, name: getattr(task_, name) if value is None else value
    epochs, batch, length, lr = own(epochs, "epochs"), own(batch, "batch"), own(length, "length"), own(lr, "lr")
    if epochs <= 0 or batch < 1:
        raise UserError(f"epochs is {epochs} and batch {batch}; both must be positive")
    examples = task_.examples.settled(data)
    if isinstance(examples, Targets) and examples.start is None:
        examples = dataclasses.replace(examples, start=_start(init))
    kind = kind_of(examples)
    system = with_head(init, examples.outputs, kind.head)
    encoder = system.towers["main"].encoder
    objective = kind.objective(examples)
    if tagger != "linear":
        system, objective = _chained(system, examples), CRFTagging()
    length = min(length, inputs.limit_of(encoder) or length)
    count = examples.count(data, _tokenizer(init), length)
    steps = math.ceil(epochs * math.ceil(count / batch))
    system = dataclasses.replace(
        system,
        name=f"{task}_{Path(init).name}",
        examples=examples,
        corruption=None,
        objective=objective,
        adapt=tuple(adapt),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=batch * examples.readings, length=length),),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Linear(warmup=max(1, steps // 10)),
            clip=1.0,
        ),
    )
    return Experiment(system=system, data=tuple(data), init=init, seed=seed)


def _start(init: str) -> int | None:
    """The token that a published decoder begins with."""
    folder = locate(init)
    if not checkpoint.is_published(folder):
        return None
    return ends(Config.read(folder / "config.json"), "decoder_start_token_id", None)


def _chained(system: System, examples: Any) -> System:
    """The system with a conditional random field for its tags. Raises UserError for a task that has none."""
    if not isinstance(examples, Tagged):
        raise UserError(f"a CRF is for tasks that tag words; this one reads {type(examples).__name__}")
    tower = system.towers["main"]
    head = CRFHead(examples.outputs, examples.labels, examples.scheme, dropout=tower.heads["tag"].dropout)
    return dataclasses.replace(system, towers={"main": Model(encoder=tower.encoder, heads={"tag": head})})


def per_epoch(config: Experiment) -> int:
    """Steps of an epoch of a task's experiment, or of several tasks'."""
    examples, phase = config.system.examples, config.system.recipe.phases[-1]
    spec = config.tokenizer.path if isinstance(config.tokenizer, TokenizerSpec) else None
    files = examples.files(config.data) if isinstance(examples, MixedTasks) else {"": config.data}
    parts = examples.parts if isinstance(examples, MixedTasks) else {"": examples}
    counts = (parts[name].count(files[name], _tokenizer(spec or config.init), phase.length) for name in parts)
    return sum(math.ceil(count * examples.readings / phase.batch) for count in counts)


def _tokenizer(init: str | os.PathLike) -> Any:
    """The tokenizer of a model that a run begins with; None where it has none."""
    folder = locate(init)
    if checkpoint.is_published(folder):
        return tokenizer_of(folder)
    folder = folder.parent.parent if folder.name.startswith("step_") else folder
    return tokenizers.load(folder / "tokenizer") if (folder / "tokenizer").is_dir() else None


def with_head(init: str, classes: int, head: str = "classify") -> System:
    """The record of a model with the head of a task in the place of its own: the published class's, or one on the mean of
    the states where the checkpoint was trained for that (Reimers and Gurevych 2019). Raises UserError."""
    folder = locate(init)
    if checkpoint.is_published(folder):
        return _published(init, folder, classes, head)
    system = system_of(record_system(folder))
    name = "main" if "main" in system.towers else list(system.towers)[-1]
    if head == "lm":
        return _writer(system, init)
    encoder = system.towers[name].encoder
    # A run that was fine-tuned goes on with what it was tuned to read (STILTs): the mean, or the first token.
    own = getattr(system.towers[name].heads.get("classify"), "summary", None)
    tower = Model(encoder=encoder, heads={head: _head(head, classes, own or _summary(encoder))})
    return dataclasses.replace(system, towers={"main": tower}, ties=(), adapt=())


def _published(init: str, folder: Path, classes: int, head: str) -> System:
    config = Config.read(folder / "config.json")
    if head in ("classify", "tag"):
        labels = {str(i): f"LABEL_{i}" for i in range(classes)}
        config = Config({**config, "id2label": labels, "num_labels": classes}, config.file)
    if head == "choose":
        config = Config({**config, "num_choices": classes}, config.file)
    family = family_of(config)
    if head == "lm":
        return _writer(checkpoint.record_of(config, family.pretraining)[0], init)
    named = [name for name, heads in family.heads.items() if heads == (head,)]
    if named:
        system = checkpoint.record_of(config, named[0])[0]
    elif head == "classify":
        raise UserError(f"{init}: the family {family.model_type} has no class that classifies texts")
    else:
        system = checkpoint.record_of(config, family.bare)[0]
    encoder, averages = system.towers["main"].encoder, head in ("classify", "choose", "rank") and _averages(folder)
    if named and not averages:
        return system
    summary = Summary("none", at="mean") if averages else _summary(encoder)
    return dataclasses.replace(system, towers={"main": Model(encoder=encoder, heads={head: _head(head, classes, summary)})})


def _writer(system: System, init: str) -> System:
    """A system that writes answers. Raises UserError for one without a decoder."""
    tower = system.towers["main"]
    if not hasattr(tower.encoder, "decoder") or "lm" not in tower.heads:
        raise UserError(f"{init} has no encoder with a decoder that writes; take a T5, BART, mBART or PEGASUS")
    return system


def _head(name: str, classes: int, summary: Summary) -> Any:
    """A head of the kind that published classes have, with BERT's dropout."""
    made = {
        "classify": lambda: SequenceHead(classes, summary, dropout=0.1),
        "choose": lambda: ChoiceHead(classes, summary, dropout=0.1),
        "tag": lambda: TokenHead(classes, dropout=0.1),
        "span": SpanHead,
        "rank": lambda: PairRanker(classes, summary=summary, dropout=0.1),
        "hop": lambda: HopHead(classes, dropout=0.1),
        "verified": lambda: VerifiedSpanHead(dropout=0.1),
        "converse": lambda: RationaleHead(dropout=0.1),
    }
    return made[name]()


def _averages(folder: Path) -> bool:
    """Whether a checkpoint was trained to give the mean of its states for a sentence, as Sentence-BERT says it."""
    try:
        fields = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        return False
    return isinstance(fields, dict) and fields.get("pooling_mode_mean_tokens") is True


def _summary(encoder: Any) -> Summary:
    """The first token of an encoder that sees both sides, the last of one that does not."""
    return Summary(at="last" if getattr(encoder, "sees", "bidirectional") == "causal" else "first")
