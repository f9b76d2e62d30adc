"""One call of a net as a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.stages.common.input_forms import check_forms, form_of

SIDE_STREAM_CALLS = 3  # before the capture, as torch's notes on CUDA graphs ask: libraries allocate workspaces first


class Captured:
    """One call of a net as a CUDA graph, on fixed inputs of any shape.

    It keeps the net: a graph knows its weights by address alone, and freed memory is soon another's.
    """

    def __init__(self, model: Callable[..., Tensor], *inputs: Tensor) -> None:
        self.model = model
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
            self.logits = model(*self.fixed)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The logits [batch, classes, height, width] of such inputs; the next call overwrites them.

        Raises:
            ValueError: an input's shape, type or device is another than that of the capture.
        """
        check_forms(inputs, self.forms)
        for fixed, part in zip(self.fixed, inputs, strict=True):
            fixed.copy_(part)
        self.graph.replay()
        return self.logits
