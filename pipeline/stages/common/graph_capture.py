"""One call of a net as a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

SIDE_STREAM_CALLS = 3  # before the capture, as torch's notes on CUDA graphs ask: libraries allocate workspaces first


class Captured:
    """One call of a net as a CUDA graph, on a fixed input [batch, channels, height, width].

    It keeps the net: a graph knows its weights by address alone, and freed memory is soon another's.
    """

    def __init__(self, model: Callable[[Tensor], Tensor], batch: Tensor) -> None:
        self.model = model
        self.fixed = batch.clone()
        self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side):
            for _ in range(SIDE_STREAM_CALLS):
                model(self.fixed)
        torch.cuda.current_stream().wait_stream(side)
        with torch.inference_mode(), torch.cuda.graph(self.graph):
            self.logits = model(self.fixed)

    def __call__(self, batch: Tensor) -> Tensor:
        """The logits [batch, classes, height, width] of a batch; the next call overwrites them."""
        self.fixed.copy_(batch)
        self.graph.replay()
        return self.logits
