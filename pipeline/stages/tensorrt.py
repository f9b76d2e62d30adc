"""TensorRT, or TensorRT for RTX, through ONNX Runtime; or torch-tensorrt. Engines are cached in the stage's folder.

Engines are strongly typed, the only kind of TensorRT 11: each value has the type that the model declares, and no switch
asks for another. ONNX Runtime builds such engines where no precision is switched on.
"""

import ctypes
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort
import torch
from torch import Tensor

from pipeline.compiler.agreement import Budget
from pipeline.compiler.half import SHORT
from pipeline.errors import first_line
from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, library, no_traffic
from pipeline.stages.common import onnx_models
from pipeline.stages.common.fewer_bits import judges, layer_details, passed
from pipeline.stages.common.network_forms import GROSS, checked_form, half_net, taken_by
from pipeline.stages.common.onnx_models import (
    PROVIDERS,
    Quantizer,
    assignments,
    bound,
    bound_call,
    export,
    open_session,
)

LIBRARY = "libnvinfer.so.10"
WHEEL = "tensorrt_libs"  # of the package tensorrt-cu13; importing it loads the library
TENSORRT, RTX = "tensorrt", "tensorrt_rtx"  # in `PROVIDERS`
NAMES = {TENSORRT: "TensorRT", RTX: "TensorRT for RTX"}
QUANTIZED = ["Conv", "ConvTranspose", "MaxPool"]
KINDS: dict[str, onnx_models.Kind] = {"int8": "int8 symmetric", "fp8": "fp8"}
# Of what isn't quantized. ONNX Runtime's histograms, which give the scales of fp8, can't be made of fp16 (1.31).
RESTS = {"fp16": torch.float16, "int8": torch.float16, "fp8": torch.float32}


def build(
    workload: Workload, *, backend: Literal["onnxruntime", "rtx", "torch_tensorrt"] = "onnxruntime",
    dtype: Literal["fp16", "int8", "fp8"] = "fp16", calibration_images: int = 32, keep_fp16: list[str] | None = None,
    budget: float = 1e-3, error_budget: float = 5e-2, dice_budget: float = 1e-2,
) -> Runner:  # fmt: skip
    """Export, quantize where asked, build the engine, bind fixed buffers."""
    if workload.device.type != "cuda":
        raise Skip("TensorRT needs a CUDA GPU")
    images_alone(workload, "TensorRT")
    if backend == "torch_tensorrt":
        return by_torch_tensorrt(workload, dtype)
    devices = rtx_devices() if backend == "rtx" else load_tensorrt()
    if dtype == "fp16":
        _, casts = export(workload.model, torch.float16, workload.batches[0], path := workload.folder / "model.onnx")
        return by_onnxruntime(workload, path, dtype, devices, casts)
    by = judges(workload, calibration_images, keep := keep_fp16 or [], Budget(budget, error_budget, dice_budget))
    model = Quantizer(workload, by.for_scales, KINDS[dtype], QUANTIZED, dtype=RESTS[dtype])
    if strange := sorted(set(keep) - set(model.layers)):
        raise StageError(f"stage.keep_fp16={strange[0]}: no such layer; choose among {', '.join(model.layers)}")
    stage = by_onnxruntime(workload, model.quantized(keep), dtype, devices)
    details = layer_details(keep, {}, passed(stage.run, by))
    return replace(stage, details=stage.details | details, calibration=by.calibration, left_out=by.left_out)


def by_onnxruntime(
    workload: Workload, path: Path, dtype: Precision, devices: Sequence[object], and_casts: str = ""
) -> Runner:
    """Run the model by ONNX Runtime's provider, captured; by the one of TensorRT for RTX if it offers `devices`."""
    workload.progress("building the engine")
    stream, found = torch.cuda.Stream(), len([*(workload.caches / "tensorrt").glob("*.engine")])
    name = RTX if devices else TENSORRT
    settings = options(name, str(workload.caches / "tensorrt"), str(stream.cuda_stream))
    session = open_session(path, name, settings, devices=devices)
    details = {"providers": session.get_providers(), "nodes": assignments(session), "engines_found": found}
    run, rest = bound_call(*bound(session, workload.batches[0], RESTS[dtype]), stream), SHORT[RESTS[dtype]]
    like, gross = (RESTS[dtype], GROSS) if dtype == "fp16" else (torch.float32, math.inf)
    said = dtype if dtype == rest else f"{dtype}, the rest in {rest}"
    return Runner(
        checked_form(run, workload, NAMES[name], like, gross),
        description=f"{NAMES[name]} by ONNX Runtime, {said}, CUDA graph{and_casts}",
        execution=Execution(dtype, {}, None, f"{NAMES[name]} by ONNX Runtime", captured=True, fuses=True),
        details=details,
        save=lambda folder: sorted(folder.glob("model.onnx*")),
        traffic=no_traffic,
        onnx_model=path,
    )


def rtx_devices() -> list[Any]:
    """Return the GPU as the plug-in of TensorRT for RTX offers it."""
    plugin, known = library("onnxruntime_ep_nv_tensorrt_rtx", "tensorrt-rtx"), PROVIDERS[RTX]
    try:
        if known not in [device.ep_name for device in ort.get_ep_devices()]:
            ort.register_execution_provider_library(known, plugin.get_library_path())
    except Exception as error:  # of ONNX Runtime's own kinds
        raise Skip(f"TensorRT for RTX can't be loaded here: {first_line(error)}", "missing library") from error
    found = [device for device in ort.get_ep_devices() if device.ep_name == known]
    if not found:
        raise Skip(
            "TensorRT for RTX offers no device here: it runs on GPUs of compute capability 8.6, 8.9, 12.0 and newer, "
            f"and this one has {'.'.join(map(str, torch.cuda.get_device_capability()))}"
        )
    return found[:1]


def load_tensorrt(load: Callable[[str], object] = ctypes.CDLL) -> list[Any]:
    """Load TensorRT's library, from the system or from its wheel; its provider needs no list of devices."""
    try:
        load(LIBRARY)
    except OSError:
        try:
            importlib.import_module(WHEEL)
        except ImportError as error:
            raise Skip(
                f"TensorRT isn't installed ({LIBRARY}); its wheel tensorrt-cu13 comes from NVIDIA's own package index, "
                "which pip is given by --extra-index-url; PyPI holds no more than a pointer to it",
                "missing library",
            ) from error
    return []


def options(name: str, folder: str, stream: str) -> dict[str, str]:
    """Return the options of a provider, or of RTX's plug-in (0.5): caches and torch's stream; no precision."""
    switches = ["enable_cuda_graph", "has_user_compute_stream"]
    places = ["nv_runtime_cache_path"]
    if name != RTX:
        switches = ["trt_engine_cache_enable", "trt_timing_cache_enable", "trt_cuda_graph_enable"]
        places = ["trt_engine_cache_path", "trt_timing_cache_path"]
    return {**dict.fromkeys(switches, "1"), **dict.fromkeys(places, folder), "user_compute_stream": stream}


def by_torch_tensorrt(workload: Workload, dtype: str) -> Runner:
    """Compile the network in half precision by torch-tensorrt, its engines cached in the stage's folder."""
    if dtype != "fp16":
        raise StageError(
            f"stage.dtype={dtype}: torch_tensorrt runs fp16, stage.backend=onnxruntime this", "unsupported"
        )
    try:
        torch_tensorrt = importlib.import_module("torch_tensorrt")
    except ImportError as error:
        remedy = "python -m pip install torch-tensorrt installs it where pip knows NVIDIA's package index"
        raise Skip(f"torch_tensorrt isn't installed ({first_line(error)}); {remedy}", "missing library") from error
    model, folder = half_net(workload, torch.float16), workload.caches / "tensorrt"
    folder.mkdir(parents=True, exist_ok=True)
    with taken_by("torch-tensorrt"):
        compiled: Callable[[Tensor], Tensor] = torch_tensorrt.compile(
            model, ir="dynamo", inputs=[workload.batches[0]], use_explicit_typing=True, cache_built_engines=True,
            reuse_cached_engines=True, engine_cache_dir=str(folder), timing_cache_path=str(folder / "timing.bin"),
        )  # fmt: skip
    what = f"torch-tensorrt {torch_tensorrt.__version__}, fp16{model.and_casts}"
    how = Execution("fp16", {}, None, "torch-tensorrt", captured=False, fuses=True)
    return Runner(checked_form(compiled, workload, "torch-tensorrt", model), what, how, traffic=no_traffic)
