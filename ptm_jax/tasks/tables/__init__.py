"""Tables of the user's own: their columns, the task that these show, and the rows held out."""

KINDS = True  # the public dataclasses here may stand in a record (`core.spec.classes`)
