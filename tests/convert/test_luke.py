"""LUKE against `transformers`: random configs, all classes that read entities, both ways."""

import dataclasses

import jax
import numpy as np
import peers
import pytest
from safetensors.numpy import load_file, save_file

from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.family import family_of
from ptm_jax.core.towers import Tower
from ptm_jax.objectives.base import token_loss
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.labelled import Example
from ptm_jax.tasks.formats.marked import Mention
from ptm_jax.tuning import finetuning
from support.marking import marked, tokenizer

pytestmark = peers.LIVE

ROWS, L, E, M = 3, 9, 4, 3
SIZES = dict(
    vocab_size=61,
    entity_vocab_size=23,
    intermediate_size=14,
    num_hidden_layers=2,
    num_attention_heads=2,
)
SIZES |= dict(max_position_embeddings=16, attn_implementation="eager", num_labels=3)
CONFIGS = {
    "published": dict(hidden_size=24, entity_emb_size=10, num_attention_heads=3),
    "wide": dict(
        hidden_size=8,
        entity_emb_size=8,
        num_attention_heads=1,
        hidden_act="relu",
        type_vocab_size=1,
    ),
    "lite": dict(
        hidden_size=12, entity_emb_size=20, use_entity_aware_attention=False, layer_norm_eps=1e-5
    ),
}
CLASSES = (
    "Model",
    "ForMaskedLM",
    "ForEntityClassification",
    "ForEntityPairClassification",
    "ForEntitySpanClassification",
)
PLAIN = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
UNTRAINED = "pooler."
"""Parameters that the classes of entities hold and do not use."""


def drawn(types: int):
    """Torch's words: rows of several lengths, mentions of 1 to M tokens, the last mentions of a row
    unused."""
    draw = np.random.default_rng(types)
    mask = np.arange(L) < np.array([L, 5, 7])[:, None]
    places = draw.integers(0, 4, (ROWS, E, 1)) + np.arange(M)
    places = np.where(np.arange(M) < draw.integers(1, M + 1, (ROWS, E, 1)), places, -1)
    return {
        "input_ids": np.where(mask, draw.integers(3, 61, (ROWS, L)), 1),
        "attention_mask": mask.astype(int),
        "token_type_ids": draw.integers(0, types, (ROWS, L)),
        "entity_ids": draw.integers(1, 23, (ROWS, E)),
        "entity_attention_mask": (np.arange(E) < np.array([4, 2, 3])[:, None]).astype(int),
        "entity_token_type_ids": draw.integers(0, types, (ROWS, E)),
        "entity_position_ids": places,
        "labels": draw.integers(0, 3, ROWS),
    }


def ours_of(given):
    """The same words as a batch of ours."""
    names = {
        "input_ids": "input_ids",
        "attention_mask": "segment_ids",
        "token_type_ids": "token_type_ids",
    }
    names |= {
        "entity_ids": "mention_ids",
        "entity_attention_mask": "mention_segments",
        "labels": "label",
    }
    names |= {"entity_token_type_ids": "mention_types", "entity_position_ids": "mention_places"}
    batch = {ours: given[theirs].astype(np.int32) for theirs, ours in names.items()}
    start = given["entity_position_ids"][..., 0].astype(np.int32)
    positions = np.where(given["attention_mask"] > 0, np.arange(L), -1).astype(np.int32)
    return batch | {"positions": positions, "mention_starts": start, "mention_ends": start + 1}


def torch_run(model, name, given):
    """(output, loss) of one class of torch."""
    import torch

    words = {key: torch.tensor(value) for key, value in given.items() if key != "labels"}
    if name == "Model":
        out = model(**words, output_hidden_states=True, output_attentions=True)
        return out, None
    labels, weights = words["input_ids"] * words["attention_mask"], words["entity_attention_mask"]
    if name == "ForMaskedLM":

        def hide(value, mask):
            return torch.where(mask > 0, value, peers.IGNORED)

        out = model(
            **words,
            labels=hide(labels, words["attention_mask"]),
            entity_labels=hide(words["entity_ids"], weights),
        )
    elif name == "ForEntitySpanClassification":
        start = words["entity_position_ids"][..., 0]
        labels = torch.where(weights > 0, words["entity_ids"] % 3, peers.IGNORED)
        out = model(
            **words, entity_start_positions=start, entity_end_positions=start + 1, labels=labels
        )
    else:
        out = model(**words, labels=torch.tensor(given["labels"]))
    return out, out.loss


def ours_run(read, name, batch):
    """(encoded, scores, loss, gradient) of a class of ours; torch's losses, written here on our
    readouts."""
    module = read.system.towers["main"]

    def run(params):
        tower = Tower(module, params)
        encoded = tower(batch)
        if name == "Model":
            return 0.0, (encoded, {"pool": tower.read("pool", encoded, batch)})
        if name == "ForMaskedLM":
            found = {head: tower.read(head, encoded, batch) for head in ("mlm", "entity_words")}
            losses = [
                token_loss(found[head].nll(batch[ids]), batch[real].astype(np.float32)).value()
                for head, ids, real in (
                    ("mlm", "input_ids", "segment_ids"),
                    ("entity_words", "mention_ids", "mention_segments"),
                )
            ]
            return sum(losses), (encoded, {head: one.logits() for head, one in found.items()})
        more = {**batch, "mention_labels": batch["mention_ids"] % 3}
        more["mention_weights"] = batch["mention_segments"].astype(np.float32)
        loss = read.system.objective.of(tower, encoded, more).value()
        return loss, (
            encoded,
            {"logits": tower.read(*read.system.towers["main"].heads, encoded, batch)},
        )

    (loss, (encoded, scores)), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(
        read.params["main"]
    )
    return encoded, scores, loss, gradient


FORMS = [(name, "published") for name in CLASSES] + [
    (name, form) for form in ("wide", "lite") for name in CLASSES[:2]
]


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.status("luke_base", "matches")
@pytest.mark.status("luke_large", "matches")
def test_classes_of_entities_equal_transformers(name, form, tmp_path):
    config = peers.transformers.LukeConfig(**{**SIZES, **CONFIGS[form]})
    given = drawn(config.type_vocab_size)
    model = peers.randomise(getattr(peers.transformers, f"Luke{name}")(config), 1)
    model.save_pretrained(tmp_path / "theirs")
    read = checkpoint.read(tmp_path / "theirs")
    assert all(UNTRAINED in left for left in read.report.extra) and read.report.missing == ()
    out, loss = torch_run(model, name, given)
    encoded, scores, mine, gradient = ours_run(read, name, ours_of(given))
    words, entities = given["attention_mask"] > 0, given["entity_attention_mask"] > 0
    if name == "Model":
        _states(encoded, out, words, entities)
        peers.close(scores["pool"], out.pooler_output, 1e-4, "pooler")
    elif name == "ForMaskedLM":
        peers.close(
            np.asarray(scores["mlm"])[words], out.logits.detach().numpy()[words], 1e-4, "words"
        )
        peers.close(
            np.asarray(scores["entity_words"])[entities],
            out.entity_logits.detach().numpy()[entities],
            1e-4,
            "entities",
        )
    else:
        real = entities if name == "ForEntitySpanClassification" else slice(None)
        peers.close(
            np.asarray(scores["logits"])[real], out.logits.detach().numpy()[real], 1e-4, "logits"
        )
    if loss is not None:
        loss.backward()
        peers.close(mine, loss, 1e-4, "loss")
        _gradients(read, gradient, model)
    _way_back(read, model, name, tmp_path / "ours")


def _states(encoded, out, words, entities):
    """States of every layer, and the maps, of real tokens."""
    for layer, (word, entity) in enumerate(
        zip(out.hidden_states, out.entity_hidden_states, strict=True)
    ):
        for ours, theirs, real in (
            (encoded.layers, word, words),
            (encoded.extra["entity_layers"], entity, entities),
        ):
            peers.close(
                np.asarray(ours[layer])[real], theirs.detach().numpy()[real], 1e-4, f"layer {layer}"
            )
    real = np.concatenate([words, entities], 1)
    for layer, theirs in enumerate(out.attentions):
        ours = np.asarray(encoded.attention[layer]).swapaxes(1, 2)[real]
        peers.close(ours, theirs.detach().numpy().swapaxes(1, 2)[real], 1e-4, f"attention {layer}")


def _gradients(read, gradient, model):
    """The gradient of every parameter but that of the rows of padding, which torch's lookups give
    none."""
    family = family_of(read.config)
    ours = dict(
        engine.write(gradient, family, family.lines(read.config, read.architecture), bare=False)
    )
    for name, parameter in model.named_parameters():
        if UNTRAINED in name:
            continue
        theirs = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        mine = ours.pop(name)
        if name.endswith("word_embeddings.weight"):
            mine, theirs = np.delete(mine, 1, 0), np.delete(theirs, 1, 0)
        if "entity_embeddings.entity_embeddings" in name and "heads_entity_words" not in gradient:
            mine, theirs = mine[1:], theirs[1:]
        peers.close_gradient(mine, theirs, name)
    assert not ours


def _way_back(read, model, name, folder):
    """Written, it is the original in torch; the record alone gives the config."""
    checkpoint.write(folder, read.system, read.params, config=read.config)
    again = getattr(peers.transformers, f"Luke{name}").from_pretrained(folder)
    mine = again.state_dict()
    for key, value in model.state_dict().items():
        if name == "Model" or UNTRAINED not in key:
            assert peers.torch.equal(value, mine[key]), key
    peers.check_record(read)


@pytest.mark.parametrize("name", PLAIN)
def test_classes_of_words_are_those_of_roberta(name, tmp_path):
    labels = {"num_labels": 2 if name == "ForQuestionAnswering" else 3}
    config = peers.transformers.LukeConfig(**{**SIZES, **CONFIGS["published"], **labels})
    model = peers.randomise(getattr(peers.transformers, f"Luke{name}")(config), 1)
    model.save_pretrained(tmp_path / "theirs")
    read = checkpoint.read(tmp_path / "theirs")
    given = drawn(2)
    words = {
        key: peers.torch.tensor(value)
        for key, value in given.items()
        if not key.startswith("entity") and key != "labels"
    }
    if name == "ForMultipleChoice":
        words = {key: value[None] for key, value in words.items()}
    batch = {key: value for key, value in ours_of(given).items() if not key.startswith("mention")}
    main = read.system.towers["main"]
    if name == "ForMultipleChoice":
        main = dataclasses.replace(
            main, heads={"choose": dataclasses.replace(main.heads["choose"], choices=ROWS)}
        )
    tower = Tower(main, read.params["main"])
    encoded = tower(batch)
    scores, out = tower.read(*main.heads, encoded, batch), model(**words)
    real = given["attention_mask"] > 0
    if name == "ForQuestionAnswering":
        for mine, theirs in zip(scores, (out.start_logits, out.end_logits), strict=True):
            peers.close(np.asarray(mine)[real], theirs.detach().numpy()[real], 1e-4, name)
    else:
        real = real if name == "ForTokenClassification" else slice(None)
        peers.close(np.asarray(scores)[real], out.logits.detach().numpy()[real], 1e-4, name)


def test_a_file_of_version_4_has_one_table_for_words_and_head(tmp_path):
    config = peers.transformers.LukeConfig(**{**SIZES, **CONFIGS["published"]})
    peers.randomise(peers.transformers.LukeForMaskedLM(config), 0).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.decoder.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    params = checkpoint.read(tmp_path).params["main"]
    np.testing.assert_array_equal(params["heads_mlm"]["table"], params["encoder"]["embed"]["token"])


TASKS = {
    "open_entity": ("EntityClassification", "She saw [E1] new Paris [/E1] at last.", [2]),
    "tacred": ("EntityPairClassification", "So [E2] Ann [/E2] met [E1] Bob [/E1].", [2, 3]),
}


@pytest.mark.parametrize("task", TASKS)
def test_rows_of_a_task_are_the_input_of_the_published_class(task, tmp_path):
    """The task's head of a published LUKE, on the task's own rows, equals Transformers' class on
    [MASK] at the marks."""
    name, text, masks = TASKS[task]
    own = tokenizer(text)
    sizes = {
        **SIZES,
        **CONFIGS["published"],
        "vocab_size": own.vocab.size,
        "max_position_embeddings": 64,
    }
    config = peers.transformers.LukeConfig(**sizes, pad_token_id=own.vocab.pad)
    model = peers.randomise(getattr(peers.transformers, f"LukeFor{name}")(config), 1).eval()
    model.save_pretrained(tmp_path)
    labels = ("a", "b", "c")
    spec = dataclasses.replace(catalogue.get(task).examples, labels=labels)
    example = (
        Mention(text, frozenset("a"), "") if task == "open_entity" else Example(text, None, "a", "")
    )
    rows = [group[0] for group in spec.features(own, spec.encode(own, [example]), 64)[0]]
    batch = taskrows.padded(rows, spec, own.vocab, 48, 1)
    system, read = finetuning.with_head(str(tmp_path), spec), checkpoint.read(tmp_path)
    (head,) = system.towers["main"].heads
    tower = Tower(system.towers["main"], read.params["main"])
    ours = tower.read(head, tower(batch), batch)

    def torch(value):
        return peers.torch.tensor(np.asarray(value, np.int64))

    ids, _ = own.frame(own.encode_batch([text])[0])
    spans = [marked(own, ids, number + 1) for number in range(len(masks))]
    width = max(map(len, spans))
    out = model(
        input_ids=torch(ids)[None],
        entity_ids=torch([masks]),
        entity_attention_mask=torch([[1] * len(masks)]),
        entity_position_ids=torch([[span + [-1] * (width - len(span)) for span in spans]]),
    )
    peers.close(ours, out.logits, 1e-4, "logits")
