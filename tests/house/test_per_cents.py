"""Per cents are written as 7 %, by whoever writes one."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "pipeline" / "report" / "charts"  # which write lengths of a style sheet, such as width:7%


def tight(source: str) -> Iterator[int]:
    """The lines of f-strings that write a number and its % without a space, by a format or by the text after it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            parts = [part.value for part in ast.walk(node.format_spec) if isinstance(part, ast.Constant)]
            if str(parts[-1] if parts else "").endswith("%"):
                yield node.lineno
        if isinstance(node, ast.JoinedStr):
            for value, text in pairwise(node.values):
                said = text.value if isinstance(text, ast.Constant) else ""
                if isinstance(value, ast.FormattedValue) and str(said).startswith("%"):
                    yield value.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [('f"{x:.0%} of it"', [1]), ('f"{100 * x:.1f}%"', [1]), ('f"{100 * x:.1f} %"', []), ('f"{x:%H}"', [])],
)
def test_a_per_cent_without_a_space_is_found(source: str, lines: list[int]) -> None:
    """By Python's own format, or by a sign that follows."""
    assert list(tight(source)) == lines


def test_every_text_has_a_space_before_its_per_cent() -> None:
    """Reasons, warnings and sentences alike: those call `per_cent` or `share`."""
    files = [path for folder in ("pipeline", "models") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if not path.is_relative_to(CHARTS)
        for line in tight(path.read_text(encoding="utf-8"))
    ]
    assert found == []
