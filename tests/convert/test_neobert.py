"""NeoBERT, which Transformers lacks, against the definition of its released code; what is
refused."""

import neobert_definition
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError

SIZES = dict(
    model_type="neobert",
    vocab_size=64,
    hidden_size=24,
    num_attention_heads=3,
    num_hidden_layers=2,
    intermediate_size=20,
    max_length=32,
    norm_eps=1e-5,
    pad_token_id=0,
    hidden_act="SwiGLU",
)
AUTO = {"auto_map": {"AutoModel": "model.NeoBERT"}, "architectures": ["NeoBERTLMHead"]}


@pytest.mark.full
@pytest.mark.skipif(peers.torch is None, reason="make test-full installs torch and transformers")
def test_logits_loss_gradients_and_the_way_back(tmp_path):
    neobert_definition.compare(tmp_path, SIZES, peers.drawn(64, 11, seed=2))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ngpt": True}, "supported is False"),
        ({"rope": False}, "supported is True"),
        ({"hidden_act": "gelu"}, "supported are SwiGLU"),
        ({"architectures": ["NeoBERTForVision"]}, "unknown architecture 'NeoBERTForVision'"),
    ],
    ids=str,
)
def test_configs_that_are_refused(fields, words):
    with pytest.raises(UserError, match=words) as error:
        checkpoint.record_of(Config({**SIZES, **AUTO, **fields}))
    assert "\n" not in str(error.value)


def test_remote_code_of_an_unknown_model_is_refused():
    fields = {**SIZES, **AUTO, "model_type": "otherbert"}
    with pytest.raises(UserError, match="never run; unknown model_type 'otherbert'") as error:
        checkpoint.record_of(Config(fields))
    assert "\n" not in str(error.value)
