"""Encoder-decoders: two lengths, rows without a decoder's input, files that share tables, and what is refused."""

import json

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import t5
from ptm_jax.convert.files import open_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.towers import Tower

torch = peers.torch


def full(test):
    """A test that needs both libraries."""
    absent = pytest.mark.skipif(
        torch is None, reason="torch and transformers are not installed; make test-full installs them"
    )
    return pytest.mark.rotate(pytest.mark.full(absent(test)))


T5 = dict(vocab_size=61, d_model=12, num_heads=2, d_kv=5, d_ff=9, num_layers=1)
BART = dict(vocab_size=61, d_model=12, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=9, decoder_ffn_dim=9)
BART |= dict(encoder_attention_heads=2, decoder_attention_heads=3, max_position_embeddings=16)
SIZES = {"T5": T5, "MT5": T5, "Bart": BART, "MBart": BART, "Pegasus": BART}
EOS = {"T5": 1, "MT5": 1, "Bart": 2, "MBart": 2, "Pegasus": 1}


def fields(family, **words):
    return Config({"model_type": family.lower(), **SIZES[family], **words})


def theirs(family, **words):
    start = {} if family == "MBart" else {"decoder_start_token_id": 2 if family == "Bart" else 0}
    words = {**SIZES[family], **start, **words, "attn_implementation": "eager"}
    return getattr(peers.transformers, f"{family}Config")(**words)


@full
@pytest.mark.parametrize("family", ["T5", "Bart", "Pegasus"])
def test_a_decoder_of_another_length_padded_on_the_left(family, tmp_path):
    group = [peers.Case(f"{family}Model"), peers.Case(f"{family}ForConditionalGeneration", ("lm",))]
    given = peers.paired(peers.drawn(61, 13, seed=3), 61, 7, side="left", seed=3)
    unused = [f"{root}{side}.embed_positions.weight" for root in ("", "model.") for side in ("encoder", "decoder")]
    peers.compare(tmp_path, theirs(family), group, given, unused=unused if family == "Pegasus" else ())


@full
@pytest.mark.parametrize("family", ["T5", "Bart", "MBart"])
def test_a_text_alone_is_decoded_as_there(family, tmp_path):
    """Rows of the right: the decoder reads the text one token later, after the start."""
    model = peers.randomise(getattr(peers.transformers, f"{family}ForSequenceClassification")(theirs(family)), 0)
    model.save_pretrained(tmp_path)
    found = checkpoint.read(tmp_path)
    given = peers.drawn(61, 16, seed=4)
    given = peers.paired(given, 61, 16, eos=EOS[family])
    pad = found.system.towers["main"].encoder.embed.vocab.pad
    ids, mask = np.where(given["attention_mask"], given["input_ids"], pad), given["attention_mask"]
    out = model(torch.tensor(ids), attention_mask=torch.tensor(mask), output_hidden_states=True)
    tower = Tower(found.system.towers["main"], found.params["main"])
    batch = {"input_ids": ids, "segment_ids": mask}

    @jax.jit
    def run(batch):
        encoded = tower(batch)
        return encoded.hidden, tower.read("classify", encoded, batch)

    hidden, scores = run(batch)
    real = mask > 0
    peers.close(hidden[real], out.decoder_hidden_states[-1].detach().numpy()[real], 1e-5, "hidden")
    peers.close(scores, out.logits, 1e-5, "scores")


@full
@pytest.mark.parametrize("own", [True, False])
def test_files_of_t5_11_with_one_table_and_with_two(own, tmp_path):
    """Transformers 5 writes that the tables are tied, whether they are or not."""
    model = peers.transformers.T5ForConditionalGeneration(
        theirs("T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    )
    if own:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(tmp_path / "5")
    written = json.loads((tmp_path / "5" / "config.json").read_text())
    assert written["tie_word_embeddings"] and not written["scale_decoder_outputs"]
    found = checkpoint.read(tmp_path / "5")
    assert found.report.extra == found.report.missing == ()
    np.testing.assert_array_equal(flatten(found.params)["main/heads_lm/table"], model.lm_head.weight.detach().numpy())
    checkpoint.write(tmp_path / "out", found.system, found.params, config=found.config)
    again = peers.transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight) and not again.config.scale_decoder_outputs


@full
def test_an_old_file_of_bart_with_its_own_output_has_one_table_for_both_halves(tmp_path):
    """Transformers 4 wrote the shared table once, where 5 has three."""
    model = peers.transformers.BartForConditionalGeneration(theirs("Bart"))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    tensors = {name: value for name, value in model.state_dict().items() if "embed_tokens" not in name}
    tensors["lm_head.weight"] = torch.randn_like(tensors["lm_head.weight"])
    from safetensors.torch import save_file

    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, tmp_path / "model.safetensors")
    params = flatten(checkpoint.read(tmp_path).params["main"])
    for side in ("encoder", "decoder"):
        np.testing.assert_array_equal(params[f"encoder/{side}/embed/token"], model.model.shared.weight.detach().numpy())
    np.testing.assert_array_equal(params["heads_lm/table"], tensors["lm_head.weight"].numpy())


@pytest.mark.parametrize(
    ("family", "words", "message"),
    [
        ("T5", {"feed_forward_proj": "double-gelu"}, "feed_forward_proj is 'double-gelu'"),
        ("T5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets 2"),
        ("Bart", {"normalize_before": True}, "normalize_before is True: Bart has it False"),
        ("MBart", {"add_final_layer_norm": False}, "add_final_layer_norm is False: MBart has it True"),
        ("Pegasus", {"decoder_layerdrop": 0.1}, "decoder_layerdrop is 0.1"),
        ("Bart", {"decoder_attention_heads": 5}, "d_model 12 is not a multiple of decoder_attention_heads 5"),
    ],
)
def test_what_a_config_cannot_say(family, words, message):
    with pytest.raises(UserError, match=message):
        checkpoint.record_of(fields(family, **words))


@pytest.mark.parametrize("family", SIZES)
def test_classes_are_told_by_their_heads_and_halves(family):
    """The class and the towers of every record are found again from the record alone."""
    from ptm_jax.convert.family import families, family_of

    for name in family_of(fields(family)).heads:
        system, _ = checkpoint.record_of(fields(family), name)
        home = families.get(family.lower())
        assert home.architecture_of(system) == name
        again = Config({"model_type": family.lower(), **home.config(system)})
        assert checkpoint.record_of(again, name)[0].towers == system.towers


@full
def test_the_waves_are_written_and_others_are_refused(tmp_path):
    """PEGASUS's positions are a formula: no parameters here, and a tensor there."""
    model = peers.randomise(peers.transformers.PegasusForConditionalGeneration(theirs("Pegasus")), 0)
    model.save_pretrained(tmp_path / "in")
    found = checkpoint.read(tmp_path / "in")
    checkpoint.write(tmp_path / "out", found.system, found.params, config=found.config)
    again = peers.transformers.PegasusForConditionalGeneration.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    assert {name for name, _ in model.named_parameters()} <= set(open_tensors(tmp_path / "out").names())
    with torch.no_grad():
        model.model.decoder.embed_positions.weight[2, 3] += 0.01
    model.save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="model.decoder.embed_positions.weight is not the fixed table of pegasus"):
        checkpoint.read(tmp_path / "other")


@pytest.mark.parametrize("gate", ["", "gated-"])
def test_every_activation_of_t5_is_said_as_it_was_read(gate):
    for name in ACTIVATIONS:
        read = t5.activation(fields("T5", feed_forward_proj=gate + name))
        system, _ = checkpoint.record_of(fields("T5", feed_forward_proj=gate + name))
        ffn = system.towers["main"].encoder.decoder.stack.block.ffn
        assert (ffn.activation, ffn.gated) == read
        assert t5.activation(fields("T5", feed_forward_proj=t5.projection(ffn))) == read
    assert t5.activation(fields("T5", feed_forward_proj="gated-gelu")) == ("gelu_tanh", True)


def test_a_classifier_of_one_class_or_of_several_at_once_is_trained_as_there():
    kinds = {"single_label_classification": "classes", "regression": "number", "multi_label_classification": "labels"}
    for problem, kind in kinds.items():
        system, _ = checkpoint.record_of(fields("Bart", problem_type=problem), "BartForSequenceClassification")
        assert system.objective.kind == kind and system.towers["main"].heads["classify"].classes == 3
