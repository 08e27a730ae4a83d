"""Shards of predictions as an Apache Beam pipeline: RunInference over their numbers.

    numbers of shards -> RunInference: a model for each worker process, which writes the shard

A shard is an element, so that no row is shuffled, and its bytes are those of one machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ptm_jax.data.corpora import beam as pipelines
from ptm_jax.data.corpora.runners import Runner
from ptm_jax.inference.streams.running import Summary
from ptm_jax.inference.streams.shard_files import Writer

with pipelines.quiet():
    import apache_beam as beam
    from apache_beam.ml.inference.base import ModelHandler, RunInference


class ShardJob(Protocol):
    """What is sent to workers: the numbers of the shards to write, and how a model is loaded."""

    numbers: tuple[int, ...]

    def load(self) -> Writer:
        """Returns the model with its lines and its place."""


class Handler(ModelHandler[int, Summary, Writer]):
    """Writes shards with the model of a job."""

    def __init__(self, job: ShardJob):
        super().__init__()
        self.job = job

    def load_model(self) -> Writer:
        return self.job.load()

    def run_inference(
        self, batch: Sequence[int], model: Writer, inference_args: Mapping | None = None
    ) -> Iterator[Summary]:
        """Writes the shards of a batch. Yields their counts."""
        yield from map(model.write, batch)

    def batch_elements_kwargs(self) -> Mapping[str, int]:
        """A shard is a batch: it has many lines."""
        return {"min_batch_size": 1, "max_batch_size": 1}

    def get_metrics_namespace(self) -> str:
        return "ptm_predict"


def build(pipeline: beam.Pipeline, job: ShardJob) -> None:
    """Adds the steps of a job to a pipeline."""
    (
        pipeline
        | "shards" >> beam.Create(job.numbers)
        | "spread" >> beam.Reshuffle()
        | "predict" >> RunInference(Handler(job))
    )


def submit(job: ShardJob, runner: Runner) -> None:
    """Runs a job from this process to its end. Raises UserError where it fails."""
    pipelines.run(lambda pipeline: build(pipeline, job), runner)
