"""Fake English: every character has another code point, and words stay words."""

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages.fake import SHIFT, shifted
from ptm_jax.data.text import sources


def test_characters_are_shifted_and_blanks_stay():
    text = "The café (1990),\n\tλόγος!"
    fake = shifted(text)
    assert [ord(b) - ord(a) for a, b in zip(text, fake, strict=True) if not a.isspace()] == (
        [SHIFT] * sum(not one.isspace() for one in text)
    )
    assert [one for one in fake if one.isspace()] == [one for one in text if one.isspace()]
    assert all(word.isalpha() for word in fake.split()) and not {*fake} & {*"".join(text.split())}
    assert shifted("中文 книга") == "中文 книга"


def test_a_source_has_the_sentences_of_another_one_in_other_letters(tmp_path):
    real = tmp_path / "en.txt"
    real.write_text("One word. Two words!\n\nThe end.\n")
    fake = f"language:en_Fake=fake:{real}"
    sentences = [one.sentences for one in sources.documents([str(real)])]
    assert len(sentences[0]) == 2
    assert [one.sentences for one in sources.documents([fake])] == [
        tuple(map(shifted, part)) for part in sentences
    ]
    before = sources.fingerprints([fake])
    real.write_text("Another text.\n")
    assert sources.fingerprints([fake]) != before
    with pytest.raises(UserError, match="none.txt"):
        sources.expand(f"fake:{tmp_path}/none.txt")
