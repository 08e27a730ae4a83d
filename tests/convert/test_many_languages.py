"""Checkpoints of several languages become records that read text with languages, and back."""

import pytest

from ptm_jax import systems
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bart, roberta, xlm
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import refusal

SMALL = {"emb_dim": 8, "n_layers": 1, "n_heads": 2}
NUMBERS = {"en": 1, "ar": 0, "de": 2}


def test_the_numbers_of_xlms_languages_are_those_of_its_config():
    config = Config({"model_type": "xlm", "n_langs": 3, "lang2id": NUMBERS, **SMALL})
    system = xlm.build(config, "XLMWithLMHeadModel")
    assert system.examples.languages == ("ar", "en", "de") and system.examples.capacity == 3
    assert xlm.config(system)["lang2id"] == NUMBERS and refusal(system) is None
    bare = xlm.build(Config({"model_type": "xlm", **SMALL}), "XLMWithLMHeadModel")
    assert bare.examples.languages == () and "lang2id" not in xlm.config(bare)


def test_numbers_that_are_no_order_are_left_out_and_other_fields_refused():
    def built(numbers):
        config = Config({"model_type": "xlm", "n_langs": 3, "lang2id": numbers, **SMALL})
        return xlm.build(config, "XLMWithLMHeadModel").examples.languages

    assert built({"en": 1, "de": 1, "fr": 0}) == built({"en": "0"}) == built({"en": 4}) == ()
    with pytest.raises(UserError, match="lang2id is"):
        built(["en"])


@pytest.mark.parametrize(
    ("name", "architecture"),
    {
        "xlm_15": "XLMWithLMHeadModel",
        "xlm_17": "XLMWithLMHeadModel",
        "xlm_clm_mini": "XLMWithLMHeadModel",
        "xlm_r_mini": "XLMRobertaForMaskedLM",
        "bert_multilingual_mini": "BertForPreTraining",
    }.items(),
)
def test_systems_of_several_languages_are_classes_of_transformers(name, architecture):
    assert checkpoint.published(systems.get(name))[2] == architecture


def test_xlm_r_and_mbart_read_languages():
    assert roberta.XLM_ROBERTA.examples.parallel and roberta.XLM_ROBERTA.rows == (122,)
    parent = bart.KINDS["mbart"].parent
    assert parent.examples.languages[2] == "de_DE" and len(parent.examples.languages) == 25
    assert parent.corruption.vocab.extra[2] == 250_003, "Transformers' id of de_DE"
