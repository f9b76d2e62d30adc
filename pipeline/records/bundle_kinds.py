"""In which form each stage can leave this project, and what the form needs; a stage that isn't here can't."""

from typing import Literal

Kind = Literal["onnx", "torchscript", "aot_inductor", "exported", "own_kernels"]

KIND_OF: dict[str, Kind] = {  # by the import path of the stage's module
    "pipeline.stages.onnxruntime": "onnx",
    "pipeline.stages.onnxruntime_int8": "onnx",
    "pipeline.stages.torchscript": "torchscript",
    "pipeline.stages.eager": "exported",
    "pipeline.stages.tf32": "exported",
    "pipeline.stages.channels_last": "exported",
    "pipeline.stages.half": "exported",
    "pipeline.stages.amp": "aot_inductor",
    "pipeline.stages.cuda_graph": "aot_inductor",
    "pipeline.stages.compile": "aot_inductor",
    "pipeline.stages.aot_inductor": "aot_inductor",
    "pipeline.stages.fused": "own_kernels",
    "pipeline.stages.fp8": "own_kernels",
}

PACKAGES: dict[Kind, tuple[str, ...]] = {  # distributions, of which those that are installed are required
    "onnx": ("onnxruntime-gpu", "onnxruntime", "numpy"),
    "torchscript": ("torch",),
    "exported": ("torch",),
    "aot_inductor": ("torch", "triton"),
    "own_kernels": ("torch", "triton"),
}
