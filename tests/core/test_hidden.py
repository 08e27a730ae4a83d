"""A field of a slot's subclass cannot hide a method of the slot, whose callers would call the
field's value."""

import dataclasses

import pytest

from ptm_jax.core import slots


def test_a_field_that_hides_a_method_is_refused():
    with pytest.raises(
        TypeError, match="Mine: the field 'batch_spec' hides the method of Examples"
    ):

        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Mine(slots.Examples):
            batch_spec: tuple[str, ...] = ()
