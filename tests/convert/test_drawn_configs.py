"""A hundred drawn configs against `transformers`: states and logits of the model, and the file that
we write of it."""

import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.inference.pretrained import Pretrained

torch = peers.torch
pytestmark = peers.LIVE

ACTS = ("gelu", "relu", "gelu_new", "silu", "tanh", "gelu_fast")
EPS = (1e-12, 1e-5, 1e-3)
FLAG = (True, False)


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


def modernbert(draw):
    heads, layers = int(draw.integers(1, 4)), int(draw.integers(1, 8))
    every = int(draw.integers(1, 5))
    phase, kinds = int(draw.integers(every)), ("sliding_attention", "full_attention")
    words = dict(
        hidden_size=heads * int(draw.choice([4, 6, 10])),
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=draw.integers(5, 40),
        layer_types=[kinds[i % every == phase] for i in range(layers)],
        local_attention=int(draw.choice([2, 4, 7, 40])),
    )
    flags = ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias")
    words |= {name: draw.choice(FLAG) for name in flags}
    thetas = {kind: {"rope_theta": float(draw.choice([100.0, 10_000.0]))} for kind in kinds}
    return words | dict(
        rope_parameters={kind: {"rope_type": "default", **one} for kind, one in thetas.items()},
        hidden_activation=draw.choice(ACTS),
        classifier_activation=draw.choice(ACTS),
        norm_eps=draw.choice(EPS[1:]),
        tie_word_embeddings=draw.choice(FLAG),
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    )


def llama(draw, **more):
    shared, each = int(draw.integers(1, 4)), int(draw.choice([4, 6, 10]))
    heads = shared * int(draw.integers(1, 4))
    flags = ("attention_bias", "mlp_bias", "tie_word_embeddings")
    return dict(
        hidden_size=heads * int(draw.choice([4, 6])),
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=each,
        num_hidden_layers=draw.integers(1, 7),
        intermediate_size=draw.integers(5, 40),
        rope_parameters={"rope_theta": float(draw.choice([100.0, 250_000.0]))},
        hidden_act=draw.choice(ACTS),
        rms_norm_eps=draw.choice(EPS[1:]),
        max_position_embeddings=draw.integers(20, 40),
        **{name: draw.choice(FLAG) for name in flags},
        **{name: draw.choice(values) for name, values in more.items()},
    ) | dict(bos_token_id=1, eos_token_id=2)


def ultrabert(draw):
    words, every = llama(draw), int(draw.integers(1, 5))
    phase, kinds = int(draw.integers(every)), ("sliding_attention", "full_attention")
    layers = int(words["num_hidden_layers"])
    thetas = {kind: {"rope_theta": float(draw.choice([100.0, 10_000.0]))} for kind in kinds}
    return words | dict(
        layer_types=[kinds[i % every == phase] for i in range(layers)],
        sliding_window=int(draw.choice([1, 3, 40])),
        prediction_head_size=int(draw.choice([5, 30])),
        rope_parameters={kind: {"rope_type": "default", **one} for kind, one in thetas.items()},
    )


def rotary_bert(draw):
    more = {"rope_parameters": {"rope_theta": float(draw.choice([50.0, 20_000.0]))}}
    return bert(draw) | more


def esm(draw):
    heads = int(draw.integers(1, 4))
    flags = ("token_dropout", "emb_layer_norm_before", "tie_word_embeddings")
    return dict(
        hidden_size=heads * int(draw.choice([4, 6, 10])),
        num_attention_heads=heads,
        num_hidden_layers=draw.integers(1, 5),
        intermediate_size=draw.integers(5, 40),
        position_embedding_type=draw.choice(["rotary", "absolute"]),
        rope_theta=float(draw.choice([50.0, 20_000.0])),
        max_position_embeddings=draw.integers(20, 40),
        layer_norm_eps=draw.choice(EPS),
        mask_token_id=5,
        **{name: draw.choice(FLAG) for name in flags},
    )


def roformer(draw):
    return electra(draw) | {"rotary_value": draw.choice(FLAG)}


def decoder(draw):
    return modernbert(draw) | {"local_attention": int(draw.choice([4, 7, 10, 40]))}


def deberta(draw, second=False):
    heads = int(draw.integers(1, 4))
    words = dict(
        hidden_size=heads * int(draw.choice([4, 5, 8])),
        num_attention_heads=heads,
        num_hidden_layers=int(draw.integers(1, 4)),
        intermediate_size=draw.integers(5, 40),
        max_position_embeddings=int(draw.integers(16, 40)),
        max_relative_positions=int(draw.choice([-1, 6, 15])),
        type_vocab_size=int(draw.integers(0, 3)),
        pos_att_type=[["c2p"], ["p2c"], ["c2p", "p2c"], ["p2c", "c2p"], []][draw.integers(5)],
    )
    flags = ("relative_attention", "position_biased_input", "legacy")
    words |= {name: draw.choice(FLAG) for name in flags}
    words |= dict(hidden_act=draw.choice(ACTS), layer_norm_eps=draw.choice(EPS[1:]))
    if second:
        norm = "none"  # Transformers stores a norm that it does not use without distances
        if words["relative_attention"]:
            norm = draw.choice(["none", "layer_norm"])
        size = int(draw.choice([0, 3, 5]))
        words |= dict(share_att_key=draw.choice(FLAG), norm_rel_ebd=norm, conv_kernel_size=size)
        words |= dict(position_buckets=int(draw.choice([-1, 4, 7])), conv_act=draw.choice(ACTS))
    return words


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
    "XLNetLMHeadModel": xlnet, "EncoderDecoderModel": pair, "ModernBertForMaskedLM": modernbert,
    "EuroBertForMaskedLM": llama, "UltrabertForMaskedLM": ultrabert,
    "NomicBertForMaskedLM": rotary_bert, "GteForMaskedLM": rotary_bert,
    "JinaEmbeddingsV3ForMaskedLM": rotary_bert, "ModernBertDecoderForCausalLM": decoder,
    "EsmForMaskedLM": esm, "RoFormerForMaskedLM": roformer, "DebertaForMaskedLM": deberta,
    "DebertaV2ForMaskedLM": lambda draw: deberta(draw, second=True),
}  # fmt: skip
UNREAD = "encoder.pooler", "esm.contact_head"
EACH = 2
MORE = {"ModernBertForMaskedLM": 10, "EuroBertForMaskedLM": 5, "UltrabertForMaskedLM": 6}
MORE |= {"NomicBertForMaskedLM": 3, "GteForMaskedLM": 3, "ModernBertDecoderForCausalLM": 5}
MORE |= {"DebertaV2ForMaskedLM": 4, "EsmForMaskedLM": 5, "RoFormerForMaskedLM": 3}
"""Draws of a family whose layers differ from one another."""


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
    assert found.report.missing == () and found.report.extra == (), found.report
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
        assert torch.equal(value, again[key]) or key.startswith(UNREAD), key
