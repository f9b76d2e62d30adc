"""The masks that a run left, as data URIs, each with the pixels marked that differ from the fp32 net's."""

import base64
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from pipeline.records.run_record import RunRecord

SHOWN = 2  # images; each adds one mask per stage to the page
LARGEST = 256  # pixels a side; a report stays under 3 MB
DIFFERS = (255, 0, 110)  # magenta, which no class has


@dataclass(frozen=True)
class Picture:
    """An image for the page."""

    caption: str
    uri: str


def gallery(run: RunRecord, folder: Path) -> list[list[Picture]]:
    """For each of the first images: the image, the fp32 net's mask, and every stage's."""
    rows = []
    for index in range(SHOWN):
        reference = _read(folder / "reference" / f"mask_{index}.png")
        image = _read(folder / "reference" / f"image_{index}.png")
        if reference is None or image is None:
            break
        row = [Picture("image", _uri(image.convert("RGB"), "JPEG")), Picture("fp32 reference", _uri(reference, "PNG"))]
        names = [stage.name for stage in run.stages if re.fullmatch(r"[A-Za-z0-9][\w.-]*", stage.name)]
        masks = [(name, _read(folder / name / f"mask_{index}.png")) for name in names]
        rows.append(row + [_compared(name, mask, reference) for name, mask in masks if mask is not None])
    return rows


def _read(path: Path) -> Image.Image | None:
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except (FileNotFoundError, UnidentifiedImageError, OSError):
        return None


def _compared(name: str, mask: Image.Image, reference: Image.Image) -> Picture:
    if mask.size != reference.size:
        return Picture(f"{name}: another size", _uri(mask, "PNG"))
    differs = np.asarray(mask) != np.asarray(reference)
    if differs.ndim == 3:
        differs = differs.any(axis=-1)
    if not differs.any():
        return Picture(f"{name}: the same", _uri(mask, "PNG"))
    painted = np.asarray(mask.convert("RGB")).copy()
    painted[differs] = DIFFERS
    return Picture(f"{name}: {int(differs.sum()):,} pixels differ", _uri(Image.fromarray(painted), "PNG"))


def _uri(picture: Image.Image, kind: str) -> str:
    out = io.BytesIO()
    small = picture.copy()
    resample = Image.Resampling.BILINEAR if kind == "JPEG" else Image.Resampling.NEAREST
    small.thumbnail((LARGEST, LARGEST), resample)
    small.save(out, format=kind, **({"quality": 85} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"
