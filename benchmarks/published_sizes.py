"""Published numbers of parameters, and how those of the catalogue are counted: from shapes alone.

`PEERS` are the classes of Hugging Face Transformers 5.23 (`TransfoXLLMHeadModel`: 4.57.6) under the
released configurations: trainable parameters with the pre-training heads, tied tensors once.
Buffers (`final_logits_bias`) and sinusoids do not count. `PRINTED` are figures of papers and
repositories in millions: (figure, its unit, what is not counted, where it is printed).
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax import systems
from ptm_jax.core import facts, paths, spec, towers
from ptm_jax.core.types import Vocab

PEERS = {
    "BertForPreTraining": {
        "bert_base": 110_106_428,
        "bert_large": 336_226_108,
        "bert_base_cased": 108_932_934,
        "bert_large_cased": 334_661_958,
        "bert_large_wwm": 336_226_108,
        "bert_large_cased_wwm": 334_661_958,
        "bert_base_chinese_wwm": 102_882_442,
        "bert_base_multilingual_cased": 178_566_653,
        "rubert": 178_566_653,
        "slavic_bert": 178_566_653,
        "finbert_cased": 125_165_755,
        "finbert_uncased": 125_162_679,
        "bertje": 109_705_010,
        "bertje_2021": 109_761_147,
        "arabert_v01": 135_851_010,
        "arabert_v02_large": 370_541_058,
        "bert_japanese": 111_243_010,
        "bert_japanese_char": 89_711_010,
        "biobert": 108_932_934,
        "scibert_scivocab_uncased": 110_543_220,
        "scibert_scivocab_cased": 110_563_214,
        "clinicalbert": 110_106_428,
        "clinical_bert": 108_932_934,
    },
    "BertForPreTraining, type_vocab_size=6 as in the repository's unilm1 configurations": {
        "unilm_base": 108_936_006,
        "unilm_large": 334_666_054,
    },
    "BertForMaskedLM": {
        "roberta_base_chinese_wwm": 102_290_312,
        "roberta_large_chinese_wwm": 325_545_608,
        "spanbert_base": 108_340_804,
        "spanbert_large": 333_610_308,
    },
    "RobertaForMaskedLM": {
        "roberta_base": 124_697_433,
        "roberta_large": 355_412_057,
        "robbert_v1": 124_697_433,
        "robbert_v2": 116_803_648,
    },
    "CamembertForMaskedLM": {"camembert_base": 110_655_493},
    "XLMWithLMHeadModel": {
        "xlm_15": 249_071_384,
        "xlm_tlm_15": 249_071_384,
        "xlm_17": 571_696_960,
        "xlm_100": 571_696_960,
        "xlm_clm_enfr": 141_848_203,
    },
    "FlaubertWithLMHeadModel": {
        "flaubert_small_cased": 54_435_449,
        "flaubert_base_uncased": 137_389_014,
        "flaubert_base_cased": 138_301_817,
        "flaubert_large_cased": 373_282_937,
    },
    "XLMRobertaForMaskedLM": {"xlm_r_base": 278_295_186, "xlm_r_large": 560_142_482},
    "XLMRobertaXLForMaskedLM at vocab_size=250880, the releases'": {
        "xlm_r_xl": 3_482_741_760,
        "xlm_r_xxl": 10_712_994_816,
    },
    "MBartForConditionalGeneration": {"mbart25": 610_851_840},
    "ErnieForPreTraining": {"ernie_base": 100_477_778},
    "OpenAIGPTLMHeadModel": {"gpt": 116_534_784},
    "GPT2LMHeadModel": {
        "gpt2": 124_439_808,
        "gpt2_medium": 354_823_168,
        "gpt2_large": 774_030_080,
        "gpt2_xl": 1_557_611_200,
    },
    "GPT2LMHeadModel at vocab_size=51200": {
        "megatron_gpt2_1200m": 1_213_479_936,
        "megatron_gpt2_2500m": 2_490_408_960,
        "megatron_gpt2_4200m": 4_199_109_120,
        "megatron_gpt2_8300m": 8_317_040_640,
        "turing_nlg": 17_180_859_136,
    },
    "MegatronBertForPreTraining at vocab_size=30592, the 345M release's": {
        "megatron_bert_336m": 336_297_858,
        "megatron_bert_1300m": 1_280_739_202,
        "megatron_bert_3900m": 3_869_260_674,
    },
    "AlbertForPreTraining": {
        "albert_base": 11_813_810,
        "albert_base_v2": 11_813_810,
        "albert_large": 17_847_474,
        "albert_large_v2": 17_847_474,
        "albert_xlarge": 59_021_490,
        "albert_xlarge_v2": 59_021_490,
        "albert_xxlarge": 223_158_450,
        "albert_xxlarge_v2": 223_158_450,
    },
    "XLNetLMHeadModel": {"xlnet_base": 116_750_336, "xlnet_large": 360_300_800},
    "CTRLLMHeadModel": {"ctrl": 1_637_964_550},
    "TransfoXLLMHeadModel, untie_r=True in the large one": {
        "transformer_xl_wt103": 151_107_538,
        "transformer_xl_wt103_large": 285_205_322,
    },
    "BartForConditionalGeneration": {"bart_base": 139_420_416, "bart_large": 406_291_456},
    "T5ForConditionalGeneration": {
        "t5_small": 60_506_624,
        "t5_base": 222_903_552,
        "t5_large": 737_668_096,
        "t5_3b": 2_851_598_336,
        "t5_11b": 11_307_321_344,
    },
    "PegasusForConditionalGeneration": {"pegasus_base": 223_054_848, "pegasus_large": 568_699_904},
    "ElectraForPreTraining, the discriminator": {
        "electra_small": 13_549_057,
        "electra_small_plus": 13_549_057,
        "electra_base": 109_483_009,
        "electra_large": 335_142_913,
    },
}
LEFT_OUT = {
    "spanbert_base": "sbo",
    "spanbert_large": "sbo",
    **{f"electra_{size}": "^generator/" for size in ("small", "small_plus", "base", "large")},
}
"""What is not in a released file: SpanBERT's boundary head, and ELECTRA's generator, which has a
file of its own."""

MINIATURES = "google-research/bert, BERT Miniatures (Turc et al. 2019): with pooler, without heads"
PRINTED: dict[str, tuple[float, float, str | None, str]] = {
    "bert_L2_H128": (4.4, 0.1, "mlm|nsp", MINIATURES),
    "bert_L4_H256": (11.2, 0.1, "mlm|nsp", MINIATURES),
    "bert_L4_H512": (28.8, 0.1, "mlm|nsp", MINIATURES),
    "bert_L8_H512": (41.4, 0.1, "mlm|nsp", MINIATURES),
    "bert_L12_H768": (109.5, 0.1, "mlm|nsp", MINIATURES),
    "transformer_xl_enwik8": (41, 1, None, "Dai et al. 2019, Table 2"),
    "transformer_xl_enwik8_large": (277, 1, None, "Dai et al. 2019, Table 2"),
    "transformer_xl_text8_large": (277, 1, None, "Dai et al. 2019, Table 3"),
    "unilmv2_base": (110, 1, None, "Bao et al. 2020, section 4.1"),
    "lstm_medium": (20, 1, None, "Merity et al. 2017, Table 1, of Zaremba et al. 2014"),
    "lstm_large": (66, 1, None, "Merity et al. 2017, Table 1, of Zaremba et al. 2014"),
    "charlstm_small": (5, 1, None, "Kim et al. 2016, Table 3"),
    "charlstm_large": (19, 1, None, "Kim et al. 2016, Table 3"),
    "awd_lstm": (24, 1, None, "Merity et al. 2018, Table 1"),
    "elmo": (93.6, 0.1, "heads_", "allennlp.org/elmo, Original, whose file has no softmax"),
    "cloze_cnn_large": (330, 10, "heads_", "Baevski et al. 2019, without the adaptive softmax"),
    "cloze_large": (370, 10, "heads_", "Baevski et al. 2019, without the adaptive softmax"),
}

# torch.nn.Transformer(d_model, nhead, 6, 6, 4 * d_model) without its two final norms, 4 D in all.
TORCH = {512: 44_140_544 - 2048, 1024: 176_361_472 - 4096}


def abstract(modules: Any) -> dict[str, Any]:
    """Shapes of the parameters of towers, {path: leaf}."""
    shape = {"input_ids": (2, 16), "rows": (2,), "characters": (2, 16, 50)}
    batch = {field: jax.ShapeDtypeStruct(dims, jnp.int32) for field, dims in shape.items()}
    return paths.flatten(towers.abstract(modules, batch))


@functools.cache
def shapes(name: str) -> dict[str, Any]:
    """Shapes of the parameters of a system."""
    networks = systems.get(name).towers
    vocab = next(part for _, part in spec.walk(networks) if isinstance(part, Vocab))
    return abstract(facts.stand_ins(networks, vocab))


def counted(flat: dict[str, Any], but: str | None = None) -> int:
    """Parameters whose path the pattern `but` does not find."""
    return sum(leaf.size for path, leaf in flat.items() if but is None or not re.search(but, path))


def count(name: str, but: str | None = None) -> int:
    """Parameters of a system without those whose path the pattern `but` finds; `System.ties` are
    not applied."""
    return counted(shapes(name), but)
