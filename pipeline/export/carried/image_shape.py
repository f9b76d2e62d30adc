"""The images that a bundle's network takes, and the classes of its answer, whichever library holds them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

for written in Path(__file__).parent.glob("__pycache__/load.*"):  # by `import load`; bytecode that stays was added
    with suppress(OSError):
        written.unlink()
CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))
DARK = 2**14  # no value of 12 or 14 bits in 16 reaches it
RULES = [CONTRACT["input"], *CONTRACT.get("others", [])]  # of the network's inputs, in order


def fitting(images: Any) -> Any:
    """Return the images [n, height, width, channels], of volumes with a depth before; raises ValueError."""
    rule = CONTRACT["input"]
    batch, *further = rule["shape"]
    wanted = [batch, *further] if CONTRACT.get("images_in") else [batch, *further[1:], further[0]]
    given, last = list(images.shape), len(wanted) - 1
    free = {0} if "batch" in rule["dynamic"] else set()
    free |= set(range(1, last)) if "size" in rule["dynamic"] else set()
    if len(given) != len(wanted) or any(given[axis] != wanted[axis] for axis in {*range(last + 1)} - free):
        raise ValueError(
            f"images {given}, and this network takes {wanted}, channels last; README.md says what takes others"
        )
    check_values(images)
    return images


def classes(answer: Any) -> Any:
    """Return the class of every pixel, [n, height, width], of logits [n, classes, height, width]."""
    if CONTRACT.get("classes_out") and answer.ndim == len(CONTRACT["output"]["shape"]):
        return answer  # the network gives classes
    return answer.argmax(1) if answer.shape[1] > 1 else (answer[:, 0] > 0) * 1


def check_values(images: Any) -> None:
    """Raise ValueError if images have another type or range than the normalisation expects."""
    kind, rule = str(images.dtype).rpartition(".")[2], CONTRACT.get("normalisation", {})
    of_run = CONTRACT.get("image_type")
    if CONTRACT.get("images_in") and kind != "uint8":
        raise ValueError(f"images of {kind}, and this network takes uint8")
    if rule.get("scale") is not None:
        if {kind, of_run} == {"uint8", "uint16"}:
            raise ValueError(f"images of {kind}, and values of {of_run} were divided by {rule['scale']:g}; give those")
        return
    other_type = kind == "uint16" and of_run not in (None, kind) and rule.get("normalize") != "zscore"
    largest = float((images / 1).max()) if other_type else 0.0  # torch has no maximum of uint16
    if 0 < largest < DARK:
        raise ValueError(f"images of uint16 up to {largest:g}, and the run's are {of_run}; scale them to 65535")
    if kind.startswith(("float", "bfloat")):
        low, high = float(images.min()), float(images.max())
        if not 0 <= low <= high <= 1:
            raise ValueError(f"images of {kind} from {low:.4g} to {high:.4g}; floats from 0 to 1 are taken, or uint8")
    elif kind not in ("uint8", "uint16"):
        raise ValueError(f"images of {kind}; uint8, uint16, or floats from 0 to 1 are taken")
