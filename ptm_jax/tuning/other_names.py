"""Names of options in transformers and sentence-transformers, and the names here.

`ptm_jax.finetune` takes those that mean the same. Others, and options of the command line, are
errors with the name to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ptm_jax.core.errors import UserError, closest

SAME = {
    "batch_size": "batch",
    "train_batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "per_gpu_train_batch_size": "batch",
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "max_steps": "steps",
    "max_length": "length",
    "max_seq_length": "length",
    "max_seq_len": "length",
    "random_seed": "seed",
    "random_state": "seed",
}
"""{option of a training there: the option of the same meaning}. One device: a batch is whole."""
OTHERS = {
    **SAME,
    "output_dir": "workdir",
    "output_path": "workdir",
    "train_dataset": "data",
    "train_file": "data",
    "model_name_or_path": "init",
    "load_best_model_at_end": "best",
    "save_best_model": "best",
    "early_stopping_patience": "patience",
    "overwrite_output_dir": "workdir",
    "resume_from_checkpoint": "workdir",
}
"""{option there: the option here}."""
FIELDS = {
    "weight_decay": "recipe.optimizer.weight_decay",
    "adam_beta1": "recipe.optimizer.b1",
    "adam_beta2": "recipe.optimizer.b2",
    "adam_epsilon": "recipe.optimizer.eps",
    "warmup_steps": "recipe.schedule.warmup",
    "warmup_ratio": "recipe.schedule.warmup",
    "lr_scheduler_type": "recipe.schedule",
    "scheduler": "recipe.schedule",
    "optim": "recipe.optimizer",
    "max_grad_norm": "recipe.clip",
    "gradient_accumulation_steps": "recipe.accumulate",
    "learning_rate": "recipe.lr",
    "max_steps": "recipe.phases.0.steps",
    "batch_size": "recipe.phases.0.batch",
    "train_batch_size": "recipe.phases.0.batch",
    "per_device_train_batch_size": "recipe.phases.0.batch",
    "max_seq_length": "recipe.phases.0.length",
    "max_length": "recipe.phases.0.length",
    "logging_steps": "log_every",
    "eval_steps": "eval_every",
    "evaluation_steps": "eval_every",
    "save_steps": "save_every",
    "checkpoint_save_steps": "save_every",
    "save_total_limit": "keep",
    "report_to": "metrics",
    "fp16": "precision",
    "bf16": "precision",
    "use_amp": "precision",
    "lr": "recipe.lr",
    "steps": "recipe.phases.0.steps",
    "batch": "recipe.phases.0.batch",
    "length": "recipe.phases.0.length",
}
"""{option there: the field of an experiment, which --set and `fields` change}."""


def translated(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Returns the options of `finetune` under the names here.
    Raises UserError for an unknown one, and for two names of one option."""
    known, named = tuple(known), {}
    for name, value in options.items():
        here = name if name in known else SAME.get(name)
        if here is None:
            raise UserError(f"finetune has no option {name!r}; {advice(name, known)}")
        if here in named:
            raise UserError(f"{name} and {here} are the same option; give one of them")
        named[here] = value
    return named


def advice(name: str, known: Iterable[str]) -> str:
    """Returns what to write in the place of an unknown option of `finetune`."""
    known = tuple(known)
    if (here := OTHERS.get(name)) in (*known, "workdir", "data", "best", "patience"):
        return f"write {here}="
    if name in FIELDS:
        return f"give it as a field of the experiment: fields={{{FIELDS[name]!r}: ...}}"
    return f"there are {', '.join(known)}.{closest(name, (*known, *SAME))}"


def option_hint(word: str, options: Iterable[str]) -> str | None:
    """Returns what to write in the place of an option that a command has not.

    None where nothing is known of it.

    word     as it was written, as "--batch-size=8"
    options  the command's own, as "batch" or "set"
    """
    name, options = word.partition("=")[0].lstrip("-").replace("-", "_"), set(options)
    if not word.startswith("--") or name in options or f"no_{name}" in options:
        return None
    if name == "batch" and "batch_size" in options:
        return "--batch-size"
    if (here := OTHERS.get(name)) in options:
        return f"--{here}"
    if name in FIELDS and "set" in options:
        return f"--set {FIELDS[name]}=..."
    return None
