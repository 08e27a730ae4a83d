"""The training step, the loop and its checkpoints: from an experiment to a finished run."""
