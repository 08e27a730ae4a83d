"""`ptm evaluate --task attention`: figures by their definitions, in numpy and scipy."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from scipy import special, stats
from scipy.spatial import distance

import ptm_jax
from ptm_jax.adapt import catalogue
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.saliency import alternatives, attributions
from ptm_jax.tasks import attention_tests
from support import tiny_checkpoint, tiny_models

TEXTS = [
    "the film is good",
    "a very long story but sad and bad end",
    "good",
    "funny plot was short",
]


@pytest.fixture(scope="module", params=["attentive", "first token"])
def model(request, tmp_path_factory):
    return drawn_classifier(tmp_path_factory.mktemp("classifier"), request.param)


def drawn_classifier(path, kind):
    """A classifier with drawn parameters: an attention over LSTM states, or a last layer."""
    folder = tiny_checkpoint.write(
        path / "begin", architectures=["BertForSequenceClassification"], vocab=84, scale=0.4,
        num_hidden_layers=2,
    )  # fmt: skip
    if kind == "first token":
        return ptm_jax.load(folder)
    system = ptm_jax.load(folder).system
    (module,) = system.towers.values()
    for name in ("embedding", "bilstm(hidden=6)", "attentive(width=4)"):
        module = catalogue.read(name).wrap(module)
    system = dataclasses.replace(system, towers={"main": module})
    params = tiny_models.drawn(system, scale=0.6)
    return Pretrained(system, params, ptm_jax.load(folder).tokenizer)


def parts_of(model, texts=TEXTS[:2]):
    tested = attention_tests.Tested(model, alternatives.part_of(model))
    rows = attention_tests.classifying._framed(model, texts, None)
    fields = tested.batch([ids for ids, _ in rows], [types for _, types in rows])
    return tested, fields, tested.attended(fields)


def states_of(model, weights, seen, row):
    """The logits [C] of a text under weights [H, L], from the parameters alone."""
    flat = {path: np.asarray(leaf, np.float64) for path, leaf in flatten(model.params).items()}
    states = np.asarray(seen.states[row], np.float64)
    real = np.asarray(seen.real[row])

    def p(name):
        (path,) = [path for path in flat if path.endswith(name)]
        return flat[path]

    def norm(x, name):
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
        return x * p(f"{name}/scale")[-1] + p(f"{name}/bias")[-1]

    if seen.weights.shape[1] == 1:
        summary = weights[0, real] @ states[real]
    else:
        values = np.einsum("ld,dhk->lhk", states, p("value/kernel")[-1]) + p("value/bias")[-1]
        read = np.einsum("hl,lhk->hk", weights[:, real], values[real])
        out = np.einsum("hk,hkd->d", read, p("out/kernel")[-1]) + p("out/bias")[-1]
        x = norm(states[0] + out, "attention_norm")
        up = x @ p("up/kernel")[-1] + p("up/bias")[-1]
        up = up * 0.5 * (1 + special.erf(up / np.sqrt(2)))
        x = norm(x + up @ p("down/kernel")[-1] + p("down/bias")[-1], "ffn_norm")
        summary = np.tanh(x @ p("heads_classify/summary/dense/kernel") + p("summary/dense/bias"))
    return summary @ p("classes/kernel") + p("classes/bias")


def chance(model, weights, seen, row):
    return special.softmax(states_of(model, weights, seen, row))


def with_share(seen, row, share):
    """The weights [H, L] of a text with another share."""
    weights, text = np.asarray(seen.weights, np.float64)[row], np.asarray(seen.text)[row]
    return np.where(text, weights[:, text].sum(-1, keepdims=True) * share, weights)


@pytest.mark.full
def test_its_attention_gives_the_models_classes_and_another_one_its_own(model):
    tested, fields, seen = parts_of(model)
    chances = tested.chances(seen, seen.weights[:, None])
    wanted = [[*one.values()] for one in model.classify(TEXTS[:2])]
    np.testing.assert_allclose(chances[:2, 0], wanted, atol=1e-5)
    draw, share = np.random.default_rng(0), np.asarray(seen.share())
    text = np.asarray(seen.text)
    np.testing.assert_allclose(share[:2].sum(-1), 1, rtol=1e-5)
    other = np.where(text[:, None], draw.random(share.shape), 0)
    other = other / np.maximum(other.sum(-1, keepdims=True), 1e-9)
    weights = np.asarray(seen.with_share(other[:, None]))
    after = tested.chances(seen, weights)
    for row in range(2):
        mass = np.asarray(seen.weights)[row, :, text[row]].sum(0)
        np.testing.assert_allclose(weights[row, 0][:, text[row]].sum(-1), mass, rtol=1e-5)
        np.testing.assert_allclose(
            after[row, 0], chance(model, weights[row, 0], seen, row), atol=1e-5
        )


@pytest.mark.full
@pytest.mark.status("ptm evaluate --task attention", "matches")
def test_figures_are_their_definitions(model):
    tested, fields, seen = parts_of(model)
    base = tested.chances(seen, seen.weights[:, None])
    labels = base[:, 0].argmax(-1).astype(np.int32)
    share, text = np.asarray(seen.share(), np.float64), np.asarray(seen.text)
    draw = np.random.default_rng(0)
    permuted = attention_tests._permuted(tested, seen, base, draw, 200)
    zeroed = attention_tests._zeroed(tested, seen, base, draw)
    removed = attention_tests._removed(tested, seen, labels, draw)
    slopes = np.asarray(alternatives.slopes(*tested.known, seen, labels))

    for row in range(2):
        places, mean = np.flatnonzero(text[row]), share[row].mean(0)
        before = chance(model, np.asarray(seen.weights, np.float64)[row], seen, row)
        far = []
        for _ in range(200):
            mixed = share[row].copy()
            mixed[:, places] = mixed[:, draw.permutation(places)]
            far.append(
                0.5 * abs(chance(model, with_share(seen, row, mixed), seen, row) - before).sum()
            )
        assert permuted[row] == pytest.approx(np.median(far), rel=0.25, abs=0.01)

        def removal(order, count, row=row):
            left = share[row].copy()
            left[:, order[:count]] = 0
            left /= left.sum(-1, keepdims=True)
            return chance(model, with_share(seen, row, left), seen, row)

        orders = {
            "attention": places[np.argsort(-mean[places], kind="stable")],
            "gradient": places[np.argsort(-slopes[row].sum(0)[places], kind="stable")],
        }
        assert zeroed["flips without greatest"][row] == (
            removal(orders["attention"], 1).argmax() != labels[row]
        )
        for name, order in orders.items():
            flips = [removal(order, k).argmax() != labels[row] for k in range(1, len(order))]
            first = 1 + flips.index(True) if any(flips) else len(order)
            assert removed[f"removed to flip, by {name}"][row] == pytest.approx(first / len(order))


@pytest.mark.full
def test_adversaries_keep_the_prediction_and_are_far(model):
    """The constraint by numpy; no random attention within it is farther."""
    tested, fields, seen = parts_of(model)
    epsilon = 0.01
    best, most = alternatives.adversary(*tested.known, seen, jax.random.key(0), (5, 500, epsilon))
    weights, share = np.asarray(seen.weights, np.float64), np.asarray(seen.share(), np.float64)
    far = np.asarray(seen.with_share(best[:, None]))[:, 0]
    draw, text = np.random.default_rng(0), np.asarray(seen.text)
    for row in range(2):
        before = chance(model, weights[row], seen, row)
        moved = chance(model, far[row], seen, row)
        assert 0.5 * abs(moved - before).sum() <= epsilon + 1e-4
        heads = [
            distance.jensenshannon(p, q) ** 2 for p, q in zip(share[row], best[row], strict=True)
        ]
        assert most[row] == pytest.approx(np.mean(heads), abs=1e-4)
        random = [0.0]
        for _ in range(200):
            other = np.zeros_like(share[row])
            other[:, text[row]] = draw.dirichlet(np.ones(text[row].sum()), len(other))
            moved = chance(model, with_share(seen, row, other), seen, row)
            if 0.5 * abs(moved - before).sum() <= epsilon:
                pairs = zip(share[row], other, strict=True)
                random.append(np.mean([distance.jensenshannon(p, q) ** 2 for p, q in pairs]))
        assert most[row] >= max(random) and most[row] > 0.05


@pytest.mark.full
def test_taus_are_scipys_of_finite_differences_and_of_shorter_texts(model):
    tested, fields, seen = parts_of(model)
    rows = attention_tests.classifying._framed(model, TEXTS[:2], None)
    labels = tested.chances(seen, seen.weights[:, None])[:, 0].argmax(-1).astype(np.int32)
    figures = attention_tests._correlated(tested, fields, seen, labels, rows, batch=8)
    text, share = np.asarray(seen.text), np.asarray(seen.share()).mean(1)
    function = attributions.function_of(model, TEXTS[1])
    words = np.zeros((*text.shape, function.words(function.ids).shape[1]), np.float32)
    words[1, : len(function.ids)] = function.words(function.ids)

    def value(place, step):
        moves = np.zeros_like(words)
        moves[1, place] = step * words[1, place]
        specials = np.array(model.vocab.specials, np.int32)
        moved = alternatives.attended(*tested.known, {**fields, "perturbation": moves}, specials)
        return np.log(tested.chances(moved, seen.weights[:, None])[1, 0, labels[1]])

    places = np.flatnonzero(text[1])
    slopes = [abs(value(place, 0.02) - value(place, -0.02)) for place in places]
    wanted = stats.kendalltau(share[1, places], slopes)
    assert figures["tau with gradients"][1] == pytest.approx(wanted.statistic, abs=0.1)
    shorter = [np.delete(rows[1][0], place) for place in places]
    types = [np.delete(rows[1][1], place) for place in places]
    fields = tested.batch(shorter, types)
    scores = model(fields["input_ids"], fields["segment_ids"], fields.get("token_type_ids"))
    chances = special.softmax(np.float64(scores.scores["classify"]), -1)[: len(places)]
    base = np.array([*model.classify([TEXTS[1]])[0].values()])
    wanted = stats.kendalltau(share[1, places], 0.5 * abs(chances - base).sum(-1))
    assert figures["tau with leave-one-out"][1] == pytest.approx(wanted.statistic)
    assert figures["significant, leave-one-out"][1] == (wanted.pvalue < 0.05)


def test_divergence_is_scipys():
    p, q = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3))
    q[0] = [0, 0, 1, 0, 0]
    wanted = [distance.jensenshannon(*both) ** 2 for both in zip(p, q, strict=True)]
    np.testing.assert_allclose(alternatives.divergence(p, q), wanted, rtol=1e-5)


@pytest.mark.full
def test_the_command(tmp_path, capsys):
    model = drawn_classifier(tmp_path, "attentive")
    table = tmp_path / "texts.tsv"
    table.write_text("text\n" + "\n".join(TEXTS) + "\n")
    model.save(tmp_path / "run")
    command = ["evaluate", str(tmp_path / "run"), "--task", "attention", "--data", str(table)]
    command += ["--permutations", "4", "--searches", "2", "5"]
    assert main([*command, "--json"]) == 0
    output = capsys.readouterr()
    printed = json.loads(output.out)
    assert "testing the attention of 3 texts" in output.err
    assert main([*command, "--searches", "0", "5"]) == 1
    assert "--permutations and --searches must be at least 1" in capsys.readouterr().err
    assert printed["examples"] == 3 and list(printed["remarks"].values()) == [1]
    assert sum(row["texts"] for row in printed["bins"]) == 3
    assert main(command) == 0
    assert "flips without greatest" in capsys.readouterr().out
    assert main([*command, "--label-column", "text"]) == 1
    assert "reads no labels" in capsys.readouterr().err


@pytest.mark.full
def test_models_without_one_attention_are_refused_in_a_line(tmp_path):
    folder = tiny_checkpoint.write(tmp_path / "a", architectures=["BertForMaskedLM"], vocab=84)
    with pytest.raises(UserError, match="has no head of classes; --task attention tests"):
        alternatives.part_of(ptm_jax.load(folder))
