"""Translation without translations: text is translated inside the step."""

from ptm_jax.core.public import public

KINDS = True  # the public dataclasses here may stand in a record (`core.spec.classes`)
__getattr__, __dir__ = public(__name__, __path__[0])
