"""The axes of a sweep's charts: a reader can tell how much a line rises."""

from itertools import pairwise

import pytest

from pipeline.report.charts.plots import log_ticks


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 16.0], [1, 2, 4, 8, 16]),
        ([927.0, 1090.0], [896, 1024, 1280]),
        ([8.0, 8.0], [8, 10]),
        ([7.69, 11.7], [7, 8, 10, 12]),
        ([0.3, 0.31], [0.25, 0.3125]),
    ],
)
def test_ticks_enclose_the_values(values: list[float], expected: list[float]) -> None:
    """At least two ticks, rising, the first at or below all values and the last at or above."""
    ticks = log_ticks(values)
    assert ticks == expected
    assert all(before < after for before, after in pairwise(ticks))
    assert ticks[0] <= min(values)
    assert ticks[-1] >= max(values)
