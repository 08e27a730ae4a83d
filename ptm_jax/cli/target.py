"""The target of a command (`runs.resolving`), and the task of --task."""

from __future__ import annotations

from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.runs.resolving import changed, guard, load_file, recorded, resolve

__all__ = ["changed", "load_file", "recorded", "resolve", "task_name"]


def task_name(name: str | None) -> str | None:
    """The name of a task.
    FILE.py:NAME imports a file of the user's own first, which adds the task NAME."""
    path, colon, task = (name or "").rpartition(":")
    if (name or "").endswith(".py"):
        raise UserError(
            f"--task {name} names a file; give FILE.py:NAME, with the name of the task that it adds"
        )
    if not colon or not path.endswith(".py"):
        return name
    from ptm_jax.core.spec.own_code import import_file, loaded

    if not Path(path).is_file():
        raise UserError(
            f"no such file: {path}; give FILE.py:NAME, a file that adds the task NAME to "
            "`tasks.catalogue`"
        )
    if loaded(path) is None:
        guard(lambda: import_file(path), Path(path))
    from ptm_jax.tasks.catalogue import catalogue

    if task not in catalogue:
        raise UserError(
            f"{path} adds no task {task!r}; give FILE.py:NAME, the name of a Task that it "
            "adds to the catalogue"
        )
    return task
