"""The eager half net, captured once as a CUDA graph and replayed: no Python and no launches between the kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.precision import Dtype, Half, allow_tf32, eager_execution, half_dtype, short

SIDE_STREAM_CALLS = 3  # before the capture, as torch's notes on CUDA graphs ask: libraries allocate workspaces first


def build(workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True) -> Runner:
    """Capture on a fixed input; a call copies the batch there and replays.

    Raises:
        Skip: no GPU.
        ValueError: no such precision.
    """
    if workload.device.type != "cuda":
        raise Skip("CUDA graphs need a CUDA GPU")
    half = half_dtype(dtype, workload.device)
    allow_tf32(True)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    model = Half(workload.model, half).eval()
    ran = f"{short(half)} weights, channels_last, {model.folds} batch norms folded, one CUDA graph"
    run = Captured(model, workload.batches[0])
    execution = eager_execution(short(half), "NHWC", captured=True)
    details = {"folded_batch_norms": model.folds}
    return Runner(run, ran, execution, details, module=model.net, uncaptured=model)


class Captured:
    """One call of a net as a CUDA graph, on a fixed input.

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
        """The logits of a batch; the next call overwrites them."""
        self.fixed.copy_(batch)
        self.graph.replay()
        return self.logits
