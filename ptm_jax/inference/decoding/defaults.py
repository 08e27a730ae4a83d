"""Defaults of the options of decoding, from a checkpoint's generation_config.json.
An older checkpoint has them in config.json.

The meaning of a field is that of `transformers` 5: `max_length` and `min_length` count the first
token of a decoder, a `num_beams`, `length_penalty` or `early_stopping` brings the library's length
rule and its values for the two others, and sampling keeps the 50 best tokens if `top_k` is missing.
`task_specific_params` apply to no call, as there.
"""

from __future__ import annotations

from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.records import all_ends, ends
from ptm_jax.core.errors import UserError

BEAMS = ("num_beams", "length_penalty", "early_stopping")
SAMPLING = ("do_sample", "temperature", "top_k", "top_p")
RULES = (
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id",
    "forced_eos_token_id",
)  # fmt: skip
LENGTHS = ("max_new_tokens", "max_length", "min_new_tokens", "min_length")
UNSUPPORTED = {
    "begin_suppress_tokens": None, "constraints": None, "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None, "guidance_scale": 1.0, "max_time": None, "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": None, "renormalize_logits": False, "sequence_bias": None, "stop_strings": None,
    "suppress_tokens": None, "token_healing": False, "watermarking_config": None,
}  # fmt: skip
"""{field without a counterpart here: the value that changes nothing}"""
OF_SAMPLES = {
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
}
"""The same, for fields that matter only to sampling."""
FIELDS = (*BEAMS, *SAMPLING, *RULES, *LENGTHS, *UNSUPPORTED, *OF_SAMPLES)
LONGEST = 64
"""`max_new_tokens` where neither the call nor the checkpoint gives one."""


def completed(
    config: Config, pair: bool, options: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns (`options` completed by a checkpoint's settings, its settings that are not applied).
    Only settings that change the result are listed.

    `pair`: an encoder with a decoder. Options of the call win: sampling or greedy ones against the
    checkpoint's beams, beams and greedy ones against its sampling. A published minimum is at most
    the maximum of the call. Raises UserError for a field of a wrong type.
    """
    options = {
        name: value for name, value in options.items() if (name, value) != ("max_new_tokens", None)
    }
    lengths, left = _lengths(config, pair)
    rules, more = _rules(config, pair)
    strategy, others = _strategy(config, options)
    settings = {"max_new_tokens": LONGEST, **lengths, **rules, **strategy, **options}
    if (
        "min_new_tokens" in lengths
        and "min_new_tokens" not in options
        and isinstance(settings["max_new_tokens"], int)
    ):
        settings["min_new_tokens"] = min(settings["min_new_tokens"], settings["max_new_tokens"])
    return settings, left + more + others


def _lengths(config: Config, pair: bool) -> tuple[dict[str, Any], list[str]]:
    lengths, left = {}, []
    for side in ("max", "min"):
        new, total = config(f"{side}_new_tokens", int, None), config(f"{side}_length", int, None)
        if new is not None:
            lengths[f"{side}_new_tokens"] = new
        elif total is not None and pair:
            lengths[f"{side}_new_tokens"] = max(total - 1, 0)
        elif total:  # it counts the prompt, so it differs from prompt to prompt
            left.append(f"{side}_length")
    return lengths, left


def _rules(config: Config, pair: bool) -> tuple[dict[str, Any], list[str]]:
    forced = {"forced_bos": ends(config, "forced_bos_token_id", None)}
    last = all_ends(config, "forced_eos_token_id")
    forced["forced_eos"] = last if len(last) > 1 else next(iter(last), None)
    penalty, ngram = (
        config("repetition_penalty", float, None),
        config("no_repeat_ngram_size", int, None),
    )
    rules = {**forced, "repetition_penalty": penalty, "no_repeat_ngram": ngram}
    rules["bad_words"] = _bad_words(config)
    left = [
        name
        for name, neutral in UNSUPPORTED.items()
        if config(name, None, None) and config[name] != neutral
    ]
    if not pair:  # a decoder begins with its prompt's first token
        left += ["forced_bos_token_id"] if rules.pop("forced_bos") is not None else []
    return {name: value for name, value in rules.items() if value is not None}, left


def _bad_words(config: Config) -> tuple[tuple[int, ...], ...] | None:
    """Returns the published `bad_words_ids`. Raises UserError."""
    words = config("bad_words_ids", list, None)
    if words and not all(
        isinstance(word, list) and word and all(type(i) is int and i >= 0 for i in word)
        for word in words
    ):
        raise UserError(f"{config.file}: bad_words_ids is no list of lists of ids; correct it")
    return tuple(map(tuple, words)) if words else None


def _strategy(config: Config, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    beams, samples = config.positive("num_beams", 1), config("do_sample", bool, False)
    strategy, wide = options.get("strategy"), options.get("beams")
    drawn = options.get("temperature", 1.0) != 1.0 or any(
        options.get(name) is not None for name in ("top_k", "top_p")
    )
    settings, left = {}, []
    if any(config(name, None, None) is not None for name in ("model_type", *BEAMS)):
        alpha, early = config("length_penalty", float, 1.0), config("early_stopping", None, False)
        settings = {"length_rule": "power", "length_penalty": alpha, "early_stopping": early}
    if beams > 1 and wide != 1 and strategy in (None, "beam") and not drawn:
        if samples and wide is None and strategy is None:
            left.append("do_sample with num_beams")
        return {"beams": beams, **settings}, left
    if samples and strategy in (None, "sample") and wide in (None, 1):
        top_k, top_p = config("top_k", int, 50), config("top_p", float, 1.0)  # top_k 0 is off
        settings |= {"strategy": "sample", "temperature": config("temperature", float, 1.0)}
        settings |= {"top_k": top_k or None, "top_p": top_p if top_p < 1 else None}
        left += [
            name
            for name, neutral in OF_SAMPLES.items()
            if config(name, None, None) and config[name] != neutral
        ]
    return settings, left
