"""One call of a network as a CUDA graph, and milliseconds of work on a GPU, from replays of such graphs."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pipeline.compiler.input_forms import check_forms, form_of

SIDE_STREAM_CALLS = 3  # before the capture, as torch's notes on CUDA graphs ask: libraries allocate workspaces first


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, errors: str = "global") -> Iterator[None]:
    """Capture the work within; the workspace of cuBLAS lies in the graph's own memory.

    `errors` is torch's `capture_error_mode`.

    torch keeps one workspace a stream, and captures share a stream. Without this, the first graph's memory holds the
    workspace of all graphs. torch.compile clears it at each recording, and newer versions of torch at a graph's end.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, capture_error_mode=errors):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class Captured:
    """One call of a network, which it keeps, as a CUDA graph on fixed inputs of any shape."""

    def __init__(self, model: Callable[..., Tensor], *inputs: Tensor) -> None:
        self.model = model
        with torch.inference_mode(False):  # normal tensors: a call may write into them in any mode
            self.fixed = tuple(part.clone() for part in inputs)
        self.forms = [form_of(part) for part in self.fixed]
        self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side):
            for _ in range(SIDE_STREAM_CALLS):
                model(*self.fixed)
        torch.cuda.current_stream().wait_stream(side)
        with torch.inference_mode(), capturing(self.graph):
            logits = model(*self.fixed)
        self.logits = as_normal(logits)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the logits of inputs as those of the capture, else raise ValueError; the next call overwrites them."""
        check_forms(inputs, self.forms)
        with torch.no_grad():  # a copy that records gradients would tie the graph's memory to the caller's
            for fixed, part in zip(self.fixed, inputs, strict=True):
                fixed.copy_(part)
        self.graph.replay()
        return self.logits


def as_normal(tensor: Tensor) -> Tensor:
    """Return a tensor of any shape over the same memory that may be changed outside of inference mode."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        normal = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return normal.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def graph_replay_ms(call: Callable[[], object], calls: int = 8, replays: int = 5) -> float:
    """Median milliseconds of a call, from a CUDA graph of `calls`: Python launches more slowly than kernels run."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
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


def full_load_ms(graphs: list[torch.cuda.CUDAGraph], seconds: float = 0.2, rounds: int = 3) -> list[tuple[float, ...]]:
    """Return milliseconds of a replay of each graph in each round at full load: `seconds` of one after the other."""
    _, *every = [[_replays_in(graph, seconds) for graph in graphs] for _ in range(rounds + 1)]  # the first warms up
    return [*zip(*every, strict=True)]


def _replays_in(graph: torch.cuda.CUDAGraph, seconds: float) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    calls = max(3, int(seconds * 1e3 / captured_ms(graph, replays=3)))
    before.record()
    for _ in range(calls):
        graph.replay()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / calls
