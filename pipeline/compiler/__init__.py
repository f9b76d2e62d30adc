"""A compiler for segmentation networks: Triton and Gluon kernels for convolutions, Inductor for all the rest.

    from pipeline.compiler import compile, load

    fast = compile(network, image)                                     # fp16
    fast = compile(network, image, precision="fp8", calibration=images)
    logits = fast(image)
    print(fast.explain())
    fast.save("network.unet")
    again = load("network.unet", trusted=True)

`kernels_in_torch_compile()` instead adds the convolution kernels to every `torch.compile` of a process.

A network goes through `graph.exported_net`, `passes`, `fp8_build`, `tuning.choose` (each layer's fastest tile),
`graph.lowering` and `cuda_graphs`; `driver` compares whole candidates. `ahead` compiles kernels without a GPU.

Importing this package imports nothing else; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.compiler.api import Compiled, compile, load  # noqa: A004 - named as torch.compile is
    from pipeline.compiler.errors import CompileError
    from pipeline.compiler.post_grad_pass import kernels_in_torch_compile

__all__ = ["CompileError", "Compiled", "compile", "kernels_in_torch_compile", "load"]

_HOMES = {"CompileError": "errors", "kernels_in_torch_compile": "post_grad_pass"}  # all others are in `api`


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)
