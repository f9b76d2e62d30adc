"""Windows cover an image: each pixel once, from the window whose border is further away."""

import itertools
import math

import numpy as np
import pytest

from pipeline.predict.windows import cut_out, padded, spans, step, strides


@pytest.mark.parametrize("length", [1, 5, 16, 17, 31, 100])
@pytest.mark.parametrize(("size", "overlap"), [(8, 0), (8, 7), (16, 4)])
def test_each_pixel_is_taken_once_and_far_from_borders(length: int, size: int, overlap: int) -> None:
    found = spans(length, size, overlap)
    assert [pixel for span in found for pixel in range(span.first, span.last)] == list(range(length))
    for before, after in itertools.pairwise(found):
        shared = before.start + size - after.start
        assert shared >= overlap
        assert abs((before.start + size - before.last) - (before.last - after.start)) <= 1, "the seam is in the middle"
    assert len(found) == 1 or found[-1].start + size == length
    assert len(found) == len(spans(max(length, size), size, overlap))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 33, 100])
@pytest.mark.parametrize("size", [1, 7, 8])
@pytest.mark.parametrize("share", [1e-3, 0.3, 0.5, 0.93, 1.0])
def test_windows_of_a_volume_leave_no_gap(length: int, size: int, share: float) -> None:
    """They lie a step apart at most, in whole voxels, and the last one ends with the side."""
    found = strides(length, size, share)
    starts = [span.start for span in found]
    assert starts[0] == 0
    assert len(found) == 1 if length <= size else starts[-1] + size == length
    apart = [after - before for before, after in itertools.pairwise(starts)]
    assert all(1 <= each <= min(size, math.ceil(max(1, share * size))) for each in apart)
    assert [pixel for span in found for pixel in range(span.first, span.last)] == list(range(length))


def test_windows_of_a_volume_lie_where_nnunet_puts_them() -> None:
    starts = {length: [span.start for span in strides(length, 64, 0.5)] for length in (64, 65, 96, 97, 110, 127, 160)}
    assert starts == {
        64: [0], 65: [0, 1], 96: [0, 32], 97: [0, 16, 33], 110: [0, 23, 46], 127: [0, 32, 63], 160: [0, 32, 64, 96],
    }  # fmt: skip


def test_what_is_taken_of_windows_is_the_image_again() -> None:
    image = np.random.default_rng(0).integers(0, 255, (37, 21, 2), np.uint8)
    size, again = (16, 12), np.zeros_like(image)
    for rows, columns in itertools.product(spans(37, 16, 4), spans(21, 12, 3)):
        part = cut_out(image, (rows, columns), size)
        assert part.shape == (16, 12, 2)
        again[rows.place, columns.place] = part[rows.kept, columns.kept]
    assert (again == image).all()


def test_a_small_image_goes_on_in_its_mirror_image() -> None:
    image = np.arange(3, dtype=np.uint8).reshape(1, 3, 1)
    [row], [column] = spans(1, 2, 1), spans(3, 8, 2)
    assert cut_out(image, (row, column), (2, 8))[..., 0].tolist() == [[0, 1, 2, 2, 1, 0, 0, 1]] * 2


def test_the_step_of_a_size() -> None:
    """What a net that took the size may need: the largest power of two that divides all sides, up to 64."""
    assert [step(sides) for sides in [(512, 512), (96, 64), (96, 80), (7, 512), (8, 96, 96)]] == [64, 32, 16, 1, 8]
    assert [padded(65, 64), padded(64, 64), padded(5, 1)] == [128, 64, 5]
