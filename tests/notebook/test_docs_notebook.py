"""docs/notebook.ipynb runs as it stands."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Cell by cell in an empty folder: a net is measured, read again, and makes masks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("1 {} (90, 120) [")
    assert names["run"].stages["half"].status == "ok"
    assert names["run"].report.is_file()
    assert [path.name for path in (tmp_path / "masks").glob("*.png")] == ["another_size.png"]
