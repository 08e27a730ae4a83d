"""An LSTM language model and ELMo's two directions: an encoder that is no Transformer."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.adapt.parameters.unfreezing import GradualUnfreezing
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment, Tie
from ptm_jax.core.types import add_losses
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.inference.decoding.decode import decode
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.text.language import LM
from ptm_jax.plan import estimate, lowering
from support.tiny_systems import (
    LENGTH,
    ROWS,
    VOCAB,
    WIDTH,
    bits,
    check,
    sees,
    sentences,
    standing,
    start,
    system,
    towers,
)


def lstm(layers: int = 2, dropout: float = 0.1, **options) -> LSTMEncoder:
    embed = Embeddings(vocab=VOCAB, width=WIDTH, initializer=Normal(0.3))
    return LSTMEncoder(
        embed=embed, layers=tuple(LSTM(WIDTH, **options) for _ in range(layers)), dropout=dropout
    )


def language_model(encoder=None, **slots):
    towers = {"main": Model(encoder=encoder or lstm(), heads={"lm": LMHead()})}
    return system("lstm", towers=towers, objective=LM(), **slots)


@pytest.fixture(scope="module")
def trained():
    return check(language_model(), sentences())


@pytest.mark.full
def test_a_language_model_trains_and_carries_its_state(trained):
    """Would have found: an encoder had to have an int `memory` that is not 0 to be given its
    carry."""
    first, last = (jax.tree.leaves(state.carry) for state in (trained.first, trained.last))
    assert not any(np.asarray(leaf).any() for leaf in first) and all(
        np.asarray(leaf).any() for leaf in last
    )
    ids = sentences()["input_ids"]
    run = jax.jit(lambda batch: towers(trained)["main"](batch))
    whole, half = run({"input_ids": ids}), run({"input_ids": ids[:, : LENGTH // 2]})
    rest = run({"input_ids": ids[:, LENGTH // 2 :], "carry": half.memory})
    np.testing.assert_allclose(whole.hidden[:, LENGTH // 2 :], rest.hidden, atol=1e-6)
    assert towers(trained)["main"].module.encoder.without_memory().empty_memory(1) is None


@pytest.mark.full
def test_it_writes_what_encoding_again_would_write(trained):
    """Would have found: `Encoded.memory` was the training carry and the decoding cache in one
    field."""
    tower = towers(trained)["main"]
    prompts = [np.array([5, 6, 7], np.int32), np.array([9], np.int32)]
    found = decode(tower, prompts, Generation(max_new_tokens=3)).tokens[:, 0]
    for prompt, tokens in zip(prompts, found, strict=True):
        text = list(prompt)
        for token in tokens:
            logits = tower.head(
                "lm", tower({"input_ids": jnp.asarray([text])}).hidden[:, -1]
            ).logits()
            assert token == int(logits.argmax())
            text.append(int(token))


@pytest.mark.full
def test_layers_are_set_free_from_the_top():
    """Would have found: levels were read from `/block/` in paths, so that all layers were of level
    0."""
    adapt = (GradualUnfreezing(steps=1),)
    program, state = start(language_model(adapt=adapt), sentences())
    head = {path: place.level for path, place in program.freedom.places(state.params).items()}
    assert {path.split("/")[2]: level for path, level in head.items()} == {
        "embed": 0,
        "layers_0": 1,
        "layers_1": 2,
    }
    update, moved = jax.jit(program.step), []
    for _ in range(3):
        new, _ = update(state, sentences())
        old, now = flatten(state.params), flatten(new.params)
        moved.append({path.split("/")[2] for path in old if bits(old[path]) != bits(now[path])})
        state = new
    assert moved == [set(), {"layers_1"}, {"layers_1", "layers_0"}]


def test_a_network_without_levels_refuses_what_goes_by_layers():
    class Flat(LSTMEncoder):
        def level_of(self, path):
            return None

    flat = Flat(embed=lstm().embed, layers=lstm().layers)
    record = language_model(flat, adapt=(GradualUnfreezing(),))
    with pytest.raises(UserError, match="no level.*define level_of"):
        start(record, sentences())


@pytest.mark.full
def test_a_plan_counts_what_the_backward_pass_reads():
    """Would have found: the plan for a GPU printed "activations 0.0 KiB, fits"."""
    examples = Contiguous(separator=None, continuing=True)
    config = lowering.published(
        Experiment(system=language_model(examples=examples), precision="float32")
    )
    work = estimate.work_of(config, 0)
    tokens, floats = ROWS * LENGTH, work.residuals / 4 / (ROWS * LENGTH)
    # A step of an LSTM keeps its gates and c at least, the head its features.
    least = 2 * 5 * WIDTH + WIDTH
    assert work.tokens == tokens and least <= floats <= 3 * least


@pytest.mark.full
def test_what_a_program_keeps_is_near_the_published_formula():
    """T D N (34 + 5 H L / D) bytes of a bfloat16 Transformer (Korthikanti et al. 2022, Eq. 1)."""
    found = []
    for rows in (4, 8):
        phases = (Phase(steps=10, batch=rows, length=64),)
        bert = systems.get("bert_mini")
        bert = dataclasses.replace(bert, recipe=dataclasses.replace(bert.recipe, phases=phases))
        found.append(estimate._kept(lowering.published(Experiment(system=bert))))
    stack = bert.towers["main"].encoder.stack
    width, heads = stack.block.attention.width, stack.block.attention.heads
    published = stack.layers * 4 * 64 * width * (34 + 5 * heads * 64 / width)
    assert abs((found[1] - found[0]) / published - 1) < 0.1


def test_the_matrix_takes_it_as_a_causal_encoder():
    cells = standing(language_model())
    assert cells["LM"] is None and "who sees whom" in cells["T5 spans"]
    assert "directions" in cells["BiLM"] and "who sees whom" in cells["PLM"]


def bilm(towers, batch, key):
    """log p(x_t | x_<t) + log p(x_t | x_>t), one softmax."""
    ids, ahead, back = batch["input_ids"], towers["forward"], towers["backward"]
    ones = jnp.ones_like(ids[:, 1:], jnp.float32)
    after = ahead.head("lm", ahead(batch, key).hidden[:, :-1]).nll(ids[:, 1:])
    before = back.head("lm", back(batch, key).hidden[:, 1:]).nll(ids[:, :-1])
    losses = (
        token_loss(after, ones, name="forward_nll"),
        token_loss(before, ones, name="backward_nll"),
    )
    return add_losses((1.0, losses[0]), (1.0, losses[1]))


@pytest.mark.full
def test_elmo_directions_share_the_token_layer_and_the_softmax():
    shared = ("encoder/embed/token", "heads_lm/table")
    head = LMHead(vocab=VOCAB, tied=False, initializer=Normal(0.1))
    elmo = system(
        "elmo",
        towers={
            name: Model(encoder=lstm(1, backward=name == "backward"), heads={"lm": head})
            for name in ("forward", "backward")
        },
        objective=bilm,
        ties=tuple(Tie(path=f"backward/{path}", source=f"forward/{path}") for path in shared),
    )
    batch = sentences()
    run = check(elmo, batch)
    assert "token" not in run.last.params["backward"]["encoder"].get("embed", {})
    both = towers(run)
    tables = [both[name].params["heads_lm"]["table"] for name in ("forward", "backward")]
    assert tables[0] is tables[1]
    one = {name: leaf[:1] for name, leaf in batch.items()}
    for name, order in (("forward", np.tril), ("backward", np.triu)):
        seen = sees(
            both[name], "encoder/embed/token", lambda t: t(one).hidden[0], one["input_ids"][0]
        )
        np.testing.assert_array_equal(seen, order(np.ones_like(seen)))
