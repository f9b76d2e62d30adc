"""Writes a JSON file whole or not at all."""

import json
import os
from pathlib import Path


def write_json(value: object, path: Path) -> None:
    """Write `value`, plain JSON values with NaN as Python's json has it; an interrupted write leaves the old file."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    scratch.write_text(json.dumps(value, indent=1), encoding="utf-8")
    scratch.replace(path)
