"""Weights and activations in half precision, batch norm folded into the convolutions, channels_last."""

from dataclasses import replace

import torch

from pipeline.compiler.half import SHORT, layers_within
from pipeline.compiler.network_calls import allow_tf32
from pipeline.records.run_record import Precision
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.network_forms import Dtype, KeepFp32, eager_execution, half_dtype, half_net, why_fp32


def build(
    workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True, keep_fp32: KeepFp32 = "auto"
) -> Runner:
    """Run the network in half precision, eagerly."""
    half = half_dtype(dtype, workload.device)
    allow_tf32(workload.device.type == "cuda")
    torch.backends.cudnn.benchmark = cudnn_benchmark
    model = half_net(workload, half, keep_fp32)
    ran, kept = model.in_words, model.kept
    execution = eager_execution(SHORT[half], model.layout, casts=model.casts_own_values)
    details: dict[str, object] = {"folded_batch_norms": model.folds, **why_fp32(half)}
    if kept:
        ran, details = f"{ran}, {', '.join(kept)} in fp32", {**details, "kept_in_fp32": kept}
        by: Precision = "tf32" if workload.device.type == "cuda" else "fp32"
        within = dict.fromkeys(layers_within(workload.model, kept), by)
        execution = replace(execution, precision=None, layer_precision=within)
    return Runner(model, ran, execution, details, module=model.net)
