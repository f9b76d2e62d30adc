"""How many jobs a sweep has, counted before Hydra lists them all in memory."""

import math
from collections.abc import Iterable

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep

from pipeline.cli.preset import overrides_in
from pipeline.config.checks import shown
from pipeline.config.request_error import RequestError

MOST_JOBS = 1000  # at a minute each, the shortest, most of a day


def check_sweep(arguments: Iterable[str]) -> None:
    """That a sweep has jobs, and no more than anybody waits for. Sweepers that search draw from what is named.

    Raises:
        RequestError: a range holds no value or has no end, or the values multiply to too many jobs.
    """
    overrides = overrides_in(arguments)
    if any(override.key_or_group == "hydra/sweeper" for override in overrides):
        return
    jobs = math.prod(max(1, jobs_of(override)) for override in overrides)
    if jobs > MOST_JOBS:
        raise RequestError(f"a sweep of {jobs:,} jobs; at most {MOST_JOBS:,} are run one after the other")


def jobs_of(override: Override) -> int:
    """How many values an override goes through; 1 of one that names files, of which there are few.

    Raises:
        RequestError: it is a range that holds no value, or has no end.
    """
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return len(value.list)
    if not isinstance(value, RangeSweep):
        return 1
    start, stop, step = (float(part) for part in (value.start or 0, value.stop or 0, value.step))
    if not (math.isfinite(start) and math.isfinite(stop) and math.isfinite(step)) or not step:
        raise RequestError(f"{shown(override.input_line)}: a range without an end; range(1,4) is 1, 2 and 3")
    if (count := math.ceil((stop - start) / step)) < 1:
        raise RequestError(f"{shown(override.input_line)}: a range without a value; range(1,4) is 1, 2 and 3")
    return count
