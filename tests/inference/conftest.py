"""Small loaded models, each built once a session."""

import pytest

from support import tiny_models


def family(name):
    return pytest.fixture(lambda: tiny_models.build(name), scope="session", name=name)


bert, roberta, gpt2, bart = map(family, ("bert", "roberta", "gpt2", "bart"))
classifier = pytest.fixture(lambda: tiny_models.classifier(), scope="session", name="classifier")


@pytest.fixture(scope="session")
def run(tmp_path_factory, bert):
    """A workdir of the BERT as training leaves it."""
    return tiny_models.save_run(tmp_path_factory.mktemp("run") / "bert", bert)
