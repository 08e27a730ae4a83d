"""The families' configs without torch: every class's record written as a config again, sizes, old
names, what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import t5
from ptm_jax.convert.family import families
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.inference.inputs import batch_of
from ptm_jax.nn.embeddings.parts import TaskTypes
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.layerdrop import DroppedBlock
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.tasks.downstream import Classification
from support.tiny_models import drawn

BERT = dict(
    vocab_size=61, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=12
)
BERT |= dict(max_position_embeddings=20)
NARROW = dict(BERT, embedding_size=6, intra_bottleneck_size=4)
XLM = dict(vocab_size=61, emb_dim=8, n_heads=2, n_layers=2)
T5 = dict(vocab_size=61, d_model=12, num_heads=2, d_kv=5, d_ff=9, num_layers=1)
BART = dict(
    vocab_size=61,
    d_model=12,
    encoder_layers=1,
    decoder_layers=1,
    encoder_ffn_dim=9,
    decoder_ffn_dim=9,
)
BART |= dict(encoder_attention_heads=2, decoder_attention_heads=3, max_position_embeddings=16)
GPT = dict(vocab_size=61, n_embd=8, n_head=2, n_layer=2, n_positions=16, dff=12)
SIZES = dict.fromkeys(
    ("bert", "roberta", "xlm-roberta", "camembert", "ernie", "megatron-bert", "nezha"), BERT
)
SIZES |= dict.fromkeys(("albert", "electra", "mobilebert"), NARROW) | dict.fromkeys(
    ("xlm", "flaubert"), XLM
)
SIZES |= dict.fromkeys(("t5", "mt5"), T5) | dict.fromkeys(("bart", "mbart", "pegasus"), BART)
SIZES |= dict.fromkeys(("xlm-roberta-xl", "xmod"), BERT) | {"m2m_100": BART}
SIZES["marian"] = dict(BART, pad_token_id=60, decoder_start_token_id=60)
SIZES |= dict.fromkeys(("openai-gpt", "gpt2", "ctrl"), GPT)
SIZES["modernbert"] = dict(
    vocab_size=61, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=12
)
SIZES["modernbert"] |= dict(pad_token_id=0, cls_token_id=1, sep_token_id=2)
LLAMA = dict(vocab_size=61, hidden_size=8, num_hidden_layers=3, num_attention_heads=4)
LLAMA |= dict(intermediate_size=12, max_position_embeddings=16, pad_token_id=0, bos_token_id=1)
SIZES["eurobert"] = LLAMA | dict(eos_token_id=2, mask_token_id=3)
SIZES |= dict.fromkeys(
    ("nomic_bert", "gte", "neobert", "jina_embeddings_v3", "ultrabert"),
    LLAMA | dict(eos_token_id=2),
)
SIZES["modernbert-decoder"] = SIZES["modernbert"]
SIZES["roformer"] = dict(BERT)
SIZES["esm"] = dict(BERT, pad_token_id=1, mask_token_id=5, position_embedding_type="rotary")
SIZES["deberta"] = SIZES["deberta-v2"] = dict(BERT, relative_attention=True, pos_att_type="c2p|p2c")
SIZES["encoder-decoder"] = dict(
    encoder={"model_type": "bert", **BERT}, decoder={"model_type": "roberta", **BERT}
)
SIZES["distilbert"] = dict(
    vocab_size=61, dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=20
)
SIZES["luke"] = dict(BERT, entity_vocab_size=11, entity_emb_size=6)
SIZES["xlnet"] = dict(vocab_size=61, d_model=8, n_head=2, n_layer=2, d_inner=12)
SIZES["transfo-xl"] = dict(
    vocab_size=61, cutoffs=[20, 40], d_model=8, d_embed=8, n_head=2, d_head=4, d_inner=9, n_layer=2
)

HEADS = dict(hidden_act="relu", classifier_dropout=0.3, num_labels=5, tie_word_embeddings=False)
ODD = {
    "bert": HEADS,
    "roberta": {**HEADS, "pad_token_id": 4, "bos_token_id": 5, "eos_token_id": [6, 7]},
    "xlm-roberta": {**HEADS, "is_decoder": True, "layer_norm_eps": 1e-5},
    "ernie": {**HEADS, "use_task_id": True, "task_type_vocab_size": 4},
    "nezha": {**HEADS, "max_relative_position": 5},
    "luke": {"hidden_act": "relu", "num_labels": 5, "use_entity_aware_attention": False},
    "megatron-bert": HEADS,
    "camembert": {"is_decoder": True, "add_cross_attention": True},
    "distilbert": {
        "qa_dropout": 0.4,
        "seq_classif_dropout": 0.2,
        "activation": "tanh",
        "dropout": 0.3,
    },
    "electra": {
        "hidden_act": "relu",
        "summary_type": "mean",
        "summary_last_dropout": 0.3,
        "is_decoder": True,
    },
    "albert": {
        "num_hidden_groups": 2,
        "inner_group_num": 3,
        "classifier_dropout_prob": 0.2,
        "tie_word_embeddings": False,
    },
    "mobilebert": {
        "normalization_type": "layer_norm",
        "key_query_shared_bottleneck": False,
        "intra_bottleneck_size": 8,
    },
    "xlm": {
        "n_langs": 3,
        "gelu_activation": False,
        "dropout": 0.3,
        "start_n_top": 2,
        "summary_type": "mean",
    },
    "flaubert": {
        "pre_norm": True,
        "layerdrop": 0.1,
        "tie_word_embeddings": False,
        "num_labels": 5,
        "causal": True,
    },
    "modernbert": {
        "classifier_pooling": "mean",
        "classifier_bias": True,
        "decoder_bias": False,
        "local_attention": 6,
        "num_labels": 5,
        "classifier_dropout": 0.3,
        "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "eurobert": {
        "num_key_value_heads": 2,
        "head_dim": 6,
        "classifier_pooling": "bos",
        "mlp_bias": True,
        "attention_dropout": 0.1,
        "tie_word_embeddings": True,
        "rope_theta": 250_000.0,
    },
    "nomic_bert": {"head_dim": 6, "type_vocab_size": 3, "tie_word_embeddings": False},
    "modernbert-decoder": {
        "classifier_bias": True,
        "decoder_bias": False,
        "local_attention": 6,
        "num_labels": 5,
        "classifier_dropout": 0.3,
        "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "neobert": {"classifier_dropout": 0.3, "embedding_init_range": 0.1, "max_length": 8},
    "jina_embeddings_v3": {"hidden_act": "relu", "tie_word_embeddings": False},
    "ultrabert": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 3,
        "classifier_pooling": "mean",
        "prediction_head_size": 5,
        "num_key_value_heads": 2,
        "classifier_dropout": 0.1,
    },
    "gte": {"type_vocab_size": 0, "classifier_dropout": 0.3, "hidden_act": "silu"},
    "deberta": {
        "max_relative_positions": 7,
        "pos_att_type": ["p2c"],
        "position_biased_input": False,
        "pooler_dropout": 0.2,
        "num_labels": 5,
        "legacy": False,
    },
    "deberta-v2": {
        "position_buckets": 4,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "conv_act": "gelu",
        "type_vocab_size": 0,
        "cls_dropout": 0.3,
        "tie_word_embeddings": False,
    },
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    "bart": {"encoder_layerdrop": 0.1, "decoder_layerdrop": 0.2},
    "xlnet": {
        "d_head": 3,
        "attn_type": "uni",
        "same_length": True,
        "mem_len": None,
        "reuse_len": 3,
        "clamp_len": 4,
        "summary_use_proj": False,
    },
}
ODD["esm"] = {
    "position_embedding_type": "absolute",
    "emb_layer_norm_before": True,
    "token_dropout": True,
    "tie_word_embeddings": False,
    "layer_norm_eps": 1e-5,
}
ODD["roformer"] = {
    "hidden_act": "relu",
    "rotary_value": True,
    "embedding_size": 10,
    "tie_word_embeddings": False,
    "num_labels": 5,
}
ODD["xlm-roberta-xl"] = {**HEADS, "is_decoder": True, "add_cross_attention": True}
ODD["xmod"] = {
    **HEADS,
    "languages": ["en_XX", "de_DE", "sw"],
    "adapter_reduction_factor": 4,
    "adapter_layer_norm": True,
    "ln_before_adapter": False,
    "pre_norm": True,
}
ODD["m2m_100"] = {"activation_function": "gelu", "scale_embedding": False, "pad_token_id": 3}
ODD["marian"] = {"scale_embedding": True, "encoder_layerdrop": 0.1, "eos_token_id": 5}
ODD["mobilebert"] |= {
    "classifier_activation": False,
    "layer_norm_eps": 1e-6,
    "trigram_input": False,
}


def record(family, architecture=None, **fields):
    return checkpoint.record_of(
        Config({"model_type": family, **SIZES[family], **fields}), architecture
    )[0]


def encoder(family, **fields):
    return record(family, **fields).towers["main"].encoder


@pytest.mark.full
@pytest.mark.parametrize("family", families.names())
def test_every_record_gives_its_config_and_class(family):
    home = families.get(family)
    for architecture in home.heads:
        for fields in ({}, ODD.get(family, {})):
            system = record(family, architecture, **fields)
            again = checkpoint.record_of(
                Config({"model_type": family, **home.config(system)}), architecture
            )[0]
            assert again.towers == system.towers, architecture
            assert home.architecture_of(system) == architecture


@pytest.mark.full
def test_the_library_s_mobilebert_has_its_size():
    """The number of parameters of the class that the library makes of its default config."""
    sizes = dict(
        hidden_size=512,
        embedding_size=128,
        intra_bottleneck_size=128,
        num_hidden_layers=24,
        num_attention_heads=4,
    )
    sizes |= dict(vocab_size=30_522, intermediate_size=512, max_position_embeddings=512)
    system = record("mobilebert", "MobileBertForPreTraining", **sizes)
    leaves = jax.tree.leaves(towers.abstract(system.towers, checkpoint.example(system)))
    assert sum(leaf.size for leaf in leaves) == 36_860_220


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("roberta", {"position_embedding_type": "relative_key"}, "not supported"),
        (
            "encoder-decoder",
            {"encoder": {"model_type": "gpt2"}},
            "encoder: unknown model_type 'gpt2'",
        ),
        (
            "encoder-decoder",
            {"decoder": {"model_type": "bert", **BERT, "vocab_size": 7}},
            "61 and 7 pieces are not supported",
        ),
        ("encoder-decoder", {"tie_encoder_decoder": True}, "one set of layers"),
        *(
            (name, {"add_cross_attention": True}, "of this family")
            for name in ("albert", "megatron-bert", "nezha")
        ),
        (
            "camembert",
            {"add_cross_attention": True},
            "cross-attention is for a decoder; set is_decoder",
        ),
        (
            "gpt2",
            {"add_cross_attention": True, "scale_attn_by_inverse_layer_idx": True},
            "cross-attention that is scaled by the layer's number is not supported",
        ),
        ("xlm-roberta", {"max_position_embeddings": 2}, "no row after the 2"),
        ("ernie", {"hidden_act": "softsign"}, "supported are"),
        ("distilbert", {"activation": "softsign"}, "supported are"),
        ("nezha", {"max_relative_position": 0}, "at least 1"),
        ("megatron-bert", {"hidden_size": None}, "hidden_size"),
        ("electra", {"summary_proj_to_labels": True}, "classes in the place of states"),
        ("electra", {"summary_type": "attn"}, "supported are first"),
        ("electra", {"position_embedding_type": "relative_key"}, "not supported"),
        ("albert", {"num_hidden_groups": 3}, "not a multiple of num_hidden_groups 3"),
        ("mobilebert", {"normalization_type": "rms"}, "supported are no_norm, layer_norm"),
        ("mobilebert", {"key_query_shared_bottleneck": False}, "intra_bottleneck_size is 4"),
        ("mobilebert", {"true_hidden_size": 5}, "true_hidden_size is 5"),
        (
            "mobilebert",
            {"embedding_size": 9, "architectures": ["MobileBertForMaskedLM"]},
            "greater than hidden_size",
        ),
        ("xlm", {"is_encoder": False}, "no decoder"),
        ("xlm", {"summary_use_proj": False}, "states in the place of classes"),
        ("xlm", {"summary_type": "attn"}, "supported are first"),
        ("xlm", {"asm": True}, "asm_cutoffs"),
        ("xlnet", {"bi_data": True}, "bi_data is True: .* set it to false and give `backward`"),
        ("xlnet", {"ff_activation": "gelu_newer"}, "supported are gelu"),
        ("t5", {"feed_forward_proj": "double-gelu"}, "feed_forward_proj is 'double-gelu'"),
        ("t5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets 2"),
        ("bart", {"normalize_before": True}, "normalize_before is True: Bart has it False"),
        (
            "mbart",
            {"add_final_layer_norm": False},
            "add_final_layer_norm is False: MBart has it True",
        ),
        (
            "bart",
            {"decoder_attention_heads": 5},
            "d_model 12 is not a multiple of decoder_attention_heads 5",
        ),
        ("transfo-xl", {"attn_type": 2}, "attn_type"),
        ("transfo-xl", {"sample_softmax": 5}, "sample_softmax"),
        ("transfo-xl", {"tie_weight": False}, "tie_weight"),
        ("transfo-xl", {"tie_projs": [True, False, True]}, "tie_projs"),
        ("transfo-xl", {"mem_len": 0}, "same_length"),
        ("transfo-xl", {"d_model": 7}, "d_model"),
        ("transfo-xl", {"cutoffs": [70]}, "cutoffs"),
        (
            "transfo-xl",
            {"d_embed": 4, "architectures": ["TransfoXLForSequenceClassification"]},
            "d_embed",
        ),
    ],
)
def test_an_unsupported_field_is_refused_in_one_line(family, fields, reason):
    named = (
        {"architectures": ["TransfoXLLMHeadModel"], **fields} if family == "transfo-xl" else fields
    )
    with pytest.raises(UserError, match=reason) as caught:
        record(family, **named)
    assert "\n" not in str(caught.value) and "config.json" in str(caught.value)


def test_dropout_of_task_heads():
    def heads(family, name, **fields):
        return record(family, name, **{**ODD[family], **fields}).towers["main"].heads

    classify = heads("roberta", "RobertaForSequenceClassification")["classify"]
    assert (classify.dropout, classify.summary.dropout) == (0.3, 0.3)
    assert heads("roberta", "RobertaForMultipleChoice")["choose"].dropout == 0.1
    assert heads("megatron-bert", "MegatronBertForTokenClassification")["tag"].dropout == 0.1
    assert heads("distilbert", "DistilBertForTokenClassification")["tag"].dropout == 0.3
    assert (
        heads("distilbert", "DistilBertForQuestionAnswering", qa_dropout=None)["span"].dropout
        == 0.1
    )
    block = encoder("distilbert", dropout=0.3).stack.block
    assert (block.dropout, block.after_ffn.rate) == (
        0.0,
        0.3,
    )  # nothing is dropped from what attention gives


def test_old_configs_have_other_names():
    def read(**fields):
        return checkpoint.record_of(Config(fields))[0].towers["main"].encoder

    old = read(
        model_type="xlm", n_words=61, emb_dim=8, n_layers=1, n_heads=2, pad_index=4, n_langs=2
    )
    assert (old.embed.vocab.size, old.embed.vocab.pad, old.embed.languages) == (61, 4, 2)
    old = read(
        model_type="xlnet",
        n_token=61,
        d_model=8,
        n_layer=1,
        n_head=2,
        d_head=4,
        untie_r=True,
        mem_len=None,
    )
    assert (old.embed.vocab.size, old.memory, old.reuse) == (61, 0, 1.0)
    sizes = dict(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        hidden_dim=12,
        max_position_embeddings=20,
    )
    assert read(model_type="distilbert", vocab_size=61, **sizes).stack.layers == 1


def test_layerdrop():
    halves = encoder("pegasus", encoder_layerdrop=0.2), encoder("pegasus", decoder_layerdrop=0.2)
    for block in (
        encoder("flaubert", layerdrop=0.2).stack.block,
        halves[0].encoder.stack.block,
        halves[1].decoder.stack.block,
    ):
        assert isinstance(block, DroppedBlock) and block.skip == 0.2
    assert not isinstance(encoder("flaubert").stack.block, DroppedBlock)
    assert not isinstance(halves[0].decoder.stack.block, DroppedBlock)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert"])
def test_a_model_without_pooler_is_read_and_written(family, tmp_path):
    """The files of `add_pooling_layer=False`: no tensor of the pooler, and no mark in the
    config."""
    system = record(family)
    bare = checkpoint.without_pooler(system)
    params = drawn(bare, scale=0.1)
    checkpoint.write(tmp_path, bare, params)
    found = checkpoint.read(tmp_path)
    assert (
        "pool" not in found.system.towers["main"].heads
        and found.architecture == families.get(family).bare
    )
    jax.tree.map(np.testing.assert_array_equal, found.params["main"], params["main"])
    assert (family == "electra") == ("pool" not in system.towers["main"].heads)


def test_languages_are_given_token_by_token():
    core = encoder("xlm", n_langs=3)
    ids, vocab = np.full((2, 5), 7), core.embed.vocab
    batch = batch_of(core, vocab, ids, language_ids=ids - 5)
    assert (
        batch["language_ids"].shape == (2, 16)
        and batch["language_ids"][0].tolist() == [2] * 5 + [0] * 11
    )
    with pytest.raises(UserError, match="the languages of this model: 0 to 2"):
        batch_of(core, vocab, ids, language_ids=ids)


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("roberta", "RobertaForSequenceClassification"),
        ("bart", "BartForSequenceClassification"),
        ("gpt2", "GPT2ForSequenceClassification"),
        ("transfo-xl", "TransfoXLForSequenceClassification"),
    ],
)
def test_the_problem_type_determines_the_loss(family, architecture):
    def kind(**fields):
        return record(family, architecture, **fields).objective.kind

    assert (kind(), kind(num_labels=1), kind(problem_type="regression")) == (
        "classes",
        "number",
        "number",
    )
    assert kind(problem_type="multi_label_classification") == "labels"
    assert kind(problem_type="single_label_classification", num_labels=1) == "classes"
    if family == "bart":
        assert record(family, architecture).towers["main"].heads["classify"].classes == 3


def test_several_numbers_of_a_text():
    scores = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]], np.float32)
    label = np.array([[0.0, 2.5], [1.0, 1.0], [3.0, 0.0]], np.float32)
    tower = type("Fixed", (), {"read": lambda self, *_: jnp.asarray(scores)})()
    batch = {"label": label, "label_weights": np.ones(3, np.float32)}
    found = Classification(kind="number").of(tower, None, batch).value()
    np.testing.assert_allclose(found, ((scores - label) ** 2).mean(), rtol=1e-6)


@pytest.mark.full
def test_vectors_of_tasks_are_added_before_the_norm():
    embed = Embeddings(vocab=Vocab(size=7), width=4, parts=(TaskTypes(3),))
    ids, tasks = np.array([[1, 2, 3]]), np.array([[2, 0, 1]])
    context = Context(visibility=None, rows=jnp.zeros(1, jnp.int32))
    run = functools.partial(embed.apply, context=context)
    params = embed.init(jax.random.key(0), {"input_ids": ids}, context)
    token, task = (np.asarray(params["params"][name]) for name in ("token", "task"))
    np.testing.assert_allclose(
        run(params, {"input_ids": ids, "task_type_ids": tasks}), token[ids] + task[tasks], rtol=1e-6
    )
    np.testing.assert_allclose(run(params, {"input_ids": ids}), token[ids] + task[0], rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("gate", ["", "gated-"])
def test_every_activation_of_t5_is_written_as_it_was_read(gate):
    def config(name):
        return Config({"model_type": "t5", **T5, "feed_forward_proj": name})

    for name in ACTIVATIONS:
        read, ffn = (
            t5.activation(config(gate + name)),
            encoder("t5", feed_forward_proj=gate + name).decoder.stack.block.ffn,
        )
        assert (ffn.activation, ffn.gated) == read
        assert t5.activation(config(t5.projection(ffn))) == read
    assert t5.activation(config("gated-gelu")) == ("gelu_tanh", True)
