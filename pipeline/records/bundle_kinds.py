"""The forms in which a stage leaves this project, and the packages that each form needs."""

from typing import Literal

ExportKind = Literal["onnx", "torchscript", "aot_inductor", "exported", "own_kernels"]

PACKAGES: dict[ExportKind, tuple[str, ...]] = {  # distributions, of which those that are installed are required
    "onnx": ("onnxruntime-gpu", "onnxruntime", "numpy"),
    "torchscript": ("torch",),
    "exported": ("torch",),
    "aot_inductor": ("torch", "triton"),
    "own_kernels": ("torch", "triton"),
}
