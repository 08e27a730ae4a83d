"""A trained model in use: arrays, texts, masks, prompts, and the directory it is loaded from."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.precision import Precision
from ptm_jax.core.system import Experiment, Tie
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.data.vocabularies import make
from ptm_jax.nn.embeddings import LearnedPositions
from ptm_jax.systems import transformers as catalogue
from ptm_jax.tasks import pretrained
from ptm_jax.tasks.ensembles import Ensemble
from ptm_jax.tasks.pretrained import Pretrained
from ptm_jax.train.checkpoints import Checkpoints

TEXTS = [f"the {a} {b} the {c} of the city." for a in ("king", "queen") for b in ("sees", "loves") for c in ("house", "hat")]
KINDS = {"bert": ("wordpiece", "bert", 60), "roberta": ("bytebpe", "roberta", 290), "gpt2": ("bytebpe", "gpt2", 280)}
LIMIT = 40


def build(family):
    """A small system of the family with random parameters and a tokenizer of its kind."""
    kind, specials, size = KINDS[family]
    try:
        tokenizer = make(TokenizerSpec(kind=kind, specials=specials, vocab=size), TEXTS)
    except UserError as error:  # the text supports fewer pieces than asked for: take as many as there are
        tokenizer = make(
            TokenizerSpec(kind=kind, specials=specials, vocab=int(str(error).split("works is ")[1].split(":")[0])), TEXTS
        )
    parent = {
        "bert": lambda: catalogue.bert("bert_mini", 2, 16, 2),
        "roberta": lambda: catalogue.roberta("roberta_mini", 2, 16, 2, lr=1e-3, warmup=1),
        "gpt2": lambda: catalogue.gpt2("gpt2_mini", 2, 16, 2),
    }[family]()
    system = spec.respell(parent, Vocab, tokenizer.vocab)
    system = spec.respell(system, LearnedPositions, lambda p: dataclasses.replace(p, size=LIMIT + p.offset))
    batch = {"input_ids": jnp.zeros((1, 4), jnp.int32)}
    params = jax.jit(lambda: towers.init(system.towers, jax.random.key(0), batch))()
    params = jax.tree.map(lambda x: 10.0 * x if x.ndim > 1 else x, params)
    return Pretrained(system, params, tokenizer)


@pytest.fixture(scope="module")
def bert():
    return build("bert")


@pytest.fixture(scope="module")
def roberta():
    return build("roberta")


@pytest.fixture(scope="module")
def gpt2():
    return build("gpt2")


def ids_of(model, rows, length, seed=0):
    return np.random.default_rng(seed).integers(5, model.vocab.size - 1, (rows, length))


def test_the_record_has_what_was_asked_for(bert, gpt2):
    ids = ids_of(bert, 3, 7)
    out = bert(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=ids % 2, layers=True, attention=True)
    given = {f.name: getattr(out, f.name) for f in dataclasses.fields(out) if f.name != "scores"}
    shapes = {name: array.shape for name, array in given.items() if array is not None}
    assert {name: scores.shape for name, scores in out.scores.items()} == {"nsp": (3, 2)}
    assert shapes == {
        "hidden": (3, 7, 16), "layers": (3, 3, 7, 16), "attention": (2, 3, 2, 7, 7), "pooled": (3, 16),
        "logits": (3, 7, bert.vocab.size),
    }  # fmt: skip
    assert all(isinstance(getattr(out, name), np.ndarray) for name in shapes)
    np.testing.assert_array_equal(out.layers[-1], out.hidden)
    np.testing.assert_allclose(out.attention.sum(-1), 1.0, atol=1e-5)
    plain = bert(input_ids=ids, logits=False)
    assert plain.layers is plain.attention is plain.logits is None
    out = gpt2(input_ids=ids_of(gpt2, 1, 3))
    assert out.pooled is None and out.logits.shape == (1, 3, gpt2.vocab.size)
    with pytest.raises(dataclasses.FrozenInstanceError):
        out.hidden = None


def test_padding_changes_nothing(bert, roberta):
    for model in (bert, roberta):
        ids = ids_of(model, 2, 9)
        alone = model(ids[:, :6]).hidden
        mask = np.repeat(np.arange(9)[None] < 6, 2, 0)
        padded = model(np.where(mask, ids, model.vocab.pad), attention_mask=mask).hidden
        np.testing.assert_allclose(padded[:, :6], alone, atol=1e-5, rtol=1e-5)
        longer = model(
            np.pad(ids[:, :6], ((0, 1), (0, 20)), constant_values=model.vocab.pad), np.pad(mask, ((0, 1), (0, 17)))
        )
        np.testing.assert_allclose(longer.hidden[:2, :6], alone, atol=1e-5, rtol=1e-5)


def test_other_lengths_in_a_bucket_do_not_recompile(bert):
    bert(ids_of(bert, 3, 10))
    before = pretrained._forward._cache_size()
    for rows, length in ((4, 16), (3, 1), (4, 13)):
        assert bert(ids_of(bert, rows, length)).hidden.shape == (rows, length, 16)
    assert pretrained._forward._cache_size() == before
    assert bert(ids_of(bert, 1, LIMIT)).hidden.shape == (1, LIMIT, 16)


@pytest.mark.parametrize(
    "words, message",
    [
        ({"input_ids": np.zeros((1, LIMIT + 1), int)}, f"{LIMIT + 1} tokens.*holds {LIMIT}"),
        ({"input_ids": np.zeros(4, int)}, r"matrix \[B, L\].*\(4,\)"),
        ({"input_ids": np.zeros((1, 0), int)}, "at least one token"),
        ({"input_ids": np.zeros((1, 4))}, "whole numbers.*float64"),
        ({"input_ids": np.full((1, 4), 9999)}, "9999, outside the vocabulary"),
        ({"input_ids": np.full((1, 4), -1)}, "-1, outside the vocabulary"),
        ({"input_ids": np.zeros((1, 4), int), "attention_mask": np.ones((1, 5), int)}, r"\(1, 5\).*\(1, 4\)"),
        ({"input_ids": np.zeros((1, 4), int), "attention_mask": np.full((1, 4), 2)}, "attention_mask holds 2"),
        ({"input_ids": np.zeros((1, 4), int), "token_type_ids": np.full((1, 4), 2)}, "token types of this model: 0 to 1"),
        ({"input_ids": np.zeros((1, 4), int), "position_ids": np.full((1, 4), LIMIT)}, "position table"),
    ],
)
def test_bad_arrays_are_one_line(bert, words, message):
    with pytest.raises(UserError, match=message):
        bert(**words)


def test_encode_of_no_text_is_no_vector_of_the_width(bert):
    assert bert.encode([]).shape == (0, bert.encode(["a"]).shape[1])


def test_encode_pools_real_tokens_and_ignores_batches(bert):
    texts = ["the king", "the queen sees the hat of the city.", "hat"]
    vectors = bert.encode(texts)
    assert vectors.shape == (3, 16)
    for number, row in enumerate(bert.ids_of(texts)):
        assert row[0] == bert.vocab.cls and row[-1] == bert.vocab.sep
        hidden = bert(row[None]).hidden[0]
        np.testing.assert_allclose(vectors[number], hidden.mean(0), atol=1e-5)
        np.testing.assert_allclose(bert.encode(texts, "max")[number], hidden.max(0), atol=1e-5)
        np.testing.assert_allclose(bert.encode(texts, "cls", batch_size=1)[number], hidden[0], atol=1e-5)
    units = bert.encode(texts, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(units, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-5)
    with pytest.raises(UserError, match="text 2 has .* tokens"):
        bert.encode(["hat", "hat " * 100])
    with pytest.raises(UserError, match="list of texts"):
        bert.encode("hat")
    with pytest.raises(UserError, match="'mean'"):
        bert.encode(["hat"], "men")


def test_fill_mask_agrees_with_the_logits(bert):
    text = "the [MASK] sees the <mask>."
    (masks,) = bert.fill_mask([text], top=3)
    assert len(masks) == 2 and all(len(fillings) == 3 for fillings in masks)
    pieces = bert.tokenizer.encode_batch(["the", "sees the", "."])
    mask = bert.vocab.mask
    ids = [bert.vocab.cls, *pieces[0], mask, *pieces[1], mask, *pieces[2], bert.vocab.sep]
    scores = np.array(jax.nn.softmax(bert(np.array([ids])).logits[0], -1))
    scores[:, list(bert.vocab.specials)] = 0
    for place, fillings in zip(np.flatnonzero(np.array(ids) == mask), masks, strict=True):
        best = np.argsort(-scores[place])[:3]
        np.testing.assert_allclose([f.probability for f in fillings], scores[place][best], rtol=1e-4)
        assert [f.token for f in fillings] == [bert.tokenizer.piece(i) for i in best]
    token, probability, sentence = masks[0][0]
    assert sentence == f"the {token} sees the [MASK]." or sentence == f"the{token.removeprefix('##')} sees the [MASK]."
    assert 0 < probability < 1


def test_fill_mask_in_byte_level_bpe_takes_either_spelling(roberta):
    one, two = roberta.fill_mask(["the <mask> sees", "the [MASK] sees"], top=2)
    assert [(f.token, f.sentence) for f in one[0]] == [(f.token, f.sentence) for f in two[0]]


def test_what_cannot_be_filled(bert, gpt2):
    with pytest.raises(UserError, match="text 2 has no mask"):
        bert.fill_mask(["a [MASK]", "the king"])
    with pytest.raises(UserError, match="does not fill masks"):
        gpt2.fill_mask(["a [MASK]"])
    with pytest.raises(UserError, match="top is 0"):
        bert.fill_mask(["a [MASK]"], top=0)


def test_generate_goes_on_with_the_prompt(gpt2):
    prompts = ["the king", "the queen sees the hat of", ""]
    answers = gpt2.generate(prompts, max_new_tokens=8)
    assert all(answer.startswith(prompt) for answer, prompt in zip(answers, prompts, strict=True))
    assert gpt2.generate(prompts[:1], max_new_tokens=8) == answers[:1]
    row = list(gpt2.tokenizer.encode_batch(["the king"])[0])
    for _ in range(8):
        row.append(int(gpt2(np.array([row])).logits[0, -1].argmax()))
        if row[-1] == gpt2.vocab.eos:
            break
    assert gpt2.tokenizer.decode(row) == answers[0]


def test_generate_samples_by_seed(gpt2):
    sample = lambda seed, **more: gpt2.generate(["the king"] * 3, 8, seed, temperature=1.5, **more)
    assert sample(0) == sample(0) != sample(1)
    assert [len(several) for several in sample(0, answers=2)] == [2, 2, 2]
    assert sample(0, batch_size=2) == sample(0)


def test_what_cannot_be_generated(bert, gpt2):
    with pytest.raises(UserError, match="bert_mini does not generate text; .*gpt2_xl.* do"):
        bert.generate(["the"])
    for options, message in [
        ({"beam": 3}, "unknown option of generate 'beam'.*mean 'beams'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"beams": 2, "top_k": 3}, "sampling"),
        ({"max_new_tokens": LIMIT}, f"the {LIMIT} of this model's position table"),
    ]:
        with pytest.raises(UserError, match=message):
            gpt2.generate(["the"], **options)


def test_perplexity_is_the_exponential_of_the_mean_loss(gpt2, bert):
    texts = ["the king sees the hat.", "hat"]
    found = gpt2.perplexity(texts)
    for text, value in zip(texts, found, strict=True):
        row = np.array([gpt2.vocab.bos, *gpt2.tokenizer.encode_batch([text])[0]])
        scores = np.asarray(jax.nn.log_softmax(gpt2(row[None]).logits[0], -1))
        expected = np.exp(-scores[np.arange(len(row) - 1), row[1:]].mean())
        np.testing.assert_allclose(value, expected, rtol=1e-4)
    with pytest.raises(UserError, match="no left-to-right model"):
        bert.perplexity(texts)


def test_an_ensemble_neither_writes_nor_fills_nor_embeds(bert, gpt2):
    """What each of its models does it does not do as one of them."""
    masked, causal = Ensemble([bert, bert]), Ensemble([gpt2, gpt2])
    for ask in (
        lambda: masked.fill_mask(["the [MASK] king"]), lambda: masked.encode(["the king"]),
        lambda: causal.generate(["the king"], max_new_tokens=8), lambda: causal.perplexity(["the king"]),
    ):  # fmt: skip
        with pytest.raises(UserError, match="only the mean of what their task heads say.*ptm average"):
            ask()


def save_run(workdir, model, tokenizer_hash=None, ties=()):
    """A workdir as training leaves it."""
    system = spec.respell(dataclasses.replace(model.system, ties=ties), Precision, Precision("bfloat16"))
    model.tokenizer.save(workdir / "tokenizer")
    config = {"config": spec.to_json(Experiment(system=system)), "corpus": {}}
    (workdir / "config.json").write_text(json.dumps(config))
    store = Checkpoints(workdir)
    store.save(3, {"params": model.params}, {"tokenizer": tokenizer_hash or model.tokenizer.hash})
    store.wait()


@pytest.fixture(scope="module")
def run(tmp_path_factory, bert):
    workdir = tmp_path_factory.mktemp("run")
    save_run(workdir, bert)
    return workdir


def test_load_gives_the_model_that_was_trained(run, bert):
    ids = ids_of(bert, 2, 6)
    for path in (run, str(run), run / "checkpoints" / "step_00000003"):
        model = ptm_jax.load(path)
        np.testing.assert_array_equal(model(ids).logits, bert(ids).logits)
    assert model.system.towers == dict(bert.system.towers) and model.vocab == bert.vocab
    assert model.fill_mask(["the [MASK]"]) == bert.fill_mask(["the [MASK]"])
    half = ptm_jax.load(run, precision="bfloat16")(ids).hidden
    assert 0 < np.abs(np.float32(half) - bert(ids).hidden).max() < 0.5


def test_load_keeps_the_record_of_an_objective_it_does_not_know(tmp_path, bert):
    save_run(tmp_path, bert)
    config = json.loads((tmp_path / "config.json").read_text())
    config["config"]["system"]["objective"] = {"kind": "Mine", "rate": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ptm_jax.load(tmp_path).system.objective == {"kind": "Mine", "rate": 2}
    config["config"]["system"]["towers"]["main"]["encoder"]["kind"] = "Mine"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="system.towers.main.encoder is of the unknown kind 'Mine'"):
        ptm_jax.load(tmp_path)


def test_load_fills_tied_parameters(tmp_path, gpt2):
    path = "main/encoder/embed/position/table"
    params = flatten(gpt2.params)
    source = "main/copy"
    rest = {k: v for k, v in params.items() if k != path} | {source: params[path]}
    from ptm_jax.core.paths import unflatten

    save_run(tmp_path, dataclasses.replace(gpt2, params=unflatten(rest)), ties=(Tie(path=path, source=source),))
    model = ptm_jax.load(tmp_path)
    np.testing.assert_array_equal(flatten(model.params)[path], params[path])


def test_what_cannot_be_loaded(tmp_path, monkeypatch, bert, run):
    def refuses(path, message):
        with pytest.raises(UserError, match=message) as caught:
            ptm_jax.load(path)
        assert "\n" not in str(caught.value)

    refuses(tmp_path / "absent", "absent': there is no such directory")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "huggingface_hub", None)
        refuses(tmp_path / "absent", "absent': there is no such directory")
        refuses("runs/absent", "^'runs/absent': there is no such directory, and huggingface_hub is not installed$")
    refuses(tmp_path, "no config.json.*ptm train")
    save_run(tmp_path, bert, tokenizer_hash="0" * 64)
    refuses(tmp_path, "does not match the checkpoint")
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    refuses(tmp_path, "no readable tokenizer")
    (tmp_path / "config.json").write_text("{")
    refuses(tmp_path, "damaged")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((run / "config.json").read_bytes())
    refuses(empty, "no usable checkpoint")


def test_predict_on_the_command_line(run, tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("the king\n\nthe hat of the queen\n")

    def ptm(*words):
        status = main(["predict", str(run), *words])
        return status, *capsys.readouterr()

    status, out, _ = ptm("--task", "fill-mask", "--text", "the [MASK]", "--text", "[MASK] hat", "--top", "2", "--json")
    found = json.loads(out)
    assert status == 0 and [len(f["masks"][0]) for f in found] == [2, 2]
    assert set(found[0]["masks"][0][0]) == {"token", "probability", "sentence"}
    status, out, _ = ptm("--task", "similar", "--input", str(lines), "--text", "the king", "--top", "1")
    assert status == 0 and "1.0000  the king" in out
    vectors = tmp_path / "v.npy"
    assert ptm("--task", "embed", "--input", str(lines), "--output", str(vectors))[0] == 0
    assert np.load(vectors).shape == (2, 16)
    for words, message in [
        (("--task", "generate", "--text", "x"), "does not generate"),
        (("--task", "similar", "--text", "x"), "give both"),
        (("--task", "fill-mask", "--text", "x", "--beams", "2"), "--beams is of --task generate"),
        (("--task", "embed", "--text", "x", "--output", "v.txt"), ".npy or .json"),
        (("--task", "fill-mask", "--input", str(vectors)), "not UTF-8"),
    ]:
        status, out, err = ptm(*words)
        assert status == 1 and not out and message in err and err.count("\n") == 1
