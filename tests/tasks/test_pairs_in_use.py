"""Encoders with decoders as a practitioner has them, and classes of texts by their names."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_pretrained import TEXTS, save_run

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.data.vocabularies import make
from ptm_jax.encoders.seq2seq import shifted
from ptm_jax.nn.embeddings import LearnedPositions
from ptm_jax.systems import seq2seq, t5
from ptm_jax.tasks import classifying, writing
from ptm_jax.tasks.pretrained import Pretrained

LIMIT = 40
SOURCES = ["the king sees the house", "the hat", "the queen loves the house of the city."]


def drawn(system, scale=10.0):
    """Parameters under which texts matter."""
    batch = checkpoint.example(system)
    params = jax.jit(lambda: towers.init(system.towers, jax.random.key(1), batch))()
    return jax.tree.map(lambda x: scale * x if x.ndim > 1 else x, params)


@pytest.fixture(scope="module")
def bart():
    tokenizer = make(TokenizerSpec(kind="bytebpe", specials="roberta", vocab=290), TEXTS)
    system = spec.respell(seq2seq.bart("bart_tiny", 2, 16, 2, lr=1e-3, warmup=1), Vocab, tokenizer.vocab)
    system = spec.respell(system, LearnedPositions, lambda p: dataclasses.replace(p, size=LIMIT + p.offset))
    return Pretrained(system, drawn(system), tokenizer)


def bare(system, tokenizer=None, **fields):
    """A model whose parameters nobody looks at."""
    return Pretrained(system, {name: {} for name in system.towers}, tokenizer, published=Config(fields))


def rows_of(model, texts):
    rows = model.ids_of(texts)
    width = max(map(len, rows))
    ids = np.stack([np.pad(row, (0, width - len(row)), constant_values=model.vocab.pad) for row in rows])
    return ids, (np.arange(width) < np.array([[len(row)] for row in rows])).astype(int)


def test_the_record_of_a_pair_has_both_halves(bart):
    ids, mask = rows_of(bart, SOURCES)
    target = np.random.default_rng(0).integers(5, 280, (3, 5))
    out = bart(ids, mask, decoder_input_ids=target, layers=True, attention=True)
    length, vocab = ids.shape[1], bart.vocab.size
    shapes = {name: getattr(value, "shape", None) for name, value in vars(out).items() if name != "scores"}
    assert shapes == {
        "hidden": (3, 5, 16), "layers": (3, 3, 5, 16), "attention": (2, 3, 2, 5, 5), "pooled": None, "logits": (3, 5, vocab),
        "source": (3, length, 16), "source_layers": (3, 3, length, 16), "source_attention": (2, 3, 2, length, length),
        "cross_attention": (2, 3, 2, 5, length),
    }  # fmt: skip
    np.testing.assert_array_equal(out.source_layers[-1], out.source)
    np.testing.assert_allclose(out.cross_attention.sum(-1), 1.0, atol=1e-5)
    assert np.abs(out.cross_attention * (mask == 0)[None, :, None, None, :]).max() == 0
    plain = bart(ids, mask, logits=False)
    assert plain.source_layers is plain.source_attention is plain.cross_attention is None and plain.source is not None


@pytest.mark.parametrize(
    "target, message",
    [
        (np.zeros((2, 4), int), "decoder_input_ids has 2 rows; input_ids has 1"),
        (np.full((1, 4), 9999), "decoder_input_ids holds 9999"),
        (np.zeros((1, LIMIT + 1), int), f"the decoder's sequence has {LIMIT + 1} tokens"),
    ],
)
def test_bad_decoder_inputs_are_one_line(bart, target, message):
    with pytest.raises(UserError, match=message):
        bart(np.full((1, 4), 5), decoder_input_ids=target)


def test_an_answer_is_the_likeliest_tokens_after_the_start(bart):
    answers = bart.generate(SOURCES, max_new_tokens=6)
    ids, mask = rows_of(bart, SOURCES)
    tokens = np.full((3, 1), bart.vocab.eos)  # denoising begins with eos
    for _ in range(6):
        tokens = np.append(tokens, bart(ids, mask, decoder_input_ids=tokens).logits[:, -1:].argmax(-1), 1)
    for answer, row in zip(answers, tokens[:, 1:].tolist(), strict=True):
        row = row[: row.index(bart.vocab.eos)] if bart.vocab.eos in row else row
        assert answer == bart.tokenizer.decode(row)
    assert len(set(answers)) == 3 and bart.generates and not bart.causal
    assert bart.generate(SOURCES[::-1], max_new_tokens=6, batch_size=4) == answers[::-1]
    assert bart.generate(SOURCES, max_new_tokens=6, start="</s>") == answers
    assert bart.generate([], max_new_tokens=6) == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_new_tokens": LIMIT + 1}, f"more than the {LIMIT} of the decoder's"),
        ({"start": "king!"}, "'king!', which is no piece"),
        ({"start": 9999}, "start is 9999, outside the vocabulary"),
        ({"beam": 2}, "mean 'beams'"),
    ],
)
def test_what_an_answer_cannot_be(bart, options, message):
    with pytest.raises(UserError, match=message):
        bart.generate(["the"], **{"max_new_tokens": 6, **options})
    with pytest.raises(UserError, match="text 2 has .* tokens"):
        bart.generate(["hat", "hat " * 100], max_new_tokens=6)


def test_where_the_start_comes_from(bart):
    begin = lambda model, *given: writing.start_of(model, *given)
    told = dataclasses.replace(bart, published=Config({"decoder_start_token_id": 7}))
    assert (begin(bart), begin(told), begin(told, 5), begin(told, "<s>")) == (bart.vocab.eos, 7, 5, bart.vocab.bos)
    small = {"vocab_size": 30, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    small |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("ffn_dim", "attention_heads")}
    mbart, _ = checkpoint.record_of(Config({"model_type": "mbart", "max_position_embeddings": 9, **small}))
    assert begin(bare(mbart)) == "last"
    assert begin(bare(mbart, decoder_start_token_id=4)) == 4
    assert begin(bare(t5.t5("t5_tiny", "1.0", 1, 8, 2, 4, 8))) == 0


def test_what_is_published_beside_the_config(tmp_path):
    fields = {"model_type": "t5", "vocab_size": 30, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4, "d_ff": 8}
    system, _ = checkpoint.record_of(Config(fields), "T5ForConditionalGeneration")
    shapes = towers.abstract(system.towers, checkpoint.example(system))
    checkpoint.write(tmp_path, system, jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes))
    assert writing.start_of(ptm_jax.load(tmp_path)) == 0
    file = tmp_path / "generation_config.json"
    file.write_text('{"decoder_start_token_id": 3, "pad_token_id": null}')
    model = ptm_jax.load(tmp_path)
    assert writing.start_of(model) == 3 and model.published["pad_token_id"] == 0
    with pytest.raises(UserError, match="has no tokenizer"):
        model.generate(["a"])
    file.write_text("[")
    with pytest.raises(UserError, match="generation_config.json is not a config"):
        ptm_jax.load(tmp_path)


def test_sentinels_stay_in_an_answer():
    tokenizer = make(TokenizerSpec(kind="unigram", specials="t5", vocab=26, sentinels=3), TEXTS)
    model = bare(spec.respell(t5.t5("t5_tiny", "1.0", 1, 8, 2, 4, 8), Vocab, tokenizer.vocab), tokenizer)
    ids = tokenizer.encode("<extra_id_0> the king <extra_id_1> hat", specials=True)
    pad, eos = tokenizer.vocab.pad, tokenizer.vocab.eos
    assert writing._text(model, "", ids, [pad, *ids, eos]) == "<extra_id_0> the king <extra_id_1> hat"
    (source,) = writing._sources(model, ["a <extra_id_0> hat"], 3)
    assert source[-1] == eos and tokenizer.id("<extra_id_0>") in source
    with pytest.raises(UserError, match="t5_tiny does not fill masks; its decoder .*: use generate"):
        model.fill_mask(["a [MASK]"])


def test_pairs_that_do_not_generate(bart):
    headless = dataclasses.replace(bart.module, heads={})
    with pytest.raises(UserError, match="no vocabulary head; load .*ForConditionalGeneration"):
        bare(dataclasses.replace(bart.system, towers={"main": headless}), bart.tokenizer).generate(["a"])
    with pytest.raises(UserError, match="mass_tiny does not generate .* token by token; gpt.* bart_base and t5_base, do"):
        bare(seq2seq.mass("mass_tiny", 1, 8, 2)).generate(["a"])


def test_bart_fills_a_mask_with_what_its_decoder_says_there(bart):
    ((fillings,),) = bart.fill_mask(["the <mask> sees the house"], top=3)
    left, right = bart.tokenizer.encode_batch(["the", " sees the house"])
    ids = np.array([[bart.vocab.cls, *left, bart.vocab.mask, *right, bart.vocab.sep]])
    read = np.asarray(shifted(jnp.asarray(ids), jnp.ones_like(ids), bart.vocab.eos))
    scores = np.array(jax.nn.softmax(bart(ids, decoder_input_ids=read).logits[0, 1 + len(left)]))
    scores[list(bart.vocab.specials)] = 0
    np.testing.assert_allclose([f.probability for f in fillings], np.sort(scores)[:-4:-1], rtol=1e-4)


@pytest.fixture(scope="module")
def bert():
    """BERT with a head for texts."""
    tokenizer = make(TokenizerSpec(kind="wordpiece", specials="bert", vocab=60), TEXTS)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    small |= {"max_position_embeddings": 20, "vocab_size": tokenizer.vocab.size, "model_type": "bert"}
    config = Config({**small, "id2label": {"0": "sad", "1": "glad", "2": "none"}})
    system, _ = checkpoint.record_of(config, "BertForSequenceClassification", tokenizer.vocab)
    return Pretrained(system, drawn(system), tokenizer, published=config)


def test_classes_have_their_names_and_probabilities(bart, bert):
    model = bert
    firsts, seconds = ["the king", "the queen sees the hat"], ["a hat", "the city"]
    found = model.classify(firsts, seconds)
    for first, second, one in zip(firsts, seconds, found, strict=True):
        ids, types = model.tokenizer.frame(first, second)
        scores = model(ids[None], token_type_ids=types[None]).scores["classify"][0]
        assert list(one) == ["sad", "glad", "none"]
        np.testing.assert_allclose(list(one.values()), np.exp(scores) / np.exp(scores).sum(), rtol=1e-5)
    assert model.classify(firsts) != found and model.classify([]) == []
    assert model.classify(firsts[::-1], seconds[::-1], batch_size=1)[0] == pytest.approx(found[1], rel=1e-4)
    with pytest.raises(UserError, match="2 texts and 1 pairs"):
        model.classify(firsts, ["a"])
    with pytest.raises(UserError, match="text 2 has .* tokens"):
        model.classify(["a", "hat " * 30])
    with pytest.raises(UserError, match="bart_tiny does not classify .*ForSequenceClassification"):
        bart.classify(["a"])


def test_labels_that_do_not_exclude_each_other_and_numbers():
    small = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    small |= {"intermediate_size": 8, "max_position_embeddings": 4}
    scores = np.array([[0.5, -3.0]])
    for fields, names, expected in [
        ({"problem_type": "multi_label_classification"}, ["LABEL_0", "LABEL_1"], 1 / (1 + np.exp(-scores))),
        ({"problem_type": "regression", "id2label": {"0": "warmth", "1": "light"}}, ["warmth", "light"], scores),
        ({"id2label": {"0": "same", "1": "same"}}, ["LABEL_0", "LABEL_1"], np.exp(scores) / np.exp(scores).sum()),
    ]:
        config = Config({**small, **fields})
        model = bare(checkpoint.record_of(config, "BertForSequenceClassification")[0], **config)
        assert classifying.labels_of(model) == names
        np.testing.assert_allclose(classifying._probabilities(scores, classifying.kind_of(model)), expected, rtol=1e-6)


def test_languages_are_by_default_the_configs():
    small = {"emb_dim": 8, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 16, "n_words": 30}
    config = Config({"model_type": "xlm", "n_langs": 2, "lang_id": 1, **small})
    system, _ = checkpoint.record_of(config)
    model, ids = Pretrained(system, drawn(system), published=config), np.arange(5, 11)[None]
    found = model(ids).hidden
    np.testing.assert_array_equal(found, model(ids, language_ids=np.ones_like(ids)).hidden)
    assert np.abs(found - model(ids, language_ids=np.zeros_like(ids)).hidden).max() > 1e-3


def test_predict_answers_and_classifies(bart, bert, tmp_path, capsys):
    def ptm(folder, *words):
        status = main(["predict", str(tmp_path / folder), *words])
        return status, *capsys.readouterr()

    for name, model in (("bart", bart), ("bert", bert)):
        (tmp_path / name).mkdir()
        save_run(tmp_path / name, model)
    status, out, _ = ptm("bart", "--task", "generate", "--text", SOURCES[0], "--max-new-tokens", "6", "--json")
    assert status == 0
    assert json.loads(out) == [{"prompt": SOURCES[0], "text": bart.generate(SOURCES[:1], max_new_tokens=6)[0]}]
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"published": dict(bert.published)}))  # an import
    words = ("--task", "classify", "--text", "the king", "--pair", "a hat")
    status, out, _ = ptm("bert", *words)
    assert status == 0 and out.startswith("the king | a hat\n") and out.count("%") == 3 and " glad\n" in out
    (found,) = json.loads(ptm("bert", *words, "--json")[1])
    assert (found["text"], found["pair"], list(found["labels"])) == ("the king", "a hat", ["sad", "glad", "none"])
    for words, message in [
        (("--task", "classify", "--text", "x", "--text", "y", "--pair", "z"), "2 texts and 1 pairs"),
        (("--task", "embed", "--text", "x", "--pair", "z"), "--pair is of --task classify"),
        (("--task", "classify", "--text", "x", "--start", "z"), "--start is of --task generate"),
        (("--task", "generate", "--text", "x"), "does not generate text; gpt"),
    ]:
        status, out, err = ptm("bert", *words)
        assert status == 1 and not out and message in err and err.count("\n") == 1
