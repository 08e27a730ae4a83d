"""What the thirteen systems asked of the core: modules are values, ties name parameters, frozen
means constant."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Tie
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead
from ptm_jax.nn.layers import Dense
from ptm_jax.objectives.text.language import MLM
from support.tiny_systems import VOCAB, Freeze, encoder, evaluate, sentences, start, system


def bert(**slots):
    plain = Model(encoder=encoder(layers=1), heads={"mlm": MLMHead(vocab=VOCAB)})
    whole = {"towers": {"main": plain}, "corruption": TokenMasking(vocab=VOCAB), "objective": MLM()}
    return system("bert", **whole | slots)


def test_one_module_object_in_two_slots_has_two_sets_of_parameters():
    head = Classifier(2)
    model = Model(encoder=encoder(layers=1), heads={"a": head, "b": head})
    assert model == Model(encoder=encoder(layers=1), heads={"a": head, "b": head})
    params = towers.abstract({"main": model}, sentences())["main"]
    assert {"heads_a", "heads_b"} <= set(params)


def test_a_tie_to_nowhere_is_an_error():
    tie = Tie(path="main/encoder/embed/tokens", source="main/encoder/embed/token")
    with pytest.raises(
        UserError, match="'main/encoder/embed/tokens', which no tower has.*main/encoder/embed/token"
    ):
        start(bert(ties=(tie,)), sentences())


@pytest.mark.full
def test_frozen_parameters_have_no_share_in_the_gradient():
    frozen = bert(adapt=(Freeze(r"encoder/"),))
    norms = {}
    for name, record in (("all", bert()), ("head", frozen)):
        program, state = start(record, sentences())
        norms[name] = float(jax.jit(program.step)(state, sentences())[1]["grad_norm"])
    assert 0 < norms["head"] < norms["all"]


@pytest.mark.full
def test_scores_are_what_the_probabilities_are_made_of():
    plain = encoder(layers=1)
    attention = dataclasses.replace(plain.stack.block.attention, expose="scores")
    assert isinstance(attention, Attention)
    block = dataclasses.replace(plain.stack.block, attention=attention)
    scored = dataclasses.replace(plain, stack=dataclasses.replace(plain.stack, block=block))
    batch = sentences()
    params = evaluate(plain.init, jax.random.key(0), batch)
    scores, probabilities = evaluate(
        lambda p: [m.apply(p, batch).attention for m in (scored, plain)], params
    )
    assert not np.allclose(scores.sum(-1), 1.0)
    np.testing.assert_allclose(jax.nn.softmax(scores), probabilities, atol=1e-6)


def test_the_table_may_have_a_width_of_its_own():
    plain = encoder(layers=1)
    narrow = dataclasses.replace(
        plain, embed=dataclasses.replace(plain.embed, width=8, project=Dense(16))
    )
    model = Model(encoder=narrow, heads={"mlm": MLMHead(vocab=VOCAB)})
    shapes = {
        path: leaf.shape
        for path, leaf in flatten(towers.abstract({"main": model}, sentences())["main"]).items()
    }
    assert shapes["encoder/embed/token"] == (VOCAB.size, 8)
    assert shapes["encoder/embed/project/kernel"] == (8, 16) and shapes[
        "heads_mlm/dense/kernel"
    ] == (16, 8)


def test_a_tower_without_a_table_has_heads():
    class Plain(type(encoder())):
        def table(self):
            return None

    model = Model(
        encoder=Plain(embed=encoder().embed, stack=encoder().stack), heads={"class": Classifier(2)}
    )
    assert (
        "heads_class"
        in towers.abstract({"main": model}, {"input_ids": jnp.ones((1, 4), jnp.int32)})["main"]
    )
