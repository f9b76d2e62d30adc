"""ONNX models: exported and checked, with quantize-dequantize pairs where asked, and run by ONNX Runtime's sessions."""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import torch
from torch import Tensor, nn

from pipeline.compiler.batch import IMAGE, Batch, batched
from pipeline.compiler.half import half_net
from pipeline.compiler.input_forms import check_forms, form_of
from pipeline.compiler.network_calls import exportable, given_back, own_numbers
from pipeline.errors import first_line
from pipeline.stages.api import StageError, Workload
from pipeline.stages.common.network_forms import taken_by

OUTPUT = "logits"
TINY = 1e-8
PROVIDERS = {
    "cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider", "tensorrt": "TensorrtExecutionProvider",
    "tensorrt_rtx": "NvTensorRTRTXExecutionProvider",
}  # fmt: skip
ALLOCATION_FAILED = "Failed to allocate memory for requested buffer"  # onnxruntime 1.31
ASSIGNMENT = "session.record_ep_graph_assignment_info"
NUMPY_TYPES = {
    torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64, torch.bool: np.bool_,
}  # fmt: skip
Method = Literal["MinMax", "Entropy", "Percentile"]
Kind = Literal["int8", "int8 symmetric", "fp8"]


class BiasApart(nn.ConvTranspose2d):
    """A transposed convolution with the weights of `layer`, whose bias is an addition of its own."""

    # ONNX Runtime's CUDA provider can't build one with its bias by cuDNN's frontend (1.31), and is slow otherwise.

    def __init__(self, layer: nn.ConvTranspose2d) -> None:
        nn.Module.__init__(self)
        for name in layer.__constants__:
            setattr(self, name, getattr(layer, name))
        self.transposed, self.weight, self.bias = True, layer.weight, layer.bias

    def forward(self, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Convolve [batch, in, height, width], and add the bias; with an output size as the convolution itself."""
        if output_size is not None or self.bias is None:
            return super().forward(image, output_size)
        how: Any = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return nn.functional.conv_transpose2d(image, self.weight, None, *how) + self.bias[:, None, None]


def biases_apart(net: nn.Module) -> nn.Module:
    """Replace every plain transposed convolution within a network by a `BiasApart`; return the network."""
    layers: dict[nn.Module | None, nn.Module] = {
        part: BiasApart(part) for part in net.modules() if type(part) is nn.ConvTranspose2d
    }
    for parent in list(net.modules()):  # a network may hold a layer under several names
        parent._modules |= {name: layers.get(part, part) for name, part in parent._modules.items()}
    return layers.get(net, net)


def export(
    model: nn.Module, dtype: torch.dtype, batch: Tensor | Batch, path: Path, dynamic: Sequence[int] = (),
    around: Callable[[nn.Module], nn.Module] = lambda net: net, inputs: Batch | None = None,
) -> tuple[int, str]:  # fmt: skip
    """Write the network as checked ONNX, for batches of this shape; return the opset and what is said of casts."""
    # `dynamic` axes may have other lengths, where torch.export finds that the network allows it. `around` puts more
    # into the graph: `batch` is then what that takes, and `inputs` what the network takes.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    path.parent.mkdir(parents=True, exist_ok=True)
    given = batched(batch)
    quiet = warnings.catch_warnings()
    with taken_by("ONNX"), quiet, torch.inference_mode(False), torch.no_grad(), exportable(may_set_weights=True):
        warnings.simplefilter("ignore", FutureWarning)  # the exporter's own use of what its torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        net = half_net(model, dtype, inputs or given, layout="NCHW")  # with the casts from fp32 in the graph
        if given.is_cuda:
            net.net = biases_apart(net.net)
        exported = around(net)
        axes = (dict.fromkeys(dynamic, torch.export.Dim.AUTO),) if dynamic else None
        with given_back(exported, own_numbers(exported, given.tensors)):
            program = torch.onnx.export(exported, (*given.clone(),), dynamo=True, input_names=[*given.names],
                                        output_names=[OUTPUT], verbose=False, dynamic_shapes=axes,
                                        optimize=False)  # fmt: skip
        assert program is not None
        if not holds_tiny(program.model):
            program.optimize()
        program.save(str(path))
        onnx.checker.check_model(str(path), full_check=True)
    return int(onnx.load(str(path), load_external_data=False).opset_import[0].version), net.and_casts


def holds_tiny(model: onnx_ir.Model) -> bool:
    """Return whether a model holds a number that onnxscript's optimiser would take for 0."""
    # It drops the addition of what is within 1e-8 of 0 (onnxscript 0.7).
    values = [value.const_value for value in model.graph.initializers.values()]
    graphs: list[Any] = [model.graph, *model.functions.values()]
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    values += [node.attributes["value"].as_tensor() for node in nodes if "value" in node.attributes]
    numbers = [
        float(value.numpy().astype(np.float64).item()) for value in values if value is not None and value.size == 1
    ]
    return any(0 < abs(number) <= TINY for number in numbers)


def layers_of(path: Path, *operators: str) -> dict[str, str]:
    """Return the module path of each node of these operators, with the node's name."""
    # torch's exporter writes scopes as "['', 'net', 'net.head', 'conv2d']"; the last but one is the module.
    found = {}
    for node in onnx.load(str(path), load_external_data=False).graph.node:
        if node.op_type in operators:
            scopes = next((part.value for part in node.metadata_props if part.key.endswith("name_scopes")), "")
            names = re.findall(r"'([^']*)'", scopes)
            found[names[-2].removeprefix("net.") if len(names) > 1 else node.name] = node.name
    return found


class Quantizer:
    """Quantized models of one network: `layers` are module paths to names of nodes; ranges are found once."""

    def __init__(
        self, workload: Workload, batches: list[Tensor], kind: Kind, operators: list[str],
        method: Method = "MinMax", reduce_range: bool = False, dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        """Export the net."""
        self.folder, self.batches, self.kind, self.operators = workload.folder, batches, kind, operators
        self.method, self.reduce_range = "Distribution" if kind == "fp8" else method, reduce_range
        self.exported = workload.folder / "fp32.onnx"
        self.opset, _ = export(workload.model, dtype, workload.batches[0], self.exported)
        self.layers = layers_of(self.exported, *operators)

    def quantized(self, kept: list[str]) -> Path:
        """Write the model with these layers in fp32 to model.onnx."""
        from onnxruntime import quantization

        left = ({IMAGE: batch.cpu().numpy()} for batch in self.batches)

        class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
            """Batches [batch, channels, height, width], one after the other."""

            def get_next(self) -> dict[str, np.ndarray] | None:
                """Return the next batch by the input's name; None after the last."""
                return next(left, None)

        path, root = self.folder / "model.onnx", logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # it asks for a pre-processing that torch's exporter has done
        try:
            quantization.quantize_static(
                str(self.exported), str(path), Images(),
                op_types_to_quantize=self.operators, nodes_to_exclude=[self.layers[name] for name in kept],
                per_channel=self.kind != "fp8", reduce_range=self.reduce_range,
                calibrate_method=quantization.CalibrationMethod[self.method],
                calibration_cache_path=str(self.folder / "ranges.json"),
                **types(quantization.QuantType, self.kind),
            )  # fmt: skip
        finally:
            root.setLevel(level)
        return path


def types(of: Any, kind: Kind) -> dict[str, object]:
    """Return the quantizer's arguments for a kind; `of` is ONNX Runtime's QuantType."""
    if kind == "fp8":
        return {"activation_type": of.QFLOAT8E4M3FN, "weight_type": of.QFLOAT8E4M3FN}
    if kind == "int8":
        return {"activation_type": of.QUInt8, "weight_type": of.QInt8}
    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    return {"activation_type": of.QInt8, "weight_type": of.QInt8, "extra_options": symmetric}


def open_session(
    path: Path, wanted: str, options: dict[str, str], optimised: Path | None = None, devices: Sequence[Any] = ()
) -> ort.InferenceSession:
    """Open a session on one of `PROVIDERS`, or none at all; `optimised` is where the graph is written as it runs."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    # Else it binds its threads to processors of its own choice, also to such as this process may not use.
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.add_session_config_entry(ASSIGNMENT, "1")
    if optimised:
        settings.optimized_model_filepath = str(optimised)
    if wanted != "cpu":
        ort.preload_dlls()
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if devices:
        settings.add_provider_for_devices(devices, options)
    try:
        providers = None if devices else [(PROVIDERS[wanted], options)]
        session = ort.InferenceSession(str(path), settings, providers=providers)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's own kinds, which share no base
        reason = f"no session on {PROVIDERS[wanted]}: {first_line(error)}"
        if wanted == "cpu" and ALLOCATION_FAILED not in str(error):
            raise StageError(reason, "unsupported") from torchs_own(error)
        raise StageError(reason, "missing library") from torchs_own(error)
    landed = session.get_providers()[0]
    if landed != PROVIDERS[wanted]:
        raise StageError(
            f"asked for {PROVIDERS[wanted]}, the session landed on {landed}; are its libraries there?", "wrong device"
        )
    return session


def torchs_own(error: Exception) -> Exception:
    """Return ONNX Runtime's error as the kind that torch raises for the same failure, with the same text."""
    return (torch.OutOfMemoryError if ALLOCATION_FAILED in str(error) else RuntimeError)(str(error))


def assignments(session: ort.InferenceSession) -> dict[str, dict[str, int]]:
    """Count the nodes of each operator that each provider runs."""
    nodes: dict[str, Counter[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            nodes.setdefault(subgraph.ep_name, Counter())[node.op_type] += 1
    return {provider: dict(sorted(counts.items())) for provider, counts in sorted(nodes.items())}


def bound(
    session: ort.InferenceSession, batch: Tensor | Batch, precision: torch.dtype
) -> tuple[Batch, Tensor, Callable[[], None]]:
    """Bind fixed buffers for inputs and output [batch, classes, height, width], as a CUDA graph demands."""
    fixed, taken = batched(batch).clone(), {found.name for found in session.get_inputs()}
    shape = session.get_outputs()[0].shape
    if any(not isinstance(length, int) for length in shape):
        reason = "onnxruntime runs answers of one size; the size of this network's answer depends on the image"
        raise StageError(reason, "unsupported")
    logits = torch.empty(shape, dtype=precision, device=fixed.device)
    kind = fixed.device.type
    binding = session.io_binding()
    for name, part in zip(fixed.names, fixed, strict=True):
        if name in taken:
            binding.bind_input(name, kind, 0, NUMPY_TYPES[part.dtype], tuple(part.shape), part.data_ptr())
    binding.bind_output(OUTPUT, kind, 0, NUMPY_TYPES[precision], tuple(logits.shape), logits.data_ptr())
    unsynchronised = ort.RunOptions()
    unsynchronised.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def replay() -> None:
        try:
            session.run_with_iobinding(binding, unsynchronised)
        except Exception as error:  # of ONNX Runtime's own kinds
            raise torchs_own(error) from error

    return fixed, logits, replay


def bound_call(
    fixed: Batch, logits: Tensor, replay: Callable[[], None], stream: torch.cuda.Stream | None = None
) -> Callable[..., Tensor]:
    """Return a call to logits [batch, classes, height, width], which the next one overwrites."""
    # It works on the session's `stream`, ordered with the caller's, or without one on the CPU.
    forms = [form_of(part) for part in fixed]

    def run(*inputs: Tensor) -> Tensor:
        check_forms(inputs, forms)
        for part, given in zip(fixed.tensors, inputs, strict=True):
            part.copy_(given)
        replay()
        return logits

    if stream is None:
        return run

    def ordered(*inputs: Tensor) -> Tensor:
        caller = torch.cuda.current_stream()
        stream.wait_stream(caller)
        with torch.cuda.stream(stream):
            run(*inputs)
        caller.wait_stream(stream)
        return logits

    return ordered
