"""The parent tells whoever watches a run what happens, and knows nobody who draws it."""

import ast
from pathlib import Path

ROOM = Path(__file__).resolve().parents[2] / "pipeline" / "orchestrate"


def imported(path: Path) -> set[str]:
    """The modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_the_orchestration_imports_nobody_who_draws() -> None:
    """Neither rich, nor the report, nor the command line: they import it."""
    drawers = ("rich", "pipeline.report", "pipeline.cli")
    found = {name for path in ROOM.glob("*.py") for name in imported(path)}
    assert not {name for name in found if name.startswith(drawers)}
