"""Translation as a task: pairs of sentences, and sacreBLEU's scores."""

KINDS = True  # the public dataclasses here may stand in a record (`core.spec.classes`)
