"""The speedrun: records are values, and what they are measured by is not theirs."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.cli.runs import reproduce
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems import get
from ptm_jax.training.steps.step import program
from ptm_jax.tuning import speedrun

WORDS = "the king sees a house of stone while his queen reads one of many old books".split()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file of 400 short documents."""
    draw = np.random.default_rng(0)
    documents = (" ".join(draw.choice(WORDS, 40)) + "." for _ in range(400))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf8")
    return path


@pytest.fixture(scope="module")
def corpus(texts):
    words = TokenizerSpec(kind="wordpiece", vocab=64, lowercase=True)
    return prepare((str(texts),), texts.parent / "corpus", tokenizer=words, heldout=0.1)


def small(vocab):
    return spec.respell(get("bert_tiny"), Vocab, vocab)


def initial(system, vocab):
    shapes = system.examples.batch_spec(64, vocab)
    batch = {name: jnp.zeros((2, *dims), dtype) for name, (dims, dtype) in shapes.items()}
    return program(system, 0).init({**batch, "rows": jnp.arange(2)}).params


def test_the_table_has_every_record_and_the_fastest_first(capsys):
    assert reproduce.run(reproduce.Args(name="speedrun", workdir="x", dry_run=True)) == 0
    text = capsys.readouterr().out
    assert "target: 4 nats a masked token, 15% masks" in text
    assert all(name in text for name in speedrun.names()) and len(speedrun.names()) >= 2
    args = reproduce.Args(name="speedrun", workdir="x", dry_run=True, json=True)
    assert reproduce.run(args) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [tuple(row) for row in rows] == [speedrun.COLUMNS] * len(rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds) and all(row["loss"] <= speedrun.TARGET for row in rows)


@pytest.mark.parametrize("name", speedrun.names())
def test_a_record_is_a_value_of_the_package(name):
    record = speedrun.load(name)
    speedrun.check(record.system)
    assert 0 < record.seconds and 1e12 < record.operations and len(record.commit) >= 7


def test_only_the_system_is_the_records():
    """Text, tokenizer, split and seed are the harness's, whatever the record says."""
    system = dataclasses.replace(
        get("bert_tiny"), tokenizer=TokenizerSpec(kind="bytebpe", vocab=99)
    )
    config = speedrun.experiment(system)
    assert config.system.tokenizer == speedrun.TOKENIZER and config.init is None
    assert (config.data, config.heldout, config.seed) == (("pydocs",), 0.02, 0)


@pytest.mark.full
def test_a_network_without_knowledge_has_the_loss_of_the_vocabulary(corpus):
    """All parameters 0: -log(1 / V) for every masked token."""
    system = small(corpus.vocab)
    params = jax.tree.map(jnp.zeros_like, initial(system, corpus.vocab))
    loss = speedrun.heldout_loss(system, params, corpus)
    assert loss == pytest.approx(math.log(corpus.vocab.size), rel=1e-5)


@pytest.mark.full
def test_masks_and_loss_do_not_depend_on_the_recipe(corpus):
    """Another corruption, batch and length of the record: the same loss of the same parameters."""
    system = small(corpus.vocab)
    params = initial(system, corpus.vocab)
    other = dataclasses.replace(
        system,
        corruption=dataclasses.replace(system.corruption, rate=0.9, mask=0.1),
        recipe=get("bert_mini").recipe,
    )
    losses = [speedrun.heldout_loss(one, params, corpus) for one in (system, other)]
    assert losses[0] == losses[1] > 0.9 * math.log(corpus.vocab.size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peeking(MLM):
    """Reads the labels in its predictions."""

    def predictions(self, tower, encoded, batch):
        scores = 99.0 * jax.nn.one_hot(batch["mlm_labels"], tower.vocab.size)
        return {"mlm": (scores, batch["mlm_weights"])}


def test_labels_are_out_of_reach(corpus):
    system = dataclasses.replace(small(corpus.vocab), objective=Peeking())
    with pytest.raises(KeyError, match="mlm_labels"):
        speedrun.heldout_loss(system, initial(system, corpus.vocab), corpus)
    with pytest.raises(UserError, match="a record is made of classes of ptm_jax"):
        speedrun.check(system)


def test_what_predicts_no_masked_words_is_refused(tmp_path):
    with pytest.raises(UserError, match="gpt_mini predicts no masked words"):
        speedrun.check(get("gpt_mini"))
    with pytest.raises(UserError, match="no such record: x; the records are modern_block"):
        speedrun.load("x")
    path = tmp_path / "mine.py"
    path.write_text("record = 3\n", encoding="utf8")
    with pytest.raises(UserError, match="defines no `record`"):
        speedrun.load(str(path))


@pytest.mark.full
def test_a_run_is_measured_at_the_end_of_its_recipe(texts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speedrun, "DATA", (str(texts),))
    monkeypatch.setattr(speedrun, "HELDOUT", 0.1)
    monkeypatch.setattr(speedrun, "TOKENIZER", dataclasses.replace(speedrun.TOKENIZER, vocab=64))
    (tmp_path / "mine.py").write_text(
        "import dataclasses\n"
        "from ptm_jax.core.recipe import Phase\n"
        "from ptm_jax.systems import get\n"
        "from ptm_jax.tuning.speedrun import Record\n"
        "system = get('bert_tiny')\n"
        "phases = (Phase(steps=6, batch=4, length=32),)\n"
        "recipe = dataclasses.replace(system.recipe, phases=phases)\n"
        "system = dataclasses.replace(system, recipe=recipe)\n"
        "record = Record(system=system, seconds=1, operations=1, loss=1, commit='x')\n",
        encoding="utf8",
    )
    args = reproduce.Args(
        name="speedrun", workdir=str(tmp_path / "run"), record=str(tmp_path / "mine.py")
    )
    assert reproduce.run(args) == 0
    text = capsys.readouterr().out
    assert "after 6 steps, target 4 " in text and "operations=" in text
    assert "the text is not that of the published records" in text
