"""Inductor in int8 on a CPU: quantized by torchao's PT2E with the quantizer for x86, then compiled with its weights."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeline.compiler.budget import Budget
from pipeline.compiler.fx_graph import module_of, name_by_first_paths
from pipeline.compiler.half import AsItLies
from pipeline.compiler.network_calls import exported_program
from pipeline.devices import host
from pipeline.records.error_line import first_line
from pipeline.records.run_record import INDUCTOR, Execution, Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, no_traffic
from pipeline.stages.common.inductor import check_compiled, check_possible, compilations, own_cache
from pipeline.stages.common.int8_layers import (
    Judges,
    convolutions,
    judges,
    layer_details,
    layers_to_keep,
    passed,
)
from pipeline.stages.common.optional_library import library

EXTRA = "torchao"
QUANTIZER = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"


def build(
    workload: Workload,
    *,
    calibration_images: int = 32,
    reduce_range: bool | None = None,
    keep_fp32: str | list[str] = "auto",
    budget: float = 1e-3,
    error_budget: float = 5e-2,
    dice_budget: float = 1e-2,
) -> Runner:
    """Export, calibrate, decide what stays in fp32, convert, compile.

    Args:
        workload: gives the net, and images for the scales and the choice: others than the evaluation images.
        calibration_images: how many images the scales come from.
        reduce_range: values of 7 bits; None where the CPU adds products of int8 in 16 bits, which overflow.
        keep_fp32: names of layers, "none", or "auto": as many as it takes to stay within the budget.
        budget: share of pixels that may change their class against fp32.
        error_budget: relative L2 by which the logits may differ from fp32's.
        dice_budget: what a class may lose of Dice against fp32's masks.

    Raises:
        Skip: not on a CPU, no torchao, or no C++ compiler.
        StageError: int8 is off by more than the budget, or no convolution is in int8.
    """
    check_here(workload)
    own_cache(workload.caches, workload.earlier is None)
    by = judges(workload, calibration_images, keep_fp32, Budget(budget, error_budget, dice_budget))
    narrow = not host.sums_int8_exactly() if reduce_range is None else reduce_range
    net, batch = AsItLies(workload.model, torch.float32, workload.inputs[0]).eval(), workload.batches[0]
    layers = quantized_layers(quantized := in_int8(net, batch, by.for_scales, narrow))
    kept, gains = layers_to_keep(keep_fp32, layers, lambda kept: by.used(restored(quantized, net, kept)))
    workload.progress("compiling")
    run = compiled(restored(quantized, net, kept), batch)
    in_bits = [name for name in layers if name not in kept]
    details = layer_details(kept, gains, passed(run, by), in_bits) | {"values_of_7_bits": narrow}
    return described(workload.model, run, by, in_bits, details)


def check_here(workload: Workload) -> None:
    """Raise `build`'s Skip where there is no such stage."""
    if workload.device.type != "cpu":
        raise Skip("torchao's quantizer for x86 is a CPU's")
    images_alone(workload, "int8 by PT2E")
    library("torchao", EXTRA)
    check_possible(workload.device)


def described(
    net: nn.Module, run: Callable[[Tensor], Tensor], by: Judges, in_bits: list[str], details: dict[str, object]
) -> Runner:
    """The stage, of whose convolutions these are in int8."""
    others: dict[str, Precision] = {name: "fp32" for name in convolutions(net) if name not in in_bits}
    return Runner(
        run,
        description=f"Inductor, {len(in_bits)} convolutions in int8 by PT2E, {len(others)} in fp32",
        execution=Execution("int8", others, None, INDUCTOR, captured=False, fuses=True),
        details=details,
        calibration=by.calibration,
        left_out=by.left_out,
        compilations=compilations,
        traffic=no_traffic,
    )


def in_int8(net: AsItLies, batch: Tensor, batches: list[Tensor], narrow: bool) -> fx.GraphModule:
    """The net, exported for a batch [batch, channels, height, width], with quantizers scaled on `batches`.

    Args:
        net: in fp32.
        batch: of the shape that it is exported for.
        batches: likewise, for the scales.
        narrow: 7 bits a value.

    Raises:
        StageError: torchao can't take the net, or nothing of it is in int8.
    """
    x86, pt2e = library(QUANTIZER, EXTRA), library("torchao.quantization.pt2e.quantize_pt2e", EXTRA)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(reduce_range=narrow))
    try:
        with torch.inference_mode(False), torch.no_grad():
            exported = exported_program(net, (batch,)).module()
            name_by_first_paths(exported.graph, net.net, within="net")
            prepared: fx.GraphModule = pt2e.prepare_pt2e(exported, quantizer)
            for images in batches:
                prepared(images.clone())
            converted: fx.GraphModule = pt2e.convert_pt2e(prepared)
    except Exception as error:  # torch.export and torchao raise many kinds
        raise StageError(f"torchao can't quantize the net: {first_line(error)}", "unsupported") from error
    if not quantized_layers(converted):
        raise StageError("torchao's quantizer left every layer in fp32", "wrong device")
    return converted


def restored(quantized: fx.GraphModule, net: AsItLies, kept: list[str]) -> fx.GraphModule:
    """A copy of a quantized net in which these layers read what comes before the quantizers, and their own weights."""
    module = copy.deepcopy(quantized)
    for node in module.graph.nodes:
        name = layer_of(node)
        if name not in kept:
            continue
        image, weight = node.args[:2]
        if is_dequantized(image) and is_quantized(image.args[0]):
            node.replace_input_with(image, image.args[0].args[0])
        attribute = f"kept_{name.replace('.', '_')}"
        layer: Any = net.net.get_submodule(name)
        module.register_buffer(attribute, layer.weight.detach())
        with module.graph.inserting_before(node):
            node.replace_input_with(weight, module.graph.get_attr(attribute))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def quantized_layers(module: fx.GraphModule) -> list[str]:
    """The layers whose convolution reads images and weights that were int8: torchao leaves the transposed ones."""
    nodes = [node for node in module.graph.nodes if layer_of(node) and all(map(is_dequantized, node.args[:2]))]
    return list(dict.fromkeys(map(layer_of, nodes)))


def layer_of(node: fx.Node) -> str:
    """The module path of the layer whose convolution a node is; empty of any other node."""
    return module_of(node) if "conv" in str(node.target) else ""


def is_quantized(node: fx.Node) -> bool:
    """Whether a node rounds to int8."""
    return "quantized_decomposed.quantize_per" in str(getattr(node, "target", ""))


def is_dequantized(node: fx.Node) -> bool:
    """Whether a node takes int8 back to fp32."""
    return "quantized_decomposed.dequantize_per" in str(getattr(node, "target", ""))


def compiled(net: nn.Module, batch: Tensor) -> Callable[[Tensor], Tensor]:
    """The compiled net after its first call, on a batch [batch, channels, height, width]."""
    torch._inductor.config.freezing = True
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    run: Callable[[Tensor], Tensor] = torch.compile(net, fullgraph=True)
    with torch.inference_mode():
        run(batch)
    check_compiled()
    return run
