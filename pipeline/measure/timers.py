"""How long some work takes: one pass over inputs, the best of several bursts, or replays of a CUDA graph."""

import statistics
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from pipeline.measure.clock import Clock

BURSTS, BURST_SECONDS = 10, 0.03
MOST_CALLS = 2000  # of one burst

Input = TypeVar("Input")


def time_calls(call: Callable[[Input], object], inputs: Iterable[Input], clock: Clock) -> tuple[float, float | None]:
    """Seconds of calls back to back, one for each input, until the device is done: the host's, and the device's own.

    The device must be at rest; the second figure is None where it has no clock.
    """
    seconds, device_seconds, _ = time_and_keep(call, inputs, clock)
    return seconds, device_seconds


def time_and_keep(
    call: Callable[[Input], object], inputs: Iterable[Input], clock: Clock
) -> tuple[float, float | None, object]:
    """As `time_calls`, with what the last call returned; there must be an input.

    The other answers go at once, so that no more memory is held than without keeping one.
    """
    *most, last = inputs
    clock.begin()
    start = clock.now()
    for value in most:
        call(value)
    answer = call(last)
    clock.end()
    clock.synchronize()
    return clock.now() - start, clock.device_seconds(), answer


def best_burst_seconds(work: Callable[[int], object], clock: Clock) -> float:
    """Seconds of one call in the best of ten bursts: a peak is what was reached, not what was usual.

    The device's own time counts where it has a clock. Two calls come first; the second one's time sets the number of
    calls in a burst.

    Args:
        work: the call; it ignores its argument.
        clock: of the device.
    """
    work(0)
    clock.synchronize()
    seconds, _ = time_calls(work, range(1), clock)
    repeats = max(1, min(MOST_CALLS, int(BURST_SECONDS / max(seconds, 1e-6))))
    return min(_per_call(work, repeats, clock) for _ in range(BURSTS))


def _per_call(work: Callable[[int], object], repeats: int, clock: Clock) -> float:
    seconds, device_seconds = time_calls(work, range(repeats), clock)
    return (device_seconds or seconds) / repeats


def graph_replay_ms(call: Callable[[], object], calls: int = 8, replays: int = 5) -> float:
    """Median milliseconds of a call, from a CUDA graph of `calls` of them.

    A graph, because a launch from Python takes longer than most of the project's kernels do (0.16 ms of host time for a
    kernel of 0.1 ms, measured beside an H200): without one every candidate would look alike.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return captured_ms(graph, replays) / calls


def captured_ms(graph: torch.cuda.CUDAGraph, replays: int = 5) -> float:
    """Median milliseconds of a replay of a captured graph, after one to warm up."""
    graph.replay()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for before, after in marks:
        before.record()
        graph.replay()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(float(before.elapsed_time(after)) for before, after in marks)


def full_load_ms(graphs: list[torch.cuda.CUDAGraph], seconds: float = 0.2, rounds: int = 3) -> list[float]:
    """Milliseconds of a replay of each graph, back to back: the GPU at the clock that it keeps at full load.

    The graphs alternate, so that none of them has the cooler GPU.

    Args:
        graphs: captured.
        seconds: of each graph in each round, and before the first.
        rounds: whose median counts.
    """
    for graph in graphs:
        _replays_in(graph, seconds)
    found = [[_replays_in(graph, seconds) for graph in graphs] for _ in range(rounds)]
    return [statistics.median(times) for times in zip(*found, strict=True)]


def _replays_in(graph: torch.cuda.CUDAGraph, seconds: float) -> float:
    """Milliseconds of a replay, of as many as fit into so long."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    calls = max(3, int(seconds * 1e3 / captured_ms(graph, replays=3)))
    before.record()
    for _ in range(calls):
        graph.replay()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / calls
