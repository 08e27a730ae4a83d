"""What the golden file of drawn configs of NEZHA holds, for the script that makes it and the test
that reads it. No torch.

Keys of the npz, under the number of a config: floats, all arrays one after the other, and facts, a
JSON object with the config, the shapes of the tensors, and the layout {name: shape} of the arrays
states/N, maps/N, out/<output> and grad/<tensor>. Parameters and inputs are drawn again by numpy.
"""

import json
import math
import zlib
from pathlib import Path

import drawing
import numpy as np
from drawing import one

FILE = Path(__file__).parents[1] / "golden" / "nezha_drawn.npz"
NUMBER, LENGTH, WORDS = 12, 6, 19
CLASSES = {
    "NezhaForMaskedLM": ("mlm",),
    "NezhaForPreTraining": ("mlm", "nsp"),
    "NezhaForSequenceClassification": ("classify",),
    "NezhaForTokenClassification": ("tag",),
    "NezhaForMultipleChoice": ("choose",),
    "NezhaForNextSentencePrediction": ("nsp",),
}
OUTPUTS = {
    "mlm": ("labels", "prediction_logits"),
    "nsp": ("next_sentence_label", "seq_relationship_logits"),
}


def fields(number):
    """The fields of config `number`."""
    draw = np.random.default_rng([number, 131])
    heads = one(draw, 1, 2, 3)
    drawn = dict(
        vocab_size=WORDS,
        hidden_size=heads * (one(draw, 2, 4) if heads < 3 else 2),
        num_attention_heads=heads,
        num_hidden_layers=one(draw, 1, 2),
        intermediate_size=int(draw.integers(3, 9)),
        max_relative_position=one(draw, 1, 2, 4, 64),
        type_vocab_size=int(draw.integers(1, 4)),
        hidden_act=one(draw, *drawing.ACTS),
        layer_norm_eps=one(draw, *drawing.EPS),
        pad_token_id=one(draw, 0, 2),
        num_labels=one(draw, 2, 3),
        tie_word_embeddings=bool(draw.integers(2)),
        max_position_embeddings=LENGTH,
        attn_implementation="eager",
    )
    return drawn | ({"classifier_dropout": 0.3} if draw.integers(2) else {})


def inputs(peers, number):
    config = fields(number)
    side = ("right", "left")[number // len(CLASSES)]
    types, classes = config["type_vocab_size"], config["num_labels"]
    options = {"side": side, "types": types, "classes": classes, "seed": number}
    given = peers.drawn(WORDS, LENGTH, **options)
    mask = given["attention_mask"] > 0
    given["input_ids"] = np.where(mask, given["input_ids"], config["pad_token_id"])
    return {**given, "input_ids": given["input_ids"].astype(np.int32)}


def case(peers, number):
    """The class of config `number`, by turns."""
    name, tasks = [*CLASSES.items()][number % len(CLASSES)]
    return peers.Case(name, tasks, OUTPUTS if name == "NezhaForPreTraining" else {})


def weights(number, shapes):
    """Parameters far from their initial values, norms around one."""
    drawn = {}
    for name, shape in shapes.items():
        draw = np.random.default_rng([number, zlib.crc32(name.encode())])
        around = float(len(shape) == 1 and name.endswith("weight"))
        drawn[name] = (draw.normal(size=shape) * 0.2 + around).astype(np.float32)
    return drawn


def recorded(number):
    """Returns (config, {tensor: shape}, {name: array}) of a config."""
    with np.load(FILE) as file:
        facts, floats = json.loads(str(file[f"{number}/facts"])), file[f"{number}/floats"]
    ends = np.cumsum([math.prod(shape) for shape in facts["layout"].values()])
    pieces = zip(facts["layout"].items(), np.split(floats, ends[:-1]), strict=True)
    arrays = {name: piece.reshape(shape) for (name, shape), piece in pieces}
    return facts["config"], facts["shapes"], arrays
