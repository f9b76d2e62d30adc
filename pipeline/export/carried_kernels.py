"""The sources of the kernels that a rewritten net calls, copied into a bundle as a package of its own name."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pipeline.records.content_digest import PACKAGE

NAME = "net_kernels"  # of the package in a bundle; support_torch.py imports it by this name
ENTRY = "pipeline.compiler.artifact"
OWN = PACKAGE.name
ROOT = PACKAGE / "__init__.py"  # names what a notebook may call, which no kernel does; the bundle's own is empty
NOTE = "# Copied from unet-ladder's {path}; Apache License 2.0.\n"


def carry(folder: Path) -> int:
    """Copy all that loading a rewritten net imports of this project into folder/`NAME`; how many files these are."""
    files = needed(ENTRY)
    for path in files:
        within = path.relative_to(PACKAGE)
        copy = folder / NAME / within
        copy.parent.mkdir(parents=True, exist_ok=True)
        source_text = "" if path == ROOT else renamed(path.read_text(encoding="utf-8"))
        text = NOTE.format(path=f"{OWN}/{within}") + source_text
        copy.write_text(text, encoding="utf-8")
    return len(files)


def needed(entry: str) -> list[Path]:
    """The project's files that importing a module reads, whichever of its imports are reached."""
    found: set[Path] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        for depth in range(1, name.count(".") + 2):
            path = source(".".join(name.split(".")[:depth]))
            if path and path not in found:
                found.add(path)
                if path == ROOT:
                    continue
                waiting += own_imports(path.read_text(encoding="utf-8"))
    return sorted(found)


def source(name: str) -> Path | None:
    """The file of one of the project's modules; None of a name within one."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def own_imports(text: str) -> Iterator[str]:
    """The names of this project that a source imports, modules and what is in them alike."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == OWN:
            yield from (f"{node.module}.{part.name}" for part in node.names)


def renamed(text: str) -> str:
    """The source with its imports of this project's package from the bundle's own; all else stays, line by line."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == OWN:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {OWN}", f"from {NAME}", 1)
    return "".join(lines)
