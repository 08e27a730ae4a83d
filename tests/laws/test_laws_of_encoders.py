"""The laws of every encoder and head: rows are alone, padding and other documents are unseen, the
declared direction holds.

One miniature of every kind of encoder, parameters drawn by numpy, one program each.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.convert.families.bert import crossed
from ptm_jax.core import facts, slots, spec, towers
from ptm_jax.core.paths import flatten
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.sentence_masking import SentenceSlots
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.context2vec import ContextLSTM
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.encoders.recurrent.strings import Strings
from ptm_jax.encoders.transformer import augmented, bert_fused
from ptm_jax.encoders.transformer.seq2seq import BridgedEncoderDecoder
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.encoders.trees import TreeEncoder
from ptm_jax.encoders.words.bags import BagOfNGrams
from ptm_jax.encoders.words.windows import SentenceEncoder
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.embeddings.adaptive import AdaptiveTable
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions, RotaryPositions
from ptm_jax.nn.graph.convolution import SyntacticGCN
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.layers import Dense
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.qrnn import QRNN
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.nn.tree.recursive import RecursiveNN
from ptm_jax.nn.tree.tree_lstm import BinaryTreeLSTM, ChildSumTreeLSTM
from ptm_jax.statistics.subwords import HashedWordNGrams
from ptm_jax.systems.transformers.modern import esm2
from support import covering, registered
from support.corrupting import VOCAB

MINIS = {
    name: systems.get(name).towers["main"] for name in systems.names() if name.endswith("_mini")
}
FILLED = {
    name: tower.encoder.vocab if "fasttext" in name else VOCAB for name, tower in MINIS.items()
}
MINIS = {name: facts.stand_ins(tower, FILLED[name]) for name, tower in MINIS.items()}


def first_of(key):
    """The first miniature of every value of `key(tower)`."""
    return tuple({key(tower): name for name, tower in reversed(MINIS.items())}.values())


def classes(values):
    return frozenset(type(part) for value in values for part in registered.parts(value))


KINDS = first_of(lambda tower: (classes([tower.encoder]), classes(tower.heads.values())))
FACTS = first_of(
    lambda tower: (type(tower.encoder), tower.encoder.direction, type(tower.encoder.embeddings))
)
"""One of every class, direction and kind of embeddings; the other kinds differ in facts that their
own tests look at."""
EMBED = Embeddings(vocab=VOCAB, width=12)
HALF = functools.partial(
    transformer, vocab=VOCAB, layers=1, heads=2, positions=LearnedPositions(size=32)
)
OWN = {
    "two_widths": BridgedEncoderDecoder(
        HALF(width=8), crossed(HALF(width=12, direction="causal")), None, Dense(12)
    )
}
BOTH = Bidirectional(
    LSTM(hidden=12, project=6, cell_clip=3.0, project_clip=3.0), GRU(hidden=6, backward=True)
)
OWN |= {"two_ways": LSTMEncoder(embed=EMBED, layers=(BOTH,))}
WAYS = [LSTM(hidden=6, backward=backward) for backward in (False, True)]
OWN |= {
    "context2vec": ContextLSTM(vocab=VOCAB, width=6, right=WAYS[0], left=WAYS[1], hidden=12, out=12)
}
OWN |= {"strings": Strings(alphabet=257, width=6, right=WAYS[0], left=WAYS[1], room=18)}
OWN |= {"senna_sentence": SentenceEncoder(embed=EMBED, filters=12, features=12)}
OWN |= {"qrnn": LSTMEncoder(embed=EMBED, layers=(QRNN(12, 12),))}
UP = RecursiveNN(tensor=True), BinaryTreeLSTM(hidden=6)
OWN |= {"tree_up": TreeEncoder(embed=EMBED, layers=UP)}
GRAPH = ChildSumTreeLSTM(hidden=6, both=True), SyntacticGCN(hidden=12, labels=3)
BAG = BagOfNGrams(
    vocab=VOCAB, width=6, initializer=Uniform(0.5), grams=HashedWordNGrams(buckets=50)
)
OWN |= {"bag": facts.stand_ins(BAG, VOCAB)}
OWN |= {"tree_both": TreeEncoder(embed=EMBED, below=(BOTH,), layers=GRAPH)}
PROTEIN = esm2.encoder(
    vocab=VOCAB, layers=1, width=12, heads=2, positions=RotaryPositions(limit=32)
)
TURNED = {"stack.block.attention.rotary": Rotary(interleave=True, values=True)}
OWN |= {"turned_values": spec.override(PROTEIN, TURNED)}
GENERATOR = facts.stand_ins(systems.get("deberta_v3_mini").towers["generator"], VOCAB)
OWN |= {"mask_decoder": GENERATOR.encoder}
PAIR = spec.respell(systems.get("transformer_mini").towers["main"].encoder, Vocab, VOCAB)
WORDS = HALF(width=6)
OWN |= {"fused": bert_fused.fused(PAIR, WORDS)}
OWN |= {"augmented": augmented.augmented(PAIR, WORDS, tuned=False)}
BEFORE = WORDS.clone(direction="causal")
OWN |= {"target_words": augmented.target_augmented(PAIR, BEFORE, tuned=False)}
"""Encoders that no system of the catalogue has."""
ROWS, LENGTH, TARGET, PLACE = 4, 16, 8, 5


@functools.cache
def module(name):
    return Model(encoder=OWN[name], heads={}) if name in OWN else MINIS[name]


COVERED = {
    "encoders": {name: registered.class_names(module(name).encoder) for name in (*FACTS, *OWN)},
    "heads": {
        name: {type(head).__name__ for head in module(name).heads.values()} for name in KINDS
    },
}
each = registered.by_case(covering.params("encoders", COVERED["encoders"]))


def width_of(name):
    return isinstance(module(name).encoder, SentenceSlots) and systems.get(name).examples.width


def batch_of(name, seed=0):
    """Row 0: two documents and padding; row 1: one and padding; the others are full. Of sentences:
    slots."""
    draw = np.random.default_rng(seed)
    place, length = np.arange(LENGTH), LENGTH
    segments = np.ones((ROWS, LENGTH), int)
    segments[0] = np.select([place < 6, place < 12], [1, 2], 0)
    segments[1, 10:] = 0
    positions = np.where(segments == 2, place - 6, place)
    if isinstance(module(name).encoder, SentenceSlots):
        width, count = systems.get(name).examples.width, systems.get(name).examples.sentences
        length = width * count
        within, slot = np.arange(length) % width, np.arange(length) // width
        segments = np.tile(np.where(within < 5, slot + 1, 0), (ROWS, 1))
        segments[:2, length // 2 :] = 0
        positions = np.tile(within, (ROWS, 1))
    fields = {
        "input_ids": draw.integers(10, 200, (ROWS, length)),
        "segment_ids": segments,
        "positions": positions,
    }
    fields["document_ids"] = np.zeros((ROWS, length))
    fields |= {"rows": np.arange(ROWS), "characters": draw.integers(1, 50, (ROWS, length, 16))}
    if module(name).encoder.reads_source or module(name).encoder.direction == "decoder":
        decoder = np.ones((ROWS, TARGET), int)
        decoder[0] = [1, 1, 1, 2, 2, 2, 0, 0]
        fields |= {
            "decoder_input_ids": draw.integers(10, 200, (ROWS, TARGET)),
            "decoder_segment_ids": decoder,
        }
        fields |= {
            "decoder_positions": np.where(decoder == 2, np.arange(TARGET) - 3, np.arange(TARGET))
        }
        fields |= {
            "sentence_positions": np.zeros((ROWS, 2), int) + np.arange(2),
            "sentence_weights": np.ones((ROWS, 2)),
        }
    return {field: jnp.asarray(value, jnp.int32) for field, value in fields.items()}


@functools.cache
def params_of(name):
    draw = np.random.default_rng(0)
    shapes = towers.abstract({"main": module(name)}, batch_of(name))["main"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0.0, 0.2, leaf.shape), leaf.dtype), shapes
    )


@functools.cache
def compiled(name):
    run = jax.jit(lambda params, batch: towers.Tower(module(name), params)(batch).hidden)
    return lambda batch: np.asarray(run(params_of(name), batch))


@functools.cache
def plain(name):
    return compiled(name)(batch_of(name))


def segments(name):
    batch = batch_of(name)
    return np.asarray(batch.get("decoder_segment_ids", batch["segment_ids"]))


def other(name, field, where):
    """The batch with another word at the places `where`, another character in it too."""
    batch = batch_of(name)
    changed = batch | {field: jnp.where(where, 10 + (batch[field] + 7) % 150, batch[field])}
    if field == "input_ids":
        characters = 1 + (batch["characters"] + 7) % 49
        changed["characters"] = jnp.where(
            jnp.asarray(where)[..., None], characters, batch["characters"]
        )
    return changed


@each
def test_rows_are_alone(name):
    order = np.roll(np.arange(ROWS), 1)
    rolled = compiled(name)({field: value[order] for field, value in batch_of(name).items()})
    real = segments(name) > 0
    np.testing.assert_allclose(
        rolled[real[order]], plain(name)[order][real[order]], rtol=1e-5, atol=1e-5
    )
    among = compiled(name)(other(name, "input_ids", np.arange(ROWS)[:, None] % 2 == 1))
    np.testing.assert_array_equal(among[::2][real[::2]], plain(name)[::2][real[::2]])


@each
def test_padding_is_unseen(name):
    real = segments(name) > 0
    for field, owner in (
        ("input_ids", "segment_ids"),
        ("decoder_input_ids", "decoder_segment_ids"),
    ):
        if field in batch_of(name):
            found = compiled(name)(other(name, field, np.asarray(batch_of(name)[owner]) == 0))
            np.testing.assert_array_equal(found[real], plain(name)[real])


@each
def test_documents_of_a_row_are_unseen(name):
    if isinstance(module(name).encoder, SentenceSlots):
        pytest.skip("its segments are the sentences of one document")
    if module(name).encoder.direction == "unread":
        pytest.skip("its state is that of the document, whatever the words")
    for field, owner in (
        ("input_ids", "segment_ids"),
        ("decoder_input_ids", "decoder_segment_ids"),
    ):
        if field in batch_of(name):
            found = compiled(name)(other(name, field, np.asarray(batch_of(name)[owner]) == 2))
            first = segments(name)[0] == 1
            np.testing.assert_array_equal(found[0][first], plain(name)[0][first])
            assert (found[0] != plain(name)[0]).any()


SEES = {
    "bidirectional": lambda at: at >= 0,
    "causal": lambda at: at >= PLACE,
    "backward": lambda at: at <= PLACE,
    "both": lambda at: at != PLACE,
    "none": lambda at: at == PLACE,
    "before": lambda at: at > PLACE,
    "unread": lambda at: at < 0,
}


@each
def test_the_declared_direction_is_what_changes(name):
    """Another word at one place of a full row: which outputs differ in a bit."""
    direction, row = module(name).encoder.direction, np.arange(ROWS)[:, None] == 3
    field = "decoder_input_ids" if direction == "decoder" else "input_ids"
    length = batch_of(name)[field].shape[1]
    found = compiled(name)(other(name, field, row & (np.arange(length) == PLACE)))
    reached = (found != plain(name))[3].any(-1)
    expected = SEES["causal" if direction == "decoder" else direction](np.arange(length))
    if not module(name).encoder.stacks:  # not attention: a gate may close between two places
        near = np.abs(np.arange(length) - PLACE) <= 1
        needed = (
            np.any if isinstance(module(name).encoder, SentenceEncoder) else np.all
        )  # a maximum takes one place of many
        assert not reached[~expected].any() and needed(reached[near & expected])
    else:
        np.testing.assert_array_equal(reached, expected)
    if direction == "decoder" and not isinstance(module(name).encoder, SentenceSlots):
        source = compiled(name)(other(name, "input_ids", row & (np.arange(LENGTH) == PLACE)))
        assert (source != plain(name))[3].any(-1).all(), "the whole target sees the source"


@each
def test_the_table_that_heads_share_holds_the_tokens(name):
    """The table of the words, in a pair of the decoder's words; none if the encoder has no such
    table."""
    params = params_of(name)
    table = module(name).apply({"params": params}, method=lambda model: model.encoder.table())
    tables = {p: x for p, x in flatten(params["encoder"]).items() if p.endswith("token")}
    of_decoder = re.compile(r"decoder/(?!words/)")  # the words of a language model have their own
    decoders = {path: x for path, x in tables.items() if of_decoder.match(path)}
    if table is None or isinstance(table, AdaptiveTable):
        assert not tables
    else:
        assert any(np.array_equal(table, x) for x in (decoders or tables).values())


@pytest.mark.full
@each
def test_bfloat16_is_near_float32(name):
    halved = spec.respell(module(name), Precision, lambda _: Precision("bfloat16"))
    found = jax.jit(lambda params, batch: towers.Tower(halved, params)(batch).hidden)(
        params_of(name), batch_of(name)
    )
    found, real = np.asarray(found, np.float32), segments(name) > 0
    assert np.isfinite(found).all()
    assert np.abs(found - plain(name))[real].mean() < 0.1 * plain(name)[real].std()


@pytest.mark.parametrize("name", covering.params("heads", COVERED["heads"]))
def test_what_a_head_is_initialised_by_is_what_it_reads(name):
    tower = module(name)
    encoded = jax.eval_shape(
        lambda p, b: towers.Tower(tower, p)(b), params_of(name), batch_of(name)
    )
    for head in tower.heads.values():
        try:
            read = jax.eval_shape(head.reads, encoded, batch_of(name))
        except KeyError:
            continue  # it reads what a corruption writes: its objective calls it
        given = jax.eval_shape(head.example, encoded)
        if len(read) == len(given) and head.reads_head is None:
            widths = ([leaf.shape[-1:] for leaf in jax.tree.leaves(x)] for x in (given, read))
            assert next(widths) == next(widths)


@pytest.mark.parametrize("name", KINDS)
def test_the_record_gives_the_network_back(name):
    assert registered.rebuilt(module(name)) == module(name)


def test_every_encoder_is_here():
    encoders = {name: module(name).encoder for name in (*KINDS, *OWN)}
    assert not registered.missing("ptm_jax.encoders", slots.Encoder, encoders), (
        "give it a value in OWN"
    )
