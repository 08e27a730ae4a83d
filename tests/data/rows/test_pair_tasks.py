"""Rows of several tasks on translations: shares, numbers of tasks, languages."""

import collections

import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.languages.language_stream import opened
from ptm_jax.data.rows.languages.multilingual import Paraphrases, Translated
from ptm_jax.data.rows.languages.pair_tasks import PairTasks
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

KINDS = (Translated(), Translated(kind="alternating"), Paraphrases(other_probability=1.0))


@pytest.mark.parametrize("batches", [True, False])
def test_translations_are_cut_for_each_task_with_equal_shares(tmp_path, batches):
    rng = np.random.default_rng(0)
    text = "".join(" ".join(f"d{n}" for n in rng.integers(0, 9, 8)) + "\n\n" for _ in range(300))
    (tmp_path / "a.txt").write_text(text)
    for code in "de":
        pairs = (f"{code}{n % 9} {code}{n % 7}\n" for n in range(90))
        (tmp_path / f"t.{ {'d': 'de', 'e': 'en'}[code] }").write_text("".join(pairs))
    corpus = prepare(
        [f"language:de={tmp_path}/a.txt", f"language:de-en={tmp_path}/t"], tmp_path / "out",
        tokenizer=TokenizerSpec(kind="word", vocab=23, specials="roberta"), heldout=0.1,
        block_tokens=64,
    )  # fmt: skip
    value = PairTasks(kinds=KINDS, batches=batches, translations=0.6)
    examples = facts.fill(value, lambda: corpus)
    stream = opened(corpus, "train", examples, length=32, batch=4, seed=1)
    counts, rows = collections.Counter(), 0
    for _ in range(300):
        batch = next(stream)
        tasks, real = batch["task"], batch["segment_ids"] > 0
        counts.update(tasks.tolist())
        rows += len(tasks)
        assert not batches or len({*tasks.tolist()}) == 1
        assert not batch["language_ids"][tasks == 0].any()
        assert (batch["next_label"][tasks == 3] == 1).all() and not batch["next_label"][
            tasks < 3
        ].any()
        begins = ((batch["positions"] == 0) & real).sum(1)
        segments = batch["segment_ids"].max(1)
        assert (begins[tasks == 2] == segments[tasks == 2]).all()
        assert (begins[tasks == 1] == 2 * segments[tasks == 1]).all()
    assert {*counts} == {0, 1, 2, 3}
    if batches:
        assert abs(counts[0] / rows - 0.4) < 3 * (0.24 / 300) ** 0.5


def test_no_task_is_refused():
    with pytest.raises(UserError, match="examples.kinds is empty"):
        PairTasks(kinds=())
