"""What kind of device one is, is asked of pipeline/devices alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOM = ROOT / "pipeline" / "devices"
CARRIED = ROOT / "pipeline" / "deploy" / "carried"  # the loaders of bundles, which have nothing of the project


def comparisons(source: str) -> Iterator[int]:
    """The lines that compare something with "cuda", whether by ==, != or in; also a case of a match."""
    if "cuda" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.value] if isinstance(node, ast.MatchValue) else []
        if any(isinstance(side, ast.Constant) and side.value == "cuda" for side in sides):
            yield getattr(node, "lineno", 0)


def test_a_comparison_is_found() -> None:
    """In every form; a name that holds the word is none."""
    forms = ['kind == "cuda"', '"cuda" != kind', 'match kind:\n    case "cuda":\n        pass']
    assert [list(comparisons(form)) for form in forms] == [[1], [1], [2]]
    assert not list(comparisons('torch.device("cuda")\nkind == "cuda:0"'))


def test_devices_are_compared_in_their_room_alone() -> None:
    """Everybody else calls `is_cuda`, so that another kind of device is one room's change."""
    files = [path for folder in ("pipeline", "models") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if not path.is_relative_to(ROOM) and not path.is_relative_to(CARRIED)
        for line in comparisons(path.read_text())
    ]
    assert found == []
