"""The chain against sums and maxima over all paths, taken in plain Python; no forbidden pair is
ever decoded."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.heads.crf import CRFHead, Links, allowed
from ptm_jax.nn.heads.task_heads import TokenHead
from ptm_jax.objectives.tasks.crf import CRFTagging
from ptm_jax.objectives.tasks.downstream import Tagging
from support.bare_layers import drawn

LABELS = {
    "": ("O", "B-A", "I-A", "I-B"),
    "IOB1": ("O", "B-A", "I-A", "I-B"),
    "IOB2": ("B-A", "I-A", "O", "I-B"),
    "IOBES": ("S-A", "B-A", "E-A", "O"),
}
C, L = 4, 5
# Lengths 0 to 5, skipped places, and rows of two and three documents.
PLACES = np.array(
    [[0] * 5, [1, 0, 0, 0, 0], [1] * 5, [0, 1, 0, 1, 1], [1, 1, 0, 2, 2], [1, 2, 2, 3, 0]], np.int32
)
log_partition = jax.jit(Links.log_partition, static_argnums=3)
best = jax.jit(Links.best)
nll = jax.jit(Links.nll, static_argnums=4)
keeps = jax.jit(Links.lawful)


def links(scheme: str, seed: int = 0, scale: float = 1.0) -> Links:
    draw = np.random.default_rng(seed)
    pairs, first, last = (
        scale * draw.normal(size=shape).astype(np.float32) for shape in ((C, C), C, C)
    )
    return Links(pairs, first, last, allowed(LABELS[scheme], scheme))


def scores(seed: int = 1, rows: int = len(PLACES)) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, L, C)).astype(np.float32) * 1.5


def lawful(chain: Links, path: list[int], documents: list[int]) -> bool:
    """Whether a path of the places that count is allowed, by the definition."""
    first, last, pairs = chain.may
    good = True
    for _, group in itertools.groupby(zip(path, documents, strict=True), key=lambda pair: pair[1]):
        labels = [label for label, _ in group]
        good &= bool(
            first[labels[0]]
            and last[labels[-1]]
            and all(pairs[a, b] for a, b in itertools.pairwise(labels))
        )
    return good


def paths(chain: Links, row: np.ndarray, places: np.ndarray, constrain: bool):
    """{path over the places that count: its score}, in float64."""
    on = [int(i) for i in np.flatnonzero(places)]
    table = {}
    for path in itertools.product(range(C), repeat=len(on)):
        documents = [int(places[i]) for i in on]
        if constrain and not lawful(chain, path, documents):
            continue
        total = sum(float(row[i, label]) for i, label in zip(on, path, strict=True))
        for n, label in enumerate(path):
            if n == 0 or documents[n] != documents[n - 1]:
                total += float(chain.first[label]) + (float(chain.last[path[n - 1]]) if n else 0.0)
            else:
                total += float(chain.pairs[path[n - 1], label])
        table[path] = total + (float(chain.last[path[-1]]) if path else 0.0)
    return on, table


@pytest.fixture(
    scope="module",
    params=[("", False), ("IOB1", True), ("IOB2", True), ("IOBES", True), ("IOB2", False)],
    ids=str,
)
def chain(request):
    """(links, whether sums are over allowed paths, all paths of every row)"""
    scheme, constrain = request.param
    value = links(scheme)
    return (
        value,
        constrain,
        [
            paths(value, row, places, constrain)
            for row, places in zip(scores(), PLACES, strict=True)
        ],
    )


@pytest.mark.full
def test_the_partition_function_a_paths_probability_and_the_marginals(chain):
    """The marginals of the classes are the gradient of the partition function."""
    value, constrain, tables = chain
    total, chosen = np.zeros(len(tables)), np.zeros(len(tables))
    labels, marginals = np.zeros(PLACES.shape, np.int32), np.zeros((*PLACES.shape, C))
    for row, (on, table) in enumerate(tables):
        path = sorted(table)[len(table) // 2]
        labels[row, on], chosen[row] = path, table[path]
        total[row] = np.logaddexp.reduce(list(table.values()))
        for path, score in table.items():
            marginals[row, on, path] += np.exp(score - total[row])
    found, pull = jax.vjp(
        lambda given: log_partition(value, given, PLACES, constrain), jnp.asarray(scores())
    )
    np.testing.assert_allclose(found, total, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pull(jnp.ones(len(PLACES)))[0], marginals, atol=1e-5)
    probability = nll(value, scores(), labels, PLACES, constrain)
    np.testing.assert_allclose(probability, total - chosen, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("scheme", LABELS)
def test_viterbi_is_the_maximum_over_all_allowed_paths(scheme):
    for seed in range(4):
        value, given = links(scheme, seed), scores(seed + 10)
        labels, totals = (np.asarray(x) for x in best(value, given, PLACES))
        for row, places in enumerate(PLACES):
            on, table = paths(value, given[row], places, True)
            expected = max(table, key=table.get)
            assert tuple(labels[row, on]) == expected and not labels[row][places == 0].any()
            np.testing.assert_allclose(totals[row], table[expected], rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["IOB1", "IOB2", "IOBES"]),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    st.lists(st.lists(st.integers(0, 3), min_size=L, max_size=L), min_size=6, max_size=6),
)
def test_no_forbidden_pair_is_ever_decoded(scheme, seed, scale, places):
    value = links(scheme, seed, scale)
    given, places = scale * scores(seed + 1), np.array(places, np.int32)
    labels = np.asarray(best(value, given, places)[0])
    for row, documents in zip(labels, places, strict=True):
        on = documents > 0
        assert lawful(value, row[on].tolist(), documents[on].tolist())
    assert np.asarray(keeps(value, labels, places)).all()


def test_padding_changes_nothing():
    value, given = links("IOB2"), scores()
    changed = np.where(PLACES[..., None] > 0, given, 1e4)
    labels = np.where(PLACES > 0, 2, 3).astype(np.int32)
    for f in (
        lambda x: log_partition(value, x, PLACES, False),
        lambda x: best(value, x, PLACES)[0],
    ):
        np.testing.assert_array_equal(f(given), f(changed))
    other = np.where(PLACES > 0, labels, 0).astype(np.int32)
    np.testing.assert_array_equal(
        nll(value, given, labels, PLACES, False), nll(value, changed, other, PLACES, False)
    )
    wide = (
        np.pad(given, ((0, 0), (2, 3), (0, 0)), constant_values=7.0),
        np.pad(PLACES, ((0, 0), (2, 3))),
    )
    np.testing.assert_allclose(
        value.log_partition(*wide), log_partition(value, given, PLACES, False), rtol=1e-6
    )
    np.testing.assert_array_equal(value.best(*wide)[0][:, 2:-3], best(value, given, PLACES)[0])


# What conlleval, seqeval and the papers allow and forbid.
TAGS = {
    ("IOB2", True): ["O B-A I-A O", "B-A B-A I-A B-B"],
    ("IOB2", False): ["I-A O O O", "B-A I-B O O", "O I-A O O"],
    ("IOB1", True): ["I-A I-A B-A I-A", "I-A I-B O I-A"],
    ("IOB1", False): ["B-A I-A O O", "O B-A O O", "I-B B-A O O"],
    ("IOBES", True): ["S-A B-A I-A E-A", "B-A E-A S-B O"],
    ("IOBES", False): ["B-A O O O", "O O O B-A", "E-A O O O", "B-A E-B O O", "S-A I-A E-A O"],
}


@pytest.mark.parametrize(("scheme", "expected"), TAGS)
def test_what_the_schemes_allow(scheme, expected):
    names = (
        "O",
        *(
            f"{prefix}-{kind}"
            for kind in "AB"
            for prefix in ("BIES" if scheme == "IOBES" else "BI")
        ),
    )
    zeros = [np.zeros(shape, np.float32) for shape in ((len(names),) * 2, len(names), len(names))]
    labels = np.array(
        [[names.index(tag) for tag in tags.split()] for tags in TAGS[scheme, expected]], np.int32
    )
    found = keeps(Links(*zeros, allowed(names, scheme)), labels, np.ones_like(labels))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("labels", "scheme", "words"),
    [
        (("O", "X-A"), "IOB2", "the label 'X-A' is none of IOB2"),
        (("O", "S-A"), "IOB1", "the label 'S-A' is none of IOB1"),
        (("O", "B"), "IOB2", "the label 'B' is none of IOB2"),
        (("B-A", "I-A"), "IOB2", "have no O"),
        (("O",), "IOB3", "unknown tagging scheme 'IOB3'"),
    ],
)
def test_labels_of_no_scheme_are_refused(labels, scheme, words):
    with pytest.raises(UserError, match=words):
        allowed(labels, scheme)
    with pytest.raises(UserError, match="needs the names of its 3 classes"):
        CRFHead(classes=3, labels=("O",), scheme="IOB2")


@pytest.fixture(scope="module")
def task():
    """(tower, encoded, batch, class scores) of a head with the scheme IOB2; the last row is
    padding."""
    hidden = jax.random.normal(jax.random.key(0), (6, L, 3))
    head = CRFHead(classes=C, labels=LABELS["IOB2"], scheme="IOB2")
    model = Model(
        encoder=transformer(vocab=Vocab(size=5), layers=1, width=4, heads=1), heads={"tag": head}
    )
    table = {"embed": {"token": np.zeros((5, 4), np.float32)}}  # a tower offers it to every head
    tower = Tower(
        model,
        jax.tree.map(jnp.asarray, {"encoder": table, "heads_tag": drawn(head, hidden, scale=1.0)}),
    )
    labels = np.array(
        [[2, 0, 1, 2, 2], [0, 1, 1, 0, 2], [2] * 5, [1, 2, 2, 2, 2], [0, 1, 2, 2, 2], [0] * 5],
        np.int32,
    )
    weights = np.array(
        [[1, 0, 1, 1, 0], [1] * 5, [0, 1, 1, 0, 0], [1] * 5, [1, 1, 0, 1, 1], [0] * 5], np.float32
    )
    batch = {
        "input_ids": np.ones((6, L), np.int32),
        "segment_ids": np.where(PLACES[[2, 2, 2, 2, 4, 0]] > 0, 1, 0),
    }
    batch |= {"token_labels": labels, "token_weights": weights}
    return (
        tower,
        Encoded(hidden=hidden),
        batch,
        np.asarray(tower.read("tag", Encoded(hidden=hidden), batch)),
    )


@pytest.mark.full
@pytest.mark.parametrize("constrain", ["decoding", "always"])
@pytest.mark.status("CRFTagging", "built")
def test_the_objective_is_the_sum_over_rows(task, constrain):
    tower, encoded, batch, given = task
    objective = CRFTagging(constrain=constrain)
    loss = jax.jit(lambda batch: objective.of(tower, encoded, batch))(batch)
    value, total, weight, broken = tower.head("tag"), 0.0, 0, 0
    for row in range(6):
        places = np.where(batch["token_weights"][row] > 0, batch["segment_ids"][row], 0)
        on, table = paths(value, given[row], places, constrain == "always")
        path = tuple(batch["token_labels"][row, on].tolist())
        if path not in table:
            broken += 1
            continue
        total += np.logaddexp.reduce(list(table.values())) - table[path] if on else 0.0
        weight += len(on)
    np.testing.assert_allclose((loss.sum, loss.weight), (total, weight), rtol=1e-5)
    if constrain == "always":
        assert (
            broken == 2
            and float(loss.metrics["broken"].sum) == 2
            and float(loss.metrics["broken"].weight) == 5
        )


@pytest.mark.full
def test_the_objectives_gradient_is_finite_and_reaches_the_links(task):
    tower, encoded, batch, _ = task
    for constrain in ("decoding", "always"):
        objective = CRFTagging(constrain=constrain)
        grads = jax.jit(
            jax.grad(
                lambda params, objective=objective: (
                    objective.of(Tower(tower.module, params), encoded, batch).sum
                )
            )
        )(tower.params)
        grads = jax.tree.leaves(grads["heads_tag"])
        assert all(bool(jnp.isfinite(leaf).all() and (leaf != 0).any()) for leaf in grads)


@pytest.mark.full
def test_decoding_a_loaded_model_is_the_best_path(task):
    tower, _, _, given = task
    model = types.SimpleNamespace(module=tower.module, params={"main": tower.params}, tower="main")
    for row in given:
        for length in (1, 4, 5):
            expected = best(tower.head("tag"), row[None, :length], np.ones((1, length), np.int32))[
                0
            ][0]
            np.testing.assert_array_equal(CRFHead.decode(model, row[:length]), expected)


def test_a_tagging_system_chooses_a_chain_as_a_value(task):
    chain, hidden = task[0].module, jnp.zeros((1, 2, 8))
    linear = Model(encoder=chain.encoder, heads={"tag": TokenHead(C)})

    def paths_of(model):
        return set(drawn(model.heads["tag"], hidden))

    assert paths_of(chain) - paths_of(linear) == {
        "pairs",
        "first",
        "last",
    }  # a published tagger's layer stays where it is
    tagger = types.SimpleNamespace(towers={"main": linear})
    assert "take a CRFHead" in CRFTagging().refusal(tagger)
    tagger.towers = {"main": chain}
    assert CRFTagging().refusal(tagger) is None and Tagging().head == CRFTagging().head
