"""Downstream tasks as experiments: a model's encoder, a task head, the task's data and the usual recipe."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.convert.hub import locate
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.registry import Catalogue
from ptm_jax.core.system import Experiment, System
from ptm_jax.data.labelled import Labelled
from ptm_jax.encoders.model import Model
from ptm_jax.nn.task_heads import SequenceHead, Summary
from ptm_jax.objectives.downstream import Classification
from ptm_jax.tasks.loading import record_system, system_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A downstream task.

    examples  how its tables are read
    kind      of `objectives.downstream.Classification`
    metric    what models are compared by
    """

    name: str
    examples: Labelled
    kind: str = "classes"
    metric: str = "accuracy"


catalogue = Catalogue("task")
catalogue.add(Task(name="sst2", examples=Labelled(first=("sentence", "text"))))


def experiment(
    task: str,
    init: str | os.PathLike,
    data: Sequence[str],
    *,
    epochs: float = 3.0,
    batch: int = 32,
    length: int = 128,
    lr: float = 5e-5,
    adapt: Sequence[Any] = (),
) -> Experiment:
    """A model's encoder with a head for a task, fine-tuned as BERT was (Devlin et al. 2019, appendix A.3).

    AdamW without bias correction left out, warm-up over a tenth of the steps, linear decay to 0, clipped at 1, dropout as in
    the model; `adapt` are the wrappers of the system (`System.adapt`). Raises UserError: an unknown task, data in another
    format, a model without an encoder of texts.
    """
    task_, init = catalogue.get(task), os.fspath(init)
    if epochs <= 0 or batch < 1:
        raise UserError(f"epochs is {epochs} and batch {batch}; both must be positive")
    steps = math.ceil(epochs * math.ceil(task_.examples.count(data) / batch))
    classes = len(task_.examples.labels) or 1
    system = dataclasses.replace(
        with_head(init, classes),
        name=f"{task}_{Path(init).name}",
        examples=task_.examples,
        corruption=None,
        objective=Classification(kind=task_.kind),
        adapt=tuple(adapt),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=batch, length=length),),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Linear(warmup=max(1, steps // 10)),
            clip=1.0,
        ),
    )
    return Experiment(system=system, data=tuple(data), init=init)


def with_head(init: str, classes: int) -> System:
    """The record of a model with a classifier of texts in the place of its heads: the published class's own, or one on the
    mean of the states where the checkpoint was trained for that (Reimers and Gurevych 2019). Raises UserError."""
    folder = locate(init)
    if checkpoint.is_published(folder):
        config = Config.read(folder / "config.json")
        labels = {str(i): f"LABEL_{i}" for i in range(classes)}
        config = Config({**config, "id2label": labels, "num_labels": classes}, config.file)
        family = family_of(config)
        named = [name for name, heads in family.heads.items() if heads == ("classify",)]
        if not named:
            raise UserError(f"{init}: the family {family.model_type} has no class that classifies texts")
        system = checkpoint.record_of(config, named[0])[0]
        if not _averages(folder):
            return system
        head = SequenceHead(classes, Summary("none", at="mean"), dropout=0.1)
        encoder = system.towers["main"].encoder
        return dataclasses.replace(system, towers={"main": Model(encoder=encoder, heads={"classify": head})})
    system = system_of(record_system(folder))
    name = "main" if "main" in system.towers else list(system.towers)[-1]
    encoder = system.towers[name].encoder
    head = SequenceHead(classes, _summary(encoder), dropout=0.1)
    return dataclasses.replace(system, towers={"main": Model(encoder=encoder, heads={"classify": head})}, ties=(), adapt=())


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
