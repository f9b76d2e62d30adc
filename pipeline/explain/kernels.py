"""Which class of work a kernel, or a CPU operator, belongs to. Imports no torch."""

import re

from pipeline.records import KernelClass

# In order: the first pattern that is found decides. Names as CUDA libraries, PyTorch, Inductor, Triton and ONNX Runtime
# write them; a name that none knows is "other" and is shown as such.
PATTERNS: list[tuple[KernelClass, str]] = [
    ("copy", r"memcpy|memset|aten::copy_|aten::_to_copy|\bcast\b|direct_copy|fill"),
    (
        "layout change",
        r"nchwtonhwc|nhwctonchw|transpose(?!.*conv)|permute|aten::contiguous|aten::clone|reorder|nhwcaddpadding|"
        r"nchwaddpadding|tensortransform|convert_layout|to_mkldnn|to_dense",
    ),
    ("pool", r"pool"),
    ("normalisation", r"batch_?norm|bn_fw|layer_?norm|group_?norm|instance_?norm"),
    (
        "convolution",
        r"conv|winograd|wgrad|dgrad|fprop|implicit_gemm|cudnn.*(xmma|sm\d\d)|xmma_.*(fprop|dgrad)|mkldnn_conv|upconv",
    ),
    ("matmul", r"gemm|matmul|cublas|cutlass|nvjet|aten::(addmm|mm|bmm|linear)|wgmma"),
    (
        "pointwise",
        r"elementwise|vectorized|triton_(poi|per|red)|relu|sigmoid|aten::(add|mul|cat|sub|div|threshold)|clamp|concat|"
        r"cat_?array|upsample|interpolat|resize|cpp_fused|fused_",
    ),
]
COMPILED = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in PATTERNS]


def classify(name: str) -> KernelClass:
    """The class of the kernel or operator called `name`."""
    return next((kind for kind, pattern in COMPILED if pattern.search(name)), "other")
