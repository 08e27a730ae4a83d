"""One text and one tiny run for all tests of the command line, and a folder of compiled
programs."""

import pytest

from support import tiny_runs as tiny
from support.tiny_runs import ptm


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    return tmp_path_factory.getbasetemp() / "compiled"


@pytest.fixture(scope="module")
def cache(programs):
    """Compiles without optimisation, and keeps the programs."""
    with tiny.compiling(programs) as folder:
        yield folder


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def run(tmp_path_factory, text, programs):
    """A finished run of nine steps, with checkpoints and evaluations of two batches after 4, 8 and
    9."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    with tiny.compiling(programs):
        assert (
            ptm("train", tiny.FILE, "--data", text, "--workdir", workdir, "--set", *tiny.SMALL) == 0
        )
    return workdir


@pytest.fixture
def one_line(capsys):
    """The one line on stderr of a command that is refused."""

    def call(*words):
        capsys.readouterr()
        status = ptm(*words)
        out, err = capsys.readouterr()
        assert status == 1 and not out and err.splitlines()[-1].startswith("ptm: "), err
        assert "unexpected" not in err and "Traceback" not in err, err
        return err

    return call
