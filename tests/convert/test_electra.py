"""ELECTRA's discriminators and generators against `transformers`: random configs, all classes."""

import dataclasses

import numpy as np
import peers
import pytest

from ptm_jax.objectives.base import OnePass, binary_loss, real_tokens

pytestmark = peers.LIVE


@dataclasses.dataclass(frozen=True)
class Detection(OnePass):
    """A discriminator's loss on given labels; in pre-training they come from the generator."""

    tower = "main"

    def of(self, tower, encoded, batch):
        return binary_loss(tower.read("rtd", encoded, batch), batch["replaced"], real_tokens(batch), "nll")


ELECTRA = [
    *peers.cases("Electra"),
    peers.Case("ElectraForPreTraining", ("rtd",), objective=Detection()),
    peers.Case("ElectraForCausalLM", ("lm",)),
]
CONFIGS = {
    "narrow": dict(hidden_size=24, embedding_size=10, num_attention_heads=3, hidden_act="relu"),
    "same": dict(hidden_size=8, embedding_size=8, num_attention_heads=1, num_hidden_layers=1, summary_activation=""),
    "untied": dict(hidden_size=12, embedding_size=20, tie_word_embeddings=False, num_attention_heads=4, hidden_act="silu"),
    "left": dict(hidden_size=20, embedding_size=6, summary_type="last", summary_activation="tanh", layer_norm_eps=1e-5),
    "causal": dict(hidden_size=16, embedding_size=5, is_decoder=True, summary_use_proj=False, type_vocab_size=3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_electra(name, tmp_path):
    words = dict(vocab_size=61, max_position_embeddings=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=14)
    words |= dict(num_labels=3, attn_implementation="eager")
    config = peers.transformers.ElectraConfig(**{**words, **CONFIGS[name]})
    side = "left" if name == "left" else "right"
    given = peers.drawn(61, 16, side=side, types=config.type_vocab_size, seed=len(name))
    # A row's first token follows nothing, or padding.
    later = given["attention_mask"] * (given["attention_mask"].cumsum(1) > 1)
    given["lm_labels"] = np.where(later, given["input_ids"], peers.IGNORED)
    peers.compare(tmp_path, config, ELECTRA, given, atol=1e-5 if config.num_hidden_layers == 1 else 1e-4)
