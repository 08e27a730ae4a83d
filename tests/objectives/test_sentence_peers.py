"""The losses of groups of texts against sentence-transformers: values, gradients, and 20 steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.objectives.sentences.cosent import AnglE, CoSENT, SimilarityError
from ptm_jax.objectives.sentences.margins import MarginError, SoftRanking, Triplet
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.sentences.nested import NestedFeatures
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.text_groups import Group, TextGroups
from ptm_jax.training.steps import step
from ptm_jax.tuning import finetuning
from support import tiny_checkpoint

pytestmark = pytest.mark.full
SYMMETRIC = {"directions": ("query_to_doc", "doc_to_query"), "partition": "per_direction"}
EVERY = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
GROUPS, WIDTH = 6, 10


def theirs_of(losses):
    """{name: (ours, theirs, number of texts, labels of theirs from [G, K - 1] numbers)}."""
    ranking = losses.MultipleNegativesRankingLoss
    first = {"cosent": (CoSENT(), losses.CoSENTLoss(None)), "angle": (AnglE(), losses.AnglELoss(
        None)), "error": (SimilarityError(), losses.CosineSimilarityLoss(None))}  # fmt: skip
    return {
        "pairs": (MultipleNegatives(), ranking(None), 2, None),
        "negatives": (MultipleNegatives(), ranking(None), 4, None),
        "symmetric": (MultipleNegatives(**SYMMETRIC), ranking(None, directions=SYMMETRIC[
            "directions"], partition_mode="per_direction"), 3, None),  # fmt: skip
        "every direction": (MultipleNegatives(directions=EVERY), ranking(
            None, directions=EVERY, partition_mode="joint"), 3, None),  # fmt: skip
        **{name: (*pair, 2, lambda numbers: numbers[:, 0]) for name, pair in first.items()},
        "triplet": (Triplet(), losses.TripletLoss(None), 3, None),
        "margins": (MarginError(), losses.MarginMSELoss(None), 4, lambda numbers: numbers),
        "soft": (SoftRanking(temperature=2.0, teacher_temperature=2.0),
                 losses.DistillKLDivLoss(None, temperature=2.0), 4, lambda numbers: numbers),
    }  # fmt: skip


NAMES = (
    "pairs", "negatives", "symmetric", "every direction", "cosent", "angle", "error", "triplet",
    "margins", "soft",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_and_its_gradient_are_the_library_s(name):
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    ours, theirs, texts, labelled = theirs_of(losses)[name]
    draw = np.random.default_rng(3)
    vectors = draw.normal(size=(GROUPS, texts, WIDTH)).astype(np.float32)
    numbers = draw.random((GROUPS, texts - 1)).astype(np.float32)
    parts = [torch.tensor(vectors[:, n], requires_grad=True) for n in range(texts)]
    labels = None if labelled is None else torch.tensor(labelled(numbers))
    expected = theirs.compute_loss_from_embeddings(parts, labels)
    expected.backward()
    slopes = np.stack([part.grad.numpy() for part in parts], 1)
    rows = GROUPS * texts
    batch = {
        "input_ids": jnp.ones((rows, 2), jnp.int32),
        "text_scores": jnp.asarray(np.repeat(numbers, texts, 0)),
    }
    value, slope = jax.value_and_grad(lambda x: ours.judged(x, batch).value())(
        jnp.asarray(vectors.reshape(rows, WIDTH))
    )
    np.testing.assert_allclose(value, expected.item(), rtol=2e-6)
    np.testing.assert_allclose(slope.reshape(vectors.shape), slopes, rtol=1e-4, atol=2e-6)


def test_twenty_steps_are_those_of_the_library(tmp_path):
    """Its model, its loss around Matryoshka and torch's AdamW, on the same batches with hard
    negatives. Its Trainer makes these steps."""
    torch = pytest.importorskip("torch")
    peers = pytest.importorskip("sentence_transformers")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    published = tiny_checkpoint.write(tmp_path / "tiny", **quiet)
    draw, spec = np.random.default_rng(0), TextGroups(negatives=1)
    examples = [
        Group(
            tuple(
                " ".join(draw.choice(tiny_checkpoint.WORDS, draw.integers(2, 9))) for _ in range(3)
            ),
            (),
            "",
            n,
        )
        for n in range(5 * 8)
    ]
    batches = [examples[8 * (n % 5) :][:8] for n in range(20)]
    inner = modules.Transformer(str(published))
    width = inner.get_embedding_dimension()
    peer = peers.SentenceTransformer(modules=[inner, modules.Pooling(width)], device="cpu")
    loss = losses.MatryoshkaLoss(peer, losses.MultipleNegativesRankingLoss(peer), [16, 8])
    torch_step = torch.optim.AdamW(peer.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.0)
    expected = []
    for batch in batches:
        texts = [[example.texts[n] for example in batch] for n in range(3)]
        value = loss([peer.preprocess(part) for part in texts], None)
        torch_step.zero_grad()
        value.backward()
        torch_step.step()
        expected.append(value.item())

    system = finetuning.with_head(str(published), spec)
    system = dataclasses.replace(
        system,
        examples=spec,
        corruption=None,
        objective=NestedFeatures(task=MultipleNegatives(), dims=(16, 8)),
        recipe=Recipe(
            phases=(Phase(steps=20, batch=24, length=64),), lr=1e-3, schedule=Constant(),
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0), clip=None,
        ),
    )  # fmt: skip
    model = ptm_jax.load(published)
    made = [_fields(model, spec, batch) for batch in batches]
    work = step.program(system, 0)
    begun = jax.tree.map(jnp.asarray, {"main": _without_pool(model.params["main"])})
    state = work.init(made[0])
    state = dataclasses.replace(state, params=begun, opt_state=work.optimizer.init(begun))
    advance, evaluate, found = jax.jit(work.step), jax.jit(work.evaluate), []
    for batch in made:
        found.append(_value(evaluate(state.params, batch, 0)[0]["loss"]))
        state, _ = advance(state, batch)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found[-5] < found[0] - 0.1  # they learn


def _fields(model, spec, batch):
    tokenizer = model.tokenizer
    groups, _ = spec.features(tokenizer, spec.encode(tokenizer, batch), 64)
    rows = [row for group in groups for row in group]
    fields = taskrows.padded(rows, spec, tokenizer.vocab, 64, len(rows))
    return {**fields, "rows": np.arange(len(rows), dtype=np.int32)}


def _value(ratio):
    return np.sum(np.asarray(ratio.sum) / np.asarray(ratio.weight))


def _without_pool(params):
    return {name: part for name, part in params.items() if name != "heads_pool"}
