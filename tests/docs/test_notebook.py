"""Notebooks in a real kernel: those of the examples, the progress of a run, and what a value looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is not installed")
pytest.importorskip("ipykernel")
import nbformat  # noqa: E402

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
pytestmark = pytest.mark.slow
PROGRESS = """\
import proxskip as ps
problem = ps.Problem(ps.random_quadratics(4, 3, L=1.0, mu=0.1))
result = ps.run("gd", problem, seconds=3, every=50)
result
"""


class Client(nbclient.NotebookClient):  # type: ignore[misc]
    """A notebook's front end that keeps every message, also what later ones replace."""

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.__dict__.setdefault("seen", []).append(msg)
        return super().process_message(msg, cell, cell_index)


def execute(book: Any, folder: Path) -> Client:
    client = Client(
        book, timeout=600, startup_timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return client


def test_a_run_shows_its_progress_in_a_real_kernel(tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROGRESS)])
    seen = execute(book, tmp_path).__dict__["seen"]
    texts = [m["content"]["text"] for m in seen if m["msg_type"] == "stream"]
    lines = [text for text in texts if text.strip()]
    assert len(lines) >= 3
    assert all(line.startswith("gd: round ") and line.endswith(" left") for line in lines)
    # one line that is written over, and gone at the end
    assert all(text.startswith("\r") and text.endswith("\r") for text in texts if not text.strip())
    assert "\n" not in "".join(texts)
    assert not texts[-1].strip()
    outputs = book.cells[0].outputs
    assert not [o for o in outputs if o.output_type == "error"]
    (shown,) = [o.data["text/html"] for o in outputs if o.output_type == "execute_result"]
    assert "<table" in shown
    assert "<svg" in shown


@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
def test_the_notebooks_run_in_a_real_kernel(name: str, tmp_path: Path) -> None:
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    if any("import torch" in cell.source for cell in book.cells):
        pytest.importorskip("torch", reason="the notebook trains networks, which needs PyTorch")
    execute(book, tmp_path)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
