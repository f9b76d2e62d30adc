"""OpenVINO on a CPU in fp32 or bf16, called directly or as a backend of torch.compile."""
# That backend (2026.4, a preview) hands a network that it can't take to Inductor, and a piece of one to torch, without
# a message; the pieces that it keeps show which.

import warnings
from collections import Counter
from operator import getitem
from types import ModuleType
from typing import Any, Literal

import torch

from pipeline.compiler.half import half_net
from pipeline.compiler.inductor import compilations
from pipeline.devices import host
from pipeline.records.run_record import Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, library, no_traffic
from pipeline.stages.common.inductor import compiled
from pipeline.stages.common.network_forms import checked_form, taken_by
from pipeline.stages.common.openvino_plugin import EXTRA, chosen, converted, kernels_of, observed, settings, stage_of

TORCH_TYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
PIECES = "openvino.frontend.pytorch.torchdynamo.execute"  # the module that keeps what was compiled


def build(
    workload: Workload, *, dtype: Literal["auto", "fp32", "bf16"] = "auto", torch_compile: bool = False
) -> Runner:
    """Compile for the CPU, and read back what runs."""
    if workload.device.type != "cpu":
        raise Skip("this project runs OpenVINO on CPUs; it has no plugin for NVIDIA's GPUs")
    images_alone(workload, "OpenVINO")
    openvino, asked = library("openvino", EXTRA), chosen(dtype, host.why_no_bf16())
    if torch_compile:
        return by_torch_compile(openvino, workload, asked)
    stage = stage_of(openvino, *converted(openvino, workload), asked)
    checked_form(stage.run, workload, "OpenVINO", TORCH_TYPES[asked])
    return stage


def by_torch_compile(openvino: ModuleType, workload: Workload, asked: Precision) -> Runner:
    """Compile by the backend of torch.compile."""
    net = half_net(workload.model, torch.float32, workload.inputs[0], layout="NCHW")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it sets a switch of Dynamo's that is gone
        library("openvino.torch", EXTRA)
    pieces = library(PIECES, EXTRA)
    torch._dynamo.reset()
    pieces.clear_caches()
    # Without aot_autograd it leaves the weights as inputs, for which Dynamo of torch 2.12 finds no guards.
    options: dict[str, Any] = {"device": "CPU", "config": settings(asked), "aot_autograd": True}
    with taken_by("OpenVINO's backend"):
        run = compiled(net, workload.batches[0], backend="openvino", options=options, dynamic=False)
    models, left = compiled_pieces(pieces), left_to_torch(pieces)
    kernels = [kernel for model in models for kernel in kernels_of(model)]
    return Runner(
        checked_form(run, workload, "OpenVINO", TORCH_TYPES[asked]),
        description=f"OpenVINO {openvino.__version__.split('-')[0]}, CPU plugin, {asked}, by torch.compile",
        execution=observed(kernels, {}, asked),
        details={
            "kernels": Counter(f"{kind} {precision}" for _, kind, precision in kernels),
            "pieces": len(models),
            "operators_left_to_torch": left,
        },
        compilations=compilations,
        traffic=no_traffic,
        steps_aside=True,
    )


def compiled_pieces(pieces: ModuleType) -> list[object]:
    """Return OpenVINO's compiled models by its module `PIECES`; they are the network but for `left_to_torch`."""
    models = list(pieces.compiled_cache.values())
    if not models:
        raise StageError("OpenVINO's backend handed the network to Inductor", "wrong device")
    parts = [part for module in pieces.partitioned_modules.values() for part in module.modules()]
    if any(getattr(part, "perm_fallback", False) for part in parts):
        raise StageError("OpenVINO's backend handed a piece of the network to torch", "wrong device")
    return models


def left_to_torch(pieces: ModuleType) -> list[str]:
    """Return the operators between the pieces, which torch runs one by one."""
    nodes = [node for module in pieces.partitioned_modules.values() for node in module.graph.nodes]
    return sorted({str(node.target) for node in nodes if node.op == "call_function" and node.target is not getitem})
