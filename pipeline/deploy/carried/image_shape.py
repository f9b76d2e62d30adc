"""Which shapes of images a bundle's net takes, whatever library holds them."""

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
    return images
