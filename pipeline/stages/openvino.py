"""OpenVINO on a CPU: fp32, bf16, or int8 by NNCF. The heir of Intel's extension for PyTorch (IPEX), now retired."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.compiler.budget import Budget
from pipeline.devices import host
from pipeline.records.run_record import Precision
from pipeline.stages.api import Runner, Skip, Workload, images_alone, no_traffic
from pipeline.stages.common.int8_layers import Judges, judges, layer_details, layers_to_keep, passed
from pipeline.stages.common.onnx_export import export, layers_of
from pipeline.stages.common.openvino_plugin import EXTRA, chosen, counted, hint_of, kernels_of, observed, said, settings
from pipeline.stages.common.optional_library import library


def build(
    workload: Workload,
    *,
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    calibration_images: int = 32,
    reduce_range: bool | None = None,
    keep_fp32: str | list[str] = "auto",
    budget: float = 1e-3,
    error_budget: float = 5e-2,
    dice_budget: float = 1e-2,
) -> Runner:
    """Export, convert, quantize where asked, compile for the CPU, and read back what runs.

    Args:
        workload: gives the net, and for int8 images for scales and choice: others than the evaluation images.
        dtype: "fp32", "bf16", "int8", or "auto": bf16 on a CPU with units for it, else fp32; the rest is for int8.
        calibration_images: how many images the scales come from.
        reduce_range: weights of 7 bits; None where the CPU adds products of int8 in 16 bits, which overflow.
        keep_fp32: names of layers, "none", or "auto": as many as it takes to stay within the budget.
        budget: the share of pixels that may change their class against fp32.
        error_budget: the relative L2 by which the logits may differ from fp32's.
        dice_budget: what a class may lose of Dice against fp32's masks.

    Raises:
        Skip: not on a CPU, no OpenVINO, or bf16 on a CPU without units for it.
        StageError: another precision runs than was asked for, or int8 is over its budget.
    """
    check_here(workload)
    openvino, asked = library("openvino", EXTRA), chosen(dtype, host.why_no_bf16())
    export(workload.model, torch.float32, workload.batches[0], path := workload.folder / "fp32.onnx")
    layers, model = layers_of(path, "Conv", "ConvTranspose"), openvino.convert_model(str(path))
    if asked != "int8":
        return runner(openvino, model, layers, asked)
    by = judges(workload, calibration_images, keep_fp32, Budget(budget, error_budget, dice_budget))
    quantized = in_int8(model, by.for_scales, not host.sums_int8_exactly() if reduce_range is None else reduce_range)
    kept, gains = layers_to_keep(
        keep_fp32, list(layers), lambda kept: by.used(Compiled(openvino, restored(quantized, layers, kept)))
    )
    return judged(runner(openvino, restored(quantized, layers, kept), layers, asked), by, list(layers), kept, gains)


def check_here(workload: Workload) -> None:
    """Raise `build`'s Skip where there is no such stage."""
    if workload.device.type != "cpu":
        raise Skip("this project runs OpenVINO on CPUs; it has no plugin for NVIDIA's GPUs")
    images_alone(workload, "OpenVINO")


def runner(openvino: ModuleType, model: object, layers: dict[str, str], asked: Precision) -> Runner:
    """The stage: the model compiled, which runs in the precision that was asked for."""
    compiled = Compiled(openvino, model, hint_of(asked))
    return Runner(
        compiled,
        description=said(openvino, asked),
        execution=observed(compiled.kernels(), layers, asked),
        details={"devices": compiled.devices(), "kernels": counted(compiled.kernels())},
        save=lambda folder: saved(openvino, model, folder),
        traffic=no_traffic,
    )


def judged(stage: Runner, by: Judges, layers: list[str], kept: list[str], gains: dict[str, float]) -> Runner:
    """A stage in int8 that has passed the gate, with what it was chosen on."""
    others = stage.execution.layer_precision if stage.execution else {}
    details = layer_details(kept, gains, passed(stage.run, by), [name for name in layers if name not in others])
    return replace(stage, details=stage.details | details, calibration=by.calibration, left_out=by.left_out)


class Compiled:
    """A model compiled for the CPU: takes a batch [batch, channels, height, width], gives [batch, classes, H, W].

    Input and output are torch's memory: nothing is copied but what the plugin itself reorders.
    """

    def __init__(self, openvino: ModuleType, model: object, hint: str = "f32") -> None:
        self.openvino, self.compiled = openvino, openvino.compile_model(model, "CPU", settings(hint))
        self.request = self.compiled.create_infer_request()
        self.logits = torch.empty(tuple(self.compiled.output(0).shape))
        self.request.set_output_tensor(openvino.Tensor(self.logits.numpy(), shared_memory=True))

    def __call__(self, batch: Tensor) -> Tensor:
        """Logits [batch, classes, height, width], which the next call overwrites, of a batch in fp32."""
        self.request.set_input_tensor(self.openvino.Tensor(batch.numpy(), shared_memory=True))
        self.request.infer()
        return self.logits

    def devices(self) -> list[str]:
        """Where it runs, as the runtime says."""
        return [str(name) for name in self.compiled.get_property("EXECUTION_DEVICES")]

    def kernels(self) -> list[tuple[str, str, str]]:
        """As `kernels_of`."""
        return kernels_of(self.compiled)


def in_int8(model: object, batches: list[Tensor], narrow: bool) -> Any:
    """The model with quantizers by NNCF.

    Args:
        model: of OpenVINO.
        batches: [batch, channels, height, width], which give the ranges.
        narrow: weights of 7 bits.
    """
    nncf = library("nncf", EXTRA)
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    fix = AdvancedQuantizationParameters(overflow_fix=OverflowFix.ENABLE if narrow else OverflowFix.DISABLE)
    images = nncf.Dataset([batch.numpy() for batch in batches])
    device, number = nncf.TargetDevice.CPU, len(batches)
    return nncf.quantize(model, images, subset_size=number, target_device=device, advanced_parameters=fix)


def restored(quantized: Any, layers: dict[str, str], kept: list[str]) -> Any:
    """A copy of a quantized model in which these layers read their inputs and weights unquantized."""
    model, nodes = quantized.clone(), {layers[name] for name in kept}
    for node in model.get_ops():
        if node.get_friendly_name() not in nodes:
            continue
        for reads in node.inputs():
            source = reads.get_source_output().get_node()
            if source.get_type_name() == "FakeQuantize":
                reads.replace_source_output(source.input(0).get_source_output())
    return model


def saved(openvino: ModuleType, model: object, folder: Path) -> list[Path]:
    """The model in OpenVINO's own format: its graph and its weights."""
    openvino.save_model(model, str(folder / "openvino.xml"), compress_to_fp16=False)
    return [folder / "openvino.xml", folder / "openvino.bin"]
