"""ESM-2, ESM-1b and RoFormer against `transformers`: all classes with losses and gradients, token
dropout, the published table of angles, and what is refused."""

import jax
import numpy as np
import peers
import pytest

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import families
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.nn.embeddings.summed import RotaryPositions
from ptm_jax.nn.embeddings.token_dropout import TokenDropout

SIZES = dict(
    vocab_size=37, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=14
)
ESM = dict(SIZES, pad_token_id=1, mask_token_id=5, max_position_embeddings=24)
PROTEINS = {
    "rotary": dict(position_embedding_type="rotary", token_dropout=True),
    "left": dict(position_embedding_type="rotary", rope_theta=100.0, num_attention_heads=1),
    "absolute": dict(emb_layer_norm_before=True, token_dropout=True, layer_norm_eps=1e-5),
    "untied": dict(tie_word_embeddings=False),
}
RESIDUES = {"ForMaskedLM": "mlm", "ForSequenceClassification": "classify"}
RESIDUES |= {"ForTokenClassification": "tag"}
WORDS = {
    "plain": dict(hidden_act="relu"),
    "narrow": dict(embedding_size=10, rotary_value=True, num_attention_heads=1),
    "untied": dict(tie_word_embeddings=False, type_vocab_size=1, summary_use_proj=True),
}
ANGLES = [f"{root}encoder.embed_positions.weight" for root in ("", "roformer.")]
live = pytest.mark.skipif(
    peers.torch is None, reason="make test-full installs torch and transformers"
)


@live
@pytest.mark.full
@pytest.mark.parametrize("name", PROTEINS)
def test_all_classes_of_esm(name, tmp_path):
    """The classifier reads the first slot: rows are padded on the right for it, because padding has
    zeros for vectors there."""
    words = {**ESM, **PROTEINS[name], "num_labels": 3}
    config = peers.transformers.EsmConfig(attn_implementation="eager", **words)
    side = "left" if name == "left" else "right"
    given = peers.drawn(37, 16, side=side, types=1, classes=3, seed=len(name), least=6)
    del given["token_type_ids"]
    ids = given["input_ids"]
    masked = (np.random.default_rng(0).random(ids.shape) < 0.2) & (given["chosen"])
    masked[1] = False  # its only token: transformers divides by 0
    ids = np.where(masked, 5, ids)
    given["input_ids"] = np.where(given["attention_mask"], ids, 1).astype(np.int32)
    head = "contact_head.regression"
    unused = [f"{root}{head}.{leaf}" for root in ("", "esm.") for leaf in ("weight", "bias")]
    tasks = {task: ours for task, ours in RESIDUES.items() if (side, ours) != ("left", "classify")}
    peers.compare(tmp_path, config, peers.cases("Esm", tasks), given, unused=unused)


@live
@pytest.mark.full
@pytest.mark.parametrize("name", WORDS)
def test_all_classes_of_roformer(name, tmp_path):
    """Multiple choice reads the last slot there: rows are padded on the left."""
    words = {**SIZES, "max_position_embeddings": 24, **WORDS[name], "num_labels": 3}
    config = peers.transformers.RoFormerConfig(attn_implementation="eager", **words)
    given = peers.drawn(37, 16, side="left", types=words.get("type_vocab_size", 2), classes=3)
    unused = [*ANGLES, *(["cls.predictions.bias"] if name == "untied" else [])]
    peers.compare(tmp_path, config, peers.cases("RoFormer"), given, unused=unused)


@live
@pytest.mark.full
def test_a_causal_roformer(tmp_path):
    config = peers.transformers.RoFormerConfig(
        attn_implementation="eager", **SIZES, max_position_embeddings=24, is_decoder=True
    )
    group = peers.cases("RoFormer", {"ForCausalLM": "lm"})
    given = peers.drawn(37, 16, side="right")
    peers.compare(tmp_path, config, group, given, unused=ANGLES)


def system_of(kind, architecture, **fields):
    config = Config({"model_type": kind, **SIZES, "max_position_embeddings": 20, **fields})
    return checkpoint.record_of(config, architecture)[0]


def test_token_dropout_is_its_definition():
    """Row 0: two documents and padding, one of them all masks; row 1: one document."""
    layer = TokenDropout(vocab=Vocab(size=9, mask=5), rate=0.12)
    ids = np.array([[5, 2, 3, 4, 5, 5, 0, 5], [2, 5, 5, 3, 4, 6, 7, 8]])
    segments = np.array([[1, 1, 1, 1, 2, 2, 0, 0], [1] * 8])
    x = np.random.default_rng(0).normal(size=(2, 8, 3)).astype(np.float32)
    expected = np.zeros_like(x)
    for row in range(2):
        for place in range(8):
            document = segments[row] == segments[row, place]
            if ids[row, place] != 5 and segments[row, place]:
                share = (ids[row][document] == 5).mean()
                expected[row, place] = x[row, place] * 0.88 / (1 - share)
    result = np.asarray(layer(x, {"input_ids": ids, "segment_ids": segments}))
    real = segments > 0
    np.testing.assert_allclose(result[real], expected[real], rtol=1e-6)
    assert np.isfinite(result).all()


def test_the_published_table_of_angles_is_compared(tmp_path):
    system = system_of("roformer", "RoFormerForMaskedLM")
    params = towers.init(system.towers, jax.random.key(0), {"input_ids": np.ones((1, 4), np.int32)})
    checkpoint.write(tmp_path, system, params)
    assert checkpoint.read(tmp_path).report.extra == ()
    name = "roformer.encoder.embed_positions.weight"
    table = np.asarray(checkpoint.open_tensors(tmp_path).read(name))
    turns = np.arange(20)[:, None] / 10000.0 ** (np.arange(4) / 4)
    np.testing.assert_allclose(table, np.concatenate([np.sin(turns), np.cos(turns)], 1), atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("esm", {"token_dropout": True}, "mask_token_id"),
        ("esm", {"is_folding_model": True}, "ESMFold"),
        ("esm", {"is_decoder": True}, "decoder"),
        ("esm", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("roformer", {"add_cross_attention": True, "is_decoder": True}, "cross-attention"),
        ("roformer", {"summary_proj_to_labels": True}, "classes"),
    ],
    ids=str,
)
def test_configs_that_are_refused(kind, fields, words):
    with pytest.raises(UserError, match=words) as error:
        system_of(kind, families.get(kind).pretraining, **fields)
    assert "\n" not in str(error.value)


def test_esm_1b_has_a_table_of_positions_and_esm_2_has_none():
    old, new = (
        system_of("esm", "EsmModel", position_embedding_type=kind).towers["main"].encoder
        for kind in ("absolute", "rotary")
    )
    assert old.embed.position.offset == 2 and old.stack.block.attention.rotary is None
    assert isinstance(new.embed.position, RotaryPositions)


@live
@pytest.mark.full
def test_residues_have_the_ids_of_its_tokenizer(tmp_path):
    """Sequences with and without blanks, unknown letters, and special tokens in the text; a folder
    without a tokenizer takes ids."""
    from transformers.models.esm.configuration_esm import get_default_vocab_list

    sizes = {**ESM, "vocab_size": 33, "mask_token_id": 32, "position_embedding_type": "rotary"}
    model = peers.randomise(
        peers.transformers.EsmForMaskedLM(peers.transformers.EsmConfig(**sizes)), 0
    )
    model.save_pretrained(tmp_path)
    ids = np.array([[0, 20, 32, 11, 2]])
    logits = ptm_jax.load(tmp_path)(ids).logits
    np.testing.assert_allclose(logits, model(peers.torch.tensor(ids)).logits.detach(), atol=1e-4)
    (tmp_path / "vocab.txt").write_text("\n".join(get_default_vocab_list()))
    theirs = peers.transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    theirs.save_pretrained(tmp_path)
    ours = ptm_jax.load(tmp_path)
    for text in ("MKTVRQERLK", "M K T", "MKJJT<mask>VX", "mkt", "MK.T-BUZO", "M<null_1>K"):
        assert [0, *ours.tokens(text).ids, 2] == theirs(text)["input_ids"], text
