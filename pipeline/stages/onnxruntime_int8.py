"""ONNX Runtime in int8 on a CPU: quantized statically on the user's images, sensitive layers kept in fp32."""

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import Tensor

from pipeline.compiler.budget import Budget
from pipeline.devices import host
from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, no_traffic
from pipeline.stages.common.int8_layers import Judges, judges, layer_details, layers_to_keep, passed
from pipeline.stages.common.onnx_session import assignments, bound, in_place, open_session
from pipeline.stages.common.qdq import Method, Quantizer

QUANTIZED = ["Conv"]  # the CPU provider has no transposed convolution in int8 (onnxruntime 1.31)


def build(
    workload: Workload,
    *,
    calibration_images: int = 32,
    method: Method = "MinMax",
    reduce_range: bool | None = None,
    keep_fp32: str | list[str] = "auto",
    budget: float = 1e-3,
    error_budget: float = 5e-2,
    dice_budget: float = 1e-2,
) -> Runner:
    """Export, calibrate, decide what stays in fp32, quantize, open a session.

    Args:
        workload: gives the net, and images for the scales and the choice: others than the evaluation images.
        calibration_images: how many images the scales come from.
        method: how a value's range is taken from the images.
        reduce_range: weights of 7 bits; None where the CPU adds products of int8 in 16 bits, which overflow.
        keep_fp32: names of layers, "none", or "auto": as many as it takes to stay within the budget.
        budget: share of pixels that may change their class against fp32.
        error_budget: relative L2 by which the logits may differ from fp32's.
        dice_budget: what a class may lose of Dice against fp32's masks.

    Raises:
        Skip: not on a CPU.
        StageError: int8 is off by more than the budget, or the session runs no convolution in int8.
    """
    if workload.device.type != "cpu":
        raise Skip("ONNX Runtime's int8 kernels are the CPU's; stage=tensorrt stage.dtype=int8 is a GPU's")
    images_alone(workload, "ONNX Runtime's int8")
    by = judges(workload, calibration_images, keep_fp32, Budget(budget, error_budget, dice_budget))
    narrow = not host.sums_int8_exactly() if reduce_range is None else reduce_range
    made = Quantizer(workload, by.for_scales, "int8", QUANTIZED, method, narrow)

    def session_of(kept: list[str]) -> Callable[[Tensor], Tensor]:
        return in_place(*bound(open_session(made.quantized(kept), "cpu", {}), workload.batches[0], torch.float32))

    kept, gains = layers_to_keep(keep_fp32, list(made.layers), lambda kept: by.used(session_of(kept)))
    return opened(workload, made, by, kept, gains)


def opened(workload: Workload, made: Quantizer, by: Judges, kept: list[str], gains: dict[str, float]) -> Runner:
    """The stage: a session with these layers in fp32, which has passed the gate."""
    path, optimised = made.quantized(kept), workload.folder / "optimised.onnx"
    session = open_session(path, "cpu", {}, optimised)
    run = in_place(*bound(session, workload.batches[0], torch.float32))
    in_int8 = in_integers(optimised, made.layers)
    optimised.unlink()
    if not in_int8:
        raise StageError("the session runs no convolution in int8", "wrong device")
    others: dict[str, Precision] = {name: "fp32" for name in made.layers if name not in in_int8}
    off = passed(run, by)
    nodes = assignments(session)
    return Runner(
        run,
        description=f"CPUExecutionProvider, {len(in_int8)} layers in int8, {len(others)} in fp32, opset {made.opset}",
        execution=Execution("int8", others, "NCHW", "ONNX Runtime CPUExecutionProvider", captured=False, fuses=True),
        details=layer_details(kept, gains, off, in_int8) | {"weights_of_7_bits": made.reduce_range, "nodes": nodes},
        calibration=by.calibration,
        left_out=by.left_out,
        save=lambda folder: sorted(folder.glob("model.onnx*")),
        traffic=no_traffic,
        onnx_model=path,
    )


def in_integers(optimised: Path, layers: dict[str, str]) -> list[str]:
    """The layers that the session's own graph runs by integer kernels, which are named as their node and a token."""
    graph = onnx.load(str(optimised), load_external_data=False).graph
    ran = {re.sub(r"_token_\d+$", "", node.name) for node in graph.node if node.op_type == "QLinearConv"}
    return [layer for layer, name in layers.items() if name in ran]
