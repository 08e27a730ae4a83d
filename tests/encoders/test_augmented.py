"""Source and target words from a language model: what is read, what is trained, what begins."""

import dataclasses

import jax
import numpy as np
import pytest

from ptm_jax.adapt.modules.model_words import ModelWords, TargetWords
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import adapted
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model, distinct
from ptm_jax.encoders.transformer.augmented import augmented, target_augmented
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.inference.decoding.decode import decode
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems import get
from ptm_jax.systems.sequence_to_sequence.bart import seq2seq

VOCAB, DRAW = Vocab(size=20, pad=1, eos=2, bos=0), Normal(0.4)
SIZES = {"heads": 2, "dropout": 0.0, "attention_dropout": 0.0, "initializer": DRAW, "vocab": VOCAB}


def pair():
    return seq2seq(layers=1, width=8, positions=LearnedPositions(9, initializer=DRAW), **SIZES)


def model():
    return transformer(layers=2, width=6, positions=LearnedPositions(9, initializer=DRAW), **SIZES)


IDS = np.array([[5, 6, 7, 8], [9, 10, 11, 1]], np.int32)
BATCH = {
    "input_ids": IDS,
    "segment_ids": (IDS > 1).astype(np.int32),
    "decoder_input_ids": IDS[:, ::-1].copy(),
}


def causal():
    return model().clone(direction="causal")


def with_(params, path, new):
    """Returns a tree in which the parameters below `path` are others."""
    name, _, below = path.partition("/")
    return {**params, name: with_(params[name], below, new) if below else new}


@pytest.mark.full
@pytest.mark.parametrize("tuned", [False, True])
def test_the_encoder_reads_a_projection_of_the_states(tuned):
    """The network equals a plain one whose table of the row's words holds the projections."""
    network = distinct(augmented(pair(), model(), tuned=tuned))
    params = network.init(jax.random.key(0), BATCH)["params"]
    encoded = network.apply({"params": params}, BATCH)
    states = model().apply({"params": params["words"]}, {k: BATCH[k] for k in list(BATCH)[:2]})
    layers = np.asarray(states.layers, np.float64)
    if tuned:
        mixed = np.asarray(states.hidden)
    else:
        params = with_(params, "mix/alpha", np.array([0.3, -0.2, 0.5], np.float32))
        encoded = network.apply({"params": params}, BATCH)
        normal = layers - layers.mean(-1, keepdims=True)
        normal /= np.sqrt((normal**2).mean(-1, keepdims=True) + 1e-12)
        weights = np.exp([0.3, -0.2, 0.5])
        mixed = np.einsum("n,nbld->bld", weights / weights.sum(), normal)
    dense = params["encoder"]["embed"]["expand"]["states"]
    vectors = mixed @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
    table = np.array(params["encoder"]["embed"]["token"])
    source = np.array(table)
    source[IDS.reshape(-1)] = vectors.reshape(-1, 8)  # no word occurs twice
    inner = distinct(pair()).encoder
    plain = {**params["encoder"]["embed"], "token": source}
    plain.pop("expand")
    wanted = inner.apply(
        {"params": {**params["encoder"], "embed": plain}}, {k: BATCH[k] for k in list(BATCH)[:2]}
    ).hidden
    assert np.allclose(encoded.extra["source"], wanted, atol=1e-5)


@pytest.mark.status("model_words", "built")
def test_the_language_model_is_frozen_unless_it_is_tuned():
    main, words = Model(encoder=pair(), heads={"lm": LMHead()}), Model(encoder=model(), heads={})
    parent = get("xlm_translation_mini")
    system = dataclasses.replace(
        parent, towers={"main": main, "words": words}, adapt=(ModelWords(),)
    )
    work = adapted(system)
    assert list(work.towers) == ["main"] and work.towers["main"].encoder.words == model()
    path = "main/encoder/words/stack/block/ffn/up/kernel"
    assert not ModelWords().trainable(path, 0) and ModelWords(kind="tuned").trainable(path, 0)
    assert ModelWords().trainable("main/encoder/mix/alpha", 0)
    with pytest.raises(UserError, match="reads another model; give both, as --init main=MODEL w"):
        adapted(dataclasses.replace(system, towers={"main": main}))


@pytest.mark.full
@pytest.mark.parametrize("tuned", [False, True])
def test_the_decoder_reads_a_projection_of_the_states(tuned):
    """The network equals a plain one whose decoder has a table of the projections, and a plain
    decoding of it word by word equals the whole forward pass."""
    network = distinct(target_augmented(pair(), causal(), tuned=tuned))
    params = network.init(jax.random.key(0), BATCH)["params"]
    encoded = network.apply({"params": params}, BATCH)
    inner = params["decoder"]
    states = causal().apply({"params": inner["words"]}, {"input_ids": BATCH["decoder_input_ids"]})
    if tuned:
        mixed = np.asarray(states.hidden)
    else:
        layers = np.asarray(states.layers, np.float64)
        normal = layers - layers.mean(-1, keepdims=True)
        mixed = (normal / np.sqrt((normal**2).mean(-1, keepdims=True) + 1e-12)).mean(0)
    dense = inner["embed"]["expand"]["states"]
    vectors = mixed @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
    table = np.array(params["encoder"]["embed"]["token"])
    table[BATCH["decoder_input_ids"].reshape(-1)] = vectors.reshape(-1, 8)
    source = distinct(pair()).encoder.apply(
        {"params": params["encoder"]}, {k: BATCH[k] for k in ("input_ids", "segment_ids")}
    )
    plain = {name: part for name, part in inner.items() if name not in ("words", "mix")}
    plain["embed"] = {name: part for name, part in inner["embed"].items() if name != "expand"}
    wanted = (
        distinct(pair())
        .decoder.apply(
            {"params": plain},
            {"input_ids": BATCH["decoder_input_ids"]},
            source=source.hidden,
            source_segments=BATCH["segment_ids"],
            table=table,
        )
        .hidden
    )
    assert np.allclose(encoded.hidden, wanted, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("beams", [1, 3])
def test_target_words_are_read_as_they_are_written(beams):
    module = Model(encoder=target_augmented(pair(), causal(), tuned=False), heads={"lm": LMHead()})
    params = distinct(module.encoder).init(jax.random.key(0), BATCH)["params"]
    tower = Tower(module, {"encoder": params})
    kind = {"strategy": "beam", "beams": 3, "length_penalty": 0.0} if beams > 1 else {}
    options = Generation(max_new_tokens=4, **kind)
    sources = [row[row > 1] for row in IDS]
    written = decode(tower, sources, options, start=2)
    ids = np.concatenate([np.full((2, 1), 2), written.tokens[:, 0, :-1]], 1).astype(np.int32)
    encoded = tower({**BATCH, "decoder_input_ids": ids, "decoder_segment_ids": np.ones_like(ids)})
    scores = jax.nn.log_softmax(tower.head("lm", encoded.hidden).logits(), -1)
    chosen = np.take_along_axis(np.asarray(scores), written.tokens[:, 0, :, None], -1)[..., 0]
    if beams == 1:
        assert np.array_equal(scores.argmax(-1), written.tokens[:, 0])
    assert np.allclose(chosen.sum(-1), written.scores[:, 0], atol=1e-4)


@pytest.mark.status("target_words", "built")
def test_a_model_of_target_words_is_causal_and_frozen_unless_it_is_tuned():
    main = Model(encoder=pair(), heads={"lm": LMHead()})
    parent = get("xlm_translation_mini")

    def system(words):
        towers = {"main": main, "target_words": Model(encoder=words, heads={})}
        return dataclasses.replace(parent, towers=towers, adapt=(TargetWords(),))

    work = adapted(system(causal()))
    assert list(work.towers) == ["main"]
    assert work.towers["main"].encoder.decoder.words == causal()
    path = "main/encoder/decoder/words/stack/block/ffn/up/kernel"
    assert not TargetWords().trainable(path, 0) and TargetWords(kind="tuned").trainable(path, 0)
    assert TargetWords().trainable("main/encoder/decoder/mix/alpha", 0)
    with pytest.raises(UserError, match="reads the words to come; give a causal Transformer"):
        adapted(system(model()))
    with pytest.raises(UserError, match="give both, as --init main=MODEL target_words=LM"):
        adapted(dataclasses.replace(system(model()), towers={"main": main}))
