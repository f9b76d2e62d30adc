"""Calls a stage until its time is steady, before it is measured, and records whether it became so."""

from collections.abc import Callable
from statistics import median
from typing import TypeVar

from pipeline.measure.clock import Clock
from pipeline.measure.sampling import no_guards, undisturbed
from pipeline.records.plan import Plan
from pipeline.records.samples import WarmUp

WINDOWS = 3  # whose medians must agree

Batch = TypeVar("Batch")


def warm_up(
    call: Callable[[Batch], object],
    next_batch: Callable[[], Batch],
    clock: Clock,
    plan: Plan,
    guards: Callable[[], tuple[int, ...]] = no_guards,
) -> tuple[WarmUp, float]:
    """Call until the time per call is steady, or for `plan.warmup_limit_seconds`.

    Steady means: at least `warmup_min_calls` and `warmup_min_seconds`, the medians of the last three windows within
    `warmup_tolerance`, and no guard counter grew in the last two windows.

    Returns:
        The calls and seconds that it took, and the seconds per call back to back, from which follows how many calls
        make a sample.
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
        steady = enough and _steady(medians, counts, plan.warmup_tolerance)
    return WarmUp(calls=calls, seconds=clock.now() - opened, steady=steady), _pace(call, next_batch, clock, len(window))


def _pace(call: Callable[[Batch], object], next_batch: Callable[[], Batch], clock: Clock, calls: int) -> float:
    """Seconds per call without waiting for each: up to a few times less than a call with a synchronisation."""
    with undisturbed():
        start = clock.now()
        for _ in range(calls):
            call(next_batch())
        clock.synchronize()
        return (clock.now() - start) / calls


def _window(
    call: Callable[[Batch], object], next_batch: Callable[[], Batch], clock: Clock, window_seconds: float
) -> list[float]:
    """Seconds of each call of one window, at least one."""
    latencies: list[float] = []
    with undisturbed():
        opened = clock.now()
        while not latencies or clock.now() - opened < window_seconds:
            start = clock.now()
            call(next_batch())
            clock.synchronize()
            latencies.append(clock.now() - start)
    return latencies


def _steady(medians: list[float], counts: list[tuple[int, ...]], tolerance: float) -> bool:
    """Whether the last three medians agree and the guards didn't grow in the last two windows.

    `counts` holds the guards before the first window and after each.
    """
    last = medians[-WINDOWS:]
    return len(last) == WINDOWS and max(last) <= min(last) * (1 + tolerance) and counts[-3] == counts[-1]
