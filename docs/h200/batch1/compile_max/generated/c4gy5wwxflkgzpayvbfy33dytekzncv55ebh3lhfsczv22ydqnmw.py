# AOT ID: ['0_inference']
from ctypes import c_void_p, c_long, c_int
import torch
import math
import random
import os
import tempfile
from math import inf, nan
from cmath import nanj
from torch._inductor.hooks import run_intermediate_hooks
from torch._inductor.utils import maybe_profile
from torch._inductor.codegen.memory_planning import _align as align
from torch import device, empty_strided
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
import triton
import triton.language as tl
from torch._inductor.runtime.triton_heuristics import start_graph, end_graph
from torch._C import _cuda_getCurrentRawStream as get_raw_stream

aten = torch.ops.aten
inductor_ops = torch.ops.inductor
_quantized = torch.ops._quantized
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
assert_alignment = torch._C._dynamo.guards.assert_alignment
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
empty_strided_cpu_pinned = torch._C._dynamo.guards._empty_strided_cpu_pinned
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
empty_strided_xpu = torch._C._dynamo.guards._empty_strided_xpu
empty_strided_mtia = torch._C._dynamo.guards._empty_strided_mtia
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
alloc_from_pool = torch.ops.inductor._alloc_from_pool
async_compile = AsyncCompile()
empty_strided_p2p = torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p
from torch._C import _cuda_getCurrentRawStream as get_raw_stream



# kernel path: inductor/dn/cdn5ksismbejf7uioek37ihi3mdwhzrsjc5uep6ufkjonz3wgc4k.py
# Topologically Sorted Source Nodes: [to], Original ATen: [aten._to_copy]
# Source node to ATen node mapping:
#   to => clone, convert_element_type
# Graph fragment:
#   %arg0_1 : Tensor "f32[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0" = PlaceHolder[target=arg0_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   return %clone
triton_poi_fused__to_copy_0 = async_compile.triton('triton_poi_fused__to_copy_0', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 4, 'x': 262144}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_0', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 1, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 1179648, 'x': 3145728}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_0(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 3
    xnumel = 262144
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (x1 + 262144*y0), ymask, eviction_policy='evict_last')
    tmp1 = tmp0.to(tl.float32)
    tl.store(out_ptr0 + (y0 + 3*x1), tmp1, ymask)
''', device_str='cuda')


# kernel path: inductor/zb/czbia5yehjxse5fp7kd4n4jcrnubuvscqdds7v37nwqiqy5cmy74.py
# Topologically Sorted Source Nodes: [to, input_1, input_2], Original ATen: [aten._to_copy, aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   input_1 => convolution
#   input_2 => relu
#   to => clone, convert_element_type
# Graph fragment:
#   %buf1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0" = PlaceHolder[target=buf1]
#   %arg2_1 : Tensor "f16[64][1]cuda:0" = PlaceHolder[target=arg2_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   return %relu
triton_poi_fused__to_copy_convolution_relu_1 = async_compile.triton('triton_poi_fused__to_copy_convolution_relu_1', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 16777216}, 
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp16', 'in_ptr0': '*fp16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_relu_1', 'mutated_arg_names': ['in_out_ptr0'], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'x': 100663424}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_relu_1(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 16777216
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 64)
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(in_out_ptr0 + (x2), tmp4, None)
''', device_str='cuda')


# kernel path: inductor/xr/cxruz7umgcywejck242vp2j2hcrca5ybd2jdqzq3bx5xxp4okwyg.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4], Original ATen: [aten._to_copy, aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   input_1 => convolution
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   to => clone, convert_element_type
# Graph fragment:
#   %buf3 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0" = PlaceHolder[target=buf3]
#   %arg4_1 : Tensor "f16[64][1]cuda:0" = PlaceHolder[target=arg4_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   return %relu_1
triton_poi_fused__to_copy_convolution_relu_2 = async_compile.triton('triton_poi_fused__to_copy_convolution_relu_2', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 64, 'x': 262144}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_relu_2', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 33554560, 'x': 67108864}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_relu_2(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 64
    xnumel = 262144
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 64*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1, 1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(out_ptr0 + (x1 + 262144*y0), tmp4, ymask)
''', device_str='cuda')


# kernel path: inductor/yf/cyfllr5mv562bbhg22zqv26undwgiq6amzdhxrla36dsqti75ocf.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   input_1 => convolution
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   to => clone, convert_element_type
# Graph fragment:
#   %relu_1 : Tensor "f16[1, 64, 512, 512][33554432, 262144, 512, 1]cuda:0" = PlaceHolder[target=relu_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   return %getitem
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_3 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_3', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 64, 'x': 65536}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_3', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 4, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 16777216, 'x': 0}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_3(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 64
    xnumel = 65536
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = (xindex % 256)
    x2 = xindex // 256
    y0 = yindex
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (2*x1 + 1024*x2 + 262144*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (1 + 2*x1 + 1024*x2 + 262144*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tl.load(in_ptr0 + (512 + 2*x1 + 1024*x2 + 262144*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp5 = tl.load(in_ptr0 + (513 + 2*x1 + 1024*x2 + 262144*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = triton_helpers.maximum(tmp0, tmp1)
    tmp4 = triton_helpers.maximum(tmp2, tmp3)
    tmp6 = triton_helpers.maximum(tmp4, tmp5)
    tl.store(out_ptr0 + (y0 + 64*x3), tmp6, ymask)
''', device_str='cuda')


# kernel path: inductor/36/c36nagbkosirlpetqgxs644mj57ssjl6f4x7g7vvgvzybb2ce7ob.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   input_1 => convolution
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   to => clone, convert_element_type
# Graph fragment:
#   %buf6 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0" = PlaceHolder[target=buf6]
#   %arg6_1 : Tensor "f16[128][1]cuda:0" = PlaceHolder[target=arg6_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   return %relu_2
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 8388608}, 
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp16', 'in_ptr0': '*fp16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4', 'mutated_arg_names': ['in_out_ptr0'], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'x': 50331904}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 8388608
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 128)
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(in_out_ptr0 + (x2), tmp4, None)
''', device_str='cuda')


# kernel path: inductor/yr/cyr3k4yk5imx36nf6kwiuyfhyywcdq3s2spi5flwq2772itqrna2.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   input_1 => convolution
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   to => clone, convert_element_type
# Graph fragment:
#   %buf8 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0" = PlaceHolder[target=buf8]
#   %arg8_1 : Tensor "f16[128][1]cuda:0" = PlaceHolder[target=arg8_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   return %relu_3
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_5 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_5', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 128, 'x': 65536}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_5', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 16777472, 'x': 33554432}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_5(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 128
    xnumel = 65536
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 128*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1, 1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(out_ptr0 + (x1 + 65536*y0), tmp4, ymask)
''', device_str='cuda')


# kernel path: inductor/sy/csydyqtdjvxlizh5t4lx4opktlp75lykjjsvzvlee2vdl2syf6k4.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   input_1 => convolution
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   to => clone, convert_element_type
# Graph fragment:
#   %relu_3 : Tensor "f16[1, 128, 256, 256][16777216, 65536, 256, 1]cuda:0" = PlaceHolder[target=relu_3]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   return %getitem_2
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_6 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_6', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 128, 'x': 16384}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_6', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 4, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 8388608, 'x': 0}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_6(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 128
    xnumel = 16384
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = (xindex % 128)
    x2 = xindex // 128
    y0 = yindex
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (2*x1 + 512*x2 + 65536*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (1 + 2*x1 + 512*x2 + 65536*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tl.load(in_ptr0 + (256 + 2*x1 + 512*x2 + 65536*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp5 = tl.load(in_ptr0 + (257 + 2*x1 + 512*x2 + 65536*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = triton_helpers.maximum(tmp0, tmp1)
    tmp4 = triton_helpers.maximum(tmp2, tmp3)
    tmp6 = triton_helpers.maximum(tmp4, tmp5)
    tl.store(out_ptr0 + (y0 + 128*x3), tmp6, ymask)
''', device_str='cuda')


# kernel path: inductor/me/cmeqqhoerkpgd2zchh6oaolorjdt3hikhwyilmvkxbt3fqhj5fwb.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   input_1 => convolution
#   input_10 => relu_4
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %buf11 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0" = PlaceHolder[target=buf11]
#   %arg10_1 : Tensor "f16[256][1]cuda:0" = PlaceHolder[target=arg10_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   return %relu_4
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 4194304}, 
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp16', 'in_ptr0': '*fp16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7', 'mutated_arg_names': ['in_out_ptr0'], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'x': 25166336}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4194304
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 256)
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(in_out_ptr0 + (x2), tmp4, None)
''', device_str='cuda')


# kernel path: inductor/lu/clurmiwk6yea4qnqbfbfm3d7im75ve4ei7u3qchjhtunudyqq2no.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %buf13 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0" = PlaceHolder[target=buf13]
#   %arg12_1 : Tensor "f16[256][1]cuda:0" = PlaceHolder[target=arg12_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   return %relu_5
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_8 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_8', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 256, 'x': 16384}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_8', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 8389120, 'x': 16777216}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_8(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 256
    xnumel = 16384
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 256*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1, 1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(out_ptr0 + (x1 + 16384*y0), tmp4, ymask)
''', device_str='cuda')


# kernel path: inductor/2m/c2mzmzfmi6aw4kzazg77fuphszl4lzscdhbq44dmx4mfzf6fsoor.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %relu_5 : Tensor "f16[1, 256, 128, 128][8388608, 16384, 128, 1]cuda:0" = PlaceHolder[target=relu_5]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   return %getitem_4
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_9 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_9', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 256, 'x': 4096}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_9', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 4, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 4194304, 'x': 0}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_9(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 256
    xnumel = 4096
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = (xindex % 64)
    x2 = xindex // 64
    y0 = yindex
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (2*x1 + 256*x2 + 16384*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (1 + 2*x1 + 256*x2 + 16384*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tl.load(in_ptr0 + (128 + 2*x1 + 256*x2 + 16384*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp5 = tl.load(in_ptr0 + (129 + 2*x1 + 256*x2 + 16384*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = triton_helpers.maximum(tmp0, tmp1)
    tmp4 = triton_helpers.maximum(tmp2, tmp3)
    tmp6 = triton_helpers.maximum(tmp4, tmp5)
    tl.store(out_ptr0 + (y0 + 256*x3), tmp6, ymask)
''', device_str='cuda')


# kernel path: inductor/bz/cbzqkrininy4oiumuv6467v42skzxvfod7qwp5dy4vbljlqci2fm.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_13 => convolution_6
#   input_14 => relu_6
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %buf16 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0" = PlaceHolder[target=buf16]
#   %arg14_1 : Tensor "f16[512][1]cuda:0" = PlaceHolder[target=arg14_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_4, %arg13_1, %arg14_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_6,), kwargs = {})
#   return %relu_6
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 2097152}, 
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp16', 'in_ptr0': '*fp16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10', 'mutated_arg_names': ['in_out_ptr0'], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'x': 12583936}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 2097152
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 512)
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(in_out_ptr0 + (x2), tmp4, None)
''', device_str='cuda')


# kernel path: inductor/6x/c6xpsboupljn4vs5uzffp72et5q4sqzfpzb5loiqa7qlfibnqdj6.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_13 => convolution_6
#   input_14 => relu_6
#   input_15 => convolution_7
#   input_16 => relu_7
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %buf18 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0" = PlaceHolder[target=buf18]
#   %arg16_1 : Tensor "f16[512][1]cuda:0" = PlaceHolder[target=arg16_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_4, %arg13_1, %arg14_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_6,), kwargs = {})
#   %convolution_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_6, %arg15_1, %arg16_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_7,), kwargs = {})
#   return %relu_7
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_11 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_11', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 512, 'x': 4096}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_11', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 4195328, 'x': 8388608}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_11(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 512
    xnumel = 4096
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 512*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1, 1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(out_ptr0 + (x1 + 4096*y0), tmp4, ymask)
''', device_str='cuda')


# kernel path: inductor/yx/cyxdpdzfaxssb7zwau3vm7unif5nb6q3skrngvlo6qtyhswjbqzz.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   image_3 => _low_memory_max_pool_with_offsets_3
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_13 => convolution_6
#   input_14 => relu_6
#   input_15 => convolution_7
#   input_16 => relu_7
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %relu_7 : Tensor "f16[1, 512, 64, 64][4194304, 4096, 64, 1]cuda:0" = PlaceHolder[target=relu_7]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_4, %arg13_1, %arg14_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_6,), kwargs = {})
#   %convolution_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_6, %arg15_1, %arg16_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_7,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_3 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_7, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   return %getitem_6
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_12 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_12', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 512, 'x': 1024}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_12', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 4, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 2097152, 'x': 0}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_12(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 512
    xnumel = 1024
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = xindex < xnumel
    x1 = (xindex % 32)
    x2 = xindex // 32
    y0 = yindex
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (2*x1 + 128*x2 + 4096*y0), xmask & ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (1 + 2*x1 + 128*x2 + 4096*y0), xmask & ymask, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tl.load(in_ptr0 + (64 + 2*x1 + 128*x2 + 4096*y0), xmask & ymask, eviction_policy='evict_last').to(tl.float32)
    tmp5 = tl.load(in_ptr0 + (65 + 2*x1 + 128*x2 + 4096*y0), xmask & ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = triton_helpers.maximum(tmp0, tmp1)
    tmp4 = triton_helpers.maximum(tmp2, tmp3)
    tmp6 = triton_helpers.maximum(tmp4, tmp5)
    tl.store(out_ptr0 + (y0 + 512*x3), tmp6, xmask & ymask)
''', device_str='cuda')


# kernel path: inductor/rn/crn45kbxipkkwc3i7s5xqtwxlklhptsoilof3gs2fxuehj7ffenf.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   image_3 => _low_memory_max_pool_with_offsets_3
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_13 => convolution_6
#   input_14 => relu_6
#   input_15 => convolution_7
#   input_16 => relu_7
#   input_17 => convolution_8
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %getitem_6 : Tensor "f16[1, 512, 32, 32][524288, 1, 16384, 512]cuda:0" = PlaceHolder[target=getitem_6]
#   %arg17_1 : Tensor "f16[1024, 512, 3, 3][4608, 1, 1536, 512]cuda:0" = PlaceHolder[target=arg17_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_4, %arg13_1, %arg14_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_6,), kwargs = {})
#   %convolution_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_6, %arg15_1, %arg16_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_7,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_3 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_7, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_8 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_6, %arg17_1, %arg18_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   return %buf21
triton_tem_fused__to_copy_convolution_max_pool2d_with_indices_relu_13 = async_compile.triton('triton_tem_fused__to_copy_convolution_max_pool2d_with_indices_relu_13', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties

@triton_heuristics.template(

num_stages=4,
num_warps=4,
triton_meta={'signature': {'arg_X': '*fp16', 'arg_W': '*fp16', 'out_ptr0': '*fp16'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}]},
inductor_meta={'kernel_name': 'triton_tem_fused__to_copy_convolution_max_pool2d_with_indices_relu_13', 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'config_args': {'KERNEL_H': 3, 'KERNEL_W': 3, 'STRIDE_H': 1, 'STRIDE_W': 1, 'PADDING_H': 1, 'PADDING_W': 1, 'GROUPS': 1, 'UNROLL': False, 'ALLOW_TF32': False, 'BLOCK_M': 64, 'BLOCK_N': 128, 'BLOCK_K': 128}},

)
@triton.jit
def triton_tem_fused__to_copy_convolution_max_pool2d_with_indices_relu_13(arg_X, arg_W, out_ptr0):
    KERNEL_H : tl.constexpr = 3
    KERNEL_W : tl.constexpr = 3
    STRIDE_H : tl.constexpr = 1
    STRIDE_W : tl.constexpr = 1
    PADDING_H : tl.constexpr = 1
    PADDING_W : tl.constexpr = 1
    GROUPS : tl.constexpr = 1
    UNROLL : tl.constexpr = False
    ALLOW_TF32 : tl.constexpr = False
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 128
    INDEX_DTYPE : tl.constexpr = tl.int32
    X = arg_X
    W = arg_W

    # Tensor dimensions
    BATCH = 1
    IN_C = 512
    IN_H = 32
    IN_W = 32
    OUT_C = 1024
    OUT_H = 32
    OUT_W = 32

    # Strides:
    stride_xn = 524288
    stride_xc = 1
    stride_xh = 16384
    stride_xw = 512
    stride_wc_out = 4608
    stride_wc_in = 1
    stride_wh = 1536
    stride_ww = 512

    nhw = tl.program_id(0).to(INDEX_DTYPE) * BLOCK_M + tl.arange(0, BLOCK_M)
    idx_y_w = nhw % OUT_W
    nh = nhw // OUT_W
    idx_y_h = nh % OUT_H
    idx_n = nh // OUT_H
    idx_y_c = tl.program_id(1).to(INDEX_DTYPE) * BLOCK_N + tl.arange(0, BLOCK_N)


    group = 0
    GROUP_IN_C = IN_C
    GROUP_OUT_C = OUT_C


    x_base = X + (group * stride_xc * GROUP_IN_C + idx_n * stride_xn)[:, None]
    w_base = (
        W + (group * stride_wc_out * GROUP_OUT_C + idx_y_c * stride_wc_out)[None, :]
    )

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)


    # Could be simplified, but slightly slower:
    # for i in range(KERNEL_H):
    #     for j in range(KERNEL_W):
    #         for k in range(0, GROUP_IN_C, BLOCK_K):
    BLOCK_K_COUNT = (GROUP_IN_C + BLOCK_K - 1) // BLOCK_K
    for ijk in range(KERNEL_H * KERNEL_W * BLOCK_K_COUNT):
        k = (ijk % BLOCK_K_COUNT) * BLOCK_K
        ij = ijk // BLOCK_K_COUNT
        i = ij // KERNEL_W
        j = ij % KERNEL_W

        idx_x_h = i - PADDING_H + idx_y_h * STRIDE_H
        idx_x_w = j - PADDING_W + idx_y_w * STRIDE_W
        idx_x_c = tl.arange(0, BLOCK_K) + k

        x_ptrs = x_base + (
            (idx_x_h * stride_xh)[:, None]
            + (idx_x_w * stride_xw)[:, None]
            + (idx_x_c * stride_xc)[None, :]
        )
        mask_x = (
            (idx_n < BATCH)[:, None]
            & (idx_x_h >= 0)[:, None]
            & (idx_x_h < IN_H)[:, None]
            & (idx_x_w >= 0)[:, None]
            & (idx_x_w < IN_W)[:, None]
            & (idx_x_c < GROUP_IN_C)[None, :]
        )
        matrix_x = tl.load(x_ptrs, mask=mask_x, other=0.0)

        w_ptrs = w_base + (
            (idx_x_c * stride_wc_in)[:, None] + (i * stride_wh) + (j * stride_ww)
        )
        mask_w = (idx_x_c[:, None] < GROUP_IN_C) & (idx_y_c[None, :] < GROUP_OUT_C)
        matrix_w = tl.load(w_ptrs, mask=mask_w, other=0.0)
        acc += tl.dot(matrix_x, matrix_w, allow_tf32=ALLOW_TF32)



    mask = (
        (idx_n < BATCH)[:, None]
        & (idx_y_h < OUT_H)[:, None]
        & (idx_y_w < OUT_W)[:, None]
        & (idx_y_c < GROUP_OUT_C)[None, :]
    )
    idx_n = idx_n[:, None]
    idx_c = idx_y_c[None, :] + group * GROUP_OUT_C
    idx_h = idx_y_h[:, None]
    idx_w = idx_y_w[:, None]

    # inductor generates a suffix
    xindex = idx_w + 32*idx_h + 1024*idx_c + 1048576*idx_n
    tl.store(out_ptr0 + (tl.broadcast_to(idx_c + 1024*idx_w + 32768*idx_h, [BLOCK_M, BLOCK_N])), acc, mask)
''', device_str='cuda')


# kernel path: inductor/r4/cr42tp7q6b5suuxiyurauey4tosdxjt5gzgjdu3sitrk3kfmqvwu.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   image_3 => _low_memory_max_pool_with_offsets_3
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_13 => convolution_6
#   input_14 => relu_6
#   input_15 => convolution_7
#   input_16 => relu_7
#   input_17 => convolution_8
#   input_18 => relu_8
#   input_2 => relu
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %buf21 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0" = PlaceHolder[target=buf21]
#   %arg18_1 : Tensor "f16[1024][1]cuda:0" = PlaceHolder[target=arg18_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_4, %arg13_1, %arg14_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_6,), kwargs = {})
#   %convolution_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_6, %arg15_1, %arg16_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_7,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_3 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_7, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_8 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_6, %arg17_1, %arg18_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_8 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_8,), kwargs = {})
#   return %relu_8
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_14 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_14', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 1048576}, 
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp16', 'in_ptr0': '*fp16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_14', 'mutated_arg_names': ['in_out_ptr0'], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'x': 6293504}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_14(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 1048576
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 1024)
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(in_out_ptr0 + (x2), tmp4, None)
''', device_str='cuda')


# kernel path: inductor/4p/c4pkmiqofsqze4l6xnlr6lgauuzqbvt74mtv6rqp6wbve3so5pid.py
# Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18, input_19, input_20, conv_transpose2d], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
# Source node to ATen node mapping:
#   conv_transpose2d => convolution_10
#   image => _low_memory_max_pool_with_offsets
#   image_1 => _low_memory_max_pool_with_offsets_1
#   image_2 => _low_memory_max_pool_with_offsets_2
#   image_3 => _low_memory_max_pool_with_offsets_3
#   input_1 => convolution
#   input_10 => relu_4
#   input_11 => convolution_5
#   input_12 => relu_5
#   input_13 => convolution_6
#   input_14 => relu_6
#   input_15 => convolution_7
#   input_16 => relu_7
#   input_17 => convolution_8
#   input_18 => relu_8
#   input_19 => convolution_9
#   input_2 => relu
#   input_20 => relu_9
#   input_3 => convolution_1
#   input_4 => relu_1
#   input_5 => convolution_2
#   input_6 => relu_2
#   input_7 => convolution_3
#   input_8 => relu_3
#   input_9 => convolution_4
#   to => clone, convert_element_type
# Graph fragment:
#   %buf25 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0" = PlaceHolder[target=buf25]
#   %arg22_1 : Tensor "f16[512][1]cuda:0" = PlaceHolder[target=arg22_1]
#   %convert_element_type : Tensor "f16[1, 3, 512, 512][786432, 262144, 512, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.prims.convert_element_type.default](args = (%arg0_1, torch.float16), kwargs = {})
#   %clone : Tensor "f16[1, 3, 512, 512][786432, 1, 1536, 3]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%convert_element_type,), kwargs = {memory_format: torch.channels_last})
#   %convolution : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%clone, %arg1_1, %arg2_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution,), kwargs = {})
#   %convolution_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu, %arg3_1, %arg4_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_1 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_1,), kwargs = {})
#   %_low_memory_max_pool_with_offsets : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_1, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem, %arg5_1, %arg6_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_2 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_2,), kwargs = {})
#   %convolution_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_2, %arg7_1, %arg8_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_3 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_3,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_1 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_3, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_2, %arg9_1, %arg10_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_4 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_4,), kwargs = {})
#   %convolution_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_4, %arg11_1, %arg12_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_5 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_5,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_2 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_5, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_4, %arg13_1, %arg14_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_6 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_6,), kwargs = {})
#   %convolution_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_6, %arg15_1, %arg16_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_7 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_7,), kwargs = {})
#   %_low_memory_max_pool_with_offsets_3 : [num_users=1] = call_function[target=torch.ops.prims._low_memory_max_pool_with_offsets.default](args = (%relu_7, [2, 2], [2, 2], [0, 0], [1, 1], False), kwargs = {})
#   %convolution_8 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%getitem_6, %arg17_1, %arg18_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_8 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_8,), kwargs = {})
#   %convolution_9 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_8, %arg19_1, %arg20_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_9 : Tensor "f16[1, 1024, 32, 32][1048576, 1, 32768, 1024]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_9,), kwargs = {})
#   %convolution_10 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_9, %arg21_1, %arg22_1, [2, 2], [0, 0], [1, 1], True, [0, 0], 1), kwargs = {})
#   return %convolution_10
triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_15 = async_compile.triton('triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_15', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 512, 'x': 4096}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_15', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 4195328, 'x': 8388608}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_15(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 512
    xnumel = 4096
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 512*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tl.store(out_ptr0 + (x1 + 4096*y0), tmp2, ymask)
''', device_str='cuda')


# kernel path: inductor/he/checp5z77y6ozk7qiqx6qeu4vsakmfyx75b7tlhr74cwrawilh76.py
# Topologically Sorted Source Nodes: [input_21], Original ATen: [aten.convolution]
# Source node to ATen node mapping:
#   input_21 => convolution_11
# Graph fragment:
#   %cat : Tensor "f16[1, 1024, 64, 64][4194304, 4096, 64, 1]cuda:0" = PlaceHolder[target=cat]
#   %convolution_11 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat, %arg23_1, %arg24_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   return %buf28
triton_poi_fused_convolution_16 = async_compile.triton('triton_poi_fused_convolution_16', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 1024, 'x': 4096}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_16', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 1, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 16777216, 'x': 8388608}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_16(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 1024
    xnumel = 4096
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = tl.full([YBLOCK], True, tl.int1)[:, None]
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (x1 + 4096*y0), None, eviction_policy='evict_last').to(tl.float32)
    tl.store(out_ptr0 + (y0 + 1024*x1), tmp0, None)
''', device_str='cuda')


# kernel path: inductor/cs/ccsbok6uokznzhyeb22aasf3y6nevhnksuhssxwsdnkpps4fqnak.py
# Topologically Sorted Source Nodes: [input_21, input_22, input_23, input_24, conv_transpose2d_1], Original ATen: [aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   conv_transpose2d_1 => convolution_13
#   input_21 => convolution_11
#   input_22 => relu_10
#   input_23 => convolution_12
#   input_24 => relu_11
# Graph fragment:
#   %buf33 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0" = PlaceHolder[target=buf33]
#   %arg28_1 : Tensor "f16[256][1]cuda:0" = PlaceHolder[target=arg28_1]
#   %convolution_11 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat, %arg23_1, %arg24_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_10 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_11,), kwargs = {})
#   %convolution_12 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_10, %arg25_1, %arg26_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_11 : Tensor "f16[1, 512, 64, 64][2097152, 1, 32768, 512]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_12,), kwargs = {})
#   %convolution_13 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_11, %arg27_1, %arg28_1, [2, 2], [0, 0], [1, 1], True, [0, 0], 1), kwargs = {})
#   return %convolution_13
triton_poi_fused_convolution_relu_17 = async_compile.triton('triton_poi_fused_convolution_relu_17', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 256, 'x': 16384}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_relu_17', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 8389120, 'x': 16777216}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_relu_17(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 256
    xnumel = 16384
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 256*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tl.store(out_ptr0 + (x1 + 16384*y0), tmp2, ymask)
''', device_str='cuda')


# kernel path: inductor/3n/c3ni43rsoo7haztafhwlpohnsye5dnpud5exua4nuijluhcyut5e.py
# Topologically Sorted Source Nodes: [input_25], Original ATen: [aten.convolution]
# Source node to ATen node mapping:
#   input_25 => convolution_14
# Graph fragment:
#   %cat_1 : Tensor "f16[1, 512, 128, 128][8388608, 16384, 128, 1]cuda:0" = PlaceHolder[target=cat_1]
#   %convolution_14 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat_1, %arg29_1, %arg30_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   return %buf36
triton_poi_fused_convolution_18 = async_compile.triton('triton_poi_fused_convolution_18', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 512, 'x': 16384}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_18', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 1, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 33554432, 'x': 16777216}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_18(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 512
    xnumel = 16384
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (x1 + 16384*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tl.store(out_ptr0 + (y0 + 512*x1), tmp0, ymask)
''', device_str='cuda')


# kernel path: inductor/wb/cwbqr25tsmhbwyzhiulvcwagerggpa2zvsdcybfod3pzte55kszo.py
# Topologically Sorted Source Nodes: [input_25, input_26, input_27, input_28, conv_transpose2d_2], Original ATen: [aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   conv_transpose2d_2 => convolution_16
#   input_25 => convolution_14
#   input_26 => relu_12
#   input_27 => convolution_15
#   input_28 => relu_13
# Graph fragment:
#   %buf41 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0" = PlaceHolder[target=buf41]
#   %arg34_1 : Tensor "f16[128][1]cuda:0" = PlaceHolder[target=arg34_1]
#   %convolution_14 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat_1, %arg29_1, %arg30_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_12 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_14,), kwargs = {})
#   %convolution_15 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_12, %arg31_1, %arg32_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_13 : Tensor "f16[1, 256, 128, 128][4194304, 1, 32768, 256]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_15,), kwargs = {})
#   %convolution_16 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_13, %arg33_1, %arg34_1, [2, 2], [0, 0], [1, 1], True, [0, 0], 1), kwargs = {})
#   return %convolution_16
triton_poi_fused_convolution_relu_19 = async_compile.triton('triton_poi_fused_convolution_relu_19', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 128, 'x': 65536}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_relu_19', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 16777472, 'x': 33554432}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_relu_19(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 128
    xnumel = 65536
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 128*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tl.store(out_ptr0 + (x1 + 65536*y0), tmp2, ymask)
''', device_str='cuda')


# kernel path: inductor/4z/c4zttkzsngwxbam6k4urrxxxjzqrruxvp6pza5epoui3bebx6l34.py
# Topologically Sorted Source Nodes: [input_29], Original ATen: [aten.convolution]
# Source node to ATen node mapping:
#   input_29 => convolution_17
# Graph fragment:
#   %cat_2 : Tensor "f16[1, 256, 256, 256][16777216, 65536, 256, 1]cuda:0" = PlaceHolder[target=cat_2]
#   %convolution_17 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat_2, %arg35_1, %arg36_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   return %buf44
triton_poi_fused_convolution_20 = async_compile.triton('triton_poi_fused_convolution_20', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 256, 'x': 65536}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_20', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 1, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 67108864, 'x': 33554432}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_20(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 256
    xnumel = 65536
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (x1 + 65536*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tl.store(out_ptr0 + (y0 + 256*x1), tmp0, ymask)
''', device_str='cuda')


# kernel path: inductor/ni/cni2wra5f6nvrylbq2d6wo6bxpiznpsmkiitf6shhrjwvxyxj6vw.py
# Topologically Sorted Source Nodes: [input_29, input_30, input_31, input_32, conv_transpose2d_3], Original ATen: [aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   conv_transpose2d_3 => convolution_19
#   input_29 => convolution_17
#   input_30 => relu_14
#   input_31 => convolution_18
#   input_32 => relu_15
# Graph fragment:
#   %buf49 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0" = PlaceHolder[target=buf49]
#   %arg40_1 : Tensor "f16[64][1]cuda:0" = PlaceHolder[target=arg40_1]
#   %convolution_17 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat_2, %arg35_1, %arg36_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_14 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_17,), kwargs = {})
#   %convolution_18 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_14, %arg37_1, %arg38_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_15 : Tensor "f16[1, 128, 256, 256][8388608, 1, 32768, 128]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_18,), kwargs = {})
#   %convolution_19 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_15, %arg39_1, %arg40_1, [2, 2], [0, 0], [1, 1], True, [0, 0], 1), kwargs = {})
#   return %convolution_19
triton_poi_fused_convolution_relu_21 = async_compile.triton('triton_poi_fused_convolution_relu_21', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 64, 'x': 262144}, tile_hint=TileHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'in_ptr1': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]], (4,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_relu_21', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 2, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 33554560, 'x': 67108864}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_relu_21(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 64
    xnumel = 262144
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 64*x1), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 + tmp1
    tl.store(out_ptr0 + (x1 + 262144*y0), tmp2, ymask)
''', device_str='cuda')


# kernel path: inductor/2p/c2p6zrdfa5ut7merkaut2un7wjgfm6niunmihnfu4yeise6ncftp.py
# Topologically Sorted Source Nodes: [input_33], Original ATen: [aten.convolution]
# Source node to ATen node mapping:
#   input_33 => convolution_20
# Graph fragment:
#   %cat_3 : Tensor "f16[1, 128, 512, 512][33554432, 262144, 512, 1]cuda:0" = PlaceHolder[target=cat_3]
#   %convolution_20 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat_3, %arg41_1, %arg42_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   return %buf52
triton_poi_fused_convolution_22 = async_compile.triton('triton_poi_fused_convolution_22', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'y': 128, 'x': 262144}, tile_hint=TileHint.SQUARE,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp16', 'out_ptr0': '*fp16', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid2D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_convolution_22', 'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'atomic_add_found': False, 'num_load': 1, 'num_store': 1, 'num_reduction': 0, 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'tiling_scores': {'y': 134217728, 'x': 67108864}},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_convolution_22(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 128
    xnumel = 262144
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = yindex < ynumel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = tl.full([XBLOCK], True, tl.int1)[None, :]
    x1 = xindex
    y0 = yindex
    tmp0 = tl.load(in_ptr0 + (x1 + 262144*y0), ymask, eviction_policy='evict_last').to(tl.float32)
    tl.store(out_ptr0 + (y0 + 128*x1), tmp0, ymask)
''', device_str='cuda')


# kernel path: inductor/ie/cienoa565dx5dqsnllfyiffi77hrwfpjovp7w6ldsd7xh2obbg6g.py
# Topologically Sorted Source Nodes: [input_33, input_34, input_35, input_36, logits], Original ATen: [aten.convolution, aten.relu]
# Source node to ATen node mapping:
#   input_33 => convolution_20
#   input_34 => relu_16
#   input_35 => convolution_21
#   input_36 => relu_17
#   logits => convolution_22
# Graph fragment:
#   %arg46_1 : Tensor "f16[2][1]cuda:0" = PlaceHolder[target=arg46_1]
#   %buf56 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0" = PlaceHolder[target=buf56]
#   %arg45_1 : Tensor "f16[2, 64, 1, 1][64, 1, 64, 64]cuda:0" = PlaceHolder[target=arg45_1]
#   %convolution_20 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%cat_3, %arg41_1, %arg42_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_16 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_20,), kwargs = {})
#   %convolution_21 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_16, %arg43_1, %arg44_1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), kwargs = {})
#   %relu_17 : Tensor "f16[1, 64, 512, 512][16777216, 1, 32768, 64]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%convolution_21,), kwargs = {})
#   %convolution_22 : Tensor "f16[1, 2, 512, 512][524288, 1, 1024, 2]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%relu_17, %arg45_1, %arg46_1, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), kwargs = {})
#   return %buf57
triton_tem_fused_convolution_relu_23 = async_compile.triton('triton_tem_fused_convolution_relu_23', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties

@triton_heuristics.template(

num_stages=2,
num_warps=2,
triton_meta={'signature': {'in_ptr0': '*fp16', 'arg_A': '*fp16', 'arg_B': '*fp16', 'out_ptr0': '*fp16'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]},
inductor_meta={'kernel_name': 'triton_tem_fused_convolution_relu_23', 'backend_hash': '91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336', 'assert_indirect_indexing': True, 'autotune_local_cache': True, 'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False, 'dynamic_scale_rblock': True, 'max_autotune': True, 'max_autotune_pointwise': False, 'min_split_scan_rblock': 256, 'spill_threshold': 16, 'store_cubin': False, 'deterministic': False, 'force_filter_reduction_configs': False, 'mix_order_reduction_allow_multi_stages': False, 'are_deterministic_algorithms_enabled': False, 'coordinate_descent_tuning': True, 'coordinate_descent_search_radius': 1, 'coordinate_descent_check_all_directions': False, 'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'config_args': {'EVEN_K': True, 'USE_FAST_ACCUM': False, 'ACC_TYPE': 'tl.float32', 'BLOCK_M': 32, 'BLOCK_N': 16, 'BLOCK_K': 64, 'GROUP_M': 8, 'ALLOW_TF32': True}},

)
@triton.jit
def triton_tem_fused_convolution_relu_23(in_ptr0, arg_A, arg_B, out_ptr0):
    EVEN_K : tl.constexpr = True
    USE_FAST_ACCUM : tl.constexpr = False
    ACC_TYPE : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 32
    BLOCK_N : tl.constexpr = 16
    BLOCK_K : tl.constexpr = 64
    GROUP_M : tl.constexpr = 8
    ALLOW_TF32 : tl.constexpr = True
    INDEX_DTYPE : tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 262144
    N = 2
    K = 64
    if M * N == 0:
        # early exit due to zero-size input(s)
        return
    stride_am = 64
    stride_ak = 1
    stride_bk = 1
    stride_bn = 64

    # based on triton.ops.matmul
    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = (M + BLOCK_M - 1) // BLOCK_M
    grid_n = (N + BLOCK_N - 1) // BLOCK_N

    # re-order program ID for better L2 performance
    width = GROUP_M * grid_n
    group_id = pid // width
    group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
    pid_m = group_id * GROUP_M + (pid % group_size)
    pid_n = (pid % width) // (group_size)
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)

    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if ((stride_am == 1 and stride_ak == M) or (stride_am == K and stride_ak == 1)) and (M >= BLOCK_M and K > 1):
        offs_a_m = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    else:
        offs_a_m = rm % M
    if ((stride_bk == 1 and stride_bn == K) or (stride_bk == N and stride_bn == 1)) and (N >= BLOCK_N and K > 1):
        offs_b_n = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    else:
        offs_b_n = rn % N
    offs_k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)

    for k_idx in range(0, tl.cdiv(K, BLOCK_K)):

        a_k_idx_vals = offs_k[None, :] + (k_idx * BLOCK_K)
        b_k_idx_vals = offs_k[:, None] + (k_idx * BLOCK_K)

        idx_m = offs_a_m[:, None]
        idx_n = a_k_idx_vals
        xindex = idx_n + 64*idx_m
        a = tl.load(A + (xindex))

        idx_m = b_k_idx_vals
        idx_n = offs_b_n[None, :]
        xindex = idx_n + 2*idx_m
        b = tl.load(B + ((tl.broadcast_to(idx_m + 64*idx_n, [BLOCK_K, BLOCK_N])).broadcast_to(xindex.shape)))


        acc += tl.dot(a, b, allow_tf32=ALLOW_TF32, out_dtype=ACC_TYPE)


    # rematerialize rm and rn to save registers
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)

    # inductor generates a suffix
    xindex = idx_n + 2*idx_m
    tmp0 = tl.load(in_ptr0 + (tl.broadcast_to(idx_n, [BLOCK_M, BLOCK_N])), mask, eviction_policy='evict_last').to(tl.float32)
    tmp1 = acc + tmp0
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), tmp1, mask)
''', device_str='cuda')

def partition_0(args):
    arg0_1, arg1_1, arg2_1, arg3_1, arg4_1, arg5_1, arg6_1, arg7_1, arg8_1, arg9_1, arg10_1, arg11_1, arg12_1, arg13_1, arg14_1, arg15_1, arg16_1, arg17_1, arg18_1, arg19_1, arg20_1, arg21_1, arg22_1, arg23_1, arg24_1, arg25_1, arg26_1, arg27_1, arg28_1, arg29_1, arg30_1, arg31_1, arg32_1, arg33_1, arg34_1, arg35_1, arg36_1, arg37_1, arg38_1, arg39_1, arg40_1, arg41_1, arg42_1, arg43_1, arg44_1, arg46_1, arg45_1 = args
    args.clear()
    assert_size_stride(arg0_1, (1, 3, 512, 512), (786432, 262144, 512, 1))
    assert_size_stride(arg1_1, (64, 3, 3, 3), (27, 1, 9, 3))
    assert_size_stride(arg2_1, (64, ), (1, ))
    assert_size_stride(arg3_1, (64, 64, 3, 3), (576, 1, 192, 64))
    assert_size_stride(arg4_1, (64, ), (1, ))
    assert_size_stride(arg5_1, (128, 64, 3, 3), (576, 1, 192, 64))
    assert_size_stride(arg6_1, (128, ), (1, ))
    assert_size_stride(arg7_1, (128, 128, 3, 3), (1152, 1, 384, 128))
    assert_size_stride(arg8_1, (128, ), (1, ))
    assert_size_stride(arg9_1, (256, 128, 3, 3), (1152, 1, 384, 128))
    assert_size_stride(arg10_1, (256, ), (1, ))
    assert_size_stride(arg11_1, (256, 256, 3, 3), (2304, 1, 768, 256))
    assert_size_stride(arg12_1, (256, ), (1, ))
    assert_size_stride(arg13_1, (512, 256, 3, 3), (2304, 1, 768, 256))
    assert_size_stride(arg14_1, (512, ), (1, ))
    assert_size_stride(arg15_1, (512, 512, 3, 3), (4608, 1, 1536, 512))
    assert_size_stride(arg16_1, (512, ), (1, ))
    assert_size_stride(arg17_1, (1024, 512, 3, 3), (4608, 1, 1536, 512))
    assert_size_stride(arg18_1, (1024, ), (1, ))
    assert_size_stride(arg19_1, (1024, 1024, 3, 3), (9216, 1, 3072, 1024))
    assert_size_stride(arg20_1, (1024, ), (1, ))
    assert_size_stride(arg21_1, (1024, 512, 2, 2), (2048, 1, 1024, 512))
    assert_size_stride(arg22_1, (512, ), (1, ))
    assert_size_stride(arg23_1, (512, 1024, 3, 3), (9216, 1, 3072, 1024))
    assert_size_stride(arg24_1, (512, ), (1, ))
    assert_size_stride(arg25_1, (512, 512, 3, 3), (4608, 1, 1536, 512))
    assert_size_stride(arg26_1, (512, ), (1, ))
    assert_size_stride(arg27_1, (512, 256, 2, 2), (1024, 1, 512, 256))
    assert_size_stride(arg28_1, (256, ), (1, ))
    assert_size_stride(arg29_1, (256, 512, 3, 3), (4608, 1, 1536, 512))
    assert_size_stride(arg30_1, (256, ), (1, ))
    assert_size_stride(arg31_1, (256, 256, 3, 3), (2304, 1, 768, 256))
    assert_size_stride(arg32_1, (256, ), (1, ))
    assert_size_stride(arg33_1, (256, 128, 2, 2), (512, 1, 256, 128))
    assert_size_stride(arg34_1, (128, ), (1, ))
    assert_size_stride(arg35_1, (128, 256, 3, 3), (2304, 1, 768, 256))
    assert_size_stride(arg36_1, (128, ), (1, ))
    assert_size_stride(arg37_1, (128, 128, 3, 3), (1152, 1, 384, 128))
    assert_size_stride(arg38_1, (128, ), (1, ))
    assert_size_stride(arg39_1, (128, 64, 2, 2), (256, 1, 128, 64))
    assert_size_stride(arg40_1, (64, ), (1, ))
    assert_size_stride(arg41_1, (64, 128, 3, 3), (1152, 1, 384, 128))
    assert_size_stride(arg42_1, (64, ), (1, ))
    assert_size_stride(arg43_1, (64, 64, 3, 3), (576, 1, 192, 64))
    assert_size_stride(arg44_1, (64, ), (1, ))
    assert_size_stride(arg46_1, (2, ), (1, ))
    assert_size_stride(arg45_1, (2, 64, 1, 1), (64, 1, 64, 64))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((1, 3, 512, 512), (786432, 1, 1536, 3), torch.float16)
        # Topologically Sorted Source Nodes: [to], Original ATen: [aten._to_copy]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_0.run(arg0_1, buf0, 3, 262144, stream=stream0)
        del arg0_1
        # Topologically Sorted Source Nodes: [to, input_1], Original ATen: [aten._to_copy, aten.convolution]
        buf1 = extern_kernels.convolution(buf0, arg1_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf1, (1, 64, 512, 512), (16777216, 1, 32768, 64), 'unknown_op')
        del arg1_1
        del buf0
        buf2 = buf1; del buf1  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2], Original ATen: [aten._to_copy, aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_relu_1.run(buf2, arg2_1, 16777216, stream=stream0)
        del arg2_1
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3], Original ATen: [aten._to_copy, aten.convolution, aten.relu]
        buf3 = extern_kernels.convolution(buf2, arg3_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf3, (1, 64, 512, 512), (16777216, 1, 32768, 64), 'unknown_op')
        del arg3_1
        del buf2
        buf51 = empty_strided_cuda((1, 128, 512, 512), (33554432, 262144, 512, 1), torch.float16)
        buf4 = reinterpret_tensor(buf51, (1, 64, 512, 512), (33554432, 262144, 512, 1), 0)  # alias
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4], Original ATen: [aten._to_copy, aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_relu_2.run(buf3, arg4_1, buf4, 64, 262144, stream=stream0)
        del arg4_1
        buf5 = empty_strided_cuda((1, 64, 256, 256), (4194304, 1, 16384, 64), torch.float16)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_3.run(buf4, buf5, 64, 65536, stream=stream0)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf6 = extern_kernels.convolution(buf5, arg5_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf6, (1, 128, 256, 256), (8388608, 1, 32768, 128), 'unknown_op')
        del arg5_1
        del buf5
        buf7 = buf6; del buf6  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4.run(buf7, arg6_1, 8388608, stream=stream0)
        del arg6_1
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf8 = extern_kernels.convolution(buf7, arg7_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf8, (1, 128, 256, 256), (8388608, 1, 32768, 128), 'unknown_op')
        del arg7_1
        buf43 = reinterpret_tensor(buf3, (1, 256, 256, 256), (16777216, 65536, 256, 1), 0); del buf3  # reuse
        buf9 = reinterpret_tensor(buf43, (1, 128, 256, 256), (16777216, 65536, 256, 1), 0)  # alias
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_5.run(buf8, arg8_1, buf9, 128, 65536, stream=stream0)
        del arg8_1
        buf10 = empty_strided_cuda((1, 128, 128, 128), (2097152, 1, 16384, 128), torch.float16)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_6.run(buf9, buf10, 128, 16384, stream=stream0)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf11 = extern_kernels.convolution(buf10, arg9_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf11, (1, 256, 128, 128), (4194304, 1, 32768, 256), 'unknown_op')
        del arg9_1
        del buf10
        buf12 = buf11; del buf11  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7.run(buf12, arg10_1, 4194304, stream=stream0)
        del arg10_1
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf13 = extern_kernels.convolution(buf12, arg11_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf13, (1, 256, 128, 128), (4194304, 1, 32768, 256), 'unknown_op')
        del arg11_1
        buf35 = reinterpret_tensor(buf8, (1, 512, 128, 128), (8388608, 16384, 128, 1), 0); del buf8  # reuse
        buf14 = reinterpret_tensor(buf35, (1, 256, 128, 128), (8388608, 16384, 128, 1), 0)  # alias
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_8.run(buf13, arg12_1, buf14, 256, 16384, stream=stream0)
        del arg12_1
        buf15 = empty_strided_cuda((1, 256, 64, 64), (1048576, 1, 16384, 256), torch.float16)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_9.run(buf14, buf15, 256, 4096, stream=stream0)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf16 = extern_kernels.convolution(buf15, arg13_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf16, (1, 512, 64, 64), (2097152, 1, 32768, 512), 'unknown_op')
        del arg13_1
        buf17 = buf16; del buf16  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10.run(buf17, arg14_1, 2097152, stream=stream0)
        del arg14_1
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf18 = extern_kernels.convolution(buf17, arg15_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf18, (1, 512, 64, 64), (2097152, 1, 32768, 512), 'unknown_op')
        del arg15_1
        del buf17
        buf27 = reinterpret_tensor(buf13, (1, 1024, 64, 64), (4194304, 4096, 64, 1), 0); del buf13  # reuse
        buf19 = reinterpret_tensor(buf27, (1, 512, 64, 64), (4194304, 4096, 64, 1), 0)  # alias
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_11.run(buf18, arg16_1, buf19, 512, 4096, stream=stream0)
        del arg16_1
        del buf18
        buf20 = empty_strided_cuda((1, 512, 32, 32), (524288, 1, 16384, 512), torch.float16)
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_12.run(buf19, buf20, 512, 1024, stream=stream0)
        buf21 = reinterpret_tensor(buf15, (1, 1024, 32, 32), (1048576, 1, 32768, 1024), 0); del buf15  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_tem_fused__to_copy_convolution_max_pool2d_with_indices_relu_13.run(buf20, arg17_1, buf21, 16, 8, 1, stream=stream0)
        del arg17_1
        del buf20
        buf22 = buf21; del buf21  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_14.run(buf22, arg18_1, 1048576, stream=stream0)
        del arg18_1
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18, input_19], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf23 = extern_kernels.convolution(buf22, arg19_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf23, (1, 1024, 32, 32), (1048576, 1, 32768, 1024), 'unknown_op')
        del arg19_1
        del buf22
        buf24 = buf23; del buf23  # reuse
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18, input_19, input_20], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_14.run(buf24, arg20_1, 1048576, stream=stream0)
        del arg20_1
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18, input_19, input_20, conv_transpose2d], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        buf25 = extern_kernels.convolution(buf24, arg21_1, stride=(2, 2), padding=(0, 0), dilation=(1, 1), transposed=True, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf25, (1, 512, 64, 64), (2097152, 1, 32768, 512), 'torch.ops.aten.convolution.default')
        del arg21_1
        del buf24
        buf26 = reinterpret_tensor(buf27, (1, 512, 64, 64), (4194304, 4096, 64, 1), 2097152)  # alias
        # Topologically Sorted Source Nodes: [to, input_1, input_2, input_3, input_4, image, input_5, input_6, input_7, input_8, image_1, input_9, input_10, input_11, input_12, image_2, input_13, input_14, input_15, input_16, image_3, input_17, input_18, input_19, input_20, conv_transpose2d], Original ATen: [aten._to_copy, aten.convolution, aten.relu, aten.max_pool2d_with_indices]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_15.run(buf25, arg22_1, buf26, 512, 4096, stream=stream0)
        del arg22_1
        del buf25
        buf28 = reinterpret_tensor(buf12, (1, 1024, 64, 64), (4194304, 1, 65536, 1024), 0); del buf12  # reuse
        # Topologically Sorted Source Nodes: [input_21], Original ATen: [aten.convolution]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_16.run(buf27, buf28, 1024, 4096, stream=stream0)
        del buf19
        del buf26
        del buf27
        # Topologically Sorted Source Nodes: [input_21], Original ATen: [aten.convolution]
        buf29 = extern_kernels.convolution(buf28, arg23_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf29, (1, 512, 64, 64), (2097152, 1, 32768, 512), 'unknown_op')
        del arg23_1
        del buf28
        buf30 = buf29; del buf29  # reuse
        # Topologically Sorted Source Nodes: [input_21, input_22], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10.run(buf30, arg24_1, 2097152, stream=stream0)
        del arg24_1
        # Topologically Sorted Source Nodes: [input_21, input_22, input_23], Original ATen: [aten.convolution, aten.relu]
        buf31 = extern_kernels.convolution(buf30, arg25_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf31, (1, 512, 64, 64), (2097152, 1, 32768, 512), 'unknown_op')
        del arg25_1
        del buf30
        buf32 = buf31; del buf31  # reuse
        # Topologically Sorted Source Nodes: [input_21, input_22, input_23, input_24], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_10.run(buf32, arg26_1, 2097152, stream=stream0)
        del arg26_1
        # Topologically Sorted Source Nodes: [input_21, input_22, input_23, input_24, conv_transpose2d_1], Original ATen: [aten.convolution, aten.relu]
        buf33 = extern_kernels.convolution(buf32, arg27_1, stride=(2, 2), padding=(0, 0), dilation=(1, 1), transposed=True, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf33, (1, 256, 128, 128), (4194304, 1, 32768, 256), 'torch.ops.aten.convolution.default')
        del arg27_1
        del buf32
        buf34 = reinterpret_tensor(buf35, (1, 256, 128, 128), (8388608, 16384, 128, 1), 4194304)  # alias
        # Topologically Sorted Source Nodes: [input_21, input_22, input_23, input_24, conv_transpose2d_1], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_relu_17.run(buf33, arg28_1, buf34, 256, 16384, stream=stream0)
        del arg28_1
        del buf33
        buf36 = reinterpret_tensor(buf7, (1, 512, 128, 128), (8388608, 1, 65536, 512), 0); del buf7  # reuse
        # Topologically Sorted Source Nodes: [input_25], Original ATen: [aten.convolution]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_18.run(buf35, buf36, 512, 16384, stream=stream0)
        del buf14
        del buf34
        del buf35
        # Topologically Sorted Source Nodes: [input_25], Original ATen: [aten.convolution]
        buf37 = extern_kernels.convolution(buf36, arg29_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf37, (1, 256, 128, 128), (4194304, 1, 32768, 256), 'unknown_op')
        del arg29_1
        del buf36
        buf38 = buf37; del buf37  # reuse
        # Topologically Sorted Source Nodes: [input_25, input_26], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7.run(buf38, arg30_1, 4194304, stream=stream0)
        del arg30_1
        # Topologically Sorted Source Nodes: [input_25, input_26, input_27], Original ATen: [aten.convolution, aten.relu]
        buf39 = extern_kernels.convolution(buf38, arg31_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf39, (1, 256, 128, 128), (4194304, 1, 32768, 256), 'unknown_op')
        del arg31_1
        del buf38
        buf40 = buf39; del buf39  # reuse
        # Topologically Sorted Source Nodes: [input_25, input_26, input_27, input_28], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_7.run(buf40, arg32_1, 4194304, stream=stream0)
        del arg32_1
        # Topologically Sorted Source Nodes: [input_25, input_26, input_27, input_28, conv_transpose2d_2], Original ATen: [aten.convolution, aten.relu]
        buf41 = extern_kernels.convolution(buf40, arg33_1, stride=(2, 2), padding=(0, 0), dilation=(1, 1), transposed=True, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf41, (1, 128, 256, 256), (8388608, 1, 32768, 128), 'torch.ops.aten.convolution.default')
        del arg33_1
        del buf40
        buf42 = reinterpret_tensor(buf43, (1, 128, 256, 256), (16777216, 65536, 256, 1), 8388608)  # alias
        # Topologically Sorted Source Nodes: [input_25, input_26, input_27, input_28, conv_transpose2d_2], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_relu_19.run(buf41, arg34_1, buf42, 128, 65536, stream=stream0)
        del arg34_1
        del buf41
        buf44 = empty_strided_cuda((1, 256, 256, 256), (16777216, 1, 65536, 256), torch.float16)
        # Topologically Sorted Source Nodes: [input_29], Original ATen: [aten.convolution]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_20.run(buf43, buf44, 256, 65536, stream=stream0)
        del buf42
        del buf43
        del buf9
        # Topologically Sorted Source Nodes: [input_29], Original ATen: [aten.convolution]
        buf45 = extern_kernels.convolution(buf44, arg35_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf45, (1, 128, 256, 256), (8388608, 1, 32768, 128), 'unknown_op')
        del arg35_1
        del buf44
        buf46 = buf45; del buf45  # reuse
        # Topologically Sorted Source Nodes: [input_29, input_30], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4.run(buf46, arg36_1, 8388608, stream=stream0)
        del arg36_1
        # Topologically Sorted Source Nodes: [input_29, input_30, input_31], Original ATen: [aten.convolution, aten.relu]
        buf47 = extern_kernels.convolution(buf46, arg37_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf47, (1, 128, 256, 256), (8388608, 1, 32768, 128), 'unknown_op')
        del arg37_1
        del buf46
        buf48 = buf47; del buf47  # reuse
        # Topologically Sorted Source Nodes: [input_29, input_30, input_31, input_32], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_max_pool2d_with_indices_relu_4.run(buf48, arg38_1, 8388608, stream=stream0)
        del arg38_1
        # Topologically Sorted Source Nodes: [input_29, input_30, input_31, input_32, conv_transpose2d_3], Original ATen: [aten.convolution, aten.relu]
        buf49 = extern_kernels.convolution(buf48, arg39_1, stride=(2, 2), padding=(0, 0), dilation=(1, 1), transposed=True, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf49, (1, 64, 512, 512), (16777216, 1, 32768, 64), 'torch.ops.aten.convolution.default')
        del arg39_1
        del buf48
        buf50 = reinterpret_tensor(buf51, (1, 64, 512, 512), (33554432, 262144, 512, 1), 16777216)  # alias
        # Topologically Sorted Source Nodes: [input_29, input_30, input_31, input_32, conv_transpose2d_3], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_relu_21.run(buf49, arg40_1, buf50, 64, 262144, stream=stream0)
        del arg40_1
        del buf49
        buf52 = empty_strided_cuda((1, 128, 512, 512), (33554432, 1, 65536, 128), torch.float16)
        # Topologically Sorted Source Nodes: [input_33], Original ATen: [aten.convolution]
        stream0 = get_raw_stream(0)
        triton_poi_fused_convolution_22.run(buf51, buf52, 128, 262144, stream=stream0)
        del buf4
        del buf50
        del buf51
        # Topologically Sorted Source Nodes: [input_33], Original ATen: [aten.convolution]
        buf53 = extern_kernels.convolution(buf52, arg41_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf53, (1, 64, 512, 512), (16777216, 1, 32768, 64), 'unknown_op')
        del arg41_1
        del buf52
        buf54 = buf53; del buf53  # reuse
        # Topologically Sorted Source Nodes: [input_33, input_34], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_relu_1.run(buf54, arg42_1, 16777216, stream=stream0)
        del arg42_1
        # Topologically Sorted Source Nodes: [input_33, input_34, input_35], Original ATen: [aten.convolution, aten.relu]
        buf55 = extern_kernels.convolution(buf54, arg43_1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1, bias=None)
        assert_size_stride(buf55, (1, 64, 512, 512), (16777216, 1, 32768, 64), 'unknown_op')
        del arg43_1
        del buf54
        buf56 = buf55; del buf55  # reuse
        # Topologically Sorted Source Nodes: [input_33, input_34, input_35, input_36, logits], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused__to_copy_convolution_relu_1.run(buf56, arg44_1, 16777216, stream=stream0)
        del arg44_1
        buf57 = empty_strided_cuda((262144, 2), (2, 1), torch.float16)
        # Topologically Sorted Source Nodes: [input_33, input_34, input_35, input_36, logits], Original ATen: [aten.convolution, aten.relu]
        stream0 = get_raw_stream(0)
        triton_tem_fused_convolution_relu_23.run(arg46_1, buf56, arg45_1, buf57, 8192, 1, 1, stream=stream0)
        del arg45_1
        del arg46_1
        del buf56
    return (buf57, )


async_compile.wait(globals())
del async_compile

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def recursively_apply_fns(self, fns):
        new_callables = []
        for fn, c in zip(fns, self.partitions):
            new_callables.append(fn(c))
        self.partitions = new_callables

    def call(self, args):
        arg0_1, arg1_1, arg2_1, arg3_1, arg4_1, arg5_1, arg6_1, arg7_1, arg8_1, arg9_1, arg10_1, arg11_1, arg12_1, arg13_1, arg14_1, arg15_1, arg16_1, arg17_1, arg18_1, arg19_1, arg20_1, arg21_1, arg22_1, arg23_1, arg24_1, arg25_1, arg26_1, arg27_1, arg28_1, arg29_1, arg30_1, arg31_1, arg32_1, arg33_1, arg34_1, arg35_1, arg36_1, arg37_1, arg38_1, arg39_1, arg40_1, arg41_1, arg42_1, arg43_1, arg44_1, arg45_1, arg46_1 = args
        args.clear()
        partition0_args = [arg0_1, arg1_1, arg2_1, arg3_1, arg4_1, arg5_1, arg6_1, arg7_1, arg8_1, arg9_1, arg10_1, arg11_1, arg12_1, arg13_1, arg14_1, arg15_1, arg16_1, arg17_1, arg18_1, arg19_1, arg20_1, arg21_1, arg22_1, arg23_1, arg24_1, arg25_1, arg26_1, arg27_1, arg28_1, arg29_1, arg30_1, arg31_1, arg32_1, arg33_1, arg34_1, arg35_1, arg36_1, arg37_1, arg38_1, arg39_1, arg40_1, arg41_1, arg42_1, arg43_1, arg44_1, arg46_1, arg45_1]
        del arg0_1, arg1_1, arg2_1, arg3_1, arg4_1, arg5_1, arg6_1, arg7_1, arg8_1, arg9_1, arg10_1, arg11_1, arg12_1, arg13_1, arg14_1, arg15_1, arg16_1, arg17_1, arg18_1, arg19_1, arg20_1, arg21_1, arg22_1, arg23_1, arg24_1, arg25_1, arg26_1, arg27_1, arg28_1, arg29_1, arg30_1, arg31_1, arg32_1, arg33_1, arg34_1, arg35_1, arg36_1, arg37_1, arg38_1, arg39_1, arg40_1, arg41_1, arg42_1, arg43_1, arg44_1, arg46_1, arg45_1
        (buf57,) = self.partitions[0](partition0_args)
        del partition0_args
        return (reinterpret_tensor(buf57, (1, 2, 512, 512), (524288, 1, 1024, 2), 0), )

runner = Runner(partitions=[partition_0,])
call = runner.call
recursively_apply_fns = runner.recursively_apply_fns


def get_args():
    from torch._dynamo.testing import rand_strided
    arg0_1 = rand_strided((1, 3, 512, 512), (786432, 262144, 512, 1), device='cuda:0', dtype=torch.float32)
    arg1_1 = rand_strided((64, 3, 3, 3), (27, 1, 9, 3), device='cuda:0', dtype=torch.float16)
    arg2_1 = rand_strided((64, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg3_1 = rand_strided((64, 64, 3, 3), (576, 1, 192, 64), device='cuda:0', dtype=torch.float16)
    arg4_1 = rand_strided((64, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg5_1 = rand_strided((128, 64, 3, 3), (576, 1, 192, 64), device='cuda:0', dtype=torch.float16)
    arg6_1 = rand_strided((128, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg7_1 = rand_strided((128, 128, 3, 3), (1152, 1, 384, 128), device='cuda:0', dtype=torch.float16)
    arg8_1 = rand_strided((128, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg9_1 = rand_strided((256, 128, 3, 3), (1152, 1, 384, 128), device='cuda:0', dtype=torch.float16)
    arg10_1 = rand_strided((256, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg11_1 = rand_strided((256, 256, 3, 3), (2304, 1, 768, 256), device='cuda:0', dtype=torch.float16)
    arg12_1 = rand_strided((256, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg13_1 = rand_strided((512, 256, 3, 3), (2304, 1, 768, 256), device='cuda:0', dtype=torch.float16)
    arg14_1 = rand_strided((512, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg15_1 = rand_strided((512, 512, 3, 3), (4608, 1, 1536, 512), device='cuda:0', dtype=torch.float16)
    arg16_1 = rand_strided((512, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg17_1 = rand_strided((1024, 512, 3, 3), (4608, 1, 1536, 512), device='cuda:0', dtype=torch.float16)
    arg18_1 = rand_strided((1024, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg19_1 = rand_strided((1024, 1024, 3, 3), (9216, 1, 3072, 1024), device='cuda:0', dtype=torch.float16)
    arg20_1 = rand_strided((1024, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg21_1 = rand_strided((1024, 512, 2, 2), (2048, 1, 1024, 512), device='cuda:0', dtype=torch.float16)
    arg22_1 = rand_strided((512, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg23_1 = rand_strided((512, 1024, 3, 3), (9216, 1, 3072, 1024), device='cuda:0', dtype=torch.float16)
    arg24_1 = rand_strided((512, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg25_1 = rand_strided((512, 512, 3, 3), (4608, 1, 1536, 512), device='cuda:0', dtype=torch.float16)
    arg26_1 = rand_strided((512, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg27_1 = rand_strided((512, 256, 2, 2), (1024, 1, 512, 256), device='cuda:0', dtype=torch.float16)
    arg28_1 = rand_strided((256, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg29_1 = rand_strided((256, 512, 3, 3), (4608, 1, 1536, 512), device='cuda:0', dtype=torch.float16)
    arg30_1 = rand_strided((256, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg31_1 = rand_strided((256, 256, 3, 3), (2304, 1, 768, 256), device='cuda:0', dtype=torch.float16)
    arg32_1 = rand_strided((256, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg33_1 = rand_strided((256, 128, 2, 2), (512, 1, 256, 128), device='cuda:0', dtype=torch.float16)
    arg34_1 = rand_strided((128, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg35_1 = rand_strided((128, 256, 3, 3), (2304, 1, 768, 256), device='cuda:0', dtype=torch.float16)
    arg36_1 = rand_strided((128, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg37_1 = rand_strided((128, 128, 3, 3), (1152, 1, 384, 128), device='cuda:0', dtype=torch.float16)
    arg38_1 = rand_strided((128, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg39_1 = rand_strided((128, 64, 2, 2), (256, 1, 128, 64), device='cuda:0', dtype=torch.float16)
    arg40_1 = rand_strided((64, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg41_1 = rand_strided((64, 128, 3, 3), (1152, 1, 384, 128), device='cuda:0', dtype=torch.float16)
    arg42_1 = rand_strided((64, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg43_1 = rand_strided((64, 64, 3, 3), (576, 1, 192, 64), device='cuda:0', dtype=torch.float16)
    arg44_1 = rand_strided((64, ), (1, ), device='cuda:0', dtype=torch.float16)
    arg45_1 = rand_strided((2, 64, 1, 1), (64, 1, 64, 64), device='cuda:0', dtype=torch.float16)
    arg46_1 = rand_strided((2, ), (1, ), device='cuda:0', dtype=torch.float16)
    return [arg0_1, arg1_1, arg2_1, arg3_1, arg4_1, arg5_1, arg6_1, arg7_1, arg8_1, arg9_1, arg10_1, arg11_1, arg12_1, arg13_1, arg14_1, arg15_1, arg16_1, arg17_1, arg18_1, arg19_1, arg20_1, arg21_1, arg22_1, arg23_1, arg24_1, arg25_1, arg26_1, arg27_1, arg28_1, arg29_1, arg30_1, arg31_1, arg32_1, arg33_1, arg34_1, arg35_1, arg36_1, arg37_1, arg38_1, arg39_1, arg40_1, arg41_1, arg42_1, arg43_1, arg44_1, arg45_1, arg46_1]


def benchmark_compiled_module(args, times=10, repeat=10):
    from torch._inductor.utils import print_performance
    fn = lambda: call(list(args))
    return print_performance(fn, times=times, repeat=repeat)


if __name__ == "__main__":
    from torch._inductor.wrapper_benchmark import compiled_module_main
    args = get_args()
    compiled_module_main('None', lambda times, repeat: benchmark_compiled_module(args, times=times, repeat=repeat))
