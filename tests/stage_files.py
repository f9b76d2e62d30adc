"""The stages' YAML files, as a test reads them without composing a request."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "conf" / "stage"


def stage_file(name: str) -> dict[str, Any]:
    """Return the keys of `conf/stage/NAME.yaml`, with those of the file that it builds on."""
    keys: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    base = next((entry for entry in keys.pop("defaults", []) if entry != "_self_"), None)
    return stage_file(base) | keys if base else keys


def declared(name: str) -> dict[str, Any]:
    """Return what a stage's record takes over from its file; nothing of a stage without a file."""
    if not (FOLDER / f"{name}.yaml").exists():
        return {}
    keys = stage_file(name)
    return {"exports": keys.get("exports"), "any_size": keys.get("any_size", False)}
