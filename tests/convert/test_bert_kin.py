"""BERT and the families with its layers against `transformers`: random configs, all head
classes."""

import dataclasses

import numpy as np
import peers
import pytest
from safetensors.numpy import load_file, save_file

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.objectives.base import OnePass, binary_loss, real_tokens

pytestmark = peers.LIVE

WORDS = dict(vocab_size=61, max_position_embeddings=16, attn_implementation="eager")
SIZES = dict(num_hidden_layers=2, num_attention_heads=2, intermediate_size=14, **WORDS)
BERT = {
    "plain": dict(hidden_size=24, num_attention_heads=3, intermediate_size=40, hidden_act="gelu"),
    "narrow": dict(
        hidden_size=8,
        num_attention_heads=1,
        hidden_act="relu",
        type_vocab_size=1,
        num_hidden_layers=1,
    ),
    "untied": dict(
        hidden_size=12, num_attention_heads=4, tie_word_embeddings=False, num_hidden_layers=1
    ),
    "left": dict(hidden_size=20, intermediate_size=16, hidden_act="gelu_new", layer_norm_eps=1e-5),
    "causal": dict(hidden_size=8, intermediate_size=24, is_decoder=True, num_hidden_layers=1),
}
DISTILBERT = {
    "plain": dict(dim=12, n_heads=3, hidden_dim=20, n_layers=2),
    "narrow": dict(dim=8, n_heads=1, hidden_dim=7, n_layers=1, activation="relu"),
    "untied": dict(
        dim=12,
        n_heads=4,
        hidden_dim=50,
        n_layers=1,
        tie_word_embeddings=False,
        activation="gelu_new",
    ),
    "left": dict(
        dim=20, n_heads=2, hidden_dim=16, n_layers=2, sinusoidal_pos_embds=True, activation="tanh"
    ),
}
ALBERT = {
    "one": dict(hidden_size=24, embedding_size=10, num_attention_heads=3, num_hidden_layers=3),
    "groups": dict(
        hidden_size=8, embedding_size=8, num_hidden_layers=4, num_hidden_groups=2, hidden_act="relu"
    ),
    "turns": dict(hidden_size=12, embedding_size=20, inner_group_num=2, tie_word_embeddings=False),
    "both": dict(
        hidden_size=16,
        embedding_size=5,
        num_hidden_layers=4,
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    "left": dict(
        hidden_size=20,
        embedding_size=6,
        num_hidden_layers=1,
        layer_norm_eps=1e-5,
        hidden_act="silu",
    ),
}
ELECTRA = {
    "narrow": dict(hidden_size=24, embedding_size=10, num_attention_heads=3, hidden_act="relu"),
    "same": dict(
        hidden_size=8,
        embedding_size=8,
        num_attention_heads=1,
        num_hidden_layers=1,
        summary_activation="",
    ),
    "untied": dict(
        hidden_size=12,
        embedding_size=20,
        tie_word_embeddings=False,
        num_attention_heads=4,
        hidden_act="silu",
    ),
    "left": dict(
        hidden_size=20,
        embedding_size=6,
        summary_type="last",
        summary_activation="tanh",
        layer_norm_eps=1e-5,
    ),
    "causal": dict(
        hidden_size=16, embedding_size=5, is_decoder=True, summary_use_proj=False, type_vocab_size=3
    ),
}
PLAIN = dict(normalization_type="layer_norm")
MOBILEBERT = {
    "published": dict(
        hidden_size=20, embedding_size=6, intra_bottleneck_size=8, num_feedforward_networks=3
    ),
    "inside": dict(
        hidden_size=12,
        embedding_size=12,
        intra_bottleneck_size=10,
        use_bottleneck_attention=True,
        **PLAIN,
    ),
    "left": dict(
        hidden_size=8,
        embedding_size=5,
        intra_bottleneck_size=8,
        key_query_shared_bottleneck=False,
        **PLAIN,
    ),
    "none": dict(
        hidden_size=16,
        embedding_size=16,
        use_bottleneck=False,
        trigram_input=False,
        hidden_act="gelu",
        **PLAIN,
    ),
    "untied": dict(
        hidden_size=24,
        embedding_size=7,
        intra_bottleneck_size=6,
        num_hidden_layers=1,
        trigram_input=False,
    ),
}
MOBILEBERT["inside"] |= dict(layer_norm_eps=1e-3, num_feedforward_networks=1)
MOBILEBERT["left"] |= dict(hidden_act="silu", classifier_activation=False)
MOBILEBERT["none"] |= dict(num_feedforward_networks=2)
MOBILEBERT["untied"] |= dict(tie_word_embeddings=False, type_vocab_size=3, num_attention_heads=3)
FAMILIES = dict.fromkeys(
    ("Bert", "Ernie", "MegatronBert", "Roberta", "XLMRoberta", "Camembert"), BERT
)
FAMILIES |= {
    "DistilBert": DISTILBERT,
    "Albert": ALBERT,
    "Electra": ELECTRA,
    "MobileBert": MOBILEBERT,
}

UNTIED = ["cls.predictions.bias", "lm_head.bias", "predictions.bias"]
"""What the library holds and does not use if the vocabulary head has a table of its own."""
LAYERS = [
    f"encoder.layer.{i}.bottleneck.attention.{part}"
    for i in range(2)
    for part in ("dense", "LayerNorm")
]
UNUSED = {"inside": LAYERS, "none": ["embeddings.embedding_transformation"]}
"""What the library's MobileBERT holds and does not use, besides a layer of no columns."""
TASKS = {"plain": 3, "narrow": 0, "untied": 1, "left": 5, "causal": 2}
"""How many pre-training tasks ERNIE distinguishes in each config; 0: none."""


@dataclasses.dataclass(frozen=True)
class Detection(OnePass):
    """A discriminator's loss on given labels; in pre-training they come from the generator."""

    tower = "main"

    def of(self, tower, encoded, batch):
        return binary_loss(
            tower.read("rtd", encoded, batch), batch["replaced"], real_tokens(batch), "nll"
        )


def classes(prefix, left):
    """All classes of a family. Padding on the left is seen by the library's language models (except
    ELECTRA's)."""
    group, pair = peers.cases(prefix), "sop" if prefix in ("Albert", "MegatronBert") else "nsp"
    if prefix in ("Bert", "Ernie", "MegatronBert", "MobileBert", "Albert"):
        names = (
            ("sentence_order_label", "sop_logits")
            if prefix == "Albert"
            else ("next_sentence_label", "seq_relationship_logits")
        )
        outputs = {"mlm": ("labels", "prediction_logits"), pair: names}
        group.append(peers.Case(f"{prefix}ForPreTraining", ("mlm", pair), outputs))
        group += (
            [peers.Case(f"{prefix}ForNextSentencePrediction", (pair,))]
            if prefix != "Albert"
            else []
        )
    if prefix == "Electra":
        group.append(peers.Case("ElectraForPreTraining", ("rtd",), objective=Detection()))
    if prefix not in ("DistilBert", "Albert", "MobileBert") and (not left or prefix == "Electra"):
        group.append(
            peers.Case("BertLMHeadModel" if prefix == "Bert" else f"{prefix}ForCausalLM", ("lm",))
        )
    return group


def unused(prefix, name, config):
    layers = UNUSED.get(name, []) if prefix == "MobileBert" else []
    found = [
        f"{root}{layer}.{leaf}"
        for root in ("", "mobilebert.")
        for layer in layers
        for leaf in ("weight", "bias")
    ]
    return [
        *found,
        *(["cls.predictions.dense.weight"] if layers else []),
        *([] if config.tie_word_embeddings else UNTIED),
    ]


# The heads of the survey's row, of which BERT has a class each.
HEADS = ("SequenceHead", "TokenHead", "ChoiceHead", "SpanHead")


def claims(prefix):
    return [pytest.mark.status(head, "matches") for head in HEADS] if prefix == "Bert" else []


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        pytest.param(prefix, name, marks=claims(prefix))
        for prefix, configs in FAMILIES.items()
        for name in configs
    ],
)
def test_all_classes(prefix, name, tmp_path):
    words = {**(WORDS if prefix == "DistilBert" else SIZES), **FAMILIES[prefix][name]}
    if prefix in ("Roberta", "XLMRoberta", "Camembert"):
        words["pad_token_id"] = {"untied": 0, "left": 2}.get(name, 1)
        words["max_position_embeddings"] += words["pad_token_id"] + 1
    if prefix == "Ernie":
        words |= dict(use_task_id=TASKS[name] > 0, task_type_vocab_size=max(TASKS[name], 1))
    labels, types = (
        2 if prefix == "Albert" else 3,
        words.get("type_vocab_size", 2),
    )  # its order of sentences is a class
    words["num_labels"] = labels
    config, left = getattr(peers.transformers, f"{prefix}Config")(**words), name == "left"
    given = peers.drawn(
        61,
        16,
        side="left" if left else "right",
        types=types,
        classes=labels,
        seed=len(name),
        least=4,
    )
    given["input_ids"] = np.where(
        given["attention_mask"], given["input_ids"], config.pad_token_id
    ).astype(np.int32)
    if prefix == "Ernie" and TASKS[name] > 1:  # without ids, the first counts
        given["task_type_ids"] = (
            np.random.default_rng(2).integers(0, TASKS[name], (peers.ROWS, 16)).astype(np.int32)
        )
    if prefix == "Electra":  # a row's first token follows nothing, or padding
        later = given["attention_mask"] * (given["attention_mask"].cumsum(1) > 1)
        given["lm_labels"] = np.where(later, given["input_ids"], peers.IGNORED)
    atol = 1e-4 if config.num_hidden_layers > 1 else 1e-5
    peers.compare(
        tmp_path,
        config,
        classes(prefix, left),
        given,
        atol=atol,
        unused=unused(prefix, name, config),
    )


@pytest.mark.parametrize("length", [1, 5, 16, 19])
def test_a_mobilebert_s_row_that_is_no_bucket(length, tmp_path):
    """States of rows whose length is no bucket equal the library's on the same rows; so do rows
    that the caller padded."""
    config = peers.transformers.MobileBertConfig(
        **{**SIZES, "max_position_embeddings": 40, **MOBILEBERT["published"]}
    )
    model = peers.randomise(peers.transformers.MobileBertModel(config), 0).eval()
    model.save_pretrained(tmp_path)
    ours = ptm_jax.load(tmp_path)
    ids = np.random.default_rng(length).integers(1, 61, (3, length))

    def states(**given):
        return (
            model(**{name: peers.torch.tensor(v) for name, v in given.items()})[0].detach().numpy()
        )

    np.testing.assert_allclose(ours(ids).hidden, states(input_ids=ids), atol=1e-4)
    padded, mask = np.pad(ids, ((0, 0), (0, 2))), np.pad(np.ones_like(ids), ((0, 0), (0, 2)))
    found, wanted = ours(padded, mask).hidden, states(input_ids=padded, attention_mask=mask)
    np.testing.assert_allclose(found[:, :length], wanted[:, :length], atol=1e-4)


@pytest.mark.parametrize("prefix", ["Bert", "Ernie", "MegatronBert", "Roberta"])
def test_an_untied_head_of_before_version_5_has_its_bias_under_the_other_name(prefix, tmp_path):
    config = getattr(peers.transformers, f"{prefix}Config")(**{**SIZES, **BERT["untied"]})
    peers.randomise(getattr(peers.transformers, f"{prefix}ForMaskedLM")(config), 0).save_pretrained(
        tmp_path
    )
    tensors = load_file(tmp_path / "model.safetensors")
    own = next(name for name in tensors if name.endswith("decoder.bias"))
    wanted = tensors[own.replace("decoder.bias", "bias")] = tensors.pop(own)
    save_file(tensors, tmp_path / "model.safetensors")
    read = checkpoint.read(tmp_path)
    assert read.report.extra == () and np.array_equal(
        read.params["main"]["heads_mlm"]["bias"], wanted
    )
