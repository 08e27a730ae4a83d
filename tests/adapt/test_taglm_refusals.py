"""TagLM's readers of characters need rows with characters, and a table of all of them."""

import types

import pytest

from ptm_jax.adapt.modules.word_features import TagLM


@pytest.mark.parametrize(
    ("options", "alphabet", "advice"),
    [
        ({"letters": 0}, None, None),
        ({"letters": 0}, 300, None),
        ({}, None, "letters=0"),
        ({}, 262, None),
        ({}, 263, "set taglm's alphabet"),
        ({"alphabet": 300}, 300, None),
    ],
)
def test_which_rows_taglm_takes(options, alphabet, advice):
    system = types.SimpleNamespace(examples=types.SimpleNamespace(alphabet=alphabet))
    clause = TagLM(**options).refusal(system)
    assert clause is None if advice is None else advice in clause
