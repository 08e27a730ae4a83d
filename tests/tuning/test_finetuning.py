"""Fine-tuning by command: from a run of our own, and from a published checkpoint."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.adapt.parameters.max_norm import MaxNorm
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import slots, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.core.types import Vocab, add_losses
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.tasks.crf import CRFTagging
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.runs.run import Run
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.tables.own_tables import OwnTexts
from ptm_jax.training import loop
from ptm_jax.training.start import initial
from ptm_jax.tuning import finetuning
from support import tiny_checkpoint
from support.tiny_checkpoint import written
from support.tiny_models import save_run


@pytest.mark.full
def test_a_published_checkpoint_is_fine_tuned_and_resumed(published, tmp_path, capsys):
    data = written(tmp_path / "sst2", count=64, dev=16)
    words = [
        "train",
        "--init",
        str(published),
        "--task",
        "sst2",
        "--data",
        str(data),
        "--epochs",
        "2",
        "--batch",
        "16",
    ]
    words += ["--workdir", str(tmp_path / "run"), "--set", "recipe.phases.0.length=16"]
    assert main([*words, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert found["steps"] == 8 and {"accuracy", "nll"} <= set(found["heldout"])
    (line,) = [line for line in out.err.splitlines() if "at random" in line or "not used" in line]
    assert line == f"{published}: new, begins at random: main/heads_classify"
    report = (tmp_path / "run" / "report.md").read_text()
    assert all(
        f"| held-out {name} | {value:.4f} |" in report for name, value in found["metrics"].items()
    )
    assert "| class frequencies (nats) | 0." in report and "| hours | " in report
    assert "heldout metrics" not in report  # the trainer's, in bfloat16, differ in the third digit
    assert main([*words, "--json"]) == 0  # nothing left to do
    assert json.loads(capsys.readouterr().out)["resumed_from"] == 8
    model = ptm_jax.load(tmp_path / "run")
    answers = model.classify(["a good film", "a sad story"])
    assert all(abs(sum(answer.values()) - 1) < 1e-5 for answer in answers) and len(answers) == 2
    start = ptm_jax.load(published)
    moved = (
        np.asarray(model.params["main"]["encoder"]["embed"]["token"])
        - start.params["main"]["encoder"]["embed"]["token"]
    )
    assert 0 < np.abs(moved).max() < 0.01  # it began there: eight small steps away


def calls_it_new(folder, path, capsys):
    """Whether a head of four classes is new, without a word of the checkpoint's shape."""
    examples = OwnTexts(first=("text",), label=("label",), labels=("a", "b", "c", "d"))
    (path / "four.csv").write_text("text,label\n" + "a,a\nb,b\nc,c\nd,d\n" * 5)
    config = finetuning.experiment(
        "classify", str(folder), (str(path / "four.csv"),), length=16, examples=examples
    )
    params = towers.init(config.system.towers, jax.random.key(0), checkpoint.example(config.system))
    initial.begin(params, str(folder), config.system)
    err = capsys.readouterr().err
    assert "main/heads_classify" in err
    return "another shape" not in err


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "new, begins at random: main/heads_classify"),
        (
            {"architectures": ["BertForMaskedLM"]},
            "new, begins at random: main/heads_classify; in the checkpoint, not used: "
            "cls/predictions",
        ),
        (
            {"architectures": ["BertForSequenceClassification"], "num_labels": 3},
            "new, begins at random (the checkpoint's has another shape): main/heads_classify",
        ),
    ],
)
def test_what_is_new_in_a_head_is_one_line(tmp_path, capsys, fields, line):
    """Three lines contradicted each other: new, drawn and not used."""
    folder = tiny_checkpoint.write(tmp_path / "hf", **fields)
    config = finetuning.experiment(
        "sst2", str(folder), (str(written(tmp_path / "sst2")),), length=16
    )
    params = towers.init(config.system.towers, jax.random.key(0), checkpoint.example(config.system))
    begun = initial.begin(params, str(folder), config.system)
    assert capsys.readouterr().err == f"{folder}: {line}\n"
    assert calls_it_new(folder, tmp_path, capsys) == ("BertForSequence" not in str(fields))
    there = ptm_jax.load(folder).params["main"]["encoder"]["embed"]["token"]
    np.testing.assert_array_equal(begun["main"]["encoder"]["embed"]["token"], there)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taught(slots.Objective):
    """The task beside the squared distance of the states from those of a given teacher."""

    task: slots.Objective = Classification()

    @property
    def given(self):
        return ("teacher",)

    def __call__(self, towers, batch, key):
        own, taught = (towers[name](batch).hidden.mean(1) for name in ("main", "teacher"))
        distance = jnp.square(own - taught).sum(-1)
        far = token_loss(distance, jnp.ones_like(distance), name="distance")
        return add_losses((1.0, self.task(towers, batch, key)), (1.0, far))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher(slots.Wrapper):
    """Fine-tuning under a teacher that lies in another tower."""

    def rewrite(self, system):
        return dataclasses.replace(system, objective=Taught(task=system.objective))


@pytest.mark.full
def test_a_given_teacher_stays_in_fine_tuning_and_is_not_trained(published, tmp_path):
    """Without it `adapt` would find no tower `teacher`."""
    data = [str(written(tmp_path / "sst2", count=16, dev=4))]
    sizes = {"epochs": 1, "batch": 8, "length": 16, "lr": 1e-3}
    init = (("main", str(published)), ("teacher", str(published)))
    config = finetuning.experiment("sst2", init, data, adapt=(Teacher(),), **sizes)
    assert set(config.system.towers) == {"main", "teacher"}
    assert set(finetuning.experiment("sst2", init, data, **sizes).system.towers) == {
        "main"
    }  # nobody uses it
    loop.train(config, tmp_path / "run", quiet=True)
    params, start = Run.at(tmp_path / "run").restore()[0], ptm_jax.load(published).params["main"]
    tables = {name: tree["encoder"]["embed"]["token"] for name, tree in params.items()}
    moved = {
        name: np.abs(table - start["encoder"]["embed"]["token"]).max()
        for name, table in tables.items()
    }
    assert moved["teacher"] == 0 < moved["main"]


def test_a_run_keeps_the_towers_that_are_used(published, tmp_path):
    model = ptm_jax.load(published)
    network = model.system.towers["main"]
    towers = {"main": network, "teacher": network, "spare": network}
    system = dataclasses.replace(model.system, towers=towers)
    params = dict.fromkeys(towers, model.params["main"])
    folder = save_run(tmp_path / "run", dataclasses.replace(model, system=system, params=params))
    data = [str(written(tmp_path / "sst2", count=8, dev=4))]
    config = finetuning.experiment("sst2", folder, data, adapt=(Teacher(),))
    assert set(config.system.towers) == {"main", "teacher"}
    with pytest.raises(UserError, match="init names no model for the tower main"):
        finetuning.experiment("sst2", (("teacher", str(folder)),), data)


def test_an_experiment_has_the_special_tokens_of_the_models_vocabulary(published, tmp_path):
    config = finetuning.experiment(
        "sst2", str(published), [str(written(tmp_path / "sst2", count=8, dev=4))]
    )
    vocab = config.system.towers["main"].encoder.embed.vocab
    pieces = json.loads((published / "tokenizer.json").read_text())["model"]["vocab"]
    assert (vocab.cls, vocab.sep, vocab.mask) == (
        pieces["[CLS]"],
        pieces["[SEP]"],
        pieces["[MASK]"],
    )
    assert vocab.size == json.loads((published / "config.json").read_text())["vocab_size"]


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_cannot_be(tmp_path, lr):
    with pytest.raises(UserError, match="lr .*; they must be positive, lr finite and at least 0"):
        finetuning.experiment("sst2", str(tmp_path), str(tmp_path), lr=lr)


def test_a_network_from_scratch_has_the_head_of_the_task_and_its_own_pooling(tmp_path):
    (tmp_path / "train.txt").write_text("Oslo B-loc\nis O\nfar O\n\n" * 20)
    recipe = Recipe(phases=(Phase(steps=3, batch=4, length=16),), lr=1.0, clip=None)
    config = finetuning.from_scratch(
        systems.get("textcnn"), "trec6", recipe, (), min_count=2, adapt=(MaxNorm(),), seed=3
    )
    head, parent = (
        config.system.towers["main"].heads["classify"],
        systems.get("textcnn").towers["main"],
    )
    assert (head.classes, head.dropout, head.summary) == (
        6,
        0.5,
        parent.heads["pool"],
    ) and not head.summary.dropout
    assert config.system.towers["main"].encoder == parent.encoder and config.system.recipe == recipe
    assert (
        config.system.tokenizer.min_count == 2
        and config.system.adapt == (MaxNorm(),)
        and config.seed == 3
    )
    config = finetuning.from_scratch(systems.get("rnnsearch_mini"), "multi30k_en_de", recipe, ())
    assert {*config.system.towers["main"].heads} == {"lm"} and isinstance(
        config.system.objective, Seq2Seq
    )
    assert config.system.examples.first_token(Vocab(size=9, pad=4, eos=2)) == 4
    with pytest.raises(UserError, match="senna has no encoder with a decoder"):
        finetuning.from_scratch(systems.get("senna"), "multi30k_en_de", recipe, ())
    config = finetuning.from_scratch(
        systems.get("senna"), "ner", recipe, (str(tmp_path),), tagger="crf", dropout=0.0
    )
    head = config.system.towers["main"].heads["tag"]
    assert (head.labels, head.dropout) == (("O", "B-loc"), 0.0) and isinstance(
        config.system.objective, CRFTagging
    )


def test_examples_of_one_row_are_counted_without_the_tokenizer(published, tmp_path, monkeypatch):
    """They were tokenized here, and again where the corpus is prepared."""
    data = written(tmp_path / "sst2", count=40, dev=8)
    monkeypatch.setattr(Labelled, "encode", None)
    config = finetuning.experiment("sst2", str(published), [str(data)], epochs=2, batch=16)
    assert config.system.recipe.steps == 2 * 3 and finetuning.per_epoch(config) == 3


def test_a_length_beyond_the_position_table_is_refused(published, tmp_path):
    limit = json.loads((published / "config.json").read_text())["max_position_embeddings"]
    data = [str(written(tmp_path / "sst2", count=8, dev=4))]
    with pytest.raises(
        UserError, match=rf"length is {limit + 1}, .* has {limit} rows; give {limit}"
    ):
        finetuning.experiment("sst2", str(published), data, length=limit + 1)
    config = finetuning.experiment("sst2", str(published), data, length=limit)
    assert config.system.recipe.phases[-1].length == limit


@pytest.mark.parametrize(
    ("own", "remark"),
    [(("1", "0"), None), (("no", "yes"), "names its classes no, yes: they are taken for 0, 1"),
     ("found", "does not name its classes: they are taken for 0, 1 of sst2")],
)  # fmt: skip
def test_classes_that_are_assumed_have_a_remark(models_of, own, remark):
    examples = catalogue.get("sst2").examples
    (model,) = models_of(dataclasses.replace(examples, labels=("0", "1")))
    system = dataclasses.replace(model.system, examples=dataclasses.replace(examples, labels=own))
    model = dataclasses.replace(model, system=system, published=Config({}, "c.json"))
    line = evaluating.assumed(model, evaluating.task_for(model, catalogue.get("sst2")))
    assert line is None if remark is None else remark in line
