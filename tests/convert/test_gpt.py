"""GPT, GPT-2 and CTRL against `transformers`: random configs, all head classes."""

import numpy as np
import peers
import pytest

pytestmark = peers.LIVE


TASKS = {"LMHeadModel": "lm", "ForSequenceClassification": "classify"}
DOUBLE = dict(
    tasks=("lm", "choose"),
    outputs={"lm": ("labels", "logits"), "choose": ("mc_labels", "mc_logits")},
    total=lambda out: out.mc_loss + 0.5 * out.loss,  # GPT's fine-tuning: Radford et al. 2018, Eq. 5
)
# GPT's mask has one axis too few for several readings; padding on the right is seen by nobody
# without one.
GPT = [
    *peers.cases("OpenAIGPT", TASKS),
    peers.Case("OpenAIGPTDoubleHeadsModel", **DOUBLE, without=("attention_mask",)),
]
GPT2 = peers.cases(
    "GPT2", {**TASKS, "ForTokenClassification": "tag", "ForQuestionAnswering": "span"}
)
GPT2 += [peers.Case("GPT2DoubleHeadsModel", **DOUBLE)]
CTRL = peers.cases("CTRL", TASKS)
SHARED = dict(
    vocab_size=61, n_positions=16, n_layer=2, n_head=3, n_embd=24, num_labels=3, pad_token_id=0
)
CONFIGS = {
    ("OpenAIGPTConfig", "plain"): dict(),
    ("OpenAIGPTConfig", "single"): dict(n_layer=1, n_head=1, n_embd=6, afn="relu"),
    ("OpenAIGPTConfig", "untied"): dict(n_head=4, n_embd=8, afn="swish", tie_word_embeddings=False),
    ("OpenAIGPTConfig", "left"): dict(n_head=2, n_embd=10, layer_norm_epsilon=1e-3),
    ("GPT2Config", "plain"): dict(),
    ("GPT2Config", "single"): dict(
        n_layer=1, n_head=1, n_embd=6, n_inner=5, activation_function="relu"
    ),
    ("GPT2Config", "untied"): dict(
        n_head=4, n_embd=8, scale_attn_weights=False, tie_word_embeddings=False
    ),
    ("GPT2Config", "depth"): dict(
        n_layer=3, n_head=2, n_embd=10, scale_attn_by_inverse_layer_idx=True
    ),
    ("GPT2Config", "deeper"): dict(
        n_layer=4, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True
    ),
    ("GPT2Config", "left"): dict(
        n_head=2, n_inner=11, activation_function="gelu_10", reorder_and_upcast_attn=True
    ),
    ("CTRLConfig", "plain"): dict(dff=40),
    ("CTRLConfig", "single"): dict(n_layer=1, n_head=1, n_embd=6, dff=5),
    ("CTRLConfig", "untied"): dict(n_head=4, n_embd=8, dff=9, tie_word_embeddings=False),
    ("CTRLConfig", "left"): dict(n_head=2, dff=17, layer_norm_epsilon=1e-3),
}
GROUPS = {"OpenAIGPTConfig": GPT, "GPT2Config": GPT2, "CTRLConfig": CTRL}


@pytest.mark.parametrize(("kind", "name"), CONFIGS)
def test_decoders(kind, name, tmp_path):
    words = {**SHARED, "attn_implementation": "eager", **CONFIGS[kind, name]}
    config = getattr(peers.transformers, kind)(**words)
    given = peers.drawn(61, 16, side="left" if name == "left" else "right", seed=len(name))
    del given["token_type_ids"]  # these look types up among the words
    given["mc_token_ids"] = given["cls"]
    mask = given["attention_mask"] > 0
    before = np.pad(
        mask[:, :-1], ((0, 0), (1, 0)), constant_values=True
    )  # we ask for no token after padding
    given["lm_labels"] = np.where(mask & before, given["input_ids"], peers.IGNORED)
    # The softmax of an answer's ends is over padding too, whose states before a causal text are
    # nobody's.
    left = name == "left"
    group = [case for case in GROUPS[kind] if not (left and (case.without or "span" in case.tasks))]
    peers.compare(tmp_path, config, group, given, atol=1e-5 if name == "single" else 1e-4)
