"""A worker rests while the other one is timed, on false clocks."""

from itertools import count

import pytest

from pipeline.worker.guard import RIGHT, Rest


def rested(share: float, samples: int, seconds: float) -> Rest:
    """Rests of so many seconds each, of which a share is spent on a processor."""
    rest = Rest(now=iter(count(0.0, seconds)).__next__, worked=iter(count(0.0, share * seconds)).__next__)
    for _ in range(samples):
        rest.end()
        rest.begin()
    return rest


@pytest.mark.parametrize(
    ("share", "samples", "seconds", "told"),
    [(0.05, 24, 1.0, False), (0.45, 24, 1.0, False), (0.9, 24, 1.0, True), (8.0, 2, 1.0, True), (0.9, 5, 0.1, False)],
    ids=["rests", "spins for a while", "a thread at work", "eight at work", "too short to tell"],
)
def test_whoever_works_while_the_other_side_is_timed_is_told(
    share: float, samples: int, seconds: float, told: bool
) -> None:
    """Half of the rest on a processor is too much."""
    assert (rested(share, samples, seconds).finding() is not RIGHT) is told


def test_the_reason_has_both_figures() -> None:
    said = rested(0.9, 3, 1.0).finding().reason
    assert said == "works between its samples: 1.8 s of processor time in the 2 s in which the other side was timed"
