"""Brings a stage to rest before it is measured, and says whether it came to rest."""

from collections.abc import Callable
from statistics import median
from typing import Any

from pipeline.config.plan import Plan
from pipeline.measure.clock import Clock
from pipeline.measure.sampling import no_guards, undisturbed
from pipeline.records.samples import WarmUp

WINDOWS = 3  # whose medians must agree


def warm_up(
    call: Callable[[Any], Any],
    next_batch: Callable[[], Any],
    clock: Clock,
    plan: Plan,
    guards: Callable[[], tuple[int, ...]] = no_guards,
) -> tuple[WarmUp, float]:
    """Call until it is steady, or for `warmup_limit_seconds`.

    Steady: at least `warmup_min_calls` and `warmup_min_seconds`, the medians of the last three windows within
    `warmup_tolerance`, and no guard grew in the last two windows.

    Returns:
        What it took, and the seconds per call back to back, which say how many calls make a sample.
    """
    opened = clock.now()
    medians: list[float] = []
    counts = [guards()]
    calls = 0
    steady = False
    while not steady and (not medians or clock.now() - opened < plan.warmup_limit_seconds):
        window = _window(call, next_batch, clock, plan.warmup_window_seconds)
        calls += len(window)
        medians.append(median(window))
        counts.append(guards())
        enough = calls >= plan.warmup_min_calls and clock.now() - opened >= plan.warmup_min_seconds
        steady = enough and _at_rest(medians, counts, plan.warmup_tolerance)
    return WarmUp(calls=calls, seconds=clock.now() - opened, steady=steady), _pace(call, next_batch, clock, len(window))


def _pace(call: Callable[[Any], Any], next_batch: Callable[[], Any], clock: Clock, calls: int) -> float:
    """Seconds per call without waiting for each: up to a few times less than a call with a synchronisation."""
    with undisturbed():
        start = clock.now()
        for _ in range(calls):
            call(next_batch())
        clock.synchronize()
        return (clock.now() - start) / calls


def _window(
    call: Callable[[Any], Any], next_batch: Callable[[], Any], clock: Clock, window_seconds: float
) -> list[float]:
    """Seconds of each call of one window, at least one."""
    series: list[float] = []
    with undisturbed():
        opened = clock.now()
        while not series or clock.now() - opened < window_seconds:
            start = clock.now()
            call(next_batch())
            clock.synchronize()
            series.append(clock.now() - start)
    return series


def _at_rest(medians: list[float], counts: list[tuple[int, ...]], tolerance: float) -> bool:
    """Whether three windows agree and the guards stood still in the last two; `counts` has one entry before each."""
    last = medians[-WINDOWS:]
    return len(last) == WINDOWS and max(last) <= min(last) * (1 + tolerance) and counts[-3] == counts[-1]
