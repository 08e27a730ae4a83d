"""KnowBERT's public test files (allenai/kb, tests/fixtures): they load, and knowledge attention on
them is its definition in torch, between two layers of the small BERT."""

import dataclasses
import io
import json
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.core import facts, towers
from ptm_jax.core.paths import flatten
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.knowledge.knowbert import KnowledgeTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.systems.knowledge.knowbert import knowledge
from ptm_jax.training.start import initial

pytestmark = pytest.mark.full

HEADS, W = 4, 24
NAMES = {"fox": (0.5, 0.3, 0.2), "lazy dog": (0.9, 0.1), "quickest": (1.0,)}
"""Names that the vocabulary can write, and the priors of their candidates, which are entities of
the TuckER vectors."""


@pytest.fixture(scope="module")
def files(data):
    return data / "fixtures" / "knowbert"


def member(archive, name):
    with tarfile.open(archive) as tar:
        return tar.extractfile(name).read()


@pytest.fixture(scope="module")
def bert(files, tmp_path_factory):
    """The folder of the small BERT, whose pickle is read as weights alone."""
    torch, save = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch").save_file
    folder = tmp_path_factory.mktemp("bert")
    config = json.loads((files / "bert/bert_config.json").read_text())
    whole = {**config, "model_type": "bert", "architectures": ["BertForPreTraining"]}
    (folder / "config.json").write_text(json.dumps(whole))
    (folder / "vocab.txt").write_text((files / "bert/vocab.txt").read_text())
    raw = member(files / "bert/bert_test_fixture.tar.gz", "pytorch_model.bin")
    weights = torch.load(io.BytesIO(raw), weights_only=True, map_location="cpu")
    save({name: value.clone() for name, value in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def tucker(files):
    """{synset or lemma: its vector}."""
    torch = pytest.importorskip("torch")
    raw = member(files / "kg_embeddings/tucker_wordnet/model.tar.gz", "weights.th")
    rows = torch.load(io.BytesIO(raw), weights_only=True, map_location="cpu")[
        "kg_tuple_predictor.entities.weight"
    ]
    names = (files / "kg_embeddings/tucker_wordnet/vocabulary/entity.txt").read_text().splitlines()
    assert len(names) == len(rows) - 1  # row 0 is padding
    return dict(zip(names, rows.numpy()[1:], strict=True))


@pytest.fixture(scope="module")
def model(bert, tucker, tmp_path_factory):
    """(system, parameters, tokenizer): KnowBERT on the small BERT and the TuckER vectors, both by
    `Experiment.init`."""
    folder = tmp_path_factory.mktemp("vectors")
    entities = [name for name in tucker if not name.startswith("@@")][5:11]
    chosen = iter(entities)
    rows = [
        f"{name}\t{next(chosen)}\t{prior}" for name, several in NAMES.items() for prior in several
    ]
    (folder / "names.tsv").write_text("\n".join(rows) + "\n")
    table = WordTable(words=list(tucker), rows=np.stack(list(tucker.values())))
    wordfiles.write(folder / "tucker.vec", table)
    found = checkpoint.read(bert)
    low = found.system.towers["main"].encoder
    lexicon = Entities(file=str(folder / "names.tsv"), entities=len(entities) + 1, candidates=3)
    encoder = KnowledgeTransformer(
        embed=low.embed,
        parts=(dataclasses.replace(low.stack, layers=1),) * 2,
        knowledge=(
            dataclasses.replace(knowledge(lexicon, W, HEADS, hidden=48, match=10), share=0.5),
        ),
    )
    system = dataclasses.replace(found.system, towers={"main": Model(encoder=encoder, heads={})})
    tokenizer = vocabularies.read(TokenizerSpec(path=str(bert)))
    system = dataclasses.replace(system, towers=facts.known(system.towers, tokenizer))
    shapes = towers.abstract(system.towers, {"input_ids": jax.ShapeDtypeStruct((1, 8), jnp.int32)})
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.4, x.shape), jnp.float32), shapes)
    given = (("main", str(bert)), ("main/encoder/knowledge_0/entities", str(folder / "tucker.vec")))
    params = initial.begin(params, given, system, lambda: tokenizer)
    assert lexicon.names() == sorted(entities)
    rows = np.asarray(params["main"]["encoder"]["knowledge_0"]["entities"])
    np.testing.assert_allclose(
        rows, [np.zeros(W), *(tucker[name] for name in lexicon.names())], rtol=1e-5
    )
    return system, params, tokenizer


def attention(torch, p, x, y):
    """Attention of x [L, W] over y [S, W], with the residual branch and the feed-forward of
    BERT."""
    gelu, norm = torch.nn.functional.gelu, torch.nn.functional.layer_norm

    def heads(name, v):
        return (
            torch.einsum("ld,dhk->hlk", v, p[f"attention/{name}/kernel"])
            + p[f"attention/{name}/bias"][:, None]
        )

    q, k, v = heads("query", x), heads("key", y), heads("value", y)
    out = torch.softmax(q @ k.transpose(1, 2) / (W / HEADS) ** 0.5, -1) @ v
    out = torch.einsum("hlk,hkd->ld", out, p["attention/out/kernel"]) + p["attention/out/bias"]
    x = norm(x + out, (W,), p["attention_norm/scale"], p["attention_norm/bias"], 1e-12)
    out = (
        gelu(x @ p["ffn/up/kernel"] + p["ffn/up/bias"]) @ p["ffn/down/kernel"] + p["ffn/down/bias"]
    )
    return norm(x + out, (W,), p["ffn_norm/scale"], p["ffn_norm/bias"], 1e-12)


def definition(torch, p, states, spans):
    """Peters et al. 2019, section 3.3, and kb/knowbert.py: the states [L, D] of a text with
    mentions (first, last, candidates, priors), and the scores of their candidates."""

    def norm(x, name):
        return torch.nn.functional.layer_norm(
            x, x.shape[-1:], p[f"layer/{name}/scale"], p[f"layer/{name}/bias"], 1e-5
        )

    def dense(x, name):
        return x @ p[f"layer/{name}/kernel"] + p[f"layer/{name}/bias"]

    def inside(head):
        return {name.removeprefix(head): leaf for name, leaf in p.items() if name.startswith(head)}

    words = dense(states, "project")
    pooled = []
    for first, last, _, _ in spans:
        part = words[first : last + 1]
        pooled.append((torch.softmax(dense(part, "pool"), 0) * part).sum(0))
    one = {name: leaf[0] for name, leaf in inside("layer/spans/block/").items()}
    mentions = norm(torch.stack(pooled), "span_norm")
    mentions = attention(torch, one, mentions, mentions)
    known, scores = [], []
    for mention, (_, _, candidates, priors) in zip(mentions, spans, strict=True):
        vectors = norm(p["entities"][candidates], "entity_norm")
        both = torch.stack([vectors @ mention / W**0.5, torch.tensor(priors)], -1)
        scores.append(dense(torch.relu(dense(both, "match")), "score")[:, 0])
        known.append(mention + torch.softmax(scores[-1], 0) @ vectors)
    attended = attention(
        torch, inside("layer/words/"), words, norm(torch.stack(known), "mention_norm")
    )
    return norm(states + dense(attended, "back"), "out_norm"), scores


def test_knowledge_attention_on_the_public_files_is_its_definition(bert, model):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    system, params, tokenizer = model
    peer = transformers.BertModel.from_pretrained(
        bert, attn_implementation="eager", add_pooling_layer=False
    ).eval()
    text = [
        f"[CLS] the quick ##est fox jumped over the lazy dog {end} [SEP]".split()
        for end in (".", "fox")
    ]
    place = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    ids = np.array([[place[piece] for piece in row] for row in text])
    batch = {"input_ids": jnp.asarray(ids), "segment_ids": jnp.ones_like(ids)}
    lexicon = system.towers["main"].encoder.knowledge[0].lexicon
    number = {name: n for n, name in enumerate(lexicon.names(), 1)}
    entity = iter((lexicon.path).read_text().splitlines())
    candidates = {
        name: [number[next(entity).split("\t")[1]] for _ in several]
        for name, several in NAMES.items()
    }

    def span(first, last, name):
        return (first, last, candidates[name], NAMES[name])

    row = [span(2, 3, "quickest"), span(4, 4, "fox"), span(8, 9, "lazy dog")]
    spans = [row, [*row, span(10, 10, "fox")]]
    weights = {
        name.removeprefix("encoder/knowledge_0/"): torch.tensor(np.asarray(leaf))
        for name, leaf in flatten(params["main"]).items()
        if name.startswith("encoder/knowledge_0/")
    }
    with torch.no_grad():
        lower = peer(torch.tensor(ids), output_hidden_states=True).hidden_states[1]
        made = [
            definition(torch, weights, states, some)
            for states, some in zip(lower, spans, strict=True)
        ]
        theirs = peer.encoder.layer[1](torch.stack([states for states, _ in made]))
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs

    def encode(params):
        return system.towers["main"].apply({"params": params}, batch, method="encode")

    found = jax.jit(encode)(params["main"])
    np.testing.assert_allclose(found.hidden, theirs.numpy(), atol=2e-5)
    (linking,) = found.extra["linking"]
    for n, (_, scores) in enumerate(made):
        assert int(linking["used"][n].sum()) == len(scores)
        for mine, its in zip(linking["scores"][n], scores, strict=False):
            np.testing.assert_allclose(mine[: len(its)], its.numpy(), atol=2e-5)
            assert (np.asarray(mine[len(its) :]) == -1e4).all()


def test_names_and_synsets_are_read(files, tmp_path):
    graph = compile_graph(sources([f"priors:{files / 'linking/priors.txt'}"]), tmp_path / "priors")
    alias = graph.alias_texts.places["United States"]
    best = graph.alias_entities[alias][0]
    assert graph.entities[best] == "United_States" and graph.names[best] == "United States"
    line = next(
        line
        for line in (files / "linking/priors.txt").read_text().splitlines()
        if line.startswith("United States\t")
    )
    shares = [float(cell.split(",")[1]) for cell in filter(None, line.split("\t")[2:])]
    np.testing.assert_allclose(
        graph.alias_priors[alias][:3], np.array(shares[:3]) / sum(shares), rtol=1e-5
    )
    assert graph.counts["aliases"] == 50
    words = compile_graph(
        sources([f"synsets:{files / 'wordnet/entities_cat_hat.jsonl'}"]), tmp_path / "synsets"
    )
    hat = words.alias_texts.places["hat"]
    assert [words.entities[e] for e in words.alias_entities[hat]] == [
        "hat.v.02",
        "hat.v.01",
        "hat.n.01",
        "hat.n.02",
    ]
    np.testing.assert_allclose(words.alias_priors[hat], np.array([5, 4, 3, 2]) / 14, rtol=1e-6)
    cat = words.entity("cat.n.01")
    assert words.descriptions[cat].startswith("feline mammal")
    assert [words.entities[t] for h, _, t in words.triples().tolist() if h == cat] == [
        "cat%1:05:00::"
    ]
    assert (
        "line 11: a triple of 'true_cat%1:05:00::'" in words.manifest["faults"]["dangling"]["first"]
    )
