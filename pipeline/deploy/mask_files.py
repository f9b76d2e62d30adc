"""Masks as PNGs of class indices; each says what made it and of what, so that a resume trusts nothing else."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from models.image_files import UNREADABLE
from pipeline.config.request_error import RequestError
from pipeline.measure.accuracy import classes
from pipeline.records.atomic_json import write_bytes

STAMP = "unet-ladder"  # the keyword of the PNG's text that says what made the mask, and of what
EIGHT_BITS = 256  # classes
CLASSES_ALREADY = 3  # axes of an answer that holds no logits


def class_indices(logits: Tensor) -> np.ndarray:
    """The class of each pixel [batch, height, width] of logits [batch, classes, height, width].

    uint8 of up to 256 classes, else uint16; of a single channel class 1 is what lies above 0. Classes already, as a net
    may give them, [batch, height, width], uint8 or int32, stay what they are.
    """
    if logits.ndim == CLASSES_ALREADY:
        return logits.cpu().numpy().astype(np.uint8 if logits.dtype == torch.uint8 else np.uint16)
    if logits.shape[1] <= EIGHT_BITS:
        return classes(logits).cpu().numpy()
    return logits.argmax(1).to(torch.int32).cpu().numpy().astype(np.uint16)


def save(mask: np.ndarray, path: Path, stamp: str) -> None:
    """Write class indices [height, width], uint8 or uint16, as a grey PNG: whole, or not at all.

    Raises:
        OSError: the disk is full or read-only, or the folder is gone.
    """
    text, out = PngInfo(), io.BytesIO()
    text.add_text(STAMP, stamp)
    Image.fromarray(mask).save(out, "PNG", pnginfo=text)
    write_bytes(out.getvalue(), path)


def stamp_of(path: Path) -> str | None:
    """What the mask says of itself; None where the file isn't there.

    Raises:
        RequestError: it is there, and none of ours.
    """
    if not path.exists():
        return None
    try:
        with Image.open(path) as image:
            stamp = image.info.get(STAMP)
    except UNREADABLE:
        stamp = None
    if not isinstance(stamp, str):
        raise RequestError(f"{path}: it is there and no mask of pipeline.predict; name another folder by --out")
    return stamp


def clear_unfinished(folder: Path, masks: Iterable[str]) -> None:
    """Remove what a process that was killed had written of a mask."""
    names = set(masks)
    for path in folder.glob("*.part"):
        mask, _, process = path.name.removesuffix(".part").rpartition(".")
        if mask in names and process.isdigit():
            path.unlink(missing_ok=True)
