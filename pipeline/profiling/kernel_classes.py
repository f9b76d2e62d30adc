"""Which class of work a kernel, or a CPU operator, belongs to."""

import re

from pipeline.records.diagnostics import KernelClass

# In order: the first pattern that is found decides. Names as CUDA libraries, PyTorch, Inductor, Triton and ONNX Runtime
# write them; a name that none knows is "other" and is shown as such.
# What Inductor generated comes first, as its names hold those of everything that the kernel is near to.
PATTERNS: list[tuple[KernelClass, str]] = [
    ("pointwise", r"^triton_(poi|per|red)|^cpp_fused"),
    ("convolution", r"^triton_tem.*conv"),
    ("matmul", r"^triton_(tem|mm)"),
    (
        "copy",
        r"init_device_workspace|memcpy|memset|aten::copy_|aten::_to_copy|\bcast\b|direct_copy|fill|scalepackedtensor",
    ),
    (
        "layout change",
        (
            r"nchwto\w*nhwc|nhwcto\w*nchw|transpose(?!.*conv|d3x3)|permute|aten::contiguous|aten::clone|reorder|nhwcaddpadding|"
            r"nchwaddpadding|tensortransform|convert_layout|to_mkldnn|to_dense"
        ),
    ),
    ("pool", r"pool"),
    ("normalisation", r"batch_?norm|bn_fw|layer_?norm|group_?norm|instance_?norm|merged_statistics|norm_pass"),
    (
        "convolution",
        (
            r"conv|winograd|wgrad|dgrad|fprop|implicit_gemm|cudnn.*(xmma|sm\d\d)|xmma_.*(fprop|dgrad)|mkldnn_conv|upconv|polyphase|"
            r"transposed3x3|depthwise|fft|flip_filter|mult_and_sum_complex"
        ),
    ),
    ("matmul", r"gemm|matmul|excitation|cublas|cutlass|nvjet|aten::(addmm|mm|bmm|linear)|wgmma"),
    (
        "pointwise",
        (
            r"elementwise|vectorized|op_generic_tensor|multi_tensor|relu|sigmoid|aten::(add|mul|cat|sub|div|threshold)|clamp|concat|"
            r"cat_?array|upsample|interpolat|resize|fused_"
        ),
    ),
]
JOINS = re.compile(r"^(?!triton_|cpp_).*(cat_?array|concat|aten::cat$)", re.IGNORECASE)
COMPILED = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in PATTERNS]


def classify(name: str) -> KernelClass:
    """The class of the kernel or operator called `name`."""
    return next((kind for kind, pattern in COMPILED if pattern.search(name)), "other")


def joins(name: str) -> bool:
    """Whether a kernel, or a CPU operator, does a concatenation and nothing else."""
    return bool(JOINS.search(name))
