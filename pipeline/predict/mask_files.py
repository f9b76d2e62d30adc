"""Masks as files of class indices; each says what made it and of what, so that a resume trusts nothing else."""

import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pipeline.config.request_error import RequestError
from pipeline.inputs.unreadable import UNREADABLE
from pipeline.inputs.volume_files import suffix_of
from pipeline.predict import volume_masks
from pipeline.records.atomic_json import write_bytes

STAMP = "unet-ladder"  # the keyword of the PNG's text that says what made the mask, and of what
PNG = ".png"  # of an image's mask; a volume's is of the volume's own kind


def save(mask: np.ndarray, path: Path, stamp: str, source: Path) -> None:
    """Write a mask: whole, or not at all.

    Args:
        mask: class indices [height, width], uint8 or uint16; of a volume with a depth before, or its values, fp32,
            several of a voxel last.
        path: of a grey PNG, or of a volume.
        stamp: what made it, and of what.
        source: the image, or the volume, whose mask it is.

    Raises:
        OSError: the disk is full or read-only, or the folder is gone.
        NiftiError: the volume was changed meanwhile.
    """
    if path.suffix == PNG:
        text, out = PngInfo(), io.BytesIO()
        text.add_text(STAMP, stamp)
        Image.fromarray(mask).save(out, "PNG", pnginfo=text)
        write_bytes(out.getvalue(), path)
    else:
        write_bytes(volume_masks.content(mask, stamp, suffix_of(path), source), path)


def stamp_of(path: Path) -> str | None:
    """What the mask says of itself; None where the file isn't there.

    Raises:
        RequestError: it is there, and none of ours.
    """
    if not path.exists():
        return None
    if path.suffix == PNG:
        stamp = None
        with suppress(*UNREADABLE), Image.open(path) as image:
            stamp = image.info.get(STAMP)
    else:
        stamp = volume_masks.stamp_in(path)
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
