"""One call of a network as a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.compiler.input_forms import check_forms, form_of

SIDE_STREAM_CALLS = 3  # before the capture, as torch's notes on CUDA graphs ask: libraries allocate workspaces first


class Captured:
    """One call of a network as a CUDA graph, on fixed inputs of any shape.

    It keeps the network: a graph knows its weights by address alone, and freed memory is soon used again.

    Attributes:
        graph: the graph, which reads `fixed` and writes `logits` when it is replayed by itself.
    """

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
        with torch.inference_mode(), torch.cuda.graph(self.graph):
            logits = model(*self.fixed)
        self.logits = as_normal(logits)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the logits [batch, classes, height, width] of such inputs; the next call overwrites them.

        Raises:
            ValueError: an input's shape, type or device differs from that of the capture.
        """
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
