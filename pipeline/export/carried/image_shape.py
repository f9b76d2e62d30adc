"""Which images a bundle's net takes, whatever library holds them: their shape, type and range."""

import json
from pathlib import Path
from typing import Any

CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))


def fitting(images: Any) -> Any:
    """The images [n, height, width, channels], of volumes with a depth before; ValueError where others are taken."""
    rule = CONTRACT["input"]
    batch, *further = rule["shape"]
    wanted = [batch, *further] if CONTRACT.get("images_in") else [batch, *further[1:], further[0]]
    given, last = list(images.shape), len(wanted) - 1
    free = {0} if "batch" in rule["dynamic"] else set()
    free |= set(range(1, last)) if "size" in rule["dynamic"] else set()
    if len(given) != len(wanted) or any(given[axis] != wanted[axis] for axis in {*range(last + 1)} - free):
        raise ValueError(
            f"images {given}, and this net takes {wanted}, channels last; README.md says what takes others"
        )
    check_values(images)
    return images


def check_values(images: Any) -> None:
    """That images hold what the net's normalisation is for; ValueError where they would be scaled by another range."""
    kind, rule = str(images.dtype).rpartition(".")[2], CONTRACT.get("normalisation", {})
    if CONTRACT.get("images_in") and kind != "uint8":
        raise ValueError(f"images of {kind}, and this net takes uint8")
    if rule.get("scale") is not None:
        return
    if kind.startswith(("float", "bfloat")):
        low, high = float(images.min()), float(images.max())
        if not 0 <= low <= high <= 1:
            raise ValueError(f"images of {kind} from {low:.4g} to {high:.4g}; floats from 0 to 1 are taken, or uint8")
    elif kind not in ("uint8", "uint16"):
        raise ValueError(f"images of {kind}; uint8, uint16, or floats from 0 to 1 are taken")
