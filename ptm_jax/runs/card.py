"""The model card of an export: README.md, from the record of a run.
It has the YAML head that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ptm_jax.convert.layouts import Layout
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.nn.heads.text_vector import vector_head

PIPELINES = {
    "classify": "text-classification",
    "tag": "token-classification",
    "span": "question-answering",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "mlm": "fill-mask",
    "lm": "text-generation",
}
"""Maps a head to the Hub's `pipeline_tag`; a decoder that reads a source has another."""
AUTO = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnsweringSimple": "XLNetForQuestionAnsweringSimple",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
"""Maps the end of a class's name to the Auto class of Transformers that loads it."""
WITHOUT = ("nezha", "transfo-xl")
"""Families that Transformers no longer has."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def card(
    model: Any,
    config: Mapping[str, Any],
    sentence: bool,
    run: Any = None,
    library: Layout | None = None,
) -> str:
    """Returns the text of README.md.

    model     the `Pretrained` that was exported; `config` its config.json; `sentence` whether
              sentence-transformers reads it
    run       the `Run` that it comes from, or None: the card then has no recipe, data, metrics and
              command
    library   the layout of another library, where the folder has one
    """
    system, record = model.system, {} if run is None else run.record
    pair = bool(config.get("is_encoder_decoder"))
    tags = PIPELINES | ({"lm": "text2text-generation"} if pair else {})
    heads = [tag for name, tag in tags.items() if name in model.module.heads]
    pipeline = (heads or ["sentence-similarity" if sentence else "feature-extraction"])[0]
    name = "sentence-transformers" if sentence else "transformers"
    if library is not None:
        name, pipeline = library.library.lower(), library.pipeline
    head: dict[str, Any] = {"library_name": name, "pipeline_tag": pipeline}
    head["tags"] = ["ptm_jax", "jax", str(config["model_type"])]
    experiment = record.get("config", {})
    facts = {"system": system.name, "paper": system.paper}
    facts |= {"architecture": config["architectures"][0]} | _origin(record)
    facts["length"] = trained_length(model, sentence) if library is None else None
    init = experiment.get("init")
    if isinstance(init, str) and _HUB_NAME.fullmatch(init) and not Path(init).exists():
        head["base_model"] = init
    measured: dict[str, float] = {}
    if experiment.get("data"):
        task, step, measured = _measured(run)
        measured = {name: value for name, value in measured.items() if math.isfinite(value)}
        facts["step"] = step
        metrics = [{"type": name, "value": value} for name, value in measured.items()]
        data = {
            "type": task or "text",
            "name": f"{task or _shown(experiment['data'][0])}, held out",
        }
        result = {"task": {"type": pipeline}, "dataset": data, "metrics": metrics}
        head["model-index"] = [{"name": system.name, "results": [result]}] if metrics else []
    lines = [
        "---",
        yaml.safe_dump({k: v for k, v in head.items() if v}, sort_keys=False, allow_unicode=True)
        + "---",
        *_text(system, facts, measured, record),
    ]
    return "\n".join(lines) + "\n"


def _origin(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows of the table about the model that a run begins with, its data and its
    seed."""
    experiment, corpus, facts = record.get("config", {}), record.get("corpus", {}), {}
    if isinstance(init := experiment.get("init"), str):
        facts["begun with"] = _shown(init)
    if experiment.get("data"):
        facts |= {
            "data": ", ".join(map(_shown, experiment["data"])),
            "hash of the data": corpus.get("digest"),
            "hash of the tokenizer": corpus.get("tokenizer"),
            "seed": experiment.get("seed"),
        }
    return facts


def _text(
    system: System,
    facts: Mapping[str, Any],
    measured: Mapping[str, float],
    record: Mapping[str, Any],
) -> list[str]:
    """Returns the lines of the page: a table of facts, the metrics, the recipe and the command."""
    name = system.name
    lines = [
        "",
        f"# {name}",
        "",
        "Trained with ptm_jax." if measured else "Written by ptm_jax.",
        "",
        "| | |",
        "|---|---|",
    ]

    def cell(value):
        return str(value).replace("|", "\\|").replace("\n", " ")

    lines += [
        f"| {name} | {cell(value)} |" for name, value in facts.items() if value not in (None, "")
    ]
    if measured:
        lines += ["", "## Held-out metrics", "", "| metric | value |", "|---|---|"]
        lines += [f"| {cell(name)} | {value:.6g} |" for name, value in measured.items()]
    experiment = record.get("config", {})
    if experiment.get("data"):
        lines += ["", "## Recipe", "", "```", spec.to_text(experiment["system"]["recipe"]), "```"]
        lines += _batch(system)
    if command := record.get("command"):
        lines += [
            "",
            "## Command",
            "",
            "```",
            shlex.join(_shown(word) for word in shlex.split(command)),
            "```",
        ]
    return lines


def _batch(system: System) -> list[str]:
    """Returns the line on a batch of examples that have several rows each."""
    if system.examples is None or not system.examples.labelled or system.examples.readings < 2:
        return []
    rows, each = system.recipe.phases[-1].batch, system.examples.readings
    return ["", f"`batch` counts rows: {rows // each} examples of {each} rows in a step."]


def trained_length(model: Any, sentence: bool) -> str | None:
    """Returns the length of the rows of fine-tuning, where the model can read longer ones.

    An exported tokenizer keeps the limit of the model, as Transformers does. `sentence` is that of
    `card`: there the longest text is a setting of the folder, by which vectors are made here, too.
    """
    system = model.system
    if system.recipe is None or system.examples is None or not system.examples.labelled:
        return None
    length, vectors = system.recipe.phases[-1].length, vector_head(model.module.heads) is not None
    limits = [model.limit, model.sentence.max_length if vectors and model.sentence else None]
    longest = min((n for n in limits if n is not None), default=None)
    if longest is not None and length >= longest:
        return None
    limit = "has no limit" if model.limit is None else f"reads {model.limit}"
    if vectors:
        if not sentence or longest is None:
            return None
        return (
            f"fine-tuned on at most {length} tokens of a text; vectors are of its first {longest} "
            "(model.max_seq_length), as in ptm_jax"
        )
    if sentence:
        return (
            f"fine-tuned on at most {length} tokens, and the model {limit}; for the predictions of "
            f"ptm_jax on longer texts: model.max_seq_length = {length}"
        )
    return (
        f"fine-tuned on at most {length} tokens, and the model {limit}; for the predictions of "
        f"ptm_jax on longer texts: tokenizer(texts, truncation=True, max_length={length})"
    )


def loading(out: str, config: Mapping[str, Any], sentence: bool) -> list[str]:
    """Returns the lines of Python that load an exported folder.

    By sentence-transformers, by the class of Transformers that its config.json names, or here for a
    family without one.
    """
    if sentence:
        return [
            "from sentence_transformers import SentenceTransformer",
            f"model = SentenceTransformer({out!r})",
        ]
    name = str(config["architectures"][0])
    if config["model_type"] in WITHOUT:
        return ["import ptm_jax", f"model = ptm_jax.load({out!r})"]
    auto = next((AUTO[end] for end in AUTO if name.endswith(end)), name)
    special = ("HeadModel", "HeadsModel", "EncoderModel", "DecoderModel")
    if name.endswith("Model") and not name.endswith(special):
        auto = "AutoModel"
    return [
        f"from transformers import {auto}, AutoTokenizer",
        f"model = {auto}.from_pretrained({out!r})",
        f"tokenizer = AutoTokenizer.from_pretrained({out!r})",
    ]


def _shown(source: str) -> str:
    """Returns a source without the folders of this machine."""
    return Path(source).name if Path(source).is_absolute() else source


def _measured(run: Any) -> tuple[str | None, int | None, dict[str, float]]:
    """Returns (task, step, held-out metrics) of the exported checkpoint.
    The metrics are from fine-tuning, else from the last line of the log."""
    choice = run.choice()
    if choice is not None:
        return choice["task"], choice["step"], choice["metrics"]
    file, last = run.folder / "metrics.jsonl", (None, {})
    for line in file.read_text(encoding="utf8").splitlines() if file.is_file() else ():
        line_of_log = json.loads(line)
        if line_of_log["split"] == "heldout" and (
            run.step is None or line_of_log["step"] <= run.step
        ):
            last = line_of_log["step"], line_of_log["values"]
    return None, *last
