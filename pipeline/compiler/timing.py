"""Milliseconds of work on a GPU, from replays of CUDA graphs."""

import statistics
from collections.abc import Callable

import torch


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
