"""What the golden file of NEZHA holds, for the script that makes it and the test that reads it. No
torch.

Keys of the npz: <config>/given/<input>, <config>/config (JSON), <config>/shared/<tensor> (of every
class), and for a class <config>/<class>/tensor/<name>, /out/<output> and /grad/<name>;
/grads/<name> is the encoder's, summed over the classes.
"""

import dataclasses
from pathlib import Path

FILE = Path(__file__).parents[1] / "golden" / "nezha.npz"
LENGTH, WORDS = 16, 31

CONFIGS = {
    "plain": dict(
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=10,
        num_hidden_layers=2,
        max_relative_position=3,
    ),
    "narrow": dict(
        hidden_size=4,
        num_attention_heads=1,
        intermediate_size=7,
        hidden_act="relu",
        max_relative_position=64,
    ),
    "untied": dict(
        hidden_size=12, num_attention_heads=3, intermediate_size=9, tie_word_embeddings=False
    ),
    "left": dict(
        hidden_size=8,
        num_attention_heads=1,
        intermediate_size=6,
        hidden_act="gelu_new",
        max_relative_position=1,
    ),
    "causal": dict(
        hidden_size=8,
        num_attention_heads=4,
        intermediate_size=6,
        is_decoder=True,
        max_relative_position=2,
    ),
}


def fields(name):
    """Of the config: `classifier_dropout` is null in one, and by default 0.1."""
    common = dict(
        vocab_size=WORDS,
        num_hidden_layers=1,
        num_labels=3,
        max_position_embeddings=LENGTH,
        attn_implementation="eager",
    )
    return {**common, **({"classifier_dropout": None} if name == "left" else {}), **CONFIGS[name]}


def inputs(peers, name):
    return peers.drawn(WORDS, LENGTH, side="left" if name == "left" else "right", seed=len(name))


def group(peers):
    """Every class of NEZHA, the bare one first."""
    outputs = {
        "mlm": ("labels", "prediction_logits"),
        "nsp": ("next_sentence_label", "seq_relationship_logits"),
    }
    pair = [
        peers.Case("NezhaForPreTraining", ("mlm", "nsp"), outputs),
        peers.Case("NezhaForNextSentencePrediction", ("nsp",)),
    ]
    return [*peers.cases("Nezha"), *pair]


def atol(name):
    return 1e-4 if CONFIGS[name].get("num_hidden_layers", 1) > 1 else 1e-5


def shared(name):
    """Whether a tensor is the encoder's, which all classes of a config have alike."""
    return name.startswith("nezha.") and ".pooler." not in name


@dataclasses.dataclass(frozen=True)
class Answer:
    """An array where torch's tensor is expected."""

    array: object

    def detach(self):
        return self

    def numpy(self):
        return self.array
