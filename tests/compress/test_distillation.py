"""Distillation as a wrapper: its towers, what moves, what it refuses; BERT-of-Theseus."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.compress import catalogue
from ptm_jax.compress.matches.attending import AttentionMaps, AttentionScores, HeadRelations
from ptm_jax.compress.matches.predictions import Logits, SoftTargets
from ptm_jax.compress.matches.states import Gram, Hidden, Patient, StateCosine
from ptm_jax.compress.students.distillation import Distillation
from ptm_jax.compress.students.from_teacher import Narrow, SomeLayers
from ptm_jax.compress.students.progressive import Progressive
from ptm_jax.compress.students.theseus import Theseus, replacing_rate
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.inference.text import exits
from ptm_jax.inference.text.exits import uncertainty
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.training.steps import step
from support import tiny_checkpoint
from support.classifier import VOCAB, batch, classifier

EVERY = (
    SoftTargets(temperature=2.0),
    Logits(),
    Hidden(),
    StateCosine(),
    Patient(layers="states"),
    Gram(),
    Gram(over="features"),
)
EVERY += (AttentionScores(), AttentionMaps(), HeadRelations())


def system(*compress, **fields):
    found = classifier(types=2, **fields)
    return dataclasses.replace(found, compress=compress)


def shapes(found):
    return {
        path: leaf.shape
        for path, leaf in flatten(
            jax.eval_shape(step.program(found, 0).init, batch(2)).params
        ).items()
    }


def bits(params):
    return {path: np.asarray(leaf).tobytes() for path, leaf in flatten(params).items()}


def ran(found, steps):
    """(program, [parameters before each step and at the end], [metrics])."""
    work = step.program(found, seed=0)
    state, update, kept, metrics = jax.jit(work.init)(batch(2)), jax.jit(work.step), [], []
    for _ in range(steps):
        kept.append(bits(state.params))
        state, more = update(state, batch(2))
        metrics.append(more)
    return work, [*kept, bits(state.params)], metrics


@pytest.mark.full
def test_an_equal_student_has_loss_0_and_the_teacher_keeps_its_bits():
    whole = Distillation(student=SomeLayers(keep=3), matches=EVERY, hard=0.0)
    work, (before, after), (metrics,) = ran(system(whole), 1)
    named = {name: value.value() for name, value in metrics.items() if name[-2] == "_"}
    assert len(named) == len(EVERY)
    assert max(map(abs, named.values())) < 1e-6 and float(metrics["grad_norm"]) < 1e-5
    assert all(before[path] == after[path] for path in before if path.startswith("teacher/"))


@pytest.mark.full
def test_a_smaller_student_learns_and_the_teacher_keeps_its_bits():
    terms = (
        *EVERY,
        Hidden(layers="states", projection="shared"),
        Hidden(layers=((1, 3),), projection="each"),
    )
    _, kept, metrics = ran(system(Distillation(student=SomeLayers(keep=(1, 3)), matches=terms)), 12)
    first, last = (
        {n: float(m[n].value()) for n in m if re.search(r"_\d+$", n)}
        for m in (metrics[0], metrics[-1])
    )
    assert all(kept[0][path] == kept[-1][path] for path in kept[0] if path.startswith("teacher/"))
    assert all(
        kept[0][path] != kept[-1][path] for path in kept[0] if path.startswith("projections/")
    )
    assert sum(last.values()) < 0.8 * sum(first.values())


def test_students_have_the_layers_that_they_keep():
    even, first, last = (
        SomeLayers(keep=6, which=which).numbers(12) for which in ("even", "first", "last")
    )
    assert (even, first, last) == ((2, 4, 6, 8, 10, 12), (1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12))
    work = step.program(
        system(
            Distillation(student=SomeLayers(keep=2, layout="distilbert"), matches=(StateCosine(),))
        ),
        0,
    )
    params = jax.eval_shape(work.init, batch(2)).params
    own, known = (
        {path: leaf.shape for path, leaf in flatten(params).items()},
        work.freedom.places(params),
    )
    assert {path.split("/")[0] for path in known if not work.freedom.trains(known[path])} == {
        "teacher"
    }
    assert (
        own["main/encoder/stack/block/ffn/up/kernel"][0] == 2
        and own["teacher/encoder/stack/block/ffn/up/kernel"][0] == 3
    )
    assert "main/encoder/embed/type" not in own and "teacher/encoder/embed/type" in own
    teacher = {
        "encoder": {"stack": {"block": {"w": np.arange(3.0)}}, "embed": {"token": np.ones(2)}},
        "heads_x": {"b": np.ones(1)},
    }
    drawn = {
        "encoder": {"stack": {"block": {"w": np.zeros(2)}}, "embed": {"token": np.zeros(2)}},
        "heads_y": {"b": np.zeros(1)},
    }
    made = flatten(SomeLayers(keep=(1, 3)).begin(drawn, teacher))
    assert made["encoder/stack/block/w"].tolist() == [0, 2] and made[
        "encoder/embed/token"
    ].tolist() == [1, 1]
    assert made["heads_y/b"].tolist() == [0]


def narrow(tower):
    encoder = transformer(vocab=VOCAB, layers=3, width=4, heads=2, positions=LearnedPositions(8))
    return Model(encoder=encoder, heads=tower.heads)


@pytest.mark.parametrize(
    ("change", "wrapper", "message"),
    [
        (
            None,
            {"matches": (Hidden(layers=((1, 7),)),)},
            "layer 7 of the teacher, which has the layers 1 to 3",
        ),
        (None, {"matches": (StateCosine(),), "keep": 9}, "keep is 9, and the teacher has 3 layers"),
        (None, {"matches": (StateCosine(teacher=1),)}, "a match reads teacher 1, and there are 1"),
        (narrow, {"matches": (StateCosine(),)}, "the student is 4 wide and the teacher 8"),
        (
            lambda tower: with_field(tower, "vocab", Vocab(size=9)),
            {"matches": (StateCosine(),)},
            "9 tokens and teacher 24",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(change, wrapper, message):
    found = system(Distillation(**wrapper))
    teacher = found.towers["main"]
    if change is not None:
        found = dataclasses.replace(found, towers={"main": change(teacher), "teacher": teacher})
    with pytest.raises(UserError, match=message) as error:
        adapted(found)
    assert "\n" not in str(error.value)


def test_values_that_make_no_distillation():
    for odd, message in (
        ({"matches": ()}, "needs a match"),
        ({"matches": (StateCosine(),), "stored": True}, "predictions alone"),
    ):
        with pytest.raises(ValueError, match=message):
            Distillation(**odd)
    with pytest.raises(UserError, match="give begin=MODEL, or keep=N"):
        catalogue.read("pd").start("m")
    assert catalogue.read("minilm(begin=small)").start("m") == (("main", "small"), ("teacher", "m"))
    assert catalogue.read('logits(stored=True, begin="/a/b-c")').start("m") == (("main", "/a/b-c"),)
    assert catalogue.read("distil(keep=3, temperature=4)").terms[0].temperature == 4


@pytest.mark.full
def test_scores_in_the_batch_stand_for_the_teacher():
    """No tower of a teacher is there; the loss is that of the stored scores."""
    found = system(Distillation(matches=(Logits(),), hard=0.0, stored=True))
    work, rows = (
        step.program(found, 0),
        batch(2) | {"teacher_scores": jnp.asarray([[[0.0, 1.0]]] * 4)},
    )
    assert not [path for path in shapes(found) if path.startswith("teacher")]
    params = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(work.init, rows).params
    )
    loss = jax.jit(lambda: work._loss(work._bind(params, False), rows | {"step": 0}, None))()
    np.testing.assert_allclose(loss.metrics["logits_0"].value(), 0.5)


def test_the_rate_of_replacement_follows_its_schedule():
    """min(1, k t + b), by hand; without k it is 1 after the share of the run."""
    assert np.allclose(replacing_rate(np.arange(5), 0.3, 0.25), [0.3, 0.55, 0.8, 1, 1])
    value = Theseus(base=0.4, until=0.5).within(classifier(steps=12))
    assert np.allclose([float(value.rate_at(t)) for t in (0, 3, 6, 9)], [0.4, 0.7, 1, 1])
    found = classifier(steps=12)
    with pytest.raises(UserError, match="3 layers are no modules of 2"):
        adapted(dataclasses.replace(found, compress=(Theseus(),)))


@pytest.mark.full
def test_successors_alone_move_until_the_rate_is_1():
    _, kept, metrics = ran(system(Theseus(each=3, until=0.5, tuned="all"), steps=6), 6)
    assert np.allclose(
        [m["replaced"].value() for m in metrics], [0.3 + t * 0.7 / 3 for t in range(3)] + [1, 1, 1]
    )
    moved = [
        {path for path in a if a[path] != b[path]} for a, b in zip(kept, kept[1:], strict=False)
    ]
    assert all(path.startswith("main/encoder/stack/") for path in set().union(*moved[:3]))
    assert any("heads_classify" in path for path in moved[-1]) and not any(
        p.startswith("teacher") for p in moved[-1]
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny checkpoint with two layers."""
    folder = tiny_checkpoint.write(tmp_path_factory.mktemp("distil") / "bert", num_hidden_layers=2)
    return str(folder)


@pytest.mark.full
@pytest.mark.parametrize(
    "method", ["distilbert(keep=1)", "theseus", "minilm(keep=1)", "logits(stored=True, begin='{}')"]
)
def test_the_command_writes_a_student_without_its_teacher(method, model, tmp_path, capsys):
    """The teacher is a run; a stopped distillation goes on exactly; the student exports."""
    import shutil

    data = str(tiny_checkpoint.written(tmp_path / "data"))
    teacher = tmp_path / "teacher"
    assert (
        main(
            [
                "train",
                "--init",
                model,
                "--task",
                "sst2",
                "--data",
                data,
                "--epochs",
                "1",
                "--workdir",
                str(teacher),
            ]
        )
        == 0
    )
    words = [
        "compress",
        method.format(model),
        str(teacher),
        "--task",
        "sst2",
        "--data",
        data,
        "--batch",
        "8",
        "--json",
        "--epochs",
        "1",
    ]
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "whole"), "--set", "save_every=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    fewer = found["before"]["parameters"] - found["after"]["parameters"]
    assert fewer > 0 or (fewer == 0 and "stored" in method)
    assert 0 <= found["after"]["metrics"]["accuracy"] <= 1
    student = ptm_jax.load(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    for one in sorted((tmp_path / "whole.run" / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(one)
    (tmp_path / "whole.run" / "task.json").unlink()
    assert main([*words, "--out", str(tmp_path / "whole"), "--set", "save_every=3"]) == 0
    again = ptm_jax.load(tmp_path / "whole")
    assert (
        bits(student.params) == bits(again.params)
        and {*student.params} == {"main"}
        and student.system.compress == ()
    )
    assert main(["export", str(tmp_path / "whole"), "--out", str(tmp_path / "hub")]) == 0
    kind = json.loads((tmp_path / "hub" / "config.json").read_text())["model_type"]
    assert kind == ("distilbert" if "distilbert" in method else "bert")
    texts = ["a good film", "no"]
    found = [
        [list(one.values()) for one in ptm_jax.load(tmp_path / name).classify(texts)]
        for name in ("hub", "whole")
    ]
    np.testing.assert_allclose(*found, atol=1e-6)


@functools.cache
def fast():
    """A model of 3 layers with branches, parameters drawn by numpy."""
    from ptm_jax.inference.pretrained import Pretrained

    found = system(catalogue.read("fastbert(width=4)"))
    work, draw = step.program(found, 0), np.random.default_rng(1)
    drawn = jax.tree.map(
        lambda leaf: draw.normal(size=leaf.shape).astype(np.float32),
        jax.eval_shape(work.init, batch(2)).params,
    )
    return work, Pretrained(work.system, drawn)


def test_branches_alone_move_and_learn_the_top_classifier():
    work, model = fast()
    known = work.freedom.places(model.params)
    assert {path for path in known if work.freedom.trains(known[path])} == {
        path for path in known if "/heads_branch_" in path
    }
    smaller, params = work.system.compress[0].smaller(work.system, model.params, None)
    assert (
        not smaller.compress
        and type(smaller.objective).__name__ == "Classification"
        and params is model.params
    )


def test_uncertainty_is_the_normalised_entropy():
    p = np.array([[0.5, 0.5], [1.0, 1e-9], [0.9, 0.1]])
    by_hand = [1, 0, -(0.9 * np.log2(0.9) + 0.1 * np.log2(0.1))]
    np.testing.assert_allclose(uncertainty(np.log(p)), by_hand, atol=1e-6)


@pytest.mark.full
def test_rows_leave_at_the_first_certain_layer():
    """The scores of a row are those of its layer in a pass over all rows; the cost falls as the
    threshold rises."""
    work, model = fast()
    rows = {name: value for name, value in batch(2).items() if name != "label"}
    tower = work._bind(model.params, False)["main"]
    encoded = tower(rows)
    every = np.stack(
        [
            np.asarray(tower.read(name, encoded, rows))
            for name in ("branch_1", "branch_2", "classify")
        ]
    )
    passed = []
    for speed in (0.0, 0.3, 0.6, 0.9, 1.0):
        found = exits.classify(model, rows, speed)
        certain = np.concatenate(
            [uncertainty(every[:2]) < speed, np.ones((1, len(found.layers)), bool)]
        )
        assert (found.layers == certain.argmax(0) + 1).all()
        np.testing.assert_allclose(
            found.scores,
            every[found.layers - 1, np.arange(len(found.layers))],
            rtol=2e-4,
            atol=2e-5,
        )
        passed.append(found.layers.mean())
    assert passed == sorted(passed, reverse=True) and passed[0] == 3 and passed[-1] < passed[0]
    early = exits.EarlyExit(model, 1.0)
    with pytest.raises(UserError, match="speed is 2"):
        exits.EarlyExit(model, 2.0)
    with pytest.raises(UserError, match="no classifiers on its layers"):
        exits.check(dataclasses.replace(model, system=classifier()), 0.5)
    assert early.passed == []


@pytest.mark.full
def test_light_students_read_the_teachers_tokens():
    """Shapes alone: nothing is compiled."""
    lstm = shapes(system(catalogue.read("bilstm")))
    assert lstm["main/heads_classify/summary/dense/kernel"] == (300, 200) and lstm[
        "main/heads_classify/classes/kernel"
    ] == (
        200,
        2,
    )
    assert lstm["main/encoder/embed/token"] == (24, 300) and lstm[
        "teacher/encoder/embed/token"
    ] == (24, 8)
    cnn = shapes(system(catalogue.read("blendcnn")))
    assert cnn["main/encoder/layer_0/kernel"] == (500, 100) and cnn[
        "main/encoder/layer_7/kernel"
    ] == (500, 100)
    assert cnn["main/heads_classify/summary/dense/kernel"] == (800, 100)
    slim = shapes(
        system(
            Distillation(student=Narrow(layers=2, width=6, heads=3, hidden=9), matches=(Logits(),))
        )
    )
    assert slim["main/encoder/stack/block/attention/query/kernel"] == (2, 6, 3, 2) and slim[
        "main/encoder/embed/token"
    ] == (
        24,
        6,
    )
    assert slim["main/encoder/stack/block/ffn/up/kernel"] == (2, 6, 9) and slim[
        "main/heads_classify/classes/kernel"
    ] == (
        6,
        2,
    )


@pytest.mark.full
def test_light_students_learn_and_see_their_own_document_alone():
    for name in ("bilstm", "blendcnn"):
        work, _, metrics = ran(system(catalogue.read(name)), 30)
        assert metrics[-1]["logits_0"].value() < 0.2 * metrics[0]["logits_0"].value()
    tower = work._bind(
        jax.tree.map(
            lambda leaf: np.full(leaf.shape, 0.1, np.float32),
            jax.eval_shape(work.init, batch(2)).params,
        ),
        False,
    )
    one, other = batch(2), batch(2)
    other = other | {"input_ids": other["input_ids"].at[1, 4:].set(5)}  # padding of row 1
    states = [np.asarray(tower["main"](rows).hidden)[1, :4] for rows in (one, other)]
    np.testing.assert_array_equal(*states)


@pytest.mark.full
def test_progressive_transfer_goes_layer_by_layer():
    value = catalogue.read("mobilebert_progressive(layers=3, transfer=0.6, begin=s)").within(
        classifier(steps=10)
    )
    assert [int(value.stage(step)) for step in range(10)] == [1, 1, 2, 2, 3, 3, 4, 4, 4, 4]
    spans = [match.span for match in value.terms]
    np.testing.assert_allclose(spans[::2], [(0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 1)])
    assert spans[1:6:2] == spans[0:5:2] and value.hard_from == 0.6
    found = system(Progressive(layers=3, transfer=0.6, matches=(SoftTargets(),)), steps=10)
    free = step.program(found, 0)
    known = free.freedom.places(jax.eval_shape(free.init, batch(2)).params)

    def live(name, at):
        return np.asarray(free.freedom.live(known[f"main/{name}"], jnp.int32(at))).tolist()

    assert [live("encoder/stack/block/ffn/up/kernel", at) for at in (0, 3, 9)] == [
        [True, False, False],
        [False, True, False],
        [True] * 3,
    ]
    assert [live("encoder/embed/token", at) for at in (0, 3, 9)] == [True, False, True]
    assert [live("heads_classify/classes/kernel", at) for at in (0, 9)] == [False, True]


@pytest.mark.full
def test_the_command_trains_branches_and_texts_leave_early(model, tmp_path, capsys):
    data = str(tiny_checkpoint.written(tmp_path / "data"))
    of = ["--task", "sst2", "--data", data]
    teacher, fast = str(tmp_path / "teacher"), str(tmp_path / "fast")
    assert main(["train", "--init", model, *of, "--epochs", "1", "--workdir", teacher]) == 0
    assert (
        main(
            [
                "compress",
                "fastbert(width=4)",
                teacher,
                *of,
                "--batch",
                "8",
                "--epochs",
                "2",
                "--out",
                fast,
            ]
        )
        == 0
    )
    capsys.readouterr()
    layers = []
    for speed in ("0", "1"):
        assert main(["evaluate", fast, *of, "--speed", speed, "--json"]) == 0
        layers.append(json.loads(capsys.readouterr().out)["metrics"]["layers"])
    assert layers == [1.0, 0.5], "all layers, and the first of two"
    whole = []
    for one in (fast, teacher):
        assert main(["evaluate", one, *of, "--json"]) == 0
        whole.append(json.loads(capsys.readouterr().out)["metrics"])
    assert whole[0] == whole[1], "without --speed it is the model"
    assert main(["evaluate", teacher, *of, "--speed", "0.5"]) == 1
    assert "no classifiers on its layers" in capsys.readouterr().err
