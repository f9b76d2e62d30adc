"""A TIFF lies as its header says, whichever library reads it."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from pipeline.inputs.image_files import read_image

COLOUR = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_upright_whoever_reads_it(orientation: int, kind: type[np.generic], tmp_path: Path) -> None:
    """As Pillow turns 8 bits: 16 bits of colour, which it can't read, lay as they were stored beside upright labels."""
    tag = (274, "H", 1, orientation, True)
    for name, values in (("asked.tif", COLOUR.astype(kind)), ("shown.tif", COLOUR)):
        tifffile.imwrite(tmp_path / name, values, photometric="rgb", extratags=[tag])
    with Image.open(tmp_path / "shown.tif") as image:
        shown = np.array(ImageOps.exif_transpose(image))
    assert (read_image(tmp_path / "asked.tif") == shown).all()
    assert shown.shape == (COLOUR.shape if orientation < 5 else (COLOUR.shape[1], COLOUR.shape[0], 3))
