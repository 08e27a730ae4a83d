"""The runner of an Apache Beam pipeline as a value, and its options.
Beam itself is not imported."""

from __future__ import annotations

import dataclasses

from ptm_jax.core.errors import UserError, unknown

CLASSES = {
    # by its class: Beam's DirectRunner first looks for another runner on the network
    "direct": "apache_beam.runners.portability.fn_api_runner.FnApiRunner",
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "dataflow": "DataflowRunner",
}
_DEFAULTS = {
    "direct": {},
    "flink": {"environment_type": "DOCKER"},
    "spark": {"environment_type": "DOCKER"},
    "dataflow": {},
}
_NEEDED = {
    "direct": {},
    "flink": {"flink_master": "host:8081"},
    "spark": {"spark_master_url": "spark://host:7077"},
    "dataflow": {"project": "NAME", "region": "us-central1", "temp_location": "gs://BUCKET/tmp"},
}
# The option that names an image with ptm_jax for the workers.
_IMAGES = {
    "flink": "environment_config",
    "spark": "environment_config",
    "dataflow": "sdk_container_image",
}
_CARRIERS = {"setup_file", "extra_package", "requirements_file"}


@dataclasses.dataclass(frozen=True)
class Runner:
    """A kind of runner and further options of Beam as 'name=value' (or 'name' for a switch).

    `staging` is a URL where workers write when they do not see the output's folder, `job` the name
    of the job on Dataflow.
    """

    kind: str = "direct"
    options: tuple[str, ...] = ()
    staging: str | None = None
    job: str = "ptm-prepare"

    def __post_init__(self):
        if self.kind not in CLASSES:
            raise unknown("runner", self.kind, CLASSES)
        options = self._given()
        for name, example in _NEEDED[self.kind].items():
            if name not in options:
                raise UserError(
                    f"--runner {self.kind} needs {name}; add --runner-options {name}={example}"
                )
        if self.staging is not None and "://" not in self.staging:
            raise UserError(f"the staging is {self.staging}; expected a URL, say gs://BUCKET/DIR")
        if "runner" in options:
            raise UserError("--runner-options names a runner; give its kind with --runner")
        image = _IMAGES.get(self.kind)
        if (
            image
            and options.get("environment_type") != "LOOPBACK"
            and not {image, *_CARRIERS} & set(options)
        ):
            raise UserError(
                f"the workers of --runner {self.kind} need ptm_jax; add --runner-options "
                f"{image}=IMAGE, an image of Beam's "
                "Python SDK in which ptm_jax[beam] is installed (or setup_file=setup.py)"
            )

    def _given(self) -> dict[str, str | None]:
        pairs = [option.removeprefix("--").partition("=") for option in self.options]
        if not all(name.replace("_", "").isalnum() for name, _, _ in pairs):
            raise UserError(
                f"--runner-options has {' '.join(self.options)!r}; expected NAME=VALUE ..."
            )
        return {name: value if sign else None for name, sign, value in pairs}

    def flags(self) -> list[str]:
        """Returns the command line for Beam's `PipelineOptions`."""
        name = {"job_name": self.job} if self.kind == "dataflow" else {}
        chosen = {"runner": CLASSES[self.kind]} | name | _DEFAULTS[self.kind] | self._given()
        return [
            f"--{name}" if value is None else f"--{name}={value}" for name, value in chosen.items()
        ]
