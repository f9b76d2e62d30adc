"""Windows of one size: each labelled pixel of a folder is judged, and once."""

import numpy as np
import pytest

from pipeline.errors import ImageError
from pipeline.inputs.windows import Named, cut

SIZES = [(8, 8), (20, 8), (21, 30), (5, 6), (8, 5), (16, 24)]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_each_labelled_pixel_is_in_one_window(height: int, width: int) -> None:
    label = (np.arange(height * width) % 200).astype(np.uint8).reshape(height, width)
    image = np.repeat(label[..., None], 3, 2)
    tiles = cut(Named("a.png", image, label), 8, whole=True)
    assert {tile.image.shape for tile in tiles} == {(8, 8, 3)}
    kept = np.concatenate([tile.label[tile.label != 255] for tile in tiles if tile.label is not None])
    assert np.array_equal(np.sort(kept), np.sort(label.ravel()))
    for tile in tiles:
        assert tile.label is not None
        known = tile.label != 255
        assert np.array_equal(tile.image[known][:, 0], tile.label[known])


def test_the_programs_own_images_are_cut_side_by_side() -> None:
    """What is left at the edges belongs to no window, and a small image is mirrored with its labels."""
    label = np.zeros((20, 8), np.uint8)
    image = np.zeros((20, 8, 3), np.uint8)
    assert [tile.source for tile in cut(Named("a", image, label), 8, whole=False)] == ["a at 0,0", "a at 8,0"]
    (tile,) = cut(Named("a", image[:5], label[:5]), 8, whole=False)
    assert tile.label is not None
    assert (tile.label == 0).all()


@pytest.mark.parametrize(("side", "taken"), [(1, False), (3, False), (4, True)])
def test_an_image_is_not_made_of_its_mirror_image(side: int, taken: bool) -> None:
    small = Named("a.png", np.zeros((side, 20, 3), np.uint8), None)
    if taken:
        assert cut(small, 8, whole=False)[0].image.shape == (8, 8, 3)
        return
    with pytest.raises(ImageError, match=rf"a\.png: {side}×20 pixels, data\.size=8: most would be mirrored"):
        cut(small, 8, whole=False)
