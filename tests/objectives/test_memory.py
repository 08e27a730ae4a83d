"""Objectives on a real encoder with memory and a query stream: PLM is an exact factorisation, and
memory is handed on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core import towers as core_towers
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System, refusal
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.encoders.transformer.xl import TransformerXL
from ptm_jax.nn.attention.relative import ShiftedScores
from ptm_jax.nn.blocks import Recurrence
from ptm_jax.nn.heads.vocabulary import Classifier, LMHead, MLMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint, TaskMixing
from ptm_jax.objectives.text.contrastive import InfoNCE
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.objectives.text.language import LM, MLM, PLM, BiLM, Cloze
from ptm_jax.objectives.text.ponder import Ponder
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.objectives.text.text_traits import TwoDirections

VOCAB = Vocab(size=7, pad=0, mask=1)
ROWS, LENGTH, WIDTH, MEMORY = 2, 6, 8, 4
ORDER = np.asarray([[3, 0, 5, 1, 4, 2], [2, 4, 1, 0, 3, 5]])
PREDICTED = np.asarray([[4, 2], [1, 5]])  # the last two places of each order, in order


def recurrent(direction="causal", query=None, memory=MEMORY, width=WIDTH, layers=1, heads=None):
    sizes = {"layers": layers, "width": width, "heads": 2, "hidden": 16}
    plain = transformer(
        vocab=VOCAB, dropout=0.0, direction=direction, initializer=Normal(0.4), **sizes
    )
    attention = dataclasses.replace(
        plain.stack.block.attention, relative=ShiftedScores(initializer=Normal(0.4))
    )
    block = Recurrence(block=dataclasses.replace(plain.stack.block, attention=attention))
    stack = dataclasses.replace(plain.stack, block=block)
    encoder = TransformerXL(
        embed=plain.embed, stack=stack, memory=memory, direction=direction, query=query
    )
    return Model(
        encoder=encoder,
        heads=heads or {"lm": LMHead(), "mlm": MLMHead(vocab=VOCAB), "rtd": Classifier(1)},
    )


def rows(seed=0, **more):
    ids = np.random.default_rng(seed).integers(2, VOCAB.size, (ROWS, LENGTH))
    given = {"input_ids": ids, "segment_ids": np.ones_like(ids), "rows": np.arange(ROWS), **more}
    return {
        name: jnp.asarray(value, jnp.int32) if name != "carry" else value
        for name, value in given.items()
    }


@pytest.fixture(scope="module")
def xlnet():
    module = recurrent(
        "bidirectional", query=Normal(0.5), layers=2, heads={"lm": LMHead(bias=True)}
    )
    init = jax.jit(lambda: core_towers.init({"main": module}, jax.random.key(0), rows(order=ORDER)))
    encode = jax.jit(lambda params, batch: core_towers.Tower(module, params)(batch))
    return core_towers.Tower(module, init()["main"]), encode


def permuted(carry=None):
    more = {} if carry is None else {"carry": carry}
    batch = rows(order=ORDER, plm_positions=PREDICTED, **more)
    labels = jnp.take_along_axis(batch["input_ids"], batch["plm_positions"], 1)
    return {**batch, "plm_labels": labels, "plm_weights": jnp.ones(PREDICTED.shape)}


@pytest.mark.full
def test_plm_is_the_factorisation_under_its_order(xlnet):
    """Each factor from a row in which only what comes before in the order is left: -log p(x_t |
    x_{z < z_t})."""
    tower, encode = xlnet
    seen = ("input_ids", "segment_ids", "order", "places", "carry")
    for carry in (None, encode(tower.params, rows(seed=5)).memory):
        batch = permuted(carry) | {"places": jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))}
        whole = {name: batch[name] for name in seen if name in batch}
        loss = PLM().of(tower, encode(tower.params, whole), batch)
        total = 0.0
        for targets in PREDICTED.T:
            short = {name: np.zeros((ROWS, LENGTH), np.int32) for name in seen[:-1]}
            for i, t in enumerate(targets):
                kept = np.asarray(sorted(s for s in range(LENGTH) if ORDER[i, s] <= ORDER[i, t]))
                words = np.where(kept == t, VOCAB.mask, batch["input_ids"][i, kept])
                # The rest is padding; `places` keep the distances of the whole row.
                for name, values in zip(
                    seen[:-1], (words, np.ones(len(kept)), ORDER[i, kept], kept), strict=True
                ):
                    short[name][i, : len(kept)] = values
            query = encode(tower.params, {**whole, **short}).extra["query"]
            for i, t in enumerate(targets):
                place = int(
                    np.flatnonzero((short["places"][i] == t) & (short["segment_ids"][i] > 0))[0]
                )
                scores = np.asarray(tower.head("lm", query[i, place]).logits(), np.float64)
                total -= scores[batch["input_ids"][i, t]] - np.log(np.exp(scores).sum())
        np.testing.assert_allclose(loss.sum, total, rtol=1e-5)
        assert float(loss.weight) == PREDICTED.size


def system(objective, **slots):
    recipe = Recipe(
        phases=(Phase(steps=4, batch=4, length=LENGTH),),
        lr=1e-2,
        optimizer=AdamW(),
        schedule=Constant(),
    )
    return System(
        name="tiny",
        paper="",
        section="",
        examples=None,
        objective=objective,
        recipe=recipe,
        **slots,
    )


MASKING = TokenMasking(vocab=VOCAB, rate=0.4)
TASKS = {
    "joint": (Joint(parts=((1.0, MLM()), (0.5, LM()))), ("main",)),
    "rtd": (RTD(), ("main", "generator")),
    "mixing": (TaskMixing(tasks=(LM(), MLM()), rates=(1.0, 1.0)), ("main",)),
}


@pytest.mark.full
@pytest.mark.parametrize(("objective", "names"), TASKS.values(), ids=TASKS.keys())
def test_memory_is_handed_on_under_every_objective(objective, names):
    """Two batches through Transformer-XL: the second reads what the first left, in halves as in one
    piece."""
    widths = {"main": WIDTH, "generator": WIDTH // 2}
    modules = {name: recurrent(width=widths[name]) for name in names}
    params = jax.jit(lambda: core_towers.init(modules, jax.random.key(0), rows()))()
    both = [rows(seed) | {"rows": jnp.arange(4)} for seed in (0, 1)]
    both = [jax.tree.map(lambda x: jnp.concatenate([x, x])[:4], batch) for batch in both]
    first, second = (MASKING(jax.random.key(seed), batch) for seed, batch in enumerate(both))

    @jax.jit
    def run(batch):
        return objective(core_towers.bind(modules, params), batch, jax.random.key(0))

    def own(carry):
        return {name: carry[name] for name in names} if len(names) > 1 else {"main": carry}

    empty = objective.initial_carry(core_towers.bind(modules, params), first)
    for name, memory in own(empty).items():
        assert (
            memory["layers"].shape == (4, 1, MEMORY, widths[name]) and not memory["segments"].any()
        )
    kept = run({**first, "carry": empty}).carry
    assert jax.tree.map(lambda x: (x.shape, x.dtype), kept) == jax.tree.map(
        lambda x: (x.shape, x.dtype), empty
    )
    assert all(memory["segments"].all() and memory["layers"].any() for memory in own(kept).values())
    found, forgetful = (run({**second, "carry": carry}) for carry in (kept, empty))
    assert not np.allclose(found.sum, forgetful.sum, rtol=1e-4)
    halves = [
        run(jax.tree.map(lambda x, s=s: x[s], {**second, "carry": kept}))
        for s in (slice(2), slice(2, 4))
    ]
    np.testing.assert_allclose(halves[0].sum + halves[1].sum, found.sum, rtol=1e-5)
    merged = jax.tree.map(lambda *x: jnp.concatenate(x), *(half.carry for half in halves))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), merged, found.carry)


def test_an_encoder_without_memory_has_no_carry():
    for module in (recurrent(memory=0), Model(encoder=bidirectional(), heads={"lm": LMHead()})):
        params = core_towers.abstract({"main": module}, rows())
        assert LM().initial_carry(core_towers.bind({"main": module}, params), rows()) is None

        def run(p, m=module):
            return LM()({"main": core_towers.Tower(m, p)}, rows(), None)

        assert jax.eval_shape(run, params["main"]).carry is None


def bidirectional(direction="bidirectional"):
    return transformer(vocab=VOCAB, layers=1, width=WIDTH, heads=2, direction=direction)


@dataclasses.dataclass(frozen=True)
class Facts(slots.Encoder):
    """What objectives ask of an encoder."""

    direction: str = "bidirectional"
    obeys_order: bool = True


class BothFacts(Facts, TwoDirections):
    """An encoder of two directions."""


@dataclasses.dataclass(frozen=True)
class OneStream(slots.OneRow):
    left_to_right = True


@dataclasses.dataclass(frozen=True)
class Bare(slots.Network):
    """A tower of nothing but facts."""

    encoder: Facts
    heads = {}


def refused(objective, encoder, corruption=None, tower="main"):
    module = Bare(encoder) if isinstance(encoder, Facts) else Model(encoder=encoder, heads={})
    return refusal(system(objective, corruption=corruption, towers={tower: module}))


def test_objectives_refuse_encoders_that_see_what_they_predict():
    for sees, words in (
        ("bidirectional", "MLM"),
        ("decoder", "Seq2Seq"),
        ("both", "BiLM"),
        ("backward", "MLM"),
    ):
        assert words in refused(LM(), Facts(sees))
    assert refused(LM(), bidirectional("causal")) is None and "causal" in refused(
        LM(), bidirectional()
    )
    assert refused(LM(), Facts("bidirectional"), OneStream()) is None
    assert refused(LM(), Facts("bidirectional", obeys_order=False), OneStream()) is not None
    for objective in (BiLM(), Cloze()):
        assert refused(objective, BothFacts("both")) is None
        assert "two directions" in refused(objective, Facts("causal"))
    assert "query stream" in refused(PLM(), recurrent().encoder)
    assert refused(PLM(), recurrent(query=Normal(0.5)).encoder) is None
    assert refused(Seq2Seq(), Facts("decoder")) is None and "decoder" in refused(
        Seq2Seq(), Facts("causal")
    )
    assert refused(Seq2Seq(), Facts("bidirectional"), OneStream()) is None
    assert "'generator'" in refused(RTD(), Facts())
    assert "AdaptiveStack" in refused(Ponder(), Facts())
    assert "MLM" in refused(Joint(parts=((1.0, NSP()), (1.0, LM()))), Facts())
    assert "MLM" in refused(Joint(parts=((1.0, LM()),), tower="other"), Facts(), tower="other")
    assert "MLM" in refused(TaskMixing(tasks=(MLM(), LM()), rates=(1.0, 1.0)), Facts())
    for objective in (MLM(), NSP(), InfoNCE(), Joint(parts=((1.0, MLM()), (1.0, NSP())))):
        assert refused(objective, Facts()) is None
