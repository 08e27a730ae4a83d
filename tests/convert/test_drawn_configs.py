"""A hundred drawn configs against `transformers`: states and logits of the model, and the file that
we write of it."""

import drawing
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.inference.pretrained import Pretrained

torch = peers.torch
pytestmark = peers.LIVE

ACTS, EPS, FLAG = drawing.ACTS, drawing.EPS, drawing.FLAG


def bert(draw, layers="num_hidden_layers", **more):
    heads = int(draw.integers(1, 4))
    sizes = dict(
        hidden_size=heads * int(draw.choice([4, 6, 10])),
        num_attention_heads=heads,
        intermediate_size=draw.integers(5, 40),
    )
    words = dict(
        type_vocab_size=int(draw.integers(1, 4)),
        hidden_act=draw.choice(ACTS),
        layer_norm_eps=draw.choice(EPS),
    )
    return {
        **sizes,
        **words,
        layers: draw.integers(1, 5),
        "max_position_embeddings": draw.integers(20, 40),
        **more,
    }


def electra(draw):
    return bert(draw) | {"embedding_size": int(draw.choice([6, 12, 18]))}


def albert(draw):
    groups, inner = int(draw.integers(1, 3)), int(draw.integers(1, 3))
    more = dict(
        num_hidden_groups=groups, inner_group_num=inner, embedding_size=int(draw.choice([6, 12]))
    )
    return bert(draw) | more | {"num_hidden_layers": groups * int(draw.integers(1, 3))}


def distilbert(draw):
    heads, wave = int(draw.integers(1, 4)), bool(draw.choice(FLAG))
    words = dict(
        dim=heads * 6,
        n_heads=heads,
        hidden_dim=int(draw.integers(5, 40)),
        n_layers=int(draw.integers(1, 4)),
    )
    return words | dict(
        activation=draw.choice(ACTS), sinusoidal_pos_embds=wave, max_position_embeddings=24
    )


def gpt(draw, **more):
    heads = int(draw.integers(1, 4))
    words = dict(
        n_embd=heads * int(draw.choice([4, 6])),
        n_head=heads,
        n_layer=int(draw.integers(1, 5)),
        n_positions=24,
    )
    return (
        words
        | dict(layer_norm_epsilon=draw.choice(EPS))
        | {name: draw.choice(values) for name, values in more.items()}
    )


def gpt2(draw):
    flags = dict.fromkeys(
        ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), FLAG
    )
    return gpt(draw, activation_function=ACTS, n_inner=(7, 24), tie_word_embeddings=FLAG, **flags)


def t5(draw):
    heads, kinds = int(draw.integers(1, 4)), ("relu", "gated-gelu", "gated-silu", "gelu")
    words = dict(
        d_model=int(draw.integers(3, 9)) * 2,
        num_heads=heads,
        d_kv=int(draw.integers(2, 8)),
        d_ff=int(draw.integers(5, 30)),
    )
    words |= dict(
        num_layers=int(draw.integers(1, 3)),
        num_decoder_layers=int(draw.integers(1, 3)),
        feed_forward_proj=draw.choice(kinds),
    )
    places = dict(
        relative_attention_num_buckets=int(draw.integers(3, 9)) * 2,
        relative_attention_max_distance=20,
    )
    return words | places | dict(decoder_start_token_id=0, layer_norm_epsilon=draw.choice(EPS))


def bart(draw):
    words = dict(
        d_model=12,
        max_position_embeddings=int(draw.integers(20, 40)),
        activation_function=draw.choice(ACTS),
    )
    for side in ("encoder", "decoder"):
        words |= {f"{side}_layers": draw.integers(1, 4), f"{side}_ffn_dim": draw.integers(5, 30)}
        words |= {
            f"{side}_attention_heads": draw.choice([1, 2, 3, 4]),
            f"{side}_layerdrop": float(draw.choice([0.0, 0.1])),
        }
    return words | dict(scale_embedding=draw.choice(FLAG), eos_token_id=2, pad_token_id=1)


def xlm(draw, **more):
    heads = int(draw.integers(1, 4))
    words = dict(
        emb_dim=heads * int(draw.choice([4, 6])),
        n_heads=heads,
        n_layers=int(draw.integers(1, 4)),
        n_langs=1,
    )
    words |= dict(
        gelu_activation=draw.choice(FLAG),
        max_position_embeddings=24,
        layer_norm_eps=draw.choice(EPS),
    )
    return words | {name: draw.choice(values) for name, values in more.items()}


def xlnet(draw):
    heads = int(draw.integers(1, 4))
    words = dict(
        d_model=heads * int(draw.choice([4, 6])),
        n_head=heads,
        n_layer=int(draw.integers(1, 4)),
        d_inner=int(draw.integers(5, 30)),
    )
    return words | dict(
        ff_activation=draw.choice(ACTS),
        clamp_len=int(draw.choice([-1, 4])),
        layer_norm_eps=draw.choice(EPS),
    )


def pair(draw):
    def kind():
        return str(draw.choice(["bert", "roberta"]))

    halves = [
        {
            **bert(draw),
            "hidden_size": 12,
            "num_attention_heads": int(draw.choice([1, 2, 3])),
            "vocab_size": 61,
        }
        for _ in range(2)
    ]
    encoder, decoder = ({**half, "model_type": kind(), "pad_token_id": 0} for half in halves)
    cross = {"is_decoder": True, "add_cross_attention": True}
    return dict(
        encoder=peers_plain(encoder), decoder=peers_plain(decoder | cross), decoder_start_token_id=2
    )


def peers_plain(words):
    """Plain numbers and texts of what numpy drew."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in words.items()
    }


KINDS = {
    "BertForMaskedLM": bert, "RobertaForMaskedLM": bert, "MegatronBertForMaskedLM": bert,
    "ErnieForMaskedLM": bert,
    "BertLMHeadModel": lambda draw: bert(draw, is_decoder=True), "RobertaModel": bert,
    "XLMRobertaForMaskedLM": bert,
    "ElectraForMaskedLM": electra, "AlbertForMaskedLM": albert, "DistilBertForMaskedLM": distilbert,
    "OpenAIGPTLMHeadModel": lambda draw: gpt(draw, afn=("gelu", "relu", "swish")),
    "GPT2LMHeadModel": gpt2,
    "CTRLLMHeadModel": lambda draw: gpt(draw, dff=(9, 30)), "T5ForConditionalGeneration": t5,
    "BartForConditionalGeneration": bart, "MBartForConditionalGeneration": bart,
    "XLMWithLMHeadModel": lambda draw: xlm(draw, sinusoidal_embeddings=FLAG),
    "FlaubertWithLMHeadModel": xlm,
    "XLNetLMHeadModel": xlnet, "EncoderDecoderModel": pair,
}  # fmt: skip
KINDS |= {
    prefix + next(iter(family.tasks)): family.fields
    for prefix, family in drawing.FAMILIES.items()
    if prefix != "NeoBert"
}
BIASES = {"cls.predictions.bias", "lm_head.bias"}
"""Of an untied head; its class has another one too."""
UNREAD = "encoder.pooler", "esm.contact_head"
EACH = 2
MORE = {"ModernBertForMaskedLM": 6, "EuroBertForMaskedLM": 3, "UltrabertForMaskedLM": 4}
MORE |= {"ModernBertDecoderForCausalLM": 4, "DebertaV2ForMaskedLM": 4, "EsmForMaskedLM": 4}
MORE |= {"RoFormerForMaskedLM": 3}
"""Draws of a family whose layers differ from one another. `python -m tests.convert.drawn` draws
more, and compares losses and gradients."""


@pytest.mark.status("ptm import", "matches")
@pytest.mark.status("ptm export", "matches")
@pytest.mark.parametrize(
    ("name", "seed"),
    [(name, seed) for name in KINDS for seed in range(MORE.get(name, EACH))],
)
def test_a_drawn_config(name, seed, tmp_path):
    draw, kind = np.random.default_rng([seed, *map(ord, name)]), getattr(peers.transformers, name)
    words = {
        "vocab_size": 61,
        "pad_token_id": 0,
        "attn_implementation": "eager",
        **peers_plain(KINDS[name](draw)),
    }
    model = peers.randomise(kind(kind.config_class(**words)), seed)
    model.save_pretrained(tmp_path / "theirs")
    found = checkpoint.read(tmp_path / "theirs")
    biases = set() if words.get("tie_word_embeddings", True) else BIASES & {*found.report.extra}
    assert found.report.missing == () and {*found.report.extra} == biases, found.report
    ids = draw.integers(3, 61, (3, 12)).astype(np.int32)
    mask = (np.arange(12) < np.array([[12], [1], [7]])).astype(np.int32)
    ids, given = ids * mask, {}
    if model.config.is_encoder_decoder:
        given = {"decoder_input_ids": draw.integers(3, 61, (3, 9)).astype(np.int32)}
    with torch.no_grad():
        tensors = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        tensors |= {name: torch.tensor(value) for name, value in given.items()}
        out = model(**tensors, output_hidden_states=True)
    ours = Pretrained(found.system, found.params)(ids, mask, **given)
    real = np.ones((3, 9), bool) if given else mask > 0
    states = out.decoder_hidden_states if given else out.hidden_states
    peers.close(ours.hidden[real], states[-1].numpy()[real], 1e-4, "states")
    if "logits" in out:
        peers.close(ours.logits[real], out.logits.numpy()[real], 1e-4, "logits")
    checkpoint.write(tmp_path / "ours", found.system, found.params, config=found.config)
    again, theirs = kind.from_pretrained(tmp_path / "ours").state_dict(), model.state_dict()
    assert again.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(value, again[key]) or key.startswith(UNREAD) or key in biases, key
