"""Compiles the Gluon kernels for compute capability 9.0 on any machine, and prints what it compiled: run as a process.

Triton takes target and device from its driver. The one here knows the target alone, and nothing is launched.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels.common.activation import Activation
from tests.kernels.examples import FP8, HALF, Layer, example


class TargetAlone:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        """A Hopper GPU."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, _: int | None = None) -> int:
        """The default one."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where the operands are."""
        return torch.device("cpu")


def compile_instead(kernel: JITFunction, grid: Any) -> Any:
    """What a kernel's launch becomes."""

    def call(*args: Any, **kwargs: Any) -> None:
        built = kernel.run(*args, grid=grid, warmup=True, **kwargs)
        sys.stdout.write(f"{kernel.fn.__name__} {'wgmma' in built.asm['ptx']}\n")

    return call


def main() -> None:
    """One tile of each kernel that is written in Gluon, in both types, and one with all parts of an epilogue."""
    triton.runtime.driver.set_active(TargetAlone())
    JITFunction.__getitem__ = compile_instead
    leaky, silu, prelu = Activation("leaky_relu", 0.1), Activation("silu"), Activation("prelu")
    plain = Layer(size=(32, 32), inner=64, outer=64, activation=leaky)
    whole = replace(plain, activation=prelu, pool=True, residual=HALF, statistics=True, prologue=silu)
    for name, dtype, layer in (("conv3x3", HALF, plain), ("conv3x3", FP8, whole), ("upconv2x2", FP8, plain)):
        made = example(BY_NAME[name], dtype, layer)
        made.run([tile for tile in made.candidates() if "gluon" in type(tile).__module__][-1])


if __name__ == "__main__":
    main()
