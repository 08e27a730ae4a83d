"""Views: numbers against definitions, and each page in a headless browser, by mouse and keys."""

import base64
import html
import json
import re

import numpy as np
import pytest

import ptm_jax
from benchmarks.browser import browser
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.saliency import (
    attention_pages,
    attributions,
    curve_pages,
    pair_pages,
    saliency_pages,
    text_pages,
)
from ptm_jax.inference.saliency.html_pages import Page
from support import tiny_checkpoint

TEXT = "the film was very long and bad"
MARKED = re.compile(r"(?:src|href)=|https?://|@import|url\(|fetch\(|XMLHttp|import\(")
CORPUS = ["the story was short and good", "a very funny film is bad but long", "the end was sad"]
LOG = [
    {"original_text": "a [[good]] film", "perturbed_text": "a [[bad]] <film>", "num_queries": "9",
     "original_score": "0.1", "perturbed_score": "0.75", "result_type": "Successful"},
    {"original_text": "the plot was short", "perturbed_text": "the plot is short",
     "result_type": "Failed"},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(
        path, architectures=["BertForMaskedLM"], vocab=84, scale=0.5, num_hidden_layers=2
    )


@pytest.fixture(scope="module")
def tab():
    with browser() as one:
        if one is None:
            pytest.skip("no headless browser")
        yield one


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.html)[1])


def array_of(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def saliency(pieces=("a", "b"), scores=(1.0, -0.5)):
    one = attributions.Attribution(tuple(pieces), np.array(scores), "<b>", -0.1, 1)
    return saliency_pages.page("a <title>", {"occlusion": one}, {"occlusion": {"sufficiency": 0.2}})


@pytest.mark.parametrize("hostile", ["</script><script>alert(1)", "<img src=x onerror=alert(1)>"])
def test_pages_are_alone_and_hostile_texts_stay_texts(hostile):
    maps = attention_pages.greatest(np.full((1, 1, 2, 2), 0.5), 2)
    rows = [{"original_text": hostile, "perturbed_text": "b"}]
    for page in (
        saliency((hostile, "b")),
        attention_pages.page(hostile, [hostile, "b"], maps),
        curve_pages.curve_page(hostile, {hostile: [0.1, np.nan]}, {}),
        pair_pages.pair_page(hostile, rows),
    ):
        assert "alert(1)" in page.html and hostile not in page.html
        alone = page.html.replace("http://www.w3.org/2000/svg", "").replace("src=x", "")
        assert not MARKED.search(alone)
        assert "default-src 'none'" in page.html and data_of(page)
        frame = page._repr_html_()
        assert html.unescape(re.search(r'srcdoc="(.*?)"', frame, re.S)[1]) == page.html
        assert frame.startswith("<iframe") and 'sandbox="allow-scripts"' in frame


def test_attention_of_long_texts_and_its_flow():
    """The greatest weights of a token; the product of layers of Abnar and Zuidema 2020, Eq. 1."""
    draw = np.random.default_rng(0)
    maps = draw.dirichlet(np.full(40, 0.2), (3, 2, 40))
    page = attention_pages.page("t", ["x"] * 40, attention_pages.greatest(maps, 32))
    assert "keeps its 32 greatest weights" in page.html
    data = data_of(page)
    places = np.stack([array_of(x, "<u2") for x in data["places"]]).reshape(3, 2, 40, 32)
    weights = np.stack([array_of(x, np.uint8) for x in data["weights"]]).reshape(places.shape)
    wanted = np.sort(maps, -1)[..., ::-1][..., :32]
    np.testing.assert_allclose(np.sort(weights / 255, -1)[..., ::-1], wanted, atol=1 / 255)
    np.testing.assert_array_equal(
        np.sort(places[0, 0, 0]), np.sort(np.argsort(-maps[0, 0, 0])[:32])
    )
    flow = np.eye(40)
    for layer in range(3):
        step = np.zeros((40, 40))
        for i in range(40):
            for j in range(40):
                step[i, j] = 0.5 * np.mean(maps[layer, :, i, j]) + 0.5 * (i == j)
        flow = step @ flow
    np.testing.assert_allclose(attention_pages.rollout(maps), flow, rtol=1e-10)
    np.testing.assert_allclose(flow.sum(1), 1.0)


def test_pairs_are_marked_words_or_compared_ones():
    page = pair_pages.pair_page("attack", LOG)
    first, second = data_of(page)["pairs"]
    assert first["texts"][1] == [["a", False], ["bad", True], ["<film>", False]]
    assert first["fields"] == {k: v for k, v in LOG[0].items() if not k.endswith("_text")}
    assert second["texts"][0] == [["the plot", False], ["was", True], ["short", False]]
    assert page.document == {"pairs": 2, "changed": 2, "changed_words": 0.2917}


def test_a_number_says_what_it_is_and_depths_are_no_baselines(tmp_path):
    assert "Prediction &lt;b&gt;: log-probability -0.1000." in saliency().html
    folder = tmp_path / "upos"
    folder.mkdir()
    figures = {"label": "upos", "layers": {"accuracy": [0.5, 0.7]},
               "baselines": {"expected layer": 0.6, "majority": 0.3}}  # fmt: skip
    (folder / "probe.json").write_text(json.dumps(figures))
    page = curve_pages.of_file(folder)
    assert page.title == "upos" and data_of(page)["depths"] == ["expected layer"]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["wordpiece", "bytebpe"])
def test_views_show_the_mask_and_the_pieces_that_the_model_reads(kind, tmp_path):
    """The tokens and the attention of transformers, which reads the mask of a text."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    size, specials = {"wordpiece": (84, "bert"), "bytebpe": (280, "roberta")}[kind]
    folder = tiny_checkpoint.write(
        tmp_path, architectures=["BertForMaskedLM"], vocab=size, scale=0.5, kind=kind,
        specials=specials,
    )  # fmt: skip
    model, theirs = ptm_jax.load(folder), AutoTokenizer.from_pretrained(folder)
    ids = theirs(f"the film {theirs.mask_token} and bad")["input_ids"]
    if kind == "bytebpe":  # the blank before a mask is a part of the word in it
        ids = theirs(f"the film{theirs.mask_token} and bad")["input_ids"]
    tokens = [theirs.decode([i]).strip() or "Ġ" for i in ids]
    peer = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        maps = peer(torch.tensor([ids]), output_attentions=True).attentions[0][0].numpy()
    text = "the film [MASK] and bad"
    page = model.view(text, by="attention")
    assert page.document["tokens"] == tokens and theirs.mask_token in tokens
    bits = -(maps * np.log2(maps)).sum(-1).mean(-1)
    np.testing.assert_allclose(page.document["bits"][0], bits, atol=1e-3)
    assert model.view(text, by="neurons").document["tokens"] == tokens
    corpus = [x.split() for x in CORPUS]
    near = model.view(text, by="contexts", sentences=corpus, top=2).document["tokens"]
    assert near == tokens[1:-1]
    with pytest.raises(UserError, match="the text is empty"):
        model.view(" ", by="contexts", sentences=corpus)


@pytest.mark.full
@pytest.mark.status("ptm view", "matches")
def test_neurons_and_contexts_are_transformers(folder):
    """Queries, keys and outputs of heads of the torch model; neighbours by brute force."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModel

    model = ptm_jax.load(folder)
    peer = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    outputs = {}
    for n, layer in enumerate(peer.encoder.layer):
        for name in ("query", "key", "value"):
            getattr(layer.attention.self, name).register_forward_hook(
                lambda _, __, out, key=(n, name): outputs.__setitem__(key, out.detach().numpy())
            )

    def run(text):
        (ids,) = model.ids_of([text])
        with torch.no_grad():
            result = peer(
                torch.tensor(ids[None]).long(), output_attentions=True, output_hidden_states=True
            )
        states = np.stack([x[0].numpy() for x in result.hidden_states])
        heads = {key: x.reshape(len(ids), 2, 8).swapaxes(0, 1) for key, x in outputs.items()}
        contexts = np.stack([
            np.stack([a @ v for a, v in zip(x[0].numpy(), heads[n, "value"], strict=True)], 1)
            for n, x in enumerate(result.attentions)
        ])  # fmt: skip
        return heads, states[:, 1:-1], contexts[:, 1:-1]

    heads, states, contexts = run(TEXT)
    data = data_of(model.view(TEXT, by="neurons"))
    for n in range(2):
        for name, singular in (("queries", "query"), ("keys", "key")):
            numbers = array_of(data[name][n], np.int8).reshape(2, -1, 8).astype(float)
            most = array_of(data[f"most_{name}"][n], "<f4").reshape(2, -1, 1)
            wanted = heads[n, singular]
            assert np.abs(numbers * most / 127 - wanted).max() <= np.abs(wanted).max() / 250
    page = model.view(TEXT, by="contexts", sentences=[x.split() for x in CORPUS], layer=2, top=3)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    stored = [(run(text), number) for number, text in enumerate(CORPUS)]
    several = unit(contexts[1]), [unit(x[2][1]) for x, _ in stored]
    spaces = {
        "state of layer 2": (unit(states[2]), [unit(x[1][2]) for x, _ in stored]),
        "context of layer 2": tuple(
            unit(x.reshape(len(x), -1)) if isinstance(x, np.ndarray)
            else [unit(y.reshape(len(y), -1)) for y in x]
            for x in several
        ),
        "head 2 of layer 2": (several[0][:, 1], [x[:, 1] for x in several[1]]),
    }  # fmt: skip
    for name, (mine, theirs) in spaces.items():
        places = [(s, w) for s, rows in enumerate(theirs) for w in range(len(rows))]
        cosines = mine @ np.concatenate(theirs).T
        for row, near in zip(cosines, page.document["spaces"][name], strict=True):
            order = np.argsort(-row)[:3]
            np.testing.assert_allclose([one["score"] for one in near], row[order], atol=1e-4)
            assert [(one["sentence"], one["place"]) for one in near] == [places[i] for i in order]


@pytest.mark.full
def test_the_commands_and_their_messages(folder, tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(CORPUS))
    command = ["view", str(folder), "--text", TEXT]
    out = ["--out", str(tmp_path / "page.html")]
    for more, wanted in (
        (["--by", "attention"], "bits of a token's attention"),
        (["--by", "neurons"], "greatest difference"),
        (["--by", "contexts", "--data", str(corpus), "--top", "2"], "by the state of layer 2"),
    ):
        assert main([*command, *more, *out]) == 0
        assert wanted in capsys.readouterr().out and (tmp_path / "page.html").is_file()
    maps = ptm_jax.load(folder)(
        ptm_jax.load(folder).ids_of([TEXT])[0][None], attention=True
    ).attention[:, 0]  # fmt: skip
    assert main([*command, "--by", "attention", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(printed["bits"], -(maps * np.log2(maps)).sum(-1).mean(-1), atol=1e-3)
    for more, wanted in (
        (["--out", str(tmp_path / "page.txt")], "ends in .html"),
        (["--steps", "0"], "must be at least 1"),
        (["--by", "attention", "--target", "bad"], "--target is for --by saliency"),
        (["--by", "attention", "--top", "3"], "--top is for --by contexts"),
        (["--by", "contexts"], "--by contexts needs sentences"),
        (["--by", "contexts", "--data", str(corpus), "--layer", "3"], "has layers 0 to 2"),
        (["--by", "contexts", "--data", str(corpus), "--top", "99"], "have 18 tokens"),
        (["--by", "curves"], "--by curves shows results"),
        (["--by", "curves", "--tower", "main"], "leave --tower out"),
    ):
        assert main([*command, *more]) == 1 and wanted in capsys.readouterr().err
    assert main(["view", str(folder), "--by", "neurons"]) == 1
    assert "--by neurons needs a text" in capsys.readouterr().err
    (tmp_path / "vectors.txt").write_text("2 2\nking 1 0\nqueen 0 1\n")
    assert main(["view", str(tmp_path / "vectors.txt"), "--text", TEXT]) == 1
    assert "has vectors of words and no network" in capsys.readouterr().err
    assert main(["view", str(tmp_path), "--by", "curves"]) == 1
    assert "is no file; give the folder" in capsys.readouterr().err
    assert main(["view", str(corpus), "--by", "pairs"]) == 1
    assert "has no column original_text" in capsys.readouterr().err
    with pytest.raises(UserError, match="unknown view 'atention'.*Did you mean 'attention'"):
        text_pages.view(ptm_jax.load(folder), TEXT, "atention")


def opened(tab, page, tmp_path, width=400):
    path = tmp_path / "page.html"
    page.write(path)
    tab.open(path, width)
    assert tab.value("document.documentElement.scrollWidth") == width
    return page


@pytest.mark.full
def test_attention_and_neurons_in_a_browser(folder, tab, tmp_path):
    """A token that is pointed at names what it reads most: the greatest weight of the map."""
    model = ptm_jax.load(folder)
    (ids,) = model.ids_of([TEXT])
    maps = model(ids[None], attention=True).attention[:, 0]
    page = opened(tab, model.view(TEXT, by="attention"), tmp_path)
    token = page.document["tokens"]

    def reads(n, h, i):
        return f"{token[i]} reads {token[maps[n, h, i].argmax()]} {maps[n, h, i].max():.2f}"

    tab.point("#grid button", 3, click=True)
    tab.point("#left .token", 2)
    assert tab.text("#score").startswith(reads(1, 1, 2))
    tab.key("ArrowDown")  # the focus is on the head
    tab.point("#left .token", 4, click=True)
    tab.key("ArrowDown")
    tab.key("Enter")
    assert tab.text("#score").startswith(reads(1, 1, 5))
    tab.point("#special", click=True)
    shown = maps[1, 1, 5, 1:-1]
    assert f" {token[1:-1][shown.argmax()]} {shown.max():.2f}" in tab.text("#score")
    assert tab.requests == []

    opened(tab, model.view(TEXT, by="neurons"), tmp_path)
    tab.value("(one => { one.value = 1; one.dispatchEvent(new Event('change')) })"
              "(document.getElementById('head'))")  # fmt: skip
    tab.point(".token", 3, click=True)
    titles = tab.value("[...document.querySelectorAll('#weights div')].map(one => one.title)")
    weights = np.array(titles, float)
    np.testing.assert_allclose(weights, maps[0, 1, 3], atol=0.02)
    assert tab.text("#score").startswith(f"{token[3]} reads {token[maps[0, 1, 3].argmax()]} most")
    tab.point("#keys")
    assert re.match(r"neuron [45] of 8: query -?\d\.\d\d × key", tab.text("#score"))
    tab.value("document.getElementById('keys').focus()")
    tab.key("ArrowLeft")
    assert re.match("neuron [34] of 8", tab.text("#score"))
    tab.value("(one => { one.value = 0.15; one.dispatchEvent(new Event('input')) })"
              "(document.getElementById('least'))")  # fmt: skip
    assert tab.value("document.querySelectorAll('#names div').length") == (weights >= 0.15).sum()
    assert tab.requests == []


@pytest.mark.full
def test_contexts_and_saliency_in_a_browser(folder, tab, tmp_path):
    model = ptm_jax.load(folder)
    corpus = [text_pages.Sentence(x.split(), x.upper().split()) for x in CORPUS]
    page = opened(tab, model.view(TEXT, by="contexts", sentences=corpus, top=6), tmp_path)
    tab.point(".token", 1, click=True)
    near = page.document["spaces"]["state of layer 2"][1]
    assert tab.text("#near mark") == near[0]["word"]
    assert tab.value("document.querySelectorAll('#near li').length") == 6
    tab.point("#near li", 0)
    assert f"({near[0]['word'].upper()}), cosine {near[0]['score']:.3f}" in tab.text("#score")
    tab.point("#sums button", 0, click=True)
    word = tab.text("#sums button span")
    count = sum(one["word"] == word for one in near)
    assert tab.text("#score").startswith(f"film: {count} of 6 tokens")
    tab.point("#sums button", 0, click=True)
    tab.typed("#filter", near[-1]["word"])
    assert tab.text("#near mark") == next(
        one["word"] for one in near if near[-1]["word"] in one["word"]
    )
    assert tab.requests == []

    page = opened(tab, model.view("the film was [MASK] and bad", steps=8), tmp_path)
    tab.point("tbody tr", 3, click=True)
    tab.point(".token", 1)
    assert re.match(r"film: .* \(occlusion\)$", tab.text("#score"))
    tab.key("Home")
    tab.value("document.querySelector('.token').focus()")
    tab.key("End")
    assert tab.text("#score").startswith(f"{page.document['tokens'][-1]}: ")
    assert page.document["target"] in tab.text("#text b") and tab.requests == []


@pytest.mark.full
def test_an_answer_has_a_frame(tab, tmp_path):
    folder = tiny_checkpoint.write(
        tmp_path, architectures=["BertForQuestionAnswering"], vocab=84, scale=0.5
    )
    words = "the film was very long and sad"
    page = ptm_jax.load(folder).view(
        "was the film good", pair=words, target="very long", methods=["gradient"]
    )
    opened(tab, page, tmp_path)
    framed = "[...document.querySelectorAll('.answer')].map(one => one.textContent)"
    assert tab.value(framed) == ["very", "long"]
    assert tab.value("document.querySelector('#text br').nextSibling.textContent") == "the"
    assert page.data["second"] == 4 and tab.requests == []


@pytest.mark.full
def test_curves_and_pairs_in_a_browser(tab, tmp_path):
    figures = {"by": "labels", "label": "upos",
               "baselines": {"majority": 0.3, "expected layer": 0.7},
               "layers": {"accuracy": [0.5, 0.75, 0.625], "bits": [3, 2, None]},
               "heads": {"f1": [[0.25, 0.5]] * 3}, "first layer": 1}  # fmt: skip
    (tmp_path / "probe.json").write_text(json.dumps(figures))
    opened(tab, curve_pages.of_file(tmp_path), tmp_path)
    assert tab.value("document.querySelectorAll('.plot').length") == 2
    assert tab.value("document.querySelectorAll('.base').length") == 1
    assert tab.text("#figures h2 + ul + h2 + ul") == "expected layer: 0.700"
    tab.value("document.getElementById('plots').focus()")
    tab.key("End")
    assert tab.text("#score") == "layer 3: accuracy 0.625, bits none"
    tab.point("tbody tr", 1)
    assert tab.text("#score") == "layer 2: accuracy 0.750, bits 2.000"
    tab.point("#legend input", 0, click=True)
    assert tab.text("#score") == "layer 2: bits 2.000"
    assert tab.text("#heads tbody tr") == "10.250.50"
    assert tab.requests == []

    opened(tab, pair_pages.pair_page("attack", LOG), tmp_path)
    assert tab.text("article ins") == "bad"
    tab.typed("#filter", "plot")
    assert tab.text("#score") == "1 of 2 pairs, 25.0% of the words changed"
    tab.point("article", 0)
    assert tab.text("#score").startswith("pair 2: Failed")
    assert tab.requests == []


@pytest.mark.full
def test_a_notebook_shows_a_page():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(
        "from ptm_jax.inference.saliency import curve_pages\n"
        "curve_pages.curve_page('curves', {'accuracy': [0.1, 0.2]}, {})"
    )]  # fmt: skip
    nbclient.NotebookClient(notebook, timeout=120).execute()
    (output,) = notebook.cells[0].outputs
    assert output.data["text/html"].startswith("<iframe srcdoc=")
    assert output.data["text/plain"].startswith("Page 'curves'")
    assert isinstance(curve_pages.curve_page("c", {"a": [1]}, {}), Page)
