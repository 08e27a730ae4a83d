"""Small loaded models, each built once a session."""

import pytest

from support import tiny_models


@pytest.fixture(scope="session")
def bert():
    return tiny_models.build("bert")


@pytest.fixture(scope="session")
def roberta():
    return tiny_models.build("roberta")


@pytest.fixture(scope="session")
def gpt2():
    return tiny_models.build("gpt2")


@pytest.fixture(scope="session")
def bart():
    return tiny_models.build("bart")


@pytest.fixture(scope="session")
def classifier():
    return tiny_models.classifier()


@pytest.fixture(scope="session")
def run(tmp_path_factory, bert):
    """A workdir of the BERT as training leaves it."""
    return tiny_models.save_run(tmp_path_factory.mktemp("run") / "bert", bert)
