"""Saliency: finite differences, completeness, planted evidence, faithfulness by hand, the page."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.saliency import attention_pages, attributions, faithfulness, pages
from support import tiny_checkpoint

TEXT = "the film was [MASK] and very long"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(path, architectures=["BertForMaskedLM"], vocab=84, scale=0.5)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """A classifier of texts by the words `good` and `bad`, or neither of them, among others."""
    path = tmp_path_factory.mktemp("evidence")
    checkpoint = tiny_checkpoint.write(path / "begin", vocab=84, scale=0.1)
    draw = np.random.default_rng(0)
    others = [word for word in tiny_checkpoint.WORDS if word not in ("good", "bad")]
    lines = []
    for n in range(240):
        words = [*draw.choice(others, 8), *(["bad"], ["good"], [])[n % 3]]
        lines.append(" ".join(draw.permutation(words)))
    return ptm_jax.finetune(
        str(checkpoint), lines, ["no", "yes", "neither"] * 80, workdir=path / "run", epochs=12,
        batch=16, length=32, lr=5e-3, quiet=True,
    )  # fmt: skip


def title_of(page, script):
    """The title of a page after a script, in a headless browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no headless browser")
    driven = page.with_name("driven.html")
    driven.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    shown = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
         "--dump-dom", f"file://{driven}"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    return re.search(r"<title>(.*?)</title>", shown)[1]


@pytest.mark.full
def test_gradients_are_finite_differences_and_scores_add_up(folder):
    model = ptm_jax.load(folder)
    function = attributions.function_of(model, TEXT)
    words = function.words(function.ids)
    (gradient,) = function.gradients(np.zeros((1, *words.shape), np.float32))
    draw = np.random.default_rng(0)
    ((batch, _),) = function._batches(function.ids[None])
    pads = (0, batch["input_ids"].shape[1] - len(function.ids)), (0, 0)

    def value(moves):
        moves = np.pad(moves, pads)[None]
        scores = attributions._scores(
            function.question, model.weights, batch, moves, function.place
        )
        return float(scores[0, function.index])

    for _ in range(5):
        step = draw.normal(size=words.shape).astype(np.float32) * 1e-2
        difference = value(step) - value(-step)
        assert difference / 2 == pytest.approx((gradient * step).sum(), rel=2e-2, abs=1e-5)
    result = attributions.attributed(model, TEXT)
    whole, missing = function.values(np.stack([function.ids, function.missing()]))
    assert result.scores.sum() == pytest.approx(whole - missing, abs=1e-4)
    assert result.mask == 3 and result.prediction == pytest.approx(whole)
    difference = words - function.words(function.missing())
    np.testing.assert_allclose(
        attributions.attributed(model, TEXT, "gradient_input").scores,
        (gradient * difference).sum(-1)[function.text], rtol=1e-4,
    )  # fmt: skip
    falls = []
    for place in function.text:
        row = function.ids.copy()
        row[place] = model.vocab.mask
        logits = np.asarray(model(row[None]).logits, np.float64)[0, function.place]
        falls.append(whole - (logits[function.index] - np.log(np.exp(logits).sum())))
    np.testing.assert_allclose(
        attributions.attributed(model, TEXT, "occlusion").scores, falls, atol=1e-4
    )
    with pytest.raises(UserError, match="unknown method 'lame'.*Did you mean 'lime'"):
        attributions.attributed(model, TEXT, "lame")
    with pytest.raises(UserError, match="'zebra crossing' is no single token"):
        attributions.attributed(model, TEXT, target="zebra crossing")


@pytest.mark.full
def test_methods_find_planted_evidence(evidence, capsys):
    """The word that decides has the first rank; the figures of faithfulness say so, too."""
    draw = np.random.default_rng(1)
    others = [word for word in tiny_checkpoint.WORDS if word not in ("good", "bad")]
    right = dict.fromkeys(attributions.METHODS, 0)
    for n in range(8):
        word = ("bad", "good")[n % 2]
        text = " ".join(draw.permutation([*draw.choice(others, 7), word]))
        target = ("no", "yes")[n % 2]
        for method in right:
            result = attributions.attributed(evidence, text, method, steps=16, samples=128)
            assert result.target == target
            right[method] += result.pieces[int(np.argmax(result.scores))] == word
    assert min(right[m] for m in ("integrated_gradients", "occlusion", "lime")) == 8, right
    assert min(right.values()) >= 6, right
    function = attributions.function_of(evidence, text)
    best = np.array([piece == word for piece in result.pieces], float)
    good, wrong = (faithfulness.faithfulness(function, scores) for scores in (best, -best))
    assert good["comprehensiveness"] > 0.5 > wrong["comprehensiveness"]
    assert good["sufficiency"] < 0.2 < wrong["sufficiency"]


def test_ridge_regression_is_scikit_learns():
    from sklearn.linear_model import Ridge

    draw = np.random.default_rng(3)
    inputs = draw.integers(0, 2, (40, 6)).astype(float)
    values, weights = draw.normal(size=40), draw.uniform(0.1, 1, 40)
    wanted = Ridge(alpha=attributions.RIDGE).fit(inputs, values, weights).coef_
    np.testing.assert_allclose(attributions._ridge(inputs, values, weights), wanted, rtol=1e-8)


def test_the_page_is_alone_and_hostile_text_stays_text():
    scores = attributions.Attribution(
        ("</script><script>alert(1)", "b"), np.array([1.0, -0.5]), "<b>", -0.1, 1
    )
    page = pages.page("a <title>", {"occlusion": scores}, {"occlusion": {"sufficiency": 0.25}})
    assert "alert(1)" in page and "</script><script>alert" not in page and "a <title>" not in page
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert data["pieces"][0] == "</script><script>alert(1)" and data["mask"] == 1
    assert "<td>0.2500</td>" in page


@pytest.mark.full
def test_the_command_and_its_page_in_a_browser(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    command = ["view", str(folder), "--text", TEXT, "--out", str(page)]
    assert main([*command, "--json", "--steps", "8"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tokens"][0] == "the" and len(printed["methods"]) == 4
    for more, wanted in (
        (["--out", str(tmp_path / "page.txt")], "ends in .html"),
        (["--steps", "0"], "must be at least 1"),
    ):
        assert main([*command, *more]) == 1 and wanted in capsys.readouterr().err
    probe = (
        "document.querySelectorAll('tbody tr')[3].click();"
        "document.querySelectorAll('.token')[1].focus();"
        "document.title = document.querySelectorAll('.token').length + '|' "
        "+ document.querySelector('tr[aria-selected=true]').rowIndex + '|' "
        "+ document.getElementById('score').textContent + '|' "
        "+ performance.getEntriesByType('resource').length;"
    )
    title = title_of(page, probe)
    count, row, score, requests = title.split("|")
    assert int(count) == len(printed["tokens"]) and row == "4" and requests == "0"
    assert score.startswith(f"{printed['tokens'][1]}: ") and score.endswith("(occlusion)")


@pytest.mark.full
def test_the_page_of_attention_in_a_browser(folder, tmp_path, capsys):
    """A chosen token names what it reads most: the greatest weight of the map."""
    page = tmp_path / "page.html"
    command = ["view", str(folder), "--by", "attention", "--text", "the film was very long and bad"]
    assert main([*command, "--out", str(page), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    model = ptm_jax.load(folder)
    (ids,) = model.ids_of(["the film was very long and bad"])
    maps = model(ids[None], attention=True).attention[:, 0]
    np.testing.assert_allclose(printed["bits"], -(maps * np.log2(maps)).sum(-1).mean(-1), atol=1e-3)
    title = title_of(page, (
        "document.getElementById('head').value = 1;"
        "document.querySelectorAll('#left .token')[2].click();"
        "document.title = document.getElementById('score').textContent + '|' "
        "+ document.querySelectorAll('#grid button').length + '|' "
        "+ performance.getEntriesByType('resource').length;"
    ))  # fmt: skip
    words, heads, requests = title.split("|")
    best = int(maps[0, 1, 2].argmax())
    token = printed["tokens"]
    assert words.startswith(f"{token[2]} reads {token[best]} {maps[0, 1, 2, best]:.2f}")
    assert (int(heads), requests) == (maps.shape[0] * maps.shape[1], "0")
    assert main([*command, "--target", "bad"]) == 1
    assert "--target is for --by saliency" in capsys.readouterr().err


def test_attention_of_long_texts_and_its_flow():
    """The greatest weights of a token; the product of layers of Abnar and Zuidema 2020, Eq. 1."""
    draw = np.random.default_rng(0)
    maps = draw.dirichlet(np.full(40, 0.2), (3, 2, 40))
    page = attention_pages.page("t", ["</script>x"] * 40, maps)
    assert "</script>x" not in page and "keeps its 32 greatest weights" in page
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    places = np.frombuffer(base64.b64decode(data["places"]), "<u2").reshape(3, 2, 40, 32)
    weights = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(places.shape)
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
