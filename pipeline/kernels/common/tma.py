"""TMA in the Gluon kernels: boxes, their layout in shared memory, and views into it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import _unwrap_if_constexpr, builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

if TYPE_CHECKING:
    from triton.experimental.gluon.language._semantic import GluonSemantic

# Triton 3.9 gives subslices of whole planes, which may be viewed in any shape of their size.
SLICED = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
# It also renamed them.
load_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_box = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr = 1):
    """Return barriers that ARRIVALS arrivals complete, or one arrival and the bytes that it expects."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(COUNT):
        mbarrier.init(bars.index(slot), count=ARRIVALS)
    return bars


@builtin
def arguments(values: tl.tuple, constants: object, _semantic: "GluonSemantic | None" = None) -> tl.tuple:
    """Return the arguments of a group of warps; where tuples are added, Triton 3.9 takes constants for plain values."""
    return tl.tuple(
        [*values, *(tl.constexpr(_unwrap_if_constexpr(fixed)) for fixed in _unwrap_if_constexpr(constants))]
    )


@builtin
def view(
    memory: "gl.shared_memory_descriptor",
    dtype: tl.dtype | tl.constexpr,
    shape: Sequence[int] | tl.constexpr,
    layout: object,
    _semantic: "GluonSemantic | None" = None,
) -> "gl.shared_memory_descriptor":
    """Shared memory from where `memory` begins, as `shape`; with Triton 3.6 and 3.7 it may reach past its end."""
    assert _semantic is not None  # the compiler gives it
    shape = [_unwrap_if_constexpr(size) for size in _unwrap_if_constexpr(shape)]
    return _semantic.memdesc_reinterpret(memory, _unwrap_if_constexpr(dtype), shape, _unwrap_if_constexpr(layout))


@gluon.jit
def box_of(planes, slot, SIZE: gl.constexpr):
    """Return a slot's SIZE planes, for `reach`: those from the second value on, or with Triton 3.9 a slice of its own.

    A slice begins where the compiler knows, so that the slot is chosen among all.
    """
    found = planes
    if SLICED:
        found = planes.slice(0, SIZE)
        for other in gl.static_range(1, planes.shape[0] // SIZE):
            if slot == other:
                found = planes.slice(other * SIZE, SIZE)
    return found, slot * SIZE


@gluon.jit
def reach(
    box, FIRST: gl.constexpr, COUNT: gl.constexpr, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    """Return COUNT planes of `box_of`, from FIRST on, as `shape`."""
    planes, first = box
    if SLICED:
        found = view(planes.slice(FIRST, COUNT), dtype, shape, layout)
    else:
        found = view(planes.index(first + FIRST), dtype, shape, layout)
    return found


@gluon.jit
def pair(planes, first, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
    """Return two planes from any `first` on, as `shape`: pairs that begin at even planes, or at odd ones."""
    if SLICED:
        EVEN: gl.constexpr = planes.shape[0] // 2
        ODD: gl.constexpr = (planes.shape[0] - 1) // 2
        found = view(planes.slice(0, 2 * EVEN), dtype, [EVEN] + shape, layout).index(first // 2)
        if first % 2 == 1:
            found = view(planes.slice(1, 2 * ODD), dtype, [ODD] + shape, layout).index(first // 2)
    else:
        found = view(planes.index(first), dtype, shape, layout)
    return found


def boxes_of(tensor: Tensor, box: list[int], swizzle_as: list[int]) -> TensorDescriptor:
    """Return the descriptor of boxes of a tensor [..., channels], swizzled as a matrix of the shape `swizzle_as` is."""
    types = {torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv, torch.float32: gl.float32}
    dtype = types[tensor.dtype]
    flat = gl.NVMMASharedLayout.get_default_for(swizzle_as, dtype)
    layout = gl.NVMMASharedLayout(flat.swizzle_byte_width, flat.element_bitwidth, rank=len(box))
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), box, layout)


def weight_boxes_of(weight: Tensor, rows: int, swizzle_as: list[int], paired: bool) -> TensorDescriptor:
    """Boxes of `rows` channels of weight [taps, out, in], where `paired` in the order that `finish` undoes."""
    depth = swizzle_as[-1]
    if paired:
        pairs = weight.unflatten(1, (-1, 8, 2)).transpose(2, 3)
        return boxes_of(pairs, [1, rows // 16, 2, 8, depth], swizzle_as)
    return boxes_of(weight[:, :, None, None], [1, rows, 1, 1, depth], swizzle_as)
