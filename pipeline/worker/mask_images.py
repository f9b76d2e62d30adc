"""Saves what a person wants to look at: the image, and the mask that a stage made of it."""

from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.inputs.datasets import middle_plane, viewable

# Of class 0, 1, 2, ...: dark ground, then colours that the colour-blind can tell apart (Okabe and Ito).
PALETTE = [(24, 24, 27), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0)]
SHOWN = 3  # images a stage


def save_image(image: np.ndarray, path: Path) -> None:
    """Write an image [height, width, channels], or a volume's middle plane, uint8, uint16 or fp32, as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(viewable(image)).save(path)


def save_mask(classes: np.ndarray, path: Path) -> None:
    """Write classes [height, width] as a PNG with a palette; classes beyond the palette take its colours again.

    Of a volume's classes [depth, height, width] it is the middle plane.
    """
    classes = middle_plane(classes, axes=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray((classes % len(PALETTE)).astype(np.uint8), mode="P")
    picture.putpalette([part for colour in PALETTE for part in colour])
    picture.save(path, optimize=True)


def save_masks(classes: np.ndarray, folder: Path) -> None:
    """Write the masks of the first images; classes [images, height, width], or with a depth before the height."""
    for index, mask in enumerate(classes[:SHOWN]):
        save_mask(mask, folder / f"mask_{index}.png")


def save_reference(images: np.ndarray, classes: np.ndarray, folder: Path) -> None:
    """Write the first images and the fp32 net's masks of them."""
    for index in range(min(SHOWN, len(classes))):
        save_image(images[index], folder / f"image_{index}.png")
    save_masks(classes, folder)
