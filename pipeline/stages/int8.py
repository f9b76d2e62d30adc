"""int8 on a CPU by ONNX Runtime, OpenVINO or Inductor: calibrated on the user's images, some layers kept in fp32."""

import copy
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx

from pipeline.compiler.agreement import Budget, Run
from pipeline.compiler.graph.fx_graph import module_of, name_by_first_paths
from pipeline.compiler.half import half_net
from pipeline.compiler.inductor import compilations
from pipeline.compiler.network_calls import exported_program
from pipeline.devices import host
from pipeline.errors import first_line
from pipeline.records.run_record import INDUCTOR, Execution, Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, library, no_traffic
from pipeline.stages.common import openvino_plugin
from pipeline.stages.common.fewer_bits import convolutions, judges, layer_details, layers_to_keep, passed
from pipeline.stages.common.inductor import check_possible, compiled, own_cache
from pipeline.stages.common.network_forms import checked_form

Method = Literal["MinMax", "Entropy", "Percentile"]


def build(  # noqa: PLR0913 - the options of conf/stage
    workload: Workload, *, runtime: Literal["onnxruntime", "openvino", "inductor"] = "onnxruntime",
    calibration_images: int = 32, method: Method = "MinMax", reduce_range: bool | None = None,
    keep_fp32: str | list[str] = "auto", budget: float = 1e-3, error_budget: float = 5e-2, dice_budget: float = 1e-2,
) -> Runner:  # fmt: skip
    """Calibrate, decide which layers stay in fp32, build, and judge the answer."""
    if workload.device.type != "cpu":
        raise Skip(f"int8 by {runtime} is for CPUs; stage=tensorrt stage.dtype=int8 runs int8 on a GPU")
    if method != "MinMax" and runtime != "onnxruntime":
        raise StageError(f"stage.method={method}: {runtime} has MinMax alone", "unsupported")
    images_alone(workload, f"int8 by {runtime}")
    network = RUNTIMES[runtime](workload)
    by = judges(workload, calibration_images, keep_fp32, Budget(budget, error_budget, dice_budget))
    narrow = not host.sums_int8_exactly() if reduce_range is None else reduce_range
    network.calibrate(by.for_scales, method, narrow)
    kept, gains = layers_to_keep(keep_fp32, network.layers, lambda kept: by.used(network.run(kept)))
    workload.progress("compiling")
    stage = network.stage(kept)
    in_fp32 = stage.execution.layer_precision if stage.execution else {}
    in_int8 = [name for name in network.layers if name not in in_fp32]
    if not in_int8:
        raise StageError(f"{runtime} runs no convolution in int8", "wrong device")
    checked_form(stage.run, workload, f"int8 by {runtime}", torch.float32, math.inf)
    details = stage.details | {"int8_layers": len(in_int8)} | layer_details(kept, gains, passed(stage.run, by))
    details |= {"reduced_range": narrow}
    return replace(stage, details=details, calibration=by.calibration, left_out=by.left_out)


class ByOnnxRuntime:
    """ONNX Runtime's static quantization; its CPU provider has no transposed convolution in int8 (1.31)."""

    def __init__(self, workload: Workload) -> None:
        from pipeline.stages.common import onnx_models

        self.workload, self.onnx = workload, onnx_models

    def calibrate(self, batches: list[Tensor], method: Method, narrow: bool) -> None:
        """Export; the first model measures ranges. `narrow` uses 7 bits: the CPU's sums in 16 bits overflow."""
        self.model = self.onnx.Quantizer(self.workload, batches, "int8", ["Conv"], method, narrow)
        self.layers = list(self.model.layers)

    def run(self, kept: list[str], optimised: Path | None = None) -> Run:
        """Open a session; `optimised` is where the graph is written as it runs."""
        session = self.onnx.open_session(self.model.quantized(kept), "cpu", {}, optimised)
        self.nodes = self.onnx.assignments(session)
        return self.onnx.bound_call(*self.onnx.bound(session, self.workload.batches[0], torch.float32))

    def stage(self, kept: list[str]) -> Runner:
        """Open a session and read from its own graph which layers run by integer kernels."""
        import onnx

        optimised = self.workload.folder / "optimised.onnx"
        run = self.run(kept, optimised)
        graph = onnx.load(str(optimised), load_external_data=False).graph
        optimised.unlink()
        # An integer kernel is named as the layer's node and a token.
        ran = {re.sub(r"_token_\d+$", "", node.name) for node in graph.node if node.op_type == "QLinearConv"}
        in_int8 = [layer for layer, name in self.model.layers.items() if name in ran]
        others: dict[str, Precision] = {name: "fp32" for name in self.layers if name not in in_int8}
        opset, provider = self.model.opset, "CPUExecutionProvider"
        return Runner(
            run,
            description=f"{provider}, {len(in_int8)} layers in int8, {len(others)} in fp32, opset {opset}",
            execution=Execution("int8", others, "NCHW", f"ONNX Runtime {provider}", captured=False, fuses=True),
            details={"nodes": self.nodes},
            save=lambda folder: sorted(folder.glob("model.onnx*")),
            traffic=no_traffic,
            onnx_model=self.workload.folder / "model.onnx",
        )


class ByOpenVino:
    """OpenVINO's CPU plugin, quantized by NNCF."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.openvino = library("openvino", openvino_plugin.EXTRA)
        self.nncf = library("nncf", openvino_plugin.EXTRA)

    def calibrate(self, batches: list[Tensor], method: Method, narrow: bool) -> None:
        """Convert the network and put NNCF's quantizers into it."""
        del method  # MinMax
        from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

        model, self.nodes = openvino_plugin.converted(self.openvino, self.workload)
        self.layers = list(self.nodes)
        fix = AdvancedQuantizationParameters(overflow_fix=OverflowFix.ENABLE if narrow else OverflowFix.DISABLE)
        self.quantized: Any = self.nncf.quantize(
            model,
            self.nncf.Dataset([batch.numpy() for batch in batches]),
            subset_size=len(batches),
            target_device=self.nncf.TargetDevice.CPU,
            advanced_parameters=fix,
        )

    def restored(self, kept: list[str]) -> Any:
        """Return a copy of the model in which the layers `kept` read inputs and weights that aren't quantized."""
        model, nodes = self.quantized.clone(), {self.nodes[name] for name in kept}
        for node in model.get_ops():
            if node.get_friendly_name() not in nodes:
                continue
            for reads in node.inputs():
                source = reads.get_source_output().get_node()
                if source.get_type_name() == "FakeQuantize":
                    reads.replace_source_output(source.input(0).get_source_output())
        return model

    def run(self, kept: list[str]) -> Run:
        """Compile for the CPU."""
        return openvino_plugin.Compiled(self.openvino, self.restored(kept))

    def stage(self, kept: list[str]) -> Runner:
        """Compile for the CPU and read back what runs."""
        return openvino_plugin.stage_of(self.openvino, self.restored(kept), self.nodes, "int8")


class ByInductor:
    """Inductor with its weights as constants, quantized by torchao's PT2E with the quantizer for x86."""

    EXTRA = "torchao"
    PT2E = "torchao.quantization.pt2e"

    def __init__(self, workload: Workload) -> None:
        library("torchao", self.EXTRA)
        check_possible(workload.device)
        own_cache(workload.caches, workload.earlier is None)
        self.batch = workload.batches[0]
        self.net = half_net(workload.model, torch.float32, workload.inputs[0], layout="NCHW")

    def calibrate(self, batches: list[Tensor], method: Method, narrow: bool) -> None:
        """Export the network and have torchao quantize it."""
        del method  # MinMax
        x86 = library(f"{self.PT2E}.quantizer.x86_inductor_quantizer", self.EXTRA)
        pt2e = library(f"{self.PT2E}.quantize_pt2e", self.EXTRA)
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(reduce_range=narrow))
        try:
            with torch.inference_mode(False), torch.no_grad():
                exported = exported_program(self.net, (self.batch,)).module()
                name_by_first_paths(exported.graph, self.net.net, within="net")
                prepared: fx.GraphModule = pt2e.prepare_pt2e(exported, quantizer)
                for images in batches:
                    prepared(images.clone())
                self.quantized: fx.GraphModule = pt2e.convert_pt2e(prepared)
        except Exception as error:  # torch.export and torchao raise many kinds
            raise StageError(f"torchao can't quantize the network: {first_line(error)}", "unsupported") from error
        nodes = [node for node in self.quantized.graph.nodes if layer_of(node)]
        read_int8 = [node for node in nodes if all(map(is_dequantized, node.args[:2]))]  # not transposed ones
        self.layers = list(dict.fromkeys(map(layer_of, read_int8)))
        if not self.layers:
            raise StageError("torchao's quantizer left every layer in fp32", "wrong device")

    def run(self, kept: list[str]) -> fx.GraphModule:
        """Return a copy in which the layers `kept` read their own weights and what comes before the quantizers."""
        module = copy.deepcopy(self.quantized)
        for node in module.graph.nodes:
            name = layer_of(node)
            if name not in kept:
                continue
            image, weight = node.args[:2]
            if is_dequantized(image) and "quantize_per" in str(getattr(image.args[0], "target", "")):
                node.replace_input_with(image, image.args[0].args[0])
            attribute = f"kept_{name.replace('.', '_')}"
            layer: Any = self.net.net.get_submodule(name)
            module.register_buffer(attribute, layer.weight.detach())
            with module.graph.inserting_before(node):
                node.replace_input_with(weight, module.graph.get_attr(attribute))
        module.graph.eliminate_dead_code()
        module.recompile()
        return module

    def stage(self, kept: list[str]) -> Runner:
        """Compile, and make the first call."""
        torch._inductor.config.freezing = True
        logging.getLogger("torch._inductor").setLevel(logging.ERROR)
        run = compiled(self.run(kept), self.batch, fullgraph=True)
        in_int8 = [name for name in self.layers if name not in kept]
        others: dict[str, Precision] = {name: "fp32" for name in convolutions(self.net.net) if name not in in_int8}
        return Runner(
            run,
            description=f"Inductor, {len(in_int8)} convolutions in int8 by PT2E, {len(others)} in fp32",
            execution=Execution("int8", others, None, INDUCTOR, captured=False, fuses=True),
            compilations=compilations,
            traffic=no_traffic,
        )


Runtime = type[ByOnnxRuntime | ByOpenVino | ByInductor]
RUNTIMES: dict[str, Runtime] = {"onnxruntime": ByOnnxRuntime, "openvino": ByOpenVino, "inductor": ByInductor}


def layer_of(node: fx.Node) -> str:
    """Return the module path of the layer whose convolution a node is; empty of any other node."""
    return module_of(node) if "conv" in str(node.target) else ""


def is_dequantized(node: fx.Node) -> bool:
    """Return whether a node takes int8 back to fp32."""
    return "quantized_decomposed.dequantize_per" in str(getattr(node, "target", ""))
