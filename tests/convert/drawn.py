"""Draws configs of each family of today's encoders and compares all of their classes with
Transformers: states, attention maps, scores, losses, gradients, and the tensors of the export.

    python -m tests.convert.drawn --number 20 --seed 7 --family Esm

`drawing` has the fields of each family, `peers.compare` the comparison that the tests make too.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
quick = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", quick)
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import drawing  # noqa: E402
import folders  # noqa: E402
import jax  # noqa: E402
import neobert_definition  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
from transformers.utils import logging  # noqa: E402

from ptm_jax.convert import checkpoint  # noqa: E402
from ptm_jax.core import towers  # noqa: E402
from ptm_jax.core.errors import UserError  # noqa: E402

VOCAB = 61
PROBLEMS = (None, "single_label_classification", "regression", "multi_label_classification")
SIDES = "right", "left", "none"
FOLDERS = "LaBSE and E5"
BUCKETS = (16,)
"""Lengths to which no slots are added."""


@dataclasses.dataclass
class Case:
    """A drawn config with the inputs of its classes."""

    fields: drawing.Fields
    inputs: dict
    tasks: dict
    side: str
    spelled: object = None


def texts(draw, kind, fields, side, length):
    """Returns inputs and labels. Padding has the config's id; ids from 6 are words."""
    types = max(fields.get("type_vocab_size", 2), 1)
    labels, problem = fields["num_labels"], fields.get("problem_type")
    inputs = peers.drawn(
        VOCAB - 1,
        length,
        side="right" if side == "none" else side,
        types=types,
        classes=labels,
        seed=int(draw.integers(2**31)),
        least=6,
    )
    if side == "none":
        for name in ("input_ids", "words"):
            more = draw.integers(6, VOCAB - 1, inputs[name].shape)
            inputs[name] = np.where(inputs[name] > 0, inputs[name], more).astype(np.int32)
        inputs["attention_mask"] = np.ones_like(inputs["attention_mask"])
        inputs["chosen"] |= draw.random(inputs["chosen"].shape) < 0.5
    if not kind.types:
        del inputs["token_type_ids"]
    pad, mask = fields["pad_token_id"], inputs["attention_mask"] > 0
    inputs["input_ids"] = np.where(mask, inputs["input_ids"], pad).astype(np.int32)
    before = np.pad(mask[:, :-1], ((0, 0), (1, 0)))  # padding predicts no token
    inputs["lm_labels"] = np.where(mask & before, inputs["input_ids"], peers.IGNORED)
    shape = inputs["class"].shape
    if problem == "multi_label_classification":
        inputs["class"] = draw.integers(0, 2, (*shape, labels)).astype(np.float32)
    elif problem == "regression" or (problem is None and labels == 1):
        wide = shape if labels == 1 else (*shape, labels)
        inputs["class"] = draw.normal(size=wide).astype(np.float32)
    return inputs


def padded(kind, fields, side, length, tasks):
    """Returns the tasks whose loss does not depend on the states of padding.

    A padding token that sees no key has the mean of all values there, and zeros here. Windows leave
    such tokens, and so does DeBERTa; ESM's have zeros there.
    """
    without = {"span"} if length not in BUCKETS else set()  # the softmax has all slots
    if side == "none":
        return {name: task for name, task in tasks.items() if task not in without}
    prefix = next(name for name, other in drawing.FAMILIES.items() if other is kind)
    alone = prefix.startswith("Deberta") or (kind.window and fields[kind.window] // 2 < length)
    without |= {"span"} if alone else set()
    first = fields.get("classifier_pooling", "cls") in ("cls", "bos")
    if side == "left" and first and (alone or prefix == "Esm"):
        without |= {"classify", "choose"}
    slot = fields.get("summary_type")  # of all slots, with padding
    if slot == "mean" or (slot == "last" and side == "right"):
        without |= {"choose"}
    return {name: task for name, task in tasks.items() if task not in without}


def older(fields):
    """Returns the fields of a config.json as versions before 5 of Transformers wrote them."""
    new = dict(fields)
    angles, kinds = new.pop("rope_parameters", None), new.get("layer_types")
    if not angles:
        return fields
    if not kinds:
        return new | {"rope_theta": angles["rope_theta"]}
    local, full = (angles[kind]["rope_theta"] for kind in drawing.KINDS)
    is_full = [kind == drawing.KINDS[1] for kind in kinds]
    if "local_attention" not in new:
        del new["layer_types"]
        windows = [None if one else new["sliding_window"] for one in is_full]
        thetas = [full if one else local for one in is_full]
        return new | {"attention_windows": windows, "rope_theta": thetas}
    new |= {"global_rope_theta": full, "local_rope_theta": local}
    for every in range(1, len(kinds) + 1):
        if is_full == [i % every == 0 for i in range(len(kinds))]:
            del new["layer_types"]
            return new | {"global_attn_every_n_layers": every}
    return new


def draw_case(prefix, seed, number, classes=None):
    """Returns a drawn case of a family with so many classes, by turns (None: all)."""
    kind = drawing.FAMILIES[prefix]
    draw = np.random.default_rng([seed, number, *map(ord, prefix)])
    problem = drawing.one(draw, *PROBLEMS)
    counts = {"single_label_classification": (2, 3, 5)}.get(problem, (1, 2, 4))
    fields = kind.fields(draw)
    absolute = fields.get("position_embedding_type") == "absolute"
    fields |= dict(
        vocab_size=VOCAB,
        pad_token_id=drawing.one(draw, 0, 3, 4 if absolute else VOCAB - 1),
        num_labels=drawing.one(draw, *counts),
    )
    if prefix == "NeoBert":  # its loss is of classes alone
        problem, fields["num_labels"] = "single_label_classification", drawing.one(draw, 2, 3, 5)
    if problem is not None:
        fields["problem_type"] = problem
    side, length = drawing.one(draw, *SIDES), drawing.one(draw, 9, *BUCKETS, 21)
    inputs = texts(draw, kind, fields, side, length)
    if "mask_token_id" in fields:
        chosen = inputs["chosen"] & (draw.random(inputs["chosen"].shape) < 0.3)
        chosen[1] = False  # of a row of masks alone, ESM divides by 0
        inputs["input_ids"] = np.where(chosen, fields["mask_token_id"], inputs["input_ids"])
    tasks = padded(kind, fields, side, length, kind.tasks)
    turned = [*tasks.items()][number % len(tasks) :] + [*tasks.items()][: number % len(tasks)]
    tasks = dict(turned[:classes])
    spelled = older if draw.random() < 0.3 else None
    return Case(fields, inputs, tasks, side, spelled)


def unused(prefix, fields):
    """Returns the tensors that a class holds and does not use."""
    tied = fields.get("tie_word_embeddings", True)
    if prefix == "Esm":
        head = "contact_head.regression"
        return [f"{root}{head}.{leaf}" for root in ("", "esm.") for leaf in ("weight", "bias")]
    if prefix == "JinaEmbeddingsV3":
        return [] if tied else ["lm_head.bias"]
    angles = [f"{root}encoder.embed_positions.weight" for root in ("", "roformer.")]
    tables = angles if prefix == "RoFormer" else []
    second = prefix in ("RoFormer", "NomicBert")
    second |= prefix.startswith("Deberta") and fields["legacy"]
    return [*tables, *(["cls.predictions.bias"] if second and not tied else [])]


def compared(prefix, case, folder):
    """Raises an error where a class differs from Transformers, NeoBERT from its definition."""
    if prefix == "NeoBert":
        sizes = {**case.fields, "model_type": "neobert"}
        labels = sizes.pop("num_labels")
        task = next(iter(case.tasks.values()))
        return neobert_definition.compare(folder, sizes, case.inputs, task, labels)
    kind = getattr(peers.transformers, f"{prefix}Config")
    config = kind(attn_implementation="eager", **case.fields)
    group = peers.cases(prefix, case.tasks)[len(case.tasks) == 1 :]  # the bare model with several
    options = {"unused": unused(prefix, case.fields), "spelled": case.spelled}
    return peers.compare(folder, config, group, case.inputs, **options)


def refusal(prefix, fields, folder):
    """Returns the line by which a config is refused. Raises AssertionError if it is read."""
    from safetensors.numpy import save_file

    name = "neobert"
    if prefix != "NeoBert":
        name = getattr(peers.transformers, f"{prefix}Config").model_type
    (folder / "config.json").write_text(json.dumps({"model_type": name, **fields}))
    save_file({"x": np.zeros(1, np.float32)}, folder / "model.safetensors")
    try:
        checkpoint.read(folder)
    except UserError as error:
        line = str(error)
        assert "\n" not in line and "tensor" not in line, line
        return line.removeprefix(f"{folder}/config.json: ")
    raise AssertionError("it is read")


@dataclasses.dataclass
class Result:
    """What the comparisons of a family have given."""

    family: str
    configs: int = 0
    refused: list[str] = dataclasses.field(default_factory=list)
    measured: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)


def attempt(result, name, run, say):
    """Runs one comparison in a folder of its own and notes a fault."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run(Path(folder))
        except Exception as error:  # noqa: BLE001 a fault of any kind is counted
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            where = f"{Path(place.filename).name}:{place.lineno}"
            result.faults.append(f"{name}: {type(error).__name__}: {text} ({where})")
            say(result.faults[-1])
    return None


def compared_folder(seed, number, folder):
    """Compares the vectors of a drawn folder of sentence-transformers, as LaBSE's and E5's."""
    draw, nn = np.random.default_rng([seed, number]), peers.torch.nn
    fields = drawing.bert(draw)
    fields |= {"hidden_act": drawing.one(draw, "gelu", "relu", "gelu_new")}
    del fields["type_vocab_size"]
    base = functools.partial(drawing.one(draw, folders.bert, folders.roberta), **fields)
    modes = draw.permutation(folders.MODES)[: drawing.one(draw, 1, 1, 2)].tolist()
    kinds = nn.Tanh, nn.Identity, nn.ReLU, nn.GELU
    steps = [
        (drawing.one(draw, 5, 8), bool(draw.integers(2)), drawing.one(draw, *kinds))
        for _ in range(draw.integers(3))
    ]
    steps += ["normalize"] * int(draw.integers(2))
    prompts = drawing.one(draw, None, folders.PROMPTS)
    whole = {"include_prompt": bool(draw.integers(2))}
    return folders.compare(folder, base, modes, steps, prompts, **whole)


def add_folder(result, number, options, say):
    """Compares one folder of sentence-transformers."""
    peers.MEASURED.clear()
    run = functools.partial(compared_folder, options.seed, number)
    attempt(result, f"{result.family} {options.seed}/{number}", run, say)
    add_measured(result)


def add_measured(result):
    """Adds the comparisons of a config to those of its family."""
    result.configs += 1
    for kind, (count, worst) in peers.MEASURED.items():
        before = result.measured.get(kind, (0, 0.0))
        result.measured[kind] = before[0] + count, max(before[1], worst)


def add_config(result, number, options, say):
    """Compares one config of a family."""
    if result.family == FOLDERS:
        return add_folder(result, number, options, say)
    case = draw_case(result.family, options.seed, number, options.classes)
    name = f"{result.family} {options.seed}/{number} {case.side} {'+'.join(case.tasks.values())}"
    peers.MEASURED.clear()
    clock, faults = time.process_time(), len(result.faults)
    attempt(result, name, functools.partial(compared, result.family, case), say)
    say(f"{name}: {time.process_time() - clock:.1f} s")
    if len(result.faults) > faults:
        say(f"    {case.fields} spelled={bool(case.spelled)}")
    return add_measured(result)


def add_refusals(result, options, say):
    """Reads the configs of a family that are refused."""
    prefix = result.family
    for number, fields in enumerate(drawing.FAMILIES[prefix].refused):
        drawn = draw_case(prefix, options.seed, number).fields | fields
        line = attempt(result, f"{prefix} {fields}", functools.partial(refusal, prefix, drawn), say)
        result.refused += [line] if line else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--classes", type=int, help="classes of a config, by turns (default: all)")
    parser.add_argument("--family", action="append", choices=[*drawing.FAMILIES, FOLDERS])
    parser.add_argument("--only", type=int, action="append", help="the number of one config")
    parser.add_argument("--out", type=Path, help="a file that gets the table after each round")
    options = parser.parse_args()
    say = functools.partial(print, flush=True)
    gc.set_threshold(100_000, 50, 50)  # as tests/conftest.py
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    peers.torch.set_num_threads(1)
    towers.abstract = peers.cached(towers.abstract)
    results = [Result(prefix) for prefix in options.family or [*drawing.FAMILIES, FOLDERS]]
    for number in options.only or range(options.number):
        for result in results:
            add_config(result, number, options, say)
        if options.out:
            options.out.write_text(table(results) + "\n")
        jax.clear_caches()
    for result in results:
        if result.family != FOLDERS:
            add_refusals(result, options, say)
    if options.out:
        options.out.write_text(table(results) + "\n")
    print(table(results))
    return min(sum(len(result.faults) for result in results), 1)


COLUMNS = "states", "maps", "scores", "losses", "gradients"


def table(results):
    """Returns the table of the results in Markdown."""
    head = (
        "| family | configs | refused | checks | tensors | " + " | ".join(COLUMNS) + " | faults |"
    )
    lines = [head, "|---" * head.count(" | ") + "|---|"]
    for one in results:
        checks = sum(number for number, _ in one.measured.values())
        worst = [one.measured.get(name, (0, 0.0))[1] for name in COLUMNS]
        cells = [
            one.family,
            one.configs,
            len(one.refused),
            checks,
            one.measured.get("tensors", (0,))[0],
        ]
        cells += [f"{value:.1e}" for value in worst] + [len(one.faults)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [""] + [f"refused, {one.family}: {line}" for one in results for line in one.refused]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
