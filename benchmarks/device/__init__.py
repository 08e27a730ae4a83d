"""Everything that only an accelerator can show, as one command of at most eight minutes.

    python -m benchmarks.device                    # one GPU; writes benchmarks/device.md and .json
    python -m benchmarks.device --parts kernels doctor
    python -m benchmarks.device --dry              # tiny shapes on a CPU, in less than four minutes

Each part is a module of this package: `items()` lists what it computes, `names(item)` the
programs of an item, `prepare(item)` compiles them, and `measure(item, context, name)` runs one.
`isolate` runs the parts in processes of their own, so that a kernel that crashes or hangs costs
one row of the page.
"""
