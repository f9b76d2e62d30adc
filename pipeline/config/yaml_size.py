"""How many values a YAML file unfolds into: each alias is a copy, and aliases of aliases multiply."""

import os
from collections.abc import Iterable
from pathlib import Path

import yaml

from pipeline.config.request_error import RequestError

MOST_VALUES = 100_000  # of one file; the largest of conf/ has some sixty


def check_sizes(folders: Iterable[Path]) -> None:
    """That no YAML file in the folders, however deep, unfolds into more than `MOST_VALUES` values.

    A file without an anchor is as long as it looks, and isn't parsed here.

    Raises:
        RequestError: one does; or an alias lies within what it stands for.
    """
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            text = path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else b""
            if b"&" in text and b"*" in text and (values := unfolded(path, text)) > MOST_VALUES:
                raise RequestError(f"{path}: its aliases unfold into {values:.3g} values; {MOST_VALUES} are admitted")


def unfolded(path: Path, text: bytes) -> int:
    """How many values the text holds once every alias is a copy; 0 of what is no YAML, which Hydra will say."""
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return 0
    return _values(root, {}, path) if root is not None else 0


def _values(node: yaml.Node, known: dict[int, int | None], path: Path) -> int:
    """The node itself and what it unfolds into; `known` holds what was counted, None for what is being counted."""
    key = id(node)
    if key in known:
        count = known[key]
        if count is None:
            raise RequestError(f"{path}: an alias in line {node.start_mark.line + 1} stands for what it lies in")
        return count
    known[key] = None
    total = 1
    if isinstance(node, yaml.SequenceNode):
        total += sum(_values(part, known, path) for part in node.value)
    elif isinstance(node, yaml.MappingNode):
        total += sum(_values(part, known, path) for pair in node.value for part in pair)
    known[key] = total
    return total
