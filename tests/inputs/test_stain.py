"""The demo's labels: the same as scikit-image's functions give, without their imports."""

import numpy as np
import pytest
from skimage.color import rgb2hed
from skimage.filters import threshold_otsu

from pipeline.inputs.datasets import SAMPLE_FOLDER, SAMPLES
from pipeline.inputs.image_files import read_image
from pipeline.inputs.stain import otsu, stain_mask


def test_the_stain_is_what_scikit_image_finds() -> None:
    tissue = read_image(SAMPLE_FOLDER / SAMPLES[0])
    brown = rgb2hed(tissue)[..., 2]
    expected = brown > threshold_otsu(brown)
    assert 0.3 < expected.mean() < 0.6
    assert np.array_equal(stain_mask(tissue), expected)


def test_black_pixels_have_a_darkness_too() -> None:
    """No logarithm of 0: where a half of the image is black, the mask is that of scikit-image."""
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    image[:8] = 0
    brown = rgb2hed(image)[..., 2]
    assert np.array_equal(stain_mask(image), brown > threshold_otsu(brown))


def test_otsu_parts_two_heaps() -> None:
    heaps = np.concatenate([np.random.default_rng(0).normal(place, 1.0, 200) for place in (0.0, 10.0)])
    assert 2 < otsu(heaps) < 8
    assert otsu(heaps) == pytest.approx(threshold_otsu(heaps))
