"""How many batches are in rotation, and how many of them the answer is checked on."""

import math

from pipeline.records.request import DataSpec

VERIFIED_IMAGES = 8  # enough for shares of pixels; all stages see the same
MOST_BATCHES = 64  # of a rotation, however large the cache


def batches_of(data: DataSpec, batch_bytes: int, cache_bytes: int | None) -> tuple[int, int]:
    """How many batches of so many bytes make the rotation, and how many of them the answer is checked on."""
    count = min(MOST_BATCHES, max(data.batches, math.ceil(2 * (cache_bytes or 0) / batch_bytes)))
    return count, min(count, max(data.batches, math.ceil(VERIFIED_IMAGES / data.batch_size)))
