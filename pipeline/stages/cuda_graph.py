"""The network in half precision, captured once as a CUDA graph and replayed, without Python between the kernels."""

import torch

from pipeline.compiler.cuda_graphs import Captured
from pipeline.compiler.half import SHORT
from pipeline.compiler.network_calls import allow_tf32
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.network_forms import Dtype, eager_execution, half_dtype, half_net


def build(workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True) -> Runner:
    """Capture on a fixed input; a call copies the batch there and replays."""
    if workload.device.type != "cuda":
        raise Skip("CUDA graphs need a CUDA GPU")
    half = half_dtype(dtype, workload.device)
    allow_tf32(True)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    model = half_net(workload, half)
    ran = f"{model.in_words}, one CUDA graph"
    run = Captured(model, *workload.inputs[0])
    execution = eager_execution(SHORT[half], model.layout, captured=True, casts=model.casts_own_values)
    return Runner(run, ran, execution, {"folded_batch_norms": model.folds}, module=model.net, uncaptured=model)
