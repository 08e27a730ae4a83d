"""Published architectures with random weights in torch, and ours made of their files: outputs,
losses, gradients, and back.

One comparison runs all classes of a family that share an encoder: torch's classes get one encoder's
weights, ours is one encoder with all their heads, compiled once. Gradients of heads are compared
class by class, those of the encoder as the sum over the classes.
"""

import copy
import dataclasses
import inspect
import json
from typing import Any

import jax
import numpy as np
import pytest

from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.core.towers import Tower
from ptm_jax.inference.inputs import batch_of

try:
    import torch
    import transformers
except ModuleNotFoundError:
    torch = transformers = None

LIVE = [
    pytest.mark.full,
    pytest.mark.skipif(
        torch is None,
        reason="torch and transformers are not installed; make test-full installs them",
    ),
]
"""The marks of a test against transformers."""

IGNORED = -100
ROWS, CHOICES = 4, 2
WORDS = ("input_ids", "attention_mask", "token_type_ids", "task_type_ids", "langs", "lang_ids")
WORDS += (
    "mc_token_ids",
    "decoder_input_ids",
    "decoder_attention_mask",
    "encoder_hidden_states",
    "encoder_attention_mask",
)

OUTPUTS = dict.fromkeys(
    ("mlm", "lm", "nsp", "sop", "rtd", "classify", "tag", "choose"), ("labels", "logits")
)
OUTPUTS |= {"span": (("start_positions", "end_positions"), ("start_logits", "end_logits"))}
OUTPUTS |= {
    "answer": (("start_positions", "end_positions", "cls_index", "is_impossible"), ())
}  # its scores: in inference
"""{task: (word of torch's forward, attribute of its output)}; classes of two tasks name theirs in
`Case.outputs`."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One published class: the tasks it is trained on, and where its words and outputs have other
    names.

    `objective` is ours in the place of the record's; `ready` changes a fresh model of torch;
    `total` is the loss in its output; it does not get the words `without`.
    """

    name: str
    tasks: tuple[str, ...] = ()
    outputs: dict = dataclasses.field(default_factory=dict)
    objective: Any = None
    ready: Any = lambda model: None
    total: Any = lambda out: out.loss
    without: tuple[str, ...] = ()

    def of(self, task):
        return self.outputs.get(task, OUTPUTS[task])


BERT_TASKS = {
    "ForMaskedLM": "mlm",
    "ForSequenceClassification": "classify",
    "ForMultipleChoice": "choose",
}
BERT_TASKS |= {"ForTokenClassification": "tag", "ForQuestionAnswering": "span"}


def cases(prefix: str, tasks: dict[str, str] = BERT_TASKS, **words: Any) -> list[Case]:
    """The bare model and a class for each task."""
    return [
        Case(f"{prefix}Model"),
        *(Case(prefix + name, (task,), **words) for name, task in tasks.items()),
    ]


def masked(lengths: np.ndarray, length: int, side: str) -> np.ndarray:
    """int32 [B, L]: 1 at the tokens of rows of these lengths [B, 1], padded on one side."""
    slots = np.arange(length)[None]
    return (slots < lengths if side == "right" else slots >= length - lengths).astype(np.int32)


def drawn(
    vocab: int,
    length: int,
    side: str = "right",
    types: int = 2,
    classes: int = 3,
    seed: int = 0,
    least: int = 3,
):
    """Inputs and labels as numpy: rows of the greatest length, of length 1, and two between, padded
    on one side."""
    draw = np.random.default_rng(seed)
    lengths = np.array([length, 1, length // 2, length - 1])[:, None]
    mask = masked(lengths, length, side)

    def token():
        return np.where(mask, draw.integers(least, vocab, (ROWS, length)), 0).astype(np.int32)

    chosen = (draw.random((ROWS, length)) < 0.6) & (mask > 0)
    chosen[:, [0, -1]] |= mask[:, [0, -1]] > 0  # every row has one
    first = (mask > 0).argmax(1)
    return {
        "input_ids": token(),
        "attention_mask": mask,
        "token_type_ids": (draw.integers(0, types, (ROWS, length)) * mask).astype(np.int32),
        "words": token(),
        "chosen": chosen,
        "tags": draw.integers(0, classes, (ROWS, length)).astype(np.int32),
        "replaced": draw.integers(0, 2, (ROWS, length)).astype(np.int32),
        "class": draw.integers(0, classes, ROWS).astype(np.int32),
        "pair": draw.integers(0, 2, ROWS).astype(np.int32),
        "choice": np.repeat(draw.integers(0, CHOICES, ROWS // CHOICES), CHOICES).astype(np.int32),
        "start": first.astype(np.int32),
        "end": (first + draw.integers(0, lengths[:, 0])).astype(np.int32),
        "cls": (first + lengths[:, 0] - 1).astype(np.int32),
    }


def paired(
    given: dict, vocab: int, length: int, side: str = "right", eos: int | None = None, seed: int = 0
):
    """The same inputs with a decoder's, padded on one side; texts end in one `eos`, answers lie in
    the decoder's."""
    draw = np.random.default_rng(seed + 1)
    lengths = np.array([length // 2, length, 1, length - 1])[:, None]
    mask = masked(lengths, length, side)

    def token():
        return draw.integers(3, vocab, (ROWS, length)).astype(np.int32)

    chosen = draw.random((ROWS, length)) < 0.6
    chosen[:, 0 if side == "right" else -1] = True  # every row has one
    chosen &= mask > 0
    ids = given["input_ids"].copy()
    if eos is not None:
        real = given["attention_mask"] > 0
        ids[np.arange(ROWS), real.shape[1] - 1 - real[:, ::-1].argmax(1)] = eos
    labels = token()
    return {
        **given,
        "input_ids": ids,
        "decoder_input_ids": token() * mask,
        "decoder_attention_mask": mask,
        "decoder_labels": labels,
        "decoder_chosen": chosen.astype(np.float32),
        "lm_labels": np.where(chosen, labels, IGNORED),
        "start": draw.integers(0, lengths[:, 0]).astype(np.int32),
        "end": draw.integers(0, lengths[:, 0]).astype(np.int32),
    }


def followers(given: dict) -> dict:
    """The same inputs for a class whose labels of a language model are the next tokens already."""
    ids, mask = given["input_ids"], given["attention_mask"] > 0
    following = np.pad(ids[:, 1:], ((0, 0), (0, 1))), np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    return {**given, "lm_labels": np.where(mask & following[1], following[0], IGNORED)}


def label(task: str, given: dict) -> Any:
    """Torch's labels of a task."""
    if task in ("span", "answer"):
        ends = [torch.tensor(given[name]).long() for name in ("start", "end")]
        return (
            ends
            if task == "span"
            else [*ends, torch.tensor(given["cls"]).long(), torch.tensor(given["pair"]).float()]
        )
    found = {
        "mlm": np.where(given["chosen"], given["words"], IGNORED),
        "lm": given.get(
            "lm_labels", np.where(given["attention_mask"] > 0, given["input_ids"], IGNORED)
        ),
        "tag": np.where(given["chosen"], given["tags"], IGNORED),
        "classify": given["class"],
        "nsp": given["pair"],
        "sop": given["pair"],
        "rtd": given["replaced"],
        "choose": given["choice"][::CHOICES],
    }[task]
    found = torch.tensor(found)
    return found if found.is_floating_point() else found.long()


def labels(given: dict, width: int) -> dict:
    """Our batch's fields of all tasks, rows as wide as the bucket."""

    def wide(a):
        return np.pad(a, ((0, 0), (0, width - a.shape[1])))

    chosen = wide(given["chosen"].astype(np.float32))
    theirs = {
        "labels": "labels",
        "weights": "chosen",
        "input_ids": "input_ids",
        "segment_ids": "attention_mask",
    }
    pair = {
        f"decoder_{ours}": given[f"decoder_{name}"]
        for ours, name in theirs.items()
        if "decoder_labels" in given
    }
    return {
        **pair,
        "mlm_positions": np.broadcast_to(np.arange(width, dtype=np.int32), (ROWS, width)),
        "mlm_labels": wide(given["words"]),
        "mlm_weights": chosen,
        "token_labels": wide(given["tags"]),
        "token_weights": chosen,
        "next_label": given["pair"],
        "answer_start": given["start"],
        "answer_end": given["end"],
        "cls_places": given["cls"],
        "no_answer": given["pair"],
        "replaced": wide(given["replaced"]),
    }


def randomise(model, seed: int):
    """Weights far from their initial values, norms around one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(torch.randn_like(p) * 0.2 + float(p.ndim == 1 and name.endswith("weight")))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.eval()


def torch_models(config, group):
    """One model of each class, the encoder's weights the same in all."""
    models = []
    for number, case in enumerate(group):
        own = copy.deepcopy(config)
        if "span" in case.tasks:
            own.num_labels = 2  # the head is as wide as the number of labels, whatever it is
        model = getattr(transformers, case.name)(own)
        case.ready(model)
        model = randomise(model, number)
        if models:
            mine = model.base_model.state_dict()
            first = {k: v for k, v in models[0].base_model.state_dict().items() if k in mine}
            model.base_model.load_state_dict(first, strict=False)
        models.append(model)
    return models


def run_torch(model, case, given):
    """(output, {published name: gradient} or None) of one class on the inputs."""
    words = {name: torch.tensor(given[name]) for name in WORDS if name in given}
    accepted = inspect.signature(model.forward).parameters
    words = {
        name: value
        for name, value in words.items()
        if name in accepted and name not in case.without
    }
    for task in case.tasks:
        names, _ = case.of(task)
        found = label(task, given)
        words |= (
            dict(zip(names, found, strict=True)) if isinstance(names, tuple) else {names: found}
        )
    if "choose" in case.tasks:
        grouped = [
            name for name in WORDS if name != "task_type_ids"
        ]  # ERNIE's class does not make these flat again
        grouped += ["labels"] if "lm" in case.tasks else []
        words |= {
            n: words[n].reshape(-1, CHOICES, *words[n].shape[1:]) for n in grouped if n in words
        }
    out = model(**words, output_hidden_states=True, output_attentions=True)
    if not case.tasks:
        return out, None
    case.total(out).backward()
    grads = {
        n: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
        for n, p in model.named_parameters()
    }
    if hasattr(model, "final_logits_bias"):  # a buffer, which is not trained
        grads["final_logits_bias"] = np.zeros(model.final_logits_bias.shape, np.float32)
    return out, grads


def cached(function):
    """Returns a function of towers and a batch that keeps its last results.

    A folder is read twice.
    """
    kept = []

    def cached_function(modules, batch):
        result = next((tree for towers, tree in kept if towers == modules), None)
        if result is None:
            result = function(modules, batch)
            kept[:] = [*kept[-7:], (modules, result)]
        return jax.tree.map(lambda leaf: leaf, result)

    return cached_function


MEASURED: dict[str, tuple[int, float]] = {}
"""{kind of a comparison: (number, greatest difference)}, for `drawn`. Gradients: of the largest
entry."""


def measure(what, difference):
    """Adds a difference to `MEASURED`."""
    first = what.split()[0]
    kinds = {"layer": "states", "attention": "maps", "loss": "losses"}
    kinds |= {"gradient": "gradients", "tensor": "tensors"}
    name = kinds.get(first, "scores")
    number, worst = MEASURED.get(name, (0, 0.0))
    MEASURED[name] = number + 1, max(worst, float(difference))


def close(ours, theirs, atol, what):
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else np.asarray(theirs)
    measure(what, np.abs(np.asarray(ours, np.float32) - theirs).max(initial=0.0))
    np.testing.assert_allclose(
        np.asarray(ours, np.float32), theirs, atol=atol, rtol=0, err_msg=what
    )


def close_gradient(ours, theirs, what):
    """Within 1e-3 of the largest entry of the tensor's gradient, or two roundings of 1 in float32:
    the gradient of a bias that a softmax does not see is 0, up to the rounding of each side."""
    off, scale = np.abs(np.asarray(ours) - theirs).max(), np.abs(theirs).max()
    floor = 2 * np.finfo(np.float32).eps
    measure("gradient", off / scale if scale > floor else 0.0)
    assert off <= max(1e-3 * scale, floor), f"{what}: {off:.3g} off a gradient of {scale:.3g}"


def compare(folder, config, group, given, *, atol=1e-4, unused=(), spelled=None):
    """Every class of `group` under one config: read, run, differentiate, write, and read again.

    `unused` are published parameters that torch holds and does not use; they are reported, and do
    not come back. `spelled` rewrites the fields of the config.json that is read.
    """
    models, found = torch_models(config, group), []
    for number, model in enumerate(models):
        model.save_pretrained(folder / str(number))
        if spelled is not None:
            file = folder / str(number) / "config.json"
            file.write_text(json.dumps(spelled(json.loads(file.read_text()))))
        found.append(checkpoint.read(folder / str(number)))
        assert set(found[-1].report.extra) <= set(unused) and found[-1].report.missing == (), found[
            -1
        ].report
    outs, grads = zip(
        *(run_torch(model, case, given) for model, case in zip(models, group, strict=True)),
        strict=True,
    )
    modules = [pair for model in models for pair in model.named_modules()]
    still = {
        f"{name}.weight" for name, part in modules if getattr(part, "padding_idx", None) is not None
    }
    agree(
        found,
        group,
        outs,
        grads,
        given,
        atol=atol,
        unused=unused,
        pad=config.pad_token_id,
        still=still,
    )
    for number, (model, case) in enumerate(zip(models, group, strict=True)):
        _check_way_back(folder, number, found[number], model, case, unused)


def agree(found, group, outs, grads, given, *, atol, unused=(), pad=None, still=()):
    """The classes that were read give torch's states, maps, scores, loss and gradients; `still`:
    tables with `pad`'s row."""
    encoder = found[0].system.towers["main"].encoder
    batch, ours = _batch(encoder, given), _ours(found, group, given)
    losses, scores, encoded, gradient = ours(batch)
    _check_states(encoded, outs[0], given, atol)
    for number, case in enumerate(group):
        for task in case.tasks:
            _check_scores(case, task, scores[number][task], outs[number], given, atol)
        if case.tasks:
            close(losses[number], case.total(outs[number]), atol, f"loss of {case.name}")
    _check_gradients(found, group, grads, gradient, unused, encoder.embed.vocab.size, pad, still)


def _batch(encoder, given):
    vocab = encoder.embed.vocab
    types = given.get("token_type_ids") if encoder.types else None
    masks = {"attention_mask": given["attention_mask"], "token_type_ids": types}
    batch = batch_of(encoder, vocab, given["input_ids"], **masks)
    width = batch["input_ids"].shape[1]
    for name, ours in (("langs", "language_ids"), ("task_type_ids", "task_type_ids")):
        if name in given:
            batch[ours] = np.pad(given[name], ((0, 0), (0, width - given[name].shape[1])))
    if "lang_ids" in given:  # of a row
        batch["language_ids"] = np.repeat(given["lang_ids"][:, None], width, 1)
    for name, ours in (
        ("encoder_hidden_states", "source_states"),
        ("encoder_attention_mask", "source_segments"),
    ):
        batch |= {ours: given[name]} if name in given else {}
    return {**batch, **labels(given, width), "rows": np.arange(ROWS, dtype=np.int32)}


def _ours(found, group, given):
    """A compiled function: (losses, scores {task: array}, encoding, gradients) of all classes on a
    batch."""
    params = {"encoder": found[0].params["main"]["encoder"]}
    params |= {
        str(n): {k: v for k, v in c.params["main"].items() if k != "encoder"}
        for n, c in enumerate(found)
    }
    label = {"choose": given["choice"], "classify": given["class"]}

    def total(params, batch):
        losses, scores, encoded = [], [], None
        for number, case in enumerate(group):
            system = found[number].system
            tower = Tower(
                system.towers["main"], {"encoder": params["encoder"], **params[str(number)]}
            )
            encoded = tower(batch) if encoded is None else encoded
            mine = {**batch, "label": label.get(case.tasks[-1] if case.tasks else "")}
            objective = case.objective or system.objective
            losses.append(objective.of(tower, encoded, mine).value() if case.tasks else 0.0)
            scores.append({task: _scores(tower, task, encoded, mine) for task in case.tasks})
        return sum(losses), (losses, scores, encoded)

    def run(batch):
        (_, aux), gradient = jax.value_and_grad(total, has_aux=True)(params, batch)
        return (*aux, gradient)

    return jax.jit(run)


def _scores(tower, task, encoded, batch):
    if task in ("nsp", "sop"):
        return tower.head(task, tower.head("pool", encoded.hidden))
    scores = tower.read(task, encoded, batch)
    return scores.logits() if task in ("mlm", "lm") else scores


def _check_states(encoded, out, given, atol):
    """The states of every layer and the maps, at real tokens; of both halves and between them where
    there are two."""
    real = given["attention_mask"] > 0
    if "decoder_input_ids" not in given:
        _check_half(
            encoded.layers,
            encoded.hidden,
            encoded.attention,
            out.hidden_states,
            out.attentions,
            real,
            atol,
            "",
        )
        return
    extra, target = encoded.extra, given["decoder_attention_mask"] > 0
    source = extra["source_layers"], extra["source"], extra["source_attention"]
    _check_half(*source, out.encoder_hidden_states, out.encoder_attentions, real, atol, "encoder ")
    own = encoded.layers, encoded.hidden, encoded.attention
    _check_half(*own, out.decoder_hidden_states, out.decoder_attentions, target, atol, "decoder ")
    _check_maps(extra["cross_attention"], out.cross_attentions, target, atol, "cross ")


def _check_half(layers, hidden, attention, their_states, their_maps, real, atol, what):
    states = [*layers[:-1], hidden]
    assert len(states) == len(their_states)
    for number, (ours, theirs) in enumerate(zip(states, their_states, strict=True)):
        close(
            np.asarray(ours)[:ROWS, : real.shape[1]][real],
            theirs.detach().numpy()[real],
            atol,
            f"{what}layer {number}",
        )
    _check_maps(attention, their_maps, real, atol, what)


def _check_maps(attention, their_maps, real, atol, what):
    for number, (ours, theirs) in enumerate(zip(attention, their_maps, strict=True)):
        theirs = theirs.detach().numpy()
        rows = np.asarray(ours)[:ROWS, :, : theirs.shape[2], : theirs.shape[3]].swapaxes(1, 2)[real]
        close(rows, theirs.swapaxes(1, 2)[real], atol, f"{what}attention {number}")


def _check_scores(case, task, ours, out, given, atol):
    _, names = case.of(task)
    real = given.get("decoder_attention_mask", given["attention_mask"]) > 0
    length = real.shape[1]
    if not names:
        return
    for ours_, name in zip(
        ours if task == "span" else (ours,), names if task == "span" else (names,), strict=True
    ):
        ours_, theirs = np.asarray(ours_), getattr(out, name).detach().numpy()
        theirs = theirs.reshape(ROWS, *theirs.shape[2:]) if theirs.ndim == 4 else theirs
        if task in ("mlm", "lm", "tag", "span", "rtd"):
            ours_, theirs = ours_[:ROWS, :length][real], theirs[real]
        elif theirs.ndim == 1:  # DeBERTa's one score of a text
            theirs = theirs[:, None]
        close(ours_, theirs, atol, f"{case.name}.{name}")


def _check_gradients(found, group, grads, gradient, unused, vocab, pad, still=()):
    """Every published parameter's gradient; the encoder's is the sum over the classes. `still`:
    tables with a row `pad`."""
    trained = [n for n, case in enumerate(group) if case.tasks]

    def plain(name):
        return name.removeprefix(
            family_of(found[0].config).root
        )  # some classes of T5 have it, others not

    total, written, inside = {}, {}, {}
    for number in trained:
        checked, family = found[number], family_of(found[number].config)
        lines = (family.inner or family.lines)(checked.config, checked.architecture)
        tree = {"encoder": gradient["encoder"], **gradient[str(number)]}
        inside[number] = dict(engine.write({"encoder": tree["encoder"]}, family, lines, bare=False))
        written[number] = ours = dict(engine.write(tree, family, lines, bare=False))
        for (
            again,
            source,
        ) in family.ties.items():  # torch names a shared tensor by the part that was made first
            if source in ours and source not in grads[number] and again in grads[number]:
                grads[number][source] = grads[number].pop(again)
        for name, value in grads[number].items():
            if name in inside[number]:
                total[plain(name)] = total.get(plain(name), 0) + value
    for number, ours in written.items():
        theirs = grads[number]
        assert set(ours) == set(theirs) - set(unused), set(ours) ^ set(theirs)
        for name, value in ours.items():
            wanted = total[plain(name)] if name in inside[number] else theirs[name]
            if pad is not None and (
                len(value) == vocab or name in still
            ):  # lookups give the row of `pad` no gradient
                value, wanted = np.delete(value, pad, 0), np.delete(wanted, pad, 0)
            close_gradient(value, wanted, f"{group[number].name}: {name}")


def _check_way_back(folder, number, read, model, case, unused):
    """Written, it is the original again, in torch and here; and the record alone gives the
    config."""
    out = folder / f"{number}-out"
    checkpoint.write(out, read.system, read.params, config=read.config)
    again = getattr(transformers, case.name).from_pretrained(out)
    mine, theirs = again.state_dict(), model.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in ((name, value) for name, value in theirs.items() if name not in unused):
        measure("tensor", 0.0)
        assert torch.equal(value, mine[name]), name
    second = checkpoint.read(out)
    assert second.system.towers == read.system.towers
    assert second.system.objective == read.system.objective
    jax.tree.map(np.testing.assert_array_equal, second.params, read.params)
    check_record(read)


def check_record(read):
    """The record alone gives its config again. A bare ELECTRA of one width is a bare BERT whose
    file has no pooler."""
    family, fields, architecture = checkpoint.published(read.system)
    rebuilt, _ = checkpoint.record_of(Config({**fields, "architectures": [architecture]}))
    if architecture == family.bare and "pool" not in read.system.towers["main"].heads:
        rebuilt = checkpoint.without_pooler(rebuilt)
    assert rebuilt.towers == read.system.towers, family.model_type
