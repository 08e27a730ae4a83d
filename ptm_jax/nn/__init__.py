KINDS = True  # the public dataclasses here may stand in a record (`core.spec.classes`)
