"""What a checkpoint's own generation settings become, and who wins against the options of a
call."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.inference import loading
from ptm_jax.inference.decoding import defaults
from ptm_jax.inference.text import generating

# facebook/bart-large-cnn, config.json
CNN = {
    "num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "min_length": 56,
    "max_length": 142,
    "no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    "num_return_sequences": 1,
}  # fmt: skip
OURS = {
    "beams": 4, "length_penalty": 2.0, "early_stopping": True, "length_rule": "power",
    "min_new_tokens": 55,
    "max_new_tokens": 141, "no_repeat_ngram": 3, "forced_bos": 0, "forced_eos": 2,
}  # fmt: skip


def completed(fields, pair=True, **options):
    return defaults.completed(Config(fields), pair, options)


def test_every_setting_has_its_option():
    assert completed(CNN) == (OURS, [])
    assert completed({}) == ({"max_new_tokens": 64}, [])
    rule = {"length_rule": "power", "length_penalty": 1.0, "early_stopping": False}
    assert completed({"num_beams": 3})[0] == {"max_new_tokens": 64, "beams": 3, **rule}
    bare = {"model_type": "t5"}  # a checkpoint of the library that says nothing of beams
    assert completed(bare, beams=4)[0] == {"max_new_tokens": 64, "beams": 4, **rule}
    own = {"length_rule": "gnmt", "length_penalty": 0.6}
    assert completed(bare, **own)[0] == {"max_new_tokens": 64, **rule, **own}
    both = {"max_length": 9, "max_new_tokens": 20, "min_length": 3, "min_new_tokens": 5}
    assert completed(both)[0] == {"max_new_tokens": 20, "min_new_tokens": 5}
    drawn = {"strategy": "sample", "temperature": 1.0, "top_k": 50, "top_p": None}
    assert completed({"do_sample": True})[0] == {"max_new_tokens": 64, **drawn}
    assert completed({"do_sample": False, "top_k": 7, "temperature": 0.5})[0] == {
        "max_new_tokens": 64
    }
    assert completed({"do_sample": True, "top_k": 0, "top_p": 0.9}, temperature=0.3)[0] == {
        "max_new_tokens": 64, "strategy": "sample", "temperature": 0.3, "top_k": None, "top_p": 0.9,
    }  # fmt: skip


def test_options_of_the_call_win():
    assert completed(CNN, max_new_tokens=None, beams=2, forced_bos=None)[0] == {
        **OURS,
        "beams": 2,
        "forced_bos": None,
    }
    assert completed(CNN, max_new_tokens=10)[0] == {
        **OURS,
        "max_new_tokens": 10,
        "min_new_tokens": 10,
    }
    for options in (
        {"strategy": "greedy"},
        {"strategy": "sample"},
        {"temperature": 0.5},
        {"top_k": 3},
    ):
        assert "beams" not in completed(CNN, **options)[0]
    for options in ({"strategy": "greedy"}, {"beams": 3}):
        assert "top_k" not in completed({"do_sample": True}, **options)[0]


def test_settings_without_a_counterpart_are_named_once(bart, capsys):
    assert completed({"bad_words_ids": [[3], [4, 5]]})[0]["bad_words"] == ((3,), (4, 5))
    with pytest.raises(UserError, match="bad_words_ids is no list of lists of ids"):
        completed({"bad_words_ids": [[3], 4]})
    assert completed({**CNN, "sequence_bias": [[[3], 1.0]], "suppress_tokens": [],
        "eos_token_id": [2, 5], "do_sample": True}) == (
        OURS, ["sequence_bias", "do_sample with num_beams"],
    )  # fmt: skip
    assert completed({"max_length": 50, "min_length": 0, "forced_bos_token_id": 3}, False) == (
        {"max_new_tokens": 64}, ["max_length", "forced_bos_token_id"],
    )  # fmt: skip
    assert (
        completed({"typical_p": 0.5, "min_p": 0.1})[1] == []
        and completed({"typical_p": 0.5, "do_sample": True})[1]
    )
    odd = Config({"num_beam_groups": 2, "num_beams": 2, "diversity_penalty": 1.0}, "x/config.json")
    model = dataclasses.replace(bart, published=odd)
    assert generating.plan_of(model) == generating.plan_of(model, max_new_tokens=64)
    line = (
        "x/config.json: generation settings without a counterpart here, not applied: "
        "num_beam_groups"
    )
    assert capsys.readouterr().err.splitlines() == [line]


def test_settings_beside_the_config_replace_those_in_it(tmp_path):
    config = Config({"num_beams": 4, "max_length": 9, "d_model": 8}, tmp_path / "config.json")
    assert loading._with_generation(config) is config
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"max_length": 30, "early_stopping": None})
    )
    assert dict(loading._with_generation(config)) == {"max_length": 30, "d_model": 8}


def test_fields_of_a_wrong_kind_are_one_line():
    with pytest.raises(UserError, match="num_beams is 'four'; expected a whole number"):
        completed({"num_beams": "four"})
    with pytest.raises(UserError, match="num_beams is 0; it must be at least 1"):
        generating.plan_of(SimpleNamespace(pair=True, published=Config({"num_beams": 0})))
    with pytest.raises(
        UserError, match="early_stopping is 'soon'; it must be True, False or 'never'"
    ):
        generating.plan_of(
            SimpleNamespace(pair=True, published=Config({"num_beams": 2, "early_stopping": "soon"}))
        )
