"""The project's kernels, in the order in which they are offered a layer: to add one, add its line."""

from typing import Any

from pipeline.kernels import conv1x1, conv3x3, conv_first, upconv2x2, upsample2x
from pipeline.kernels.common.kernel_op import KernelOp

KERNELS: tuple[KernelOp[Any], ...] = (
    conv3x3.OP,
    conv_first.OP,
    upconv2x2.OP,
    conv1x1.OP,
    upsample2x.OP,
)
BY_NAME = {op.name: op for op in KERNELS}
TILES = {tile.__module__.rpartition(".")[2]: tile for op in KERNELS for tile in op.tile_types}
