"""Published sizes of the Transformer encoders and decoders that followed BERT and GPT-2."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from ptm_jax.core import paths, spec, towers
from ptm_jax.core.registry import catalogue, discover
from ptm_jax.nn.embeddings import Embeddings

discover("ptm_jax.systems")

# Trainable parameters with the pre-training heads, tied tensors once, of Hugging Face Transformers' classes under the
# released configurations. In brackets: the figure the paper or the repository prints.
RELEASED = {
    # AlbertForPreTraining (12M, 18M, 60M, 235M in the paper: see below)
    "albert_base": 11_813_810,
    "albert_base_v2": 11_813_810,
    "albert_large": 17_847_474,
    "albert_large_v2": 17_847_474,
    "albert_xlarge": 59_021_490,
    "albert_xlarge_v2": 59_021_490,
    "albert_xxlarge": 223_158_450,
    "albert_xxlarge_v2": 223_158_450,
    # BertForPreTraining with type_vocab_size=6, as in the repository's unilm1 configurations (340M)
    "unilm_base": 108_936_006,
    "unilm_large": 334_666_054,
    # XLNetLMHeadModel (110M, 340M: without the tables of relative positions)
    "xlnet_base": 116_750_336,
    "xlnet_large": 360_300_800,
    # CTRLLMHeadModel (1.63B)
    "ctrl": 1_637_964_550,
    # GPT2LMHeadModel at vocab_size=51200 (1.2B, 2.5B, 4.2B, 8.3B; 17B)
    "megatron_gpt2_1200m": 1_213_479_936,
    "megatron_gpt2_2500m": 2_490_408_960,
    "megatron_gpt2_4200m": 4_199_109_120,
    "megatron_gpt2_8300m": 8_317_040_640,
    "turing_nlg": 17_180_859_136,
    # MegatronBertForPreTraining at vocab_size=30592, the 345M release's (336M, 1.3B, 3.9B)
    "megatron_bert_336m": 336_297_858,
    "megatron_bert_1300m": 1_280_739_202,
    "megatron_bert_3900m": 3_869_260_674,
    # BertForPreTraining (BERT-large of google-research/bert; BERT-wwm of ymcui/Chinese-BERT-wwm)
    "bert_large_wwm": 336_226_108,
    "bert_large_cased_wwm": 334_661_958,
    "bert_base_chinese_wwm": 102_882_442,
    # BertForMaskedLM (102M, 325M in the README of ymcui/Chinese-BERT-wwm)
    "roberta_base_chinese_wwm": 102_290_312,
    "roberta_large_chinese_wwm": 325_545_608,
    # TransfoXLLMHeadModel of 4.57.6 at the released sizes; untie_r=True in the large one (151M; 257M: see below)
    "transformer_xl_wt103": 151_107_538,
    "transformer_xl_wt103_large": 285_205_322,
}

# ElectraForPreTraining and ElectraForMaskedLM of the released configurations (14M, 110M, 335M discriminators); the small
# generator is the paper's, a quarter wide, and small_plus' the released one.
ELECTRA = {
    "electra_small": (13_549_057, 4_620_026),
    "electra_small_plus": (13_549_057, 13_546_682),
    "electra_base": (109_483_009, 33_740_602),
    "electra_large": (335_142_913, 51_295_290),
}

# Encoder and MLM head: BertForMaskedLM on the released spanbert-{base,large}-cased, whose boundary head is not released.
SPANBERT = {"spanbert_base": 108_340_804, "spanbert_large": 333_610_308}

# BertForPreTraining of bert-{base,large}-uncased, which StructBERT gives a third class and InfoWord takes NSP's two from.
ON_BERT = {
    "structbert_base": 110_106_428 + 769,
    "structbert_large": 336_226_108 + 1025,
    "infoword_base": 110_106_428 - 2 * 769,
    "infoword_large": 336_226_108 - 2 * 1025,
}

# No checkpoint with its heads was released, or none that a class reads: what the paper prints, in millions.
PRINTED = {
    "transformer_xl_enwik8": 41,
    "transformer_xl_enwik8_large": 277,
    "transformer_xl_text8_large": 277,
    "unilmv2_base": 110,
}


def shapes_of(name, change=lambda towers: towers):
    system = catalogue.get(name)
    system = dataclasses.replace(system, towers=change(system.towers))
    fields = system.examples.spec(16, vocab_of(system.towers))
    batch = {field: jax.ShapeDtypeStruct((2, *dims), dtype) for field, (dims, dtype) in fields.items()}
    return towers.abstract(system.towers, {**batch, "rows": jax.ShapeDtypeStruct((2,), jnp.int32)})


def vocab_of(value):
    """The first Vocab inside a record."""
    if type(value).__name__ == "Vocab":
        return value
    if spec.is_spec(value):
        parts = [getattr(value, name) for name in spec.field_names(value)]
    else:
        parts = value.values() if hasattr(value, "values") else ()
    return next(filter(None, map(vocab_of, parts)), None)


def without(shapes, pattern):
    return {path: leaf for path, leaf in paths.flatten(shapes).items() if not re.search(pattern, path)}


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_equal_the_released_checkpoint(name):
    assert paths.count(shapes_of(name)) == RELEASED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_parameters_round_to_the_printed_figure(name):
    assert round(paths.count(shapes_of(name)) / 1e6) == PRINTED[name]


@pytest.mark.parametrize("name", ELECTRA)
def test_both_towers_of_electra_equal_the_released_ones(name):
    shapes = shapes_of(name)
    assert (paths.count(shapes["main"]), paths.count(shapes["generator"])) == ELECTRA[name]
    generator = paths.flatten({"generator": shapes["generator"]})
    embedding = {path for path in generator if path.startswith("generator/encoder/embed/") and "project" not in path}
    assert embedding == {tie.path for tie in catalogue.get(name).ties}
    for tie in catalogue.get(name).ties:
        assert generator[tie.path].shape == paths.flatten({"main": shapes["main"]})[tie.source].shape


@pytest.mark.parametrize("name", SPANBERT)
def test_spanbert_is_berts_masked_model_and_a_boundary_head(name):
    assert paths.count(without(shapes_of(name), "sbo")) == SPANBERT[name]


@pytest.mark.parametrize("name", ON_BERT)
def test_parameters_are_berts_and_a_difference(name):
    assert paths.count(shapes_of(name)) == ON_BERT[name]


# Lan et al. 2020, Tables 3 and 4: base by the width of its table and what its layers share, in millions.
ALBERT = {
    ("albert_base_not_shared", 64): 87,
    ("albert_base_not_shared", 128): 89,
    ("albert_base_not_shared", 256): 93,
    ("albert_base_shared_attention", 128): 64,
    ("albert_base_shared_ffn", 128): 38,
    ("albert_base", 64): 10,
    ("albert_base", 128): 12,
    ("albert_base", 256): 16,
}


@pytest.mark.parametrize(("name", "width"), ALBERT)
def test_the_rows_of_alberts_tables_round_to_the_printed_figure(name, width):
    """The encoder alone where nothing is shared, the encoder with its pooler where something is: with one of the two for
    all, one half of the rows is a million off."""
    embed = catalogue.get(name).towers["main"].encoder.embed
    shapes = shapes_of(name, lambda tower: spec.respell(tower, Embeddings, dataclasses.replace(embed, width=width)))
    heads = "heads_" if name.endswith("not_shared") else "heads_(mlm|sop)"
    assert round(paths.count(without(shapes, heads)) / 1e6) == ALBERT[name, width]


def test_the_235_millions_of_alberts_xxlarge_are_12_more_than_its_sizes_give():
    """Table 1 prints 235 M for 12 layers of 4096 that are one; block, embeddings and pooler of that size have 223."""
    width, hidden, table = 4096, 4 * 4096, 128
    block = 4 * (width + 1) * width + 2 * width * hidden + hidden + width + 4 * width
    embeddings = (30_000 + 512 + 2 + 2) * table + (table + 1) * width
    pooler = (width + 1) * width
    shapes = without(shapes_of("albert_xxlarge"), "heads_(mlm|sop)")
    assert paths.count(shapes) == block + embeddings + pooler == 222_595_584


def test_the_257_millions_of_the_large_transformer_xl_are_16_layers():
    """The release has 18 (run_wt103_large.sh); two less leave 257.9 M, which the paper may have cut to 257."""
    layer = 5 * 1024**2 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024 + 2 * 1024
    assert RELEASED["transformer_xl_wt103_large"] - 2 * layer == 257_919_818


def test_the_base_transformer_xl_over_text8_is_enwik8s_with_fewer_characters():
    """The paper prints none; a character is a row of 512 and a bias."""
    less = (204 - 27) * (512 + 1)
    assert paths.count(shapes_of("transformer_xl_text8")) == paths.count(shapes_of("transformer_xl_enwik8")) - less


def billion(layers, width, hidden, vectors):
    """Parameters over 793,470 words in four clusters: the blocks, `vectors` tables, their projections twice, the biases."""
    sizes, widths = (60_000, 40_000, 540_000, 153_470), [width // 4**i for i in range(4)]
    block = 5 * width**2 + 2 * width * hidden + hidden + width + 4 * width
    tables = sum(size * narrow for size, narrow in zip(sizes, widths, strict=True))
    names = 3 * (width + 1)
    return layers * block + vectors * tables + 2 * width * sum(widths) + sum(sizes) + names


def test_the_billions_of_the_transformer_xls_over_billions_of_words():
    """Table 4 prints 0.8 B for the large one; 0.46 B for the base one, whose published sizes have 0.36: with a table of its
    own the softmax would make it 0.467."""
    base, large = (paths.count(shapes_of(f"transformer_xl_{name}")) for name in ("lm1b", "lm1b_large"))
    assert base == billion(18, 1024, 4096, 1) + 2 * 1024
    assert large == billion(24, 1280, 8192, 1) + 24 * 2 * 1280
    assert round(large / 1e9, 1) == 0.8
    assert (round(base / 1e9, 2), round((billion(18, 1024, 4096, 2) + 2 * 1024) / 1e9, 3)) == (0.36, 0.467)
