"""DeBERTa's versions against `transformers`: all head classes with losses and gradients, both
vocabulary heads, the buckets of distances, and what is refused."""

import functools

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.nn.attention.disentangled import Distances

SIZES = dict(
    vocab_size=61,
    hidden_size=24,
    num_attention_heads=3,
    num_hidden_layers=2,
    intermediate_size=14,
    max_position_embeddings=32,
    pad_token_id=0,
)
RELATIVE = dict(relative_attention=True, position_biased_input=False, pos_att_type="c2p|p2c")
SHARED = dict(share_att_key=True, position_buckets=4, norm_rel_ebd="layer_norm")
V1 = {
    "published": dict(RELATIVE, max_relative_positions=5, num_attention_heads=1),
    "one term": dict(RELATIVE, pos_att_type="p2c", type_vocab_size=2, legacy=False),
    "absolute": dict(num_hidden_layers=1, hidden_act="relu", tie_word_embeddings=False),
}
V2 = {
    "v3": RELATIVE | SHARED,
    "v2": dict(
        RELATIVE | SHARED,
        conv_kernel_size=5,
        conv_groups=2,
        conv_act="gelu",
        max_relative_positions=9,
        legacy=False,
    ),
    "own layers": dict(
        RELATIVE, position_buckets=6, num_hidden_layers=1, position_biased_input=True
    ),
    "one term": dict(RELATIVE, pos_att_type="c2p", pooler_hidden_act="tanh", cls_dropout=0.2),
    "absolute": dict(num_hidden_layers=1, pos_att_type="p2c|c2p", tie_word_embeddings=False),
}
CASES = [("Deberta", name) for name in V1] + [("DebertaV2", name) for name in V2]


LIVE = pytest.mark.skipif(peers.torch is None, reason="make test-full installs transformers")


def compared(folder, prefix, fields, tasks, **options):
    """Compares the classes of some tasks under one config; `options` are those of the inputs."""
    words = {"num_labels": 3, **SIZES, **fields}
    config = getattr(peers.transformers, f"{prefix}Config")(**words)
    types = max(config.type_vocab_size, 1)
    given = peers.drawn(61, 16, types=types, seed=len(fields), least=4, **options)
    if "span" in tasks.values():  # the scores of padding count in Transformers' loss of spans
        given["attention_mask"] = np.ones_like(given["attention_mask"])
        given["input_ids"] = np.maximum(given["input_ids"], 4)
    unused = () if words.get("tie_word_embeddings", True) else ("cls.predictions.bias",)
    peers.compare(folder, config, peers.cases(prefix, tasks), given, unused=unused)


@pytest.mark.full
@LIVE
@pytest.mark.parametrize(("prefix", "name"), CASES)
def test_all_classes_but_spans(prefix, name, tmp_path):
    tasks = {task: head for task, head in peers.BERT_TASKS.items() if head != "span"}
    if prefix == "Deberta":
        del tasks["ForMultipleChoice"]
    compared(tmp_path, prefix, (V1 if prefix == "Deberta" else V2)[name], tasks)


@pytest.mark.full
@LIVE
@pytest.mark.parametrize("prefix", ["Deberta", "DebertaV2"])
def test_spans_of_full_rows(prefix, tmp_path):
    fields = V1["one term"] if prefix == "Deberta" else V2["v3"]
    fields = dict(fields, num_hidden_layers=1)
    compared(tmp_path, prefix, fields, {"ForQuestionAnswering": "span"})


@pytest.mark.full
@LIVE
def test_padding_on_the_left(tmp_path):
    compared(tmp_path, "DebertaV2", V2["v2"], {"ForMaskedLM": "mlm"}, side="left")


@pytest.mark.full
@LIVE
@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (32, 128), (4, 9), (6, 1000)])
def test_buckets_equal_the_peers(buckets, farthest):
    module = peers.transformers.models.deberta_v2.modeling_deberta_v2
    ids = peers.torch.zeros((1, 2 * farthest, 1))
    number = module.build_relative_position(ids, ids, buckets, farthest)[0].numpy() + buckets
    theirs = np.clip(number[farthest], 0, 2 * buckets - 1)  # the query at `farthest`
    ours = Distances(farthest=farthest, buckets=buckets).lines()[: 2 * farthest]
    np.testing.assert_array_equal(ours, theirs)


def hidden(system, ids, params):
    return towers.bind(system.towers, params)["main"]({"input_ids": ids}).hidden


@pytest.mark.full
@LIVE
def test_both_towers_of_a_detection_come_back_and_load_in_the_peers(tmp_path):
    """The released code's tensors: `mask_predictions` of the discriminator, the decoder's positions
    of the generator. Transformers reads the encoders of both."""
    fields = config_of("deberta-v2", **SHARED)
    detector, _ = checkpoint.record_of(fields, "ReplacedTokenDetectionModel")
    decoding = Config({**fields, "enhanced_mask_decoder": True, "legacy": False})
    generator, _ = checkpoint.record_of(decoding, "DebertaV2ForMaskedLM")
    ids = np.arange(4, 12, dtype=np.int32)[None]
    for name, system in (("detector", detector), ("generator", generator)):
        begin = jax.jit(functools.partial(towers.init, system.towers))
        params = begin(jax.random.key(1), {"input_ids": ids})
        checkpoint.write(tmp_path / name, system, params)
        again = checkpoint.read(tmp_path / name)
        assert again.system.towers == system.towers and again.report.extra == ()
        jax.tree.map(np.testing.assert_array_equal, again.params, params)
        encode = jax.jit(functools.partial(hidden, system, ids))
        ours = encode(params)
        peer = peers.transformers.AutoModel.from_pretrained(tmp_path / name).eval()
        theirs = peer(peers.torch.tensor(ids)).last_hidden_state.detach().numpy()
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def config_of(model_type, **fields):
    return Config({"model_type": model_type, **SIZES, **RELATIVE, **fields})


@pytest.mark.parametrize(
    ("model_type", "fields", "words"),
    [
        ("deberta", {"talking_head": True}, "talking heads"),
        ("deberta", {"pos_att_type": "c2p|p2p"}, "p2p"),
        ("deberta", {"pos_att_type": "none"}, "'none'; supported"),
        ("deberta", {"pos_att_type": ["c2p", "c2p"]}, "twice"),
        ("deberta-v2", {"pos_att_type": ["C2P"]}, "'C2P'; supported"),
        ("deberta", {"conv_kernel_size": 3}, "no convolution"),
        ("deberta-v2", {"embedding_size": 12}, "expected 24"),
        (
            "deberta",
            {"enhanced_mask_decoder": True, "position_biased_input": True},
            "expected false",
        ),
        ("deberta-v2", {"attention_head_size": 4}, "expected 8"),
        ("deberta-v2", {"position_buckets": 400}, "less than"),
        ("deberta-v2", {"conv_kernel_size": 4}, "an odd size"),
        ("deberta-v2", {"conv_kernel_size": 3, "conv_groups": 5}, "divide hidden_size"),
    ],
    ids=str,
)
def test_configs_that_are_refused(model_type, fields, words):
    with pytest.raises(UserError, match=words) as error:
        checkpoint.record_of(config_of(model_type, **fields), None)
    assert "\n" not in str(error.value)
