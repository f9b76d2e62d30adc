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

# Triton 3.9 renamed them.
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
def view(
    memory: "gl.shared_memory_descriptor",
    dtype: tl.dtype | tl.constexpr,
    shape: Sequence[int] | tl.constexpr,
    layout: object,
    _semantic: "GluonSemantic | None" = None,
) -> "gl.shared_memory_descriptor":
    """Shared memory from where `memory` begins, as `shape`, which may reach into the next planes."""
    assert _semantic is not None  # the compiler gives it
    shape = [_unwrap_if_constexpr(size) for size in _unwrap_if_constexpr(shape)]
    return _semantic.memdesc_reinterpret(memory, _unwrap_if_constexpr(dtype), shape, _unwrap_if_constexpr(layout))


def boxes_of(tensor: Tensor, box: list[int], swizzle_as: list[int]) -> TensorDescriptor:
    """Return the descriptor of boxes of a tensor [..., channels], swizzled as a matrix of the shape `swizzle_as` is."""
    types = {torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
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
