"""1×1 convolution of stride 2, a residual block's shortcut, by the kernel of `conv1x1`.

The idea: every second pixel of every second row is a view that TMA steps through, so that a quarter of the map is read
where it lies. The pixels that are left have one step within a row alone; each row is a line of its own.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pipeline.kernels import conv1x1
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LayerDescription, LibraryParameters, flops_of
from pipeline.kernels.common.library import convolution
from pipeline.kernels.common.nhwc import next_power_of_two

# Without a residual: the 3×3 convolution beside it adds this one's answer, as it does where the library gives it.
FOLDS = frozenset({"slopes"})
LEAST_PIXELS = 16  # rows of a product


def read_of(x: Tensor) -> Tensor:
    """Return the pixels of x [N, H, W, in] that are read: [N, ⌈H / 2⌉, ⌈W / 2⌉, in], the same memory."""
    return x[:, ::2, ::2]


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv1x1_strided` of x [N, H, W, in] and weight [out, in], in plain PyTorch, on any device."""
    conv1x1.reference(read_of(x), weight, epilogue, outputs)


def conv1x1_strided(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: conv1x1.Tile | None = None
) -> None:
    """Write the product of every second pixel both ways with weightᵀ, through the epilogue into `outputs.out`.

    Args:
        x: [N, H, W, in], fp16 or fp8, may be a channel slice of a wider tensor; H is even, or N is 1.
        weight: [out, in] of x's dtype, from `conv1x1.pack`.
        epilogue: scale, bias and slopes [out]; no other part.
        outputs: out [N, ⌈H / 2⌉, ⌈W / 2⌉, out], laid out as x.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    seen = read_of(x)
    conv1x1.check_operands(seen, weight, epilogue, outputs, FOLDS)
    lines = seen.shape[0] * seen.shape[1]
    conv1x1.launch(seen, weight, epilogue, outputs, tile or next(candidates(x, weight)), lines)


def candidates(x: Tensor, weight: Tensor, *_: object) -> Iterator[conv1x1.Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [out, in]: those of `conv1x1`, no wider than a row."""
    row = max(LEAST_PIXELS, next_power_of_two(read_of(x).shape[2]))
    narrowed = [replace(tile, pixels=min(tile.pixels, row)) for tile in conv1x1.candidates(x, weight)]
    yield from dict.fromkeys(replace(tile, warps=4) if tile.pixels < 64 else tile for tile in narrowed)


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run the library and the epilogue on x [N, in, H, W] by weight [out, in, 1, 1]: [N, out, ⌈H / 2⌉, ⌈W / 2⌉]."""
    x = x.to(parameters.weight.dtype, memory_format=torch.channels_last)
    return convolution(x, parameters, ends, stride=(2, 2))


def _accepts(layer: LayerDescription) -> bool:
    """Return whether the height is even: the rows that are read then lie at one step from image to image."""
    return layer.kind == "conv2d" and layer.is_square(1, 2, 0) and layer.suits_bulk_copies and layer.in_size[0] % 2 == 0


OP: KernelOp = replace(
    conv1x1.OP,
    name="conv1x1_strided",
    accepts=_accepts,
    reference=reference,
    launch=conv1x1_strided,
    candidates=candidates,
    library=by_library,
    flops=flops_of(0.25),
    folds=FOLDS,
    growth=0.5,
)
