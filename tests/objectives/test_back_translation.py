"""Back-translation: its translation is the greedy one, its gradient that of the second pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.spec import respell, with_field
from ptm_jax.core.system import refusal
from ptm_jax.core.towers import bind, init
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.inference.decoding.decode import decode
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.inference.text import generating
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.objectives.translation.back_translation import BackTranslation, TokenBackTranslation
from ptm_jax.objectives.translation.scheduled import Points, ScheduledSum
from ptm_jax.systems.sequence_to_sequence.mbart import mbart
from ptm_jax.systems.sequence_to_sequence.unsupervised import mass_unmt
from support import tiny_systems
from support.tiny_models import bare

VOCAB = Vocab(size=40, bos=0, cls=0, eos=1, sep=1, pad=2, unk=3, mask=5)
SIZES, LENGTH = (3, 7, 12, 5, 0), 12
END = 4.0
"""Added to the logit of </s>, so that some answers end by themselves."""
BACK = BackTranslation(vocab=VOCAB)


@pytest.fixture(scope="module")
def small():
    """(towers, parameters, batch, texts): texts of both languages after a corruption."""
    system = respell(mass_unmt("", 1, 16, 2), Vocab, VOCAB)
    system = respell(respell(system, Normal, Normal(0.5)), Precision, Precision("float32"))
    system = with_field(system, "dropout", 0.0)
    rng, texts = np.random.default_rng(0), []
    labels = np.full((len(SIZES), LENGTH), VOCAB.pad)
    for row, size in enumerate(SIZES):
        texts.append(np.r_[1, rng.integers(6, 40, size - 2), 1] if size else np.zeros(0, int))
        labels[row, : max(0, size - 1)] = texts[-1][1:]
    real = np.arange(LENGTH) < np.maximum(np.array(SIZES) - 1, 0)[:, None]
    languages = np.array([0, 1, 1, 0, 0])[:, None] * real
    batch = {
        "input_ids": jnp.full(labels.shape, 7),
        "decoder_labels": jnp.asarray(labels),
        "decoder_weights": jnp.asarray(real, jnp.float32),
        "decoder_language_ids": jnp.asarray(languages, jnp.int32),
        "rows": jnp.arange(len(SIZES)),
    }
    first = batch | {
        "decoder_input_ids": jnp.asarray(labels),
        "language_ids": batch["input_ids"] * 0,
    }
    params = jax.jit(lambda: init(system.towers, jax.random.key(3), first))()
    place = params["main"]["encoder"]["decoder"]["embed"]["position"]
    place["table"] = 30 * place["table"]  # so that an answer is no single word
    head = params["main"]["heads_lm"]
    head["bias"] = head["bias"].at[VOCAB.eos].add(END)
    return system.towers, params, batch, texts


def second_pass(towers, texts, batch):
    """The batch of the second pass, whose sources are what inference writes, row by row."""
    wide = int(1.3 * (LENGTH + 1) + 5)
    sources = np.full((len(SIZES), wide), VOCAB.pad)
    inputs = np.full((len(SIZES), LENGTH), VOCAB.pad)
    segments, targets = np.zeros_like(sources), np.zeros_like(inputs)
    mine = np.asarray(batch["decoder_language_ids"])[:, 0]
    ends = []
    for row, text in enumerate(texts):
        if not len(text):
            continue
        limit = int(1.3 * len(text) + 5)
        options = Generation(max_new_tokens=limit - 1)
        languages = int(mine[row]), 1 - int(mine[row])
        out = decode(towers["main"], [text], options, eos=1, pad=2, start=1, languages=languages)
        written = np.r_[1, out.tokens[0, 0, : out.lengths[0, 0]]]
        ends.append(written[-1] == 1)
        written[-1] = 1
        sources[row, : len(written)], segments[row, : len(written)] = written, 1
        inputs[row, : len(text) - 1], targets[row, : len(text) - 1] = text[:-1], 1
    fields = {
        "input_ids": sources,
        "segment_ids": segments,
        "language_ids": (1 - mine)[:, None] * segments,
        "positions": np.arange(wide) * segments,
        "decoder_input_ids": inputs,
        "decoder_segment_ids": targets,
        "decoder_language_ids": mine[:, None] * targets,
        "decoder_positions": np.arange(LENGTH) * targets,
    }
    known = {name: batch[name] for name in ("rows", "decoder_labels", "decoder_weights")}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()} | known, ends


@pytest.mark.full
@pytest.mark.status("Unsupervised translation", "matches")
def test_the_gradient_is_the_second_passs_with_the_greedy_translation_as_a_constant(small):
    modules, params, batch, texts = small
    constants, ends = second_pass(bind(modules, params), texts, batch)
    assert any(ends) and not all(ends), "one translation ends by itself, one is cut"

    def value(objective, batch):
        def of(params):
            loss = objective(bind(modules, params, train=True), batch, jax.random.key(0))
            return loss.value(), loss

        return jax.jit(jax.value_and_grad(of, has_aux=True))(params)

    (total, loss), gradient = value(BACK, batch)
    (expected, other), by_hand = value(Seq2Seq(), constants)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert float(loss.weight) == float(other.weight) == sum(max(0, size - 1) for size in SIZES)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradient, by_hand
    )
    assert [*loss.metrics] == ["back_nll"]
    mine = batch["decoder_language_ids"][:, 0]
    written, inside = jax.jit(
        lambda params: BACK.translation(
            bind(modules, params)["main"], *BACK.text(batch), mine, 1 - mine
        )
    )(params)
    np.testing.assert_array_equal(inside, constants["segment_ids"])
    np.testing.assert_array_equal(np.where(inside, written, 2), constants["input_ids"])


@pytest.mark.full
def test_tokens_of_languages_end_the_source_and_begin_the_target():
    vocab, width = dataclasses.replace(VOCAB, extra=(38, 39)), 9
    system = respell(respell(mbart("", 1, 16, 2), Vocab, vocab), Normal, Normal(0.5))
    system = respell(system, Precision, Precision("float32"))
    texts = [np.array([6, 20, 31, 12, 9, 1]), np.array([17, 1]), np.zeros(0, int)]
    mine, wide = np.array([1, 0, 0]), int(1.3 * (width + 1) + 5)
    batch = {
        name: np.full((3, width), 2)
        for name in ("input_ids", "decoder_labels", "decoder_input_ids")
    }
    batch |= {"language_ids": mine[:, None] * np.ones((1, width), int), "rows": np.arange(3)}
    batch["decoder_weights"] = np.zeros((3, width), np.float32)
    for row, text in enumerate(texts[:2]):
        size = len(text) + 1
        batch["decoder_labels"][row, :size] = [*text, 38 + mine[row]]
        batch["decoder_input_ids"][row, :size] = [38 + mine[row], *text]
        batch["decoder_weights"][row, :size] = 1
    batch = jax.tree.map(jnp.asarray, batch)
    params = jax.jit(lambda: init(system.towers, jax.random.key(3), batch))()
    towers = bind(system.towers, params)
    sources, real = np.full((3, wide), 2), np.asarray(batch["decoder_weights"]).astype(int)
    segments = np.zeros_like(sources)
    for row, text in enumerate(texts[:2]):
        options = Generation(max_new_tokens=int(1.3 * (len(text) + 1) + 5) - 1)
        source, start = np.r_[text, 38 + mine[row]], 39 - int(mine[row])
        out = decode(towers["main"], [source], options, eos=1, pad=2, start=start)
        written = [*out.tokens[0, 0, : out.lengths[0, 0] - 1], 1]
        sources[row, : len(written) + 1], segments[row, : len(written) + 1] = [*written, start], 1
    second = {
        "input_ids": sources,
        "segment_ids": segments,
        "positions": np.arange(wide) * segments,
        "decoder_input_ids": batch["decoder_input_ids"],
        "decoder_segment_ids": real,
        "decoder_positions": np.arange(width) * real,
    }
    second = {name: jnp.asarray(value, jnp.int32) for name, value in second.items()}
    second |= {name: batch[name] for name in ("rows", "decoder_labels", "decoder_weights")}
    back, key = TokenBackTranslation(vocab=vocab), jax.random.key(0)
    text, real_text = back.text(batch)
    first, inside = jax.jit(
        lambda: back.translation(towers["main"], text, real_text, mine, 1 - mine)
    )()
    written = back.source(first, inside, jnp.asarray(1 - mine))
    np.testing.assert_array_equal(written["segment_ids"], segments)
    np.testing.assert_array_equal(written["input_ids"], sources)
    loss = jax.jit(lambda: back(towers, batch, key))()
    expected = jax.jit(lambda: Seq2Seq()(towers, second, key))()
    np.testing.assert_allclose(loss.sum, expected.sum, rtol=1e-5)
    assert float(loss.weight) == float(expected.weight) == 10


def test_answers_have_a_language_of_their_own():
    system = systems.get("xlm_unmt_mini")
    rows = dataclasses.replace(system.examples, languages=("de", "en"))
    model = bare(dataclasses.replace(system, examples=rows))
    assert generating.start_of(model) == model.vocab.eos
    german = model.for_language("de")
    assert generating.languages_of(german, "en") == (0, 1)
    assert generating.languages_of(german, "de") == (0, 0)
    assert generating.languages_of(model, None) is None
    for one, answer, message in (
        (model, "en", "that of the texts is not; give --language"),
        (german, None, "that of the answers is not"),
        (german, "fr", "unknown language 'fr'"),
        (bare(systems.get("gpt2")), "en", "reads no source"),
    ):
        with pytest.raises(UserError, match=message):
            generating.languages_of(one, answer)


@pytest.mark.full
def test_the_other_language_is_drawn_among_several():
    value = dataclasses.replace(BACK, languages=4)
    mine = jnp.tile(jnp.arange(4), 200)
    other = np.asarray(value._other(mine, {"rows": jnp.arange(800)}, jax.random.key(0)))
    assert (other != np.asarray(mine)).all()
    counts = np.bincount(other[np.asarray(mine) == 1], minlength=4)
    assert counts[1] == 0 and (abs(counts[[0, 2, 3]] - 200 / 3) < 3 * (200 * 2 / 9) ** 0.5).all()
    with pytest.raises(ValueError, match="at least 2"):
        BackTranslation(vocab=VOCAB, languages=1)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        BackTranslation(vocab=VOCAB, more=0)


def test_a_network_that_does_not_write_is_refused():
    module = Model(encoder=tiny_systems.encoder(), heads={})
    system = tiny_systems.system("law", towers={"main": module}, objective=BACK)
    total = ScheduledSum(parts=((Points(points=((0, 1.0),)), BACK),))
    for objective in (BACK, total):
        assert "token by token" in refusal(dataclasses.replace(system, objective=objective))
    assert refusal(systems.get("xlm_unmt")) is None
    hiding = dataclasses.replace(systems.get("mass_mt"), objective=BACK)
    assert not slots.encoder_of(hiding).writes and "token by token" in refusal(hiding)


def test_weights_are_straight_lines_between_points():
    weight = Points(points=((0, 1.0), (100, 0.1), (300, 0.0)))
    values = [float(weight.at(step)) for step in (0, 50, 100, 200, 300, 1000)]
    np.testing.assert_allclose(values, [1.0, 0.55, 0.1, 0.05, 0.0, 0.0], atol=1e-7)
    with pytest.raises(ValueError, match="ascend"):
        Points(points=((3, 1.0), (3, 2.0)))
