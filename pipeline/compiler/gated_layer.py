"""A 1×1 convolution of a map times a factor for each image and channel, as squeeze-and-excitation has it."""

from collections.abc import Sequence

from torch import Tensor

from pipeline.compiler.kernel_layer import KernelLayer
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters
from pipeline.kernels.conv1x1 import GATED_OP, gated_by_library


class GatedLayer(KernelLayer):
    """The layer between matching and lowering; its inputs are the map and the factors [N, in, 1, 1]."""

    def __init__(self, name: str, weight: Tensor, bias: Tensor) -> None:
        super().__init__(name, GATED_OP, weight, bias)

    def sums_by_library(
        self, parameters: Sequence[LibraryParameters], inputs: Sequence[Tensor], residual: Tensor | None
    ) -> Tensor:
        """The output [N, out, H, W] of the map [N, in, H, W] and the factors [N, in, 1, 1]."""
        x, gate = inputs
        return gated_by_library(x, gate, parameters[0], Ends(self.activation, self.slopes, residual))
