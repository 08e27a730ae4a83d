"""Fake English: every character has another code point, and words stay words."""

from ptm_jax.data.languages.fake import SHIFT, shifted


def test_characters_are_shifted_and_blanks_stay():
    text = "The café (1990),\n\tλόγος!"
    fake = shifted(text)
    assert [ord(b) - ord(a) for a, b in zip(text, fake, strict=True) if not a.isspace()] == (
        [SHIFT] * sum(not one.isspace() for one in text)
    )
    assert [one for one in fake if one.isspace()] == [one for one in text if one.isspace()]
    assert all(word.isalpha() for word in fake.split()) and not {*fake} & {*"".join(text.split())}
    assert shifted("中文 книга") == "中文 книга"
