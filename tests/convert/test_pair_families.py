"""T5, mT5, BART, mBART and PEGASUS against `transformers`: random configs, all classes, and files
that share tables."""

import json

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.files import open_tensors
from ptm_jax.core.paths import flatten
from ptm_jax.core.towers import Tower

torch = peers.torch
pytestmark = peers.LIVE

T5 = dict(d_model=12, num_heads=2, d_kv=5, d_ff=14, num_layers=1, relative_attention_num_buckets=8)
T5 |= dict(relative_attention_max_distance=12, decoder_start_token_id=0)
BART = dict(d_model=12, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=10, decoder_ffn_dim=17)
BART |= dict(encoder_attention_heads=2, decoder_attention_heads=3, max_position_embeddings=16)
SIZES = {"T5": T5, "MT5": T5, "Bart": BART, "MBart": BART, "Pegasus": BART}
EOS = {"T5": 1, "MT5": 1, "Bart": 2, "MBart": 2, "Pegasus": 1}
T5_CONFIGS = {
    "plain": dict(d_model=24, num_heads=3, d_kv=8, feed_forward_proj="relu"),
    "odd": dict(
        d_model=10, d_kv=3, feed_forward_proj="gated-silu", relative_attention_num_buckets=9
    ),
    "v11": dict(
        num_heads=4, d_kv=2, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=2
    ),
    "left": dict(
        d_model=16,
        num_heads=1,
        feed_forward_proj="gelu",
        num_decoder_layers=2,
        layer_norm_epsilon=1e-3,
    ),
}
BART_CONFIGS = {
    "plain": dict(d_model=24, encoder_attention_heads=3, decoder_attention_heads=2),
    "narrow": dict(
        d_model=8, encoder_attention_heads=1, decoder_attention_heads=4, activation_function="relu"
    ),
    "untied": dict(
        decoder_layers=2,
        tie_word_embeddings=False,
        scale_embedding=True,
        encoder_layerdrop=0.3,
        decoder_layerdrop=0.2,
    ),
    "left": dict(
        d_model=18,
        encoder_layers=2,
        activation_function="gelu_new",
        max_position_embeddings=30,
        dropout=0.0,
    ),
}
CONFIGS = {
    "T5": T5_CONFIGS,
    "MT5": T5_CONFIGS,
    "Bart": BART_CONFIGS,
    "MBart": BART_CONFIGS,
    "Pegasus": BART_CONFIGS,
}
CASES = [(family, name) for family, configs in CONFIGS.items() for name in configs]
WAVES = [
    f"{root}{side}.embed_positions.weight"
    for root in ("", "model.")
    for side in ("encoder", "decoder")
]


def theirs(family, **words):
    sizes = dict(vocab_size=61, num_labels=3, attn_implementation="eager")
    return getattr(peers.transformers, f"{family}Config")(**{**sizes, **SIZES[family], **words})


def inputs(name):
    return peers.drawn(61, 16, side="left" if name == "left" else "right", seed=len(name))


def untied(model):
    """Gives an output its own table: Transformers 5 ties it at first, and not where a file has
    two."""
    if hasattr(model, "lm_head"):
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


@pytest.mark.parametrize(("family", "name"), CASES)
def test_pair(family, name, tmp_path):
    config, own = theirs(family, **CONFIGS[family][name]), family == "MT5" or name == "v11"
    tasks = {
        "ForConditionalGeneration": "lm",
        "ForSequenceClassification": "classify",
        "ForQuestionAnswering": "span",
    }
    tasks = {"ForConditionalGeneration": "lm"} if family == "Pegasus" else tasks
    group = peers.cases(family, tasks, ready=untied if own else lambda model: None)
    unused = ["shared.weight", "model.shared.weight"] if name == "untied" else []
    unused += WAVES if family == "Pegasus" else []
    given = peers.paired(inputs(name), 61, 16, eos=EOS[family], seed=len(name))
    peers.compare(tmp_path, config, group, given, unused=unused)


def separate(model):
    """Gives encoder, decoder and head a table each, as files of Transformers may have them."""
    for half in (model.base_model.encoder, model.base_model.decoder):
        half.embed_tokens.weight = torch.nn.Parameter(half.embed_tokens.weight.detach().clone())
    untied(model)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("T5", dict(feed_forward_proj="relu")),
        ("MT5", dict(feed_forward_proj="gated-gelu", num_decoder_layers=2)),
        ("Bart", dict(scale_embedding=True)),
    ],
)
def test_a_table_of_tokens_for_each_half(family, fields, tmp_path):
    """Transformers reads a file by its tensors: tables that differ are not tied, whatever the
    config has."""
    tasks = {"ForConditionalGeneration": "lm", "ForSequenceClassification": "classify"}
    group = peers.cases(family, tasks, ready=separate)
    group[0] = peers.Case(group[0].name, ready=separate)
    unused = [f"{root}shared.weight" for root in ("", "model.", "transformer.")]
    given = peers.paired(inputs(family), 61, 16, eos=EOS[family], seed=3)
    peers.compare(tmp_path, theirs(family, **fields), group, given, unused=unused)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_half(family, name, tmp_path):
    """T5's classes with only an encoder, BART's with only a decoder."""
    config = theirs(family, **CONFIGS[family][name])
    if family in ("T5", "MT5"):
        group = [
            peers.Case(f"{family}EncoderModel"),
            peers.Case(f"{family}ForTokenClassification", ("tag",)),
        ]
        peers.compare(tmp_path, config, group, inputs(name))
        return
    config.use_cache = False  # transformers 5.23 counts the encoder's layers for it
    cross = [
        f"{n}.{p}" for n in ("k_proj", "v_proj", "q_proj", "out_proj") for p in ("weight", "bias")
    ]
    names = [
        *(f"encoder_attn.{part}" for part in cross),
        "encoder_attn_layer_norm.weight",
        "encoder_attn_layer_norm.bias",
    ]
    unused = [f"model.decoder.layers.{layer}.{part}" for layer in range(2) for part in names]
    unused += WAVES if family == "Pegasus" else []
    group = [peers.Case(f"{family}ForCausalLM", ("lm",))]
    peers.compare(tmp_path, config, group, peers.followers(inputs(name)), unused=unused)


@pytest.mark.parametrize("family", ["T5", "Bart", "Pegasus"])
def test_a_decoder_of_another_length_padded_on_the_left(family, tmp_path):
    group = peers.cases(family, {"ForConditionalGeneration": "lm"})
    given = peers.paired(peers.drawn(61, 13, seed=3), 61, 7, side="left", seed=3)
    peers.compare(
        tmp_path, theirs(family), group, given, unused=WAVES if family == "Pegasus" else ()
    )


@pytest.mark.parametrize("family", ["T5", "Bart", "MBart"])
def test_a_text_alone_is_decoded_as_there(family, tmp_path):
    """Rows padded on the right: the decoder reads the text one token later, after the start."""
    start = {} if family == "MBart" else {"decoder_start_token_id": 2 if family == "Bart" else 0}
    model = peers.randomise(
        getattr(peers.transformers, f"{family}ForSequenceClassification")(theirs(family, **start)),
        0,
    )
    model.save_pretrained(tmp_path)
    found = checkpoint.read(tmp_path)
    given = peers.paired(peers.drawn(61, 16, seed=4), 61, 16, eos=EOS[family])
    pad = found.system.towers["main"].encoder.embed.vocab.pad
    ids, mask = np.where(given["attention_mask"], given["input_ids"], pad), given["attention_mask"]
    out = model(torch.tensor(ids), attention_mask=torch.tensor(mask), output_hidden_states=True)
    tower = Tower(found.system.towers["main"], found.params["main"])

    @jax.jit
    def run(batch):
        encoded = tower(batch)
        return encoded.hidden, tower.read("classify", encoded, batch)

    hidden, scores = run({"input_ids": ids, "segment_ids": mask})
    real = mask > 0
    peers.close(hidden[real], out.decoder_hidden_states[-1].detach().numpy()[real], 1e-5, "hidden")
    peers.close(scores, out.logits, 1e-5, "scores")


@pytest.mark.parametrize("own", [True, False])
def test_files_of_t5_11_with_one_table_and_with_two(own, tmp_path):
    """Transformers 5 writes that the tables are tied, whether they are or not."""
    config = theirs("T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model = peers.transformers.T5ForConditionalGeneration(config)
    if own:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(tmp_path / "5")
    written = json.loads((tmp_path / "5" / "config.json").read_text())
    assert written["tie_word_embeddings"] and not written["scale_decoder_outputs"]
    found = checkpoint.read(tmp_path / "5")
    assert found.report.extra == found.report.missing == ()
    np.testing.assert_array_equal(
        flatten(found.params)["main/heads_lm/table"], model.lm_head.weight.detach().numpy()
    )
    checkpoint.write(tmp_path / "out", found.system, found.params, config=found.config)
    again = peers.transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert (
        torch.equal(again.lm_head.weight, model.lm_head.weight)
        and not again.config.scale_decoder_outputs
    )


def test_a_file_of_t5_with_two_tables_and_scaled_features(tmp_path):
    """A model that was untied after it was built: the config says both."""
    model = peers.transformers.T5ForConditionalGeneration(theirs("T5"))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(tmp_path / "in")
    written = json.loads((tmp_path / "in" / "config.json").read_text())
    assert not written["tie_word_embeddings"] and written["scale_decoder_outputs"]
    found = checkpoint.read(tmp_path / "in")
    head = found.system.towers["main"].heads["lm"]
    assert not head.tied and head.scale == model.config.d_model**-0.5
    checkpoint.write(tmp_path / "out", found.system, found.params, config=found.config)
    again = peers.transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert again.config.scale_decoder_outputs


def test_an_old_file_of_bart_with_its_own_output_has_one_table_for_both_halves(tmp_path):
    """Transformers 4 wrote the shared table once, where 5 has three."""
    from safetensors.torch import save_file

    model = peers.transformers.BartForConditionalGeneration(theirs("Bart"))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    tensors = {
        name: value for name, value in model.state_dict().items() if "embed_tokens" not in name
    }
    tensors["lm_head.weight"] = torch.randn_like(tensors["lm_head.weight"])
    save_file(
        {name: value.contiguous().clone() for name, value in tensors.items()},
        tmp_path / "model.safetensors",
    )
    params = flatten(checkpoint.read(tmp_path).params["main"])
    for side in ("encoder", "decoder"):
        np.testing.assert_array_equal(
            params[f"encoder/{side}/embed/token"], model.model.shared.weight.detach().numpy()
        )
    np.testing.assert_array_equal(params["heads_lm/table"], tensors["lm_head.weight"].numpy())


def test_the_waves_are_written(tmp_path):
    """PEGASUS's positions are a formula: no parameters here, and a tensor there."""
    model = peers.randomise(
        peers.transformers.PegasusForConditionalGeneration(theirs("Pegasus")), 0
    )
    model.save_pretrained(tmp_path / "in")
    found = checkpoint.read(tmp_path / "in")
    checkpoint.write(tmp_path / "out", found.system, found.params, config=found.config)
    again = peers.transformers.PegasusForConditionalGeneration.from_pretrained(
        tmp_path / "out"
    ).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    assert {name for name, _ in model.named_parameters()} <= set(
        open_tensors(tmp_path / "out").names()
    )


@pytest.mark.parametrize(
    ("first", "second", "width"),
    [
        ("bert", "bert", 12), ("roberta", "roberta", 12), ("bert", "roberta", 12),
        ("roberta", "bert", 12),
        ("bert", "bert", 18),
    ],
)  # fmt: skip
def test_an_encoder_with_a_decoder_of_its_kind(first, second, width, tmp_path):
    """EncoderDecoderModel with halves of other sizes, and widths. Its pooler is not used, and does
    not come back."""
    sizes = dict(
        vocab_size=61, max_position_embeddings=20, pad_token_id=0, attn_implementation="eager"
    )
    own = {
        "bert": ("Bert", {}),
        "roberta": ("Roberta", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    }

    def part(kind, **words):
        prefix, more = own[kind]
        return getattr(peers.transformers, f"{prefix}Config")(**sizes, **more, **words)

    encoder = part(
        first, num_hidden_layers=2, num_attention_heads=2, intermediate_size=17, hidden_size=width
    )
    decoder = part(
        second, num_hidden_layers=1, num_attention_heads=3, intermediate_size=10, hidden_size=12
    )
    config = peers.transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.pad_token_id, config.decoder_start_token_id, config.eos_token_id = 0, 2, 1
    config.encoder._attn_implementation = config.decoder._attn_implementation = "eager"
    given = peers.paired(inputs("plain"), 61, 16, seed=len(first + second))
    del given["token_type_ids"]  # the library gives the halves none
    pooler = [f"encoder.pooler.dense.{name}" for name in ("weight", "bias")]
    peers.compare(
        tmp_path, config, [peers.Case("EncoderDecoderModel", ("lm",))], given, unused=pooler
    )
