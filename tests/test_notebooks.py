"""The notebooks run, and their stored outputs are those of their cells.

``python tests/test_notebooks.py`` executes them and stores their outputs (``make notebooks``).
"""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs/notebooks").glob("*.ipynb"))
HERE = Path(sys.executable).parent  # has the command simplicia
FEWER = "from simplicia.data import shapes\nshapes.COUNTS = {'train': 500, 'test': 300}\n"
ENVIRONMENT = {"PATH": f"{HERE}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": "ignore:IProgress"}


def execute(notebook, **environment):
    """Run all cells."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False)
    client.execute(env={**os.environ, **ENVIRONMENT, **environment})


def kinds(notebook):
    """Of each cell of code its number, and whether it shows text, pictures or values."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell.execution_count, {o.get("name", o.output_type) for o in cell.outputs}) for cell in cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    """With a tenth of the built-in images: only the kinds of outputs are compared."""
    (tmp_path / "sitecustomize.py").write_text(FEWER)  # of the kernel, and of the commands that it starts
    python_path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    notebook = nbformat.read(path, as_version=4)
    stored = kinds(notebook)
    assert all("stderr" not in shown for _, shown in stored)
    execute(notebook, PYTHONPATH=python_path)
    assert kinds(notebook) == stored


if __name__ == "__main__":
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        execute(notebook)
        nbformat.write(notebook, path)
