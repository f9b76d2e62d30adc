"""OpenVINO as a backend of torch.compile, and what of the net it really runs.

The backend (2026.4, a preview) hands a net that it can't take to Inductor, and a piece of one to torch, without a word;
what it keeps of its pieces tells.
"""

import warnings
from collections.abc import Callable
from operator import getitem
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.compiler.half import AsItLies
from pipeline.devices import host
from pipeline.records.error_line import first_line
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, no_traffic
from pipeline.stages.common.inductor import check_compiled, compilations
from pipeline.stages.common.openvino_plugin import EXTRA, chosen, counted, hint_of, kernels_of, observed, said, settings
from pipeline.stages.common.optional_library import library

PIECES = "openvino.frontend.pytorch.torchdynamo.execute"  # module that keeps what was compiled


def build(workload: Workload, *, dtype: Literal["auto", "fp32", "bf16"] = "auto") -> Runner:
    """Compile by the call that triggers it, and read back what runs.

    Args:
        workload: gives the net.
        dtype: "fp32", "bf16", or "auto": bf16 on a CPU with units for it, else fp32.

    Raises:
        Skip: not on a CPU, no OpenVINO, or bf16 on a CPU without units for it.
        StageError: another precision runs than was asked for, or something else than OpenVINO.
    """
    if workload.device.type != "cpu":
        raise Skip("this project runs OpenVINO on CPUs; it has no plugin for NVIDIA's GPUs")
    images_alone(workload, "OpenVINO behind torch.compile")
    openvino, asked = library("openvino", EXTRA), chosen(dtype, host.why_no_bf16())
    net = AsItLies(workload.model, torch.float32, workload.inputs[0]).eval()
    run = by_backend(net, workload.batches[0], settings(hint_of(asked)))
    pieces = library(PIECES, EXTRA)
    found, left = compiled_pieces(pieces), left_to_torch(pieces)
    kernels = [kernel for piece in found for kernel in kernels_of(piece)]
    return Runner(
        run,
        description=f"{said(openvino, asked)}, by torch.compile",
        execution=observed(kernels, {}, asked),
        details={"kernels": counted(kernels), "pieces": len(found), "operators_left_to_torch": left},
        compilations=compilations,
        traffic=no_traffic,
        steps_aside=True,
    )


def by_backend(net: nn.Module, batch: Tensor, options: dict[str, str | int]) -> Callable[[Tensor], Tensor]:
    """The compiled net, after the call on a batch [batch, channels, height, width] that compiled it.

    Args:
        net: in eval mode.
        batch: of the shape that it is compiled for.
        options: of OpenVINO's plugin.

    Raises:
        Skip: no OpenVINO.
        StageError: it can't take the net.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it sets a switch of Dynamo's that is gone
        library("openvino.torch", EXTRA)
    pieces = library(PIECES, EXTRA)
    torch._dynamo.reset()
    pieces.clear_caches()
    # Without aot_autograd it leaves the weights as inputs, for which Dynamo of torch 2.12 finds no guards.
    asked: dict[str, Any] = {"device": "CPU", "config": options, "aot_autograd": True}
    run: Callable[[Tensor], Tensor] = torch.compile(net, backend="openvino", options=asked, dynamic=False)
    try:
        with torch.inference_mode():
            run(batch)
    except Exception as error:  # Dynamo and OpenVINO raise many kinds
        raise StageError(f"OpenVINO's backend can't take the net: {first_line(error)}", "unsupported") from error
    check_compiled()
    return run


def compiled_pieces(pieces: ModuleType) -> list[object]:
    """OpenVINO's compiled models, which together are the net but for `left_to_torch`.

    Args:
        pieces: the module `PIECES`.

    Raises:
        StageError: there are none, or one of them failed at a call: then Inductor or torch runs it.
    """
    found = list(pieces.compiled_cache.values())
    if not found:
        raise StageError("OpenVINO's backend handed the net to Inductor", "wrong device")
    parts = [part for module in pieces.partitioned_modules.values() for part in module.modules()]
    if any(getattr(part, "perm_fallback", False) for part in parts):
        raise StageError("OpenVINO's backend handed a piece of the net to torch", "wrong device")
    return found


def left_to_torch(pieces: ModuleType) -> list[str]:
    """The operators between the pieces, which torch runs one by one; of the module `PIECES`."""
    nodes = [node for module in pieces.partitioned_modules.values() for node in module.graph.nodes]
    return sorted({str(node.target) for node in nodes if node.op == "call_function" and node.target is not getitem})
