"""One call of a net as a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.measure.clock import TorchClock
from pipeline.records.error_line import typed_line
from pipeline.stages.common.faster_inputs import choose_in_place
from pipeline.stages.common.graph_inputs import GraphInput, prove_inputs
from pipeline.stages.common.input_forms import check_forms, form_of

SIDE_STREAM_CALLS = 3  # before the capture, as torch's notes on CUDA graphs ask: libraries allocate workspaces first
BATCHES_IN_ROTATION = 3  # so that each call has another address


class Captured:
    """One call of a net as a CUDA graph, on fixed inputs of any shape.

    It keeps the net: a graph knows its weights by address alone, and freed memory is soon another's.
    """

    def __init__(self, model: Callable[..., Tensor], *inputs: Tensor) -> None:
        self.model = model
        self.fixed = tuple(part.clone() for part in inputs)
        self.forms = [form_of(part) for part in self.fixed]
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side):
            for _ in range(SIDE_STREAM_CALLS):
                model(*self.fixed)
        torch.cuda.current_stream().wait_stream(side)
        with torch.inference_mode(), torch.cuda.graph(self._graph):
            self.logits = model(*self.fixed)
        self._graph.instantiate()
        self._inputs = [GraphInput(part) for part in self.fixed]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The logits [batch, classes, height, width] of such inputs; the next call overwrites them.

        An input must keep its values until the GPU is done, as for any call that is queued.

        Raises:
            ValueError: an input's shape, type or device is another than that of the capture.
        """
        check_forms(inputs, self.forms)
        for known, part in zip(self._inputs, inputs, strict=True):
            known.give(part)
        self._graph.replay()
        return self.logits

    def without_copies(self) -> "Captured":
        """The same, which reads inputs where the caller has them if it can and is faster so; found in a second."""
        try:
            with torch.inference_mode():
                prove_inputs(self._graph, self._inputs, self.logits)
                if proven := [known for known in self._inputs if known.proven]:
                    batches = [[part.clone() for part in self.fixed] for _ in range(BATCHES_IN_ROTATION)]
                    choose_in_place(self, proven, batches, TorchClock(self.fixed[0].device))
        except (ImportError, AttributeError, RuntimeError) as error:  # no bindings; another torch; driver or memory
            self._graph.instantiate()  # as it was captured: some kernels may have been told an address, others not
            for known in self._inputs:
                known.leave(typed_line(error))
        return self

    @property
    def graph(self) -> torch.cuda.CUDAGraph:
        """The graph, to be replayed by itself until the next call: it reads `fixed`."""
        for known in self._inputs:
            known.read_at(known.fixed.data_ptr())
        return self._graph

    @property
    def copied(self) -> dict[str, str]:
        """For each input that any call copies, by its number, why; one that lies otherwise is copied, too."""
        return {str(number): known.copied for number, known in enumerate(self._inputs) if known.copied}
