"""Real images: those in scikit-image's wheel, which need no download, or a folder of the user's."""

from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from models.errors import ImageError
from models.stain import HELD_OUT, UNLABELLED, stain_mask

# The stained tissue comes first, so that every run has pixels with labels.
SAMPLES = [
    "ihc.png",
    "retina.jpg",
    "hubble_deep_field.jpg",
    "astronaut.png",
    "coffee.png",
    "motorcycle_left.png",
    "chelsea.png",
]
SAMPLE_FOLDER = Path(skimage.data.__file__).parent
SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"}
MEAN, SPREAD = 0.5, 0.25  # of a pixel in 0 to 1


@dataclass(frozen=True)
class Dataset:
    """Images of one size.

    Attributes:
        images: [images, height, width, 3], uint8.
        labels: [images, height, width], uint8, class indices, 255 where not labelled; None without labels.
        sources: where each image comes from.
        distinct: how many of them, from the first, are windows of their own; the others are such windows rolled.
        pictures: of each image the picture that it is a window of, whether rolled or mirrored.
        windows: how many there are in all, whether asked for or not.
    """

    images: np.ndarray
    labels: np.ndarray | None
    sources: list[str]
    distinct: int
    pictures: list[str]
    windows: int


def to_batch(images: np.ndarray) -> Tensor:
    """Images [n, height, width, 3], uint8, as the nets take them: [n, 3, height, width], fp32, about −2 to 2."""
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return ((planes - MEAN) / SPREAD).contiguous()


def load_dataset(name: str, path: str | None, labels: str | None, size: int | None, count: int) -> Dataset:
    """`count` images of one size.

    Args:
        name: "samples", "stain" or "folder".
        path: the folder of a "folder".
        labels: a folder of PNGs with class indices, of the same names as the images; None without labels.
        size: height and width; None keeps the size of the images, which must then be the same for all.
        count: how many; where the images give fewer windows, they come again, rolled by a few pixels each time.

    Raises:
        ImageError: a file is no image, the folder holds none, or sizes differ; one line.
    """
    named = {"samples": sample_images, "stain": held_out_image}.get(name, partial(folder_images, path, labels))()
    tiles = [(source, tile) for source, image, label in named for tile in cut(source, image, label, size)]
    shapes = {tile[1].shape for _, tile in tiles}
    if len(shapes) > 1:
        raise ImageError(f"data.size is not set and the images differ in size ({len(shapes)} sizes); set data.size=512")
    taken = list(islice(cycle(tiles), count))
    chosen = [_rolled(tile, turn // len(tiles)) for turn, (_, tile) in enumerate(taken)]
    has_labels = any(label is not None for _, _, label in chosen)
    return Dataset(
        images=np.stack([image for _, image, _ in chosen]),
        labels=np.stack([_or_unlabelled(image, label) for _, image, label in chosen]) if has_labels else None,
        sources=[source for source, _, _ in chosen],
        distinct=min(count, len(tiles)),
        pictures=[picture for picture, _ in taken],
        windows=len(tiles),
    )


Named = tuple[str, np.ndarray, np.ndarray | None]  # source, image [h, w, 3], labels [h, w]


def sample_images() -> list[Named]:
    """The images of scikit-image's wheel; the stain mask is labelled in the held-out quarter alone."""
    images = [(name, read_image(SAMPLE_FOLDER / name)) for name in SAMPLES]
    tissue = images[0][1]
    labels = np.full(tissue.shape[:2], UNLABELLED, np.uint8)
    labels[HELD_OUT] = stain_mask(tissue)[HELD_OUT]
    return [(f"scikit-image {name}", image, labels if image is tissue else None) for name, image in images]


def held_out_image() -> list[Named]:
    """The quarter of the stained tissue that no training has seen, every pixel labelled."""
    tissue = read_image(SAMPLE_FOLDER / SAMPLES[0])
    return [(f"scikit-image {SAMPLES[0]}, held-out quarter", tissue[HELD_OUT], stain_mask(tissue)[HELD_OUT])]


def folder_images(path: str | None, labels: str | None) -> list[Named]:
    """Every image of a folder, in the order of names.

    Raises:
        ImageError: the folder is missing or holds no image, a file is no image, or an image has no label.
    """
    folder = Path(path or "")
    if not path or not folder.is_dir():
        raise ImageError(f"data.path={path}: no such folder of images")
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    if not images:
        raise ImageError(
            f"data.path={path}: no image in it among {len(files)} files; {', '.join(sorted(SUFFIXES))} are read"
        )
    if strangers := [file for file in files if file not in images]:
        raise ImageError(f"{strangers[0]}: not an image; a folder of images holds {', '.join(sorted(SUFFIXES))} alone")
    return [(file.name, read_image(file), read_label(file, Path(labels)) if labels else None) for file in images]


def read_image(path: Path) -> np.ndarray:
    """An image as [height, width, 3], uint8; grey becomes three equal channels, transparency is dropped.

    Raises:
        ImageError: the file is none.
    """
    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise ImageError(f"{path}: not an image that can be read ({type(error).__name__})") from None


def read_label(image: Path, folder: Path) -> np.ndarray:
    """The class indices [height, width] that belong to an image.

    Raises:
        ImageError: there are none.
    """
    path = folder / f"{image.stem}.png"
    if not path.is_file():
        raise ImageError(f"{path}: no such file; data.labels holds one PNG of class indices for each image")
    try:
        with Image.open(path) as label:
            return np.array(label if label.mode in ("P", "L") else label.convert("L"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ImageError(f"{path}: not an image that can be read ({type(error).__name__})") from None


def cut(source: str, image: np.ndarray, label: np.ndarray | None, size: int | None) -> list[Named]:
    """The image in windows of `size`, next to each other; a smaller image is mirrored up to the size.

    Raises:
        ImageError: the labels are of another size than the image.
    """
    if label is not None and label.shape != image.shape[:2]:
        sizes = ["×".join(map(str, part.shape[:2])) for part in (label, image)]
        raise ImageError(f"{source}: its labels are {sizes[0]}, the image is {sizes[1]}")
    if size is None:
        return [(source, image, label)]
    image, label = _mirrored(image, size), None if label is None else _mirrored(label, size)
    corners = [(top, left) for top in _starts(image.shape[0], size) for left in _starts(image.shape[1], size)]
    windows = [(slice(top, top + size), slice(left, left + size)) for top, left in corners]
    tiles = [(f"{source} at {w[0].start},{w[1].start}", image[w], None if label is None else label[w]) for w in windows]
    return sorted(tiles, key=_unlabelled_share)


def _unlabelled_share(tile: Named) -> float:
    """The share of pixels without a label, 0 to 1."""
    return 1.0 if tile[2] is None else float((tile[2] == UNLABELLED).mean())


def _starts(length: int, size: int) -> range:
    """Where windows begin along a side, in pixels."""
    return range(0, length - size + 1, size)


def _mirrored(image: np.ndarray, size: int) -> np.ndarray:
    """An image [h, w, 3] or labels [h, w], continued in its mirror image where a side is shorter than `size`."""
    missing = [(0, max(0, size - length)) for length in image.shape[:2]]
    return np.pad(image, missing + [(0, 0)] * (image.ndim - 2), mode="symmetric")


def _rolled(tile: Named, turn: int) -> Named:
    """The tile again, moved by 13 pixels a turn, so that no two batches are the same."""
    source, image, label = tile
    if not turn:
        return tile
    moved = None if label is None else np.roll(label, 13 * turn, axis=1)
    return f"{source}, rolled by {13 * turn}", np.roll(image, 13 * turn, axis=1), moved


def _or_unlabelled(image: np.ndarray, label: np.ndarray | None) -> np.ndarray:
    """Labels [h, w] of an image [h, w, 3]: those given, or 255 in every pixel."""
    return np.full(image.shape[:2], UNLABELLED, np.uint8) if label is None else label
