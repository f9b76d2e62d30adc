"""Variables of the environment that libraries read as they are imported, or as they begin to compile."""

import os
import re
from collections.abc import Mapping

# By the name's beginning, or the whole name where "$" ends it.
READ = re.compile(
    r"(PY)?TORCH|ATEN_|TRITON_|CUDA_|CUDNN_|CUBLAS|NVIDIA_TF32|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|ONEDNN_|DNNL_|ORT_|OV_"
    r"|OPENVINO_|TVM_|XLA_|JAX_|MALLOC_|GLIBC_TUNABLES$|LD_PRELOAD$|TMPDIR$|CC$|CXX$"
)
# What only says where something lies, which GPUs there are, or what is logged; the record has GPUs and versions anyway.
# Triton has CC compile what begins a kernel, and Inductor has CXX compile a CPU's code itself.
NO_MATTER = re.compile(r"(DIR|DIRECTORY|PATH|HOME|LOGS?|LOG_LEVEL|VERBOSE|DEBUG|DEVICES|VERSION|_OUT)$|^CC$")


def that_matter(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that may change which code a stage runs, or how fast, with their values."""
    return {
        name: value for name, value in sorted(environment.items()) if READ.match(name) and not NO_MATTER.search(name)
    }
