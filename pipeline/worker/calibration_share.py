"""Which samples a stage may be calibrated on, so that its answer is judged on others: images, volumes or tensors."""

import math
from typing import NamedTuple


class Share(NamedTuple):
    """What is given to calibrate on.

    Attributes:
        first, last: the samples from the one up to the other, whole batches; beyond those that there are they come
            again.
        independent: whether none of them is judged.
        left_out: batches, by their number among the evaluation batches, that the answer must then not be judged on.
    """

    first: int
    last: int
    independent: bool
    left_out: tuple[int, ...] = ()


def share_of(samples: int, labelled: int, size: int, verified: int, wanted: int) -> Share:
    """What lies beyond the verified batches, as far as there is any.

    What has labels is judged whole: up to half of what lies beyond the verified batches is given, and is then not
    judged.

    Args:
        samples: how many there are of their own.
        labelled: how many of them are judged by their labels; 0 where there are none.
        size: of a batch.
        verified: how many batches, from the first, the answer is checked on.
        wanted: how many to give; rounded up to whole batches.
    """
    checked, count = verified * size, math.ceil(wanted / size)
    if labelled and (whole := (labelled - checked) // size) > 0:
        given = min(count, max(1, whole // 2))
        left_out = given_away(verified, whole, given)
        first = left_out[0] * size
        return Share(first, first + given * size, True, left_out)
    there = min(count, (samples - checked) // size)
    return Share(checked, checked + (there if there > 0 else count) * size, there > 0)


def given_away(verified: int, whole: int, given: int) -> tuple[int, ...]:
    """Which evaluation batches a stage is calibrated on: the last whole ones.

    Args:
        verified: batches that are judged first, and never given.
        whole: full batches behind them.
        given: how many of these.
    """
    return tuple(range(verified + whole - given, verified + whole))
