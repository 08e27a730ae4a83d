"""The slot of a compression: a wrapper that ends in a smaller model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Params

if TYPE_CHECKING:
    from ptm_jax.core.system import System


class Compression(slots.Wrapper):
    """A wrapper (`System.compress`) that `ptm compress` applies.

    The order is: `measured`, `start`, fine-tuning with the wrapper if it `trains`, loading
    (`Wrapper.effective`), `smaller`.

    trains      whether the model is fine-tuned with the wrapper before it is compressed
    rows        number of training examples that `smaller` reads (0: none)
    measures    number of training examples that `measured` reads (0: it is not called)
    stored      whether it reads stored scores of the model in place of the model
    minimises   the loss of its fine-tuning, in words
    distils     whether a student learns from the model, its teacher
    remakes     whether the fine-tuning trains another tower in place of the model's
    """

    trains: bool = True
    rows: int = 0
    measures: int = 0
    stored: bool = False
    minimises: str = "task"
    distils: bool = False
    remakes: bool = False

    def continued(self, before: str) -> Compression:
        """Returns the compression as a later stage: a student begins with the model `before`."""
        return self

    def measured(
        self, system: System, params: Params, batches: Callable[[], Iterator[Batch]]
    ) -> Compression:
        """Returns the compression with its measurements of the model before the fine-tuning.

        It reads the first `measures` training examples. `system` has the objective of the task.
        Raises ValueError for a model that it does not fit.
        """
        return self

    def start(self, model: str) -> str | tuple[tuple[str, str], ...]:
        """Returns the initial model of the run (`Experiment.init`) for the model that is
        compressed."""
        return model

    def smaller(
        self, system: System, params: Params, batches: Callable[[], Iterator[Batch]]
    ) -> tuple[Any, Params]:
        """Returns the system and the parameters of the compressed model, without the wrapper.

        `system` is the system of the model, with the task's objective; in a run it includes this
        wrapper. `batches()` yields the first `rows` training examples as the objective reads them.
        Raises ValueError for a model that the method does not fit.
        """
        return system, params
