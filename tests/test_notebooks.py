"""Each notebook runs from top to bottom, shows its figures, and its claim holds."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
PLOTLY = "application/vnd.plotly.v1+json"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_defends_its_claim(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PLOTLY_RENDERER", "plotly_mimetype")  # what Jupyter uses
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DMVIZ_COMPILE", "0")  # no compiler beside two hundred particles
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    figures = [
        output["data"][PLOTLY]
        for cell in notebook.cells if cell.cell_type == "code"
        for output in cell.outputs if PLOTLY in output.get("data", {})
    ]  # fmt: skip
    assert any(figure.get("frames") for figure in figures), "no figure that plays"
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert any("assert " in source for source in sources[-2:]), "a notebook ends with the asserts of its claim"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
