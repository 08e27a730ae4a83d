"""Facts of the corpus as a value: filled in by the set-up, hashed in the record, found again by an
evaluation."""

from __future__ import annotations

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grain.sources import ArrayRecordDataSource

from ptm_jax.core import facts, slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase
from ptm_jax.core.streams import named
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import maskable
from ptm_jax.data.corpora import block_records
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.knowledge.ngram_transformer import NGramTransformer, SummedBlock
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.inference.loading import load
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.runs import heldout
from ptm_jax.runs.run import Run
from ptm_jax.statistics.bigrams import Phrases
from ptm_jax.statistics.cooccurrences import Cooccurrences
from ptm_jax.statistics.counts import Counts
from ptm_jax.statistics.subwords import HashedWordNGrams
from ptm_jax.statistics.trees import TreeMarks
from ptm_jax.training import workdirs
from ptm_jax.training.logs import logs
from ptm_jax.training.loop import train
from ptm_jax.training.start import differing
from support import tiny_runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnigramNoise(slots.Corruption):
    """Half of the words become draws from the corpus' unigram distribution."""

    vocab: Vocab
    counts: Counts = Counts()

    def __call__(self, key, batch):
        logits = jnp.log(jnp.asarray(self.counts.values, jnp.float32))
        drawn = jax.random.categorical(named(key, "draw"), logits, shape=batch["input_ids"].shape)
        noisy = maskable(batch, self.vocab) & jax.random.bernoulli(
            named(key, "place"), shape=drawn.shape
        )
        ids = batch["input_ids"]
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
        labels = {
            "mlm_positions": positions,
            "mlm_labels": ids,
            "mlm_weights": noisy.astype(jnp.float32),
        }
        return {**batch, "input_ids": jnp.where(noisy, drawn.astype(jnp.int32), ids), **labels}


def sentences_of(corpus):
    """The ids of every sentence of the train split, as words."""
    source = ArrayRecordDataSource(corpus.paths("train"))
    for block in map(block_records.from_bytes, (source[i] for i in range(len(source)))):
        for start, end in itertools.pairwise(block.sentence_starts):
            yield [str(token) for token in block.tokens[start:end]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    source = tiny_runs.write_text(folder / "text.txt")
    options = {"tokenizer": tiny_runs.system.tokenizer, "heldout": 0.2}
    return prepare([source], folder / "corpus", **options)


@pytest.fixture(scope="module")
def config(prepared):
    system = dataclasses.replace(
        tiny_runs.system,
        corruption=UnigramNoise(vocab=tiny_runs.VOCAB),
        recipe=dataclasses.replace(
            tiny_runs.system.recipe, phases=(Phase(steps=4, batch=4, length=16),)
        ),
    )
    return dataclasses.replace(
        tiny_runs.config,
        system=system,
        data=(str(prepared.dir),),
        log_every=0,
        eval_every=4,
        save_every=2,
    )


def test_facts_are_filled_in_by_reference(config, prepared):
    with pytest.raises(UserError, match="Counts is empty"):
        _ = config.system.corruption.counts.values
    opened = []
    resolved = differing.with_facts(
        differing.resolve(config, prepared.vocab), lambda: opened.append(1) or prepared
    )
    counts = resolved.system.corruption.counts
    assert np.array_equal(counts.values, prepared.counts("train")) and opened == [1]
    record = json.loads(json.dumps(spec.to_json(resolved)))["system"]["corruption"]["counts"]
    assert (
        record == {"kind": "Counts", "corpus_sha256": counts.corpus_sha256}
        and len(counts.corpus_sha256) == 64
    )
    array = np.arange(3)
    assert Counts().filled(array).values is array
    assert Counts().filled(array) == Counts().filled(array.copy()) != Counts().filled(array + 1)
    pairs = facts.fill(Cooccurrences(window=2), lambda: prepared)
    assert np.array_equal(pairs.values, prepared.cooccurrence(2)) and pairs.values.dtype.names == (
        "row",
        "column",
        "weight",
    )


@pytest.mark.full
def test_phrases_are_gensims(tmp_path, data):
    """The same pairs and scores as gensim's `original_scorer`, from the words of the corpus."""
    phrases = pytest.importorskip("gensim.models.phrases")
    words = TokenizerSpec(kind="word", vocab=8_000, specials="t5")
    corpus = prepare(
        [str(data / "lm/wikitext-2/valid.txt")], tmp_path / "corpus", tokenizer=words, heldout=0.0
    )
    sentences = list(sentences_of(corpus))
    found = facts.fill(Phrases(delta=5.0, threshold=10.0), lambda: corpus).values
    model = phrases.Phrases(
        sentences, min_count=5, threshold=1e-9, delimiter=" ", scoring=phrases.original_scorer
    )
    scale = corpus.counts("train").sum() / len(
        model.vocab
    )  # gensim multiplies by its vocabulary, not by N
    theirs = {
        pair: score * scale
        for pair, score in model.export_phrases().items()
        if score * scale > 10.0
    }
    ours = {f"{first} {second}": score for first, second, score in found.tolist()}
    assert ours == pytest.approx(theirs, rel=1e-12) and len(ours) > 50
    assert (np.diff(found["score"]) <= 0).all()


def test_a_tokenizer_suffices_for_some_facts(prepared):
    """What a loaded model has without its corpus is what its training had; a fact of a corpus stays
    empty."""
    fact, tokenizer = HashedWordNGrams(), prepared.tokenizer()
    found = facts.known({"grams": fact, "marks": TreeMarks(), "counts": Counts()}, tokenizer)
    np.testing.assert_array_equal(found["grams"].values, facts.fill(fact, lambda: prepared).values)
    assert (found["marks"].values < 0).all() and found["counts"] == Counts()


def test_a_system_without_facts_opens_no_corpus(config):
    def corpus():
        raise AssertionError("opened")

    plain = dataclasses.replace(config, system=tiny_runs.system)
    assert differing.with_facts(plain, corpus).system is plain.system


@pytest.mark.parametrize("fact", [Counts(), Cooccurrences(), Phrases(threshold=1.0)])
def test_stand_ins_have_the_shape_of_the_values(fact, prepared):
    planned, real = (
        facts.stand_ins(fact, prepared.vocab).values,
        facts.fill(fact, lambda: prepared).values,
    )
    assert planned.dtype == real.dtype and planned.ndim == real.ndim
    assert len(planned) == prepared.vocab.size


@pytest.mark.full
def test_a_run_with_facts_resumes_and_is_evaluated(config, prepared, tmp_path):
    whole = train(config, tmp_path / "a", quiet=True)
    logged = [line["step"] for line in logs.read(tmp_path / "a") if line["split"] == "train"]
    assert logged == [4], "log_every=0 logs at the end alone"
    assert not differing.changes(workdirs.read(tmp_path / "a"), config)
    again = train(config, tmp_path / "a", quiet=True)
    assert again.resumed_from == 4 and again.heldout == whole.heldout
    found = heldout.measure(Run.at(tmp_path / "a"), config, prepared, "heldout")
    assert found.metrics["mlm_nll"] == pytest.approx(whole.heldout["mlm_nll"], abs=1e-6)


@pytest.mark.full
def test_a_loaded_run_has_the_facts_of_its_corpus(config, prepared, tmp_path):
    """The lexicon of a loaded model is that of the corpus, counted anew; a run whose corpus is
    gone names it in one line."""
    plain = transformer(
        vocab=tiny_runs.VOCAB, layers=2, width=16, heads=2, positions=LearnedPositions(size=32)
    )
    lexicon = NGramLexicon(size=64, least=2, pmi=0.0)
    encoder = NGramTransformer(
        embed=plain.embed,
        stack=plain.stack.clone(block=SummedBlock(**spec.values_of(plain.stack.block))),
        ngram_stack=plain.stack.clone(layers=1),
        lexicon=lexicon,
        capacity=16,
    )
    main = tiny_runs.system.towers["main"].clone(encoder=encoder)
    system = dataclasses.replace(config.system, towers={"main": main})
    zen = dataclasses.replace(config, system=system, eval_every=0, save_every=0)
    train(zen, tmp_path / "run", quiet=True)
    loaded = load(tmp_path / "run").system.towers["main"].encoder.lexicon
    counted = facts.fill(lexicon, lambda: prepared)
    assert loaded == counted and len(loaded.values)
    away = prepared.dir.rename(tmp_path / "away")
    with pytest.raises(UserError, match="the corpus of .*run is not in .* any more; put it back"):
        load(tmp_path / "run")
    away.rename(prepared.dir)
