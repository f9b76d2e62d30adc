"""What a kernel's reference computes of its packed weight, and what the library runs in its place, is torch's layer."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler.ops import KERNELS
from pipeline.kernels import (
    conv1x1,
    conv3x3,
    conv3x3_grouped,
    conv_by_slice,
    conv_first,
    conv_head,
    depthwise,
    few_channels,
    polyphase,
    upconv2x2,
)
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters
from tests.kernels.examples import values
from tests.kernels.test_other_convolutions import SHAPES

CONV, CONV3D = functional.conv2d, functional.conv3d
GROWN = partial(functional.conv_transpose2d, stride=2)
GROWN_3D = functional.conv_transpose3d


class Case(NamedTuple):
    """A kernel, the shapes of what it reads and of its weight, and torch's layer of both."""

    op: KernelOp
    x: tuple[int, ...]
    weight: tuple[int, ...]
    layer: partial[Tensor]


IMAGE, VOLUME = (2, 16, 6, 10), (2, 16, 4, 16, 12)
IN_SLICES = (1, 2, 2)
CASES = [
    Case(conv3x3.OP, (2, 6, 8, 10), (12, 6, 3, 3), partial(CONV, padding=1)),
    *(Case(conv3x3.DILATED_OP, (2, 16, 9, 7), (24, 16, 3, 3), partial(CONV, padding=d, dilation=d)) for d in (2, 5)),
    Case(conv1x1.OP, IMAGE, (12, 16, 1, 1), partial(CONV)),
    Case(conv1x1.STRIDED_OP, (2, 32, 6, 7), (16, 32, 1, 1), partial(CONV, stride=2)),
    Case(few_channels.OP, (2, 2, 6, 7), (3, 2, 3, 3), partial(CONV, padding=1)),
    Case(upconv2x2.OP, IMAGE, (16, 12, 2, 2), partial(GROWN)),
    Case(polyphase.STRIDED, IMAGE, (24, 16, 3, 3), partial(CONV, stride=2, padding=1)),
    Case(polyphase.STRIDED_4X4, IMAGE, (24, 16, 4, 4), partial(CONV, stride=2, padding=1)),
    Case(polyphase.TRANSPOSED_3X3, IMAGE, (16, 24, 3, 3), partial(GROWN, padding=1, output_padding=1)),
    Case(polyphase.TRANSPOSED_4X4, IMAGE, (16, 24, 4, 4), partial(GROWN, padding=1)),
    Case(few_channels.TRANSPOSED_OP, IMAGE, (16, 3, 3, 3), partial(GROWN, padding=1, output_padding=1)),
    Case(conv_head.OP, (2, 16, 6, 7), (3, 16, 3, 3), partial(CONV, padding=1)),
    *(
        Case(op, (2, inner, 10, 6), (inner, width, 3, 3), partial(CONV, stride=s, padding=1, groups=inner // width))
        for s, op in enumerate((conv3x3_grouped.OP, conv3x3_grouped.STRIDED_OP), 1)
        for inner, width in SHAPES
    ),
    *(
        Case(op, (2, 8, 9, 7), (8, 1, side, side), partial(CONV, stride=s, padding=side // 2 * d, dilation=d, groups=8))
        for op, side, s, d in [
            (depthwise.OP, 3, 1, 1), (depthwise.OP, 5, 1, 1), (depthwise.STRIDED_OP, 7, 2, 1),
            (depthwise.DILATED_OP, 3, 1, 2), (depthwise.DILATED_OP, 5, 1, 3),
        ]
    ),
    *(
        Case(op, (2, inner, 7, 10), (32, inner, side, side), partial(CONV, stride=s, padding=side // 2))
        for op, side, s, inner in [
            (conv_first.STRIDED_OP, 7, 2, 3), (conv_first.STRIDED_OP, 3, 2, 3), (conv_first.OP, 5, 1, 4),
            (conv_first.OP, 3, 1, 1),
        ]
    ),
    Case(conv_first.VOLUME_OP, (2, 4, 3, 8, 6), (16, 4, 3, 3, 3), partial(CONV3D, padding=1)),
    Case(conv3x3.VOLUME_OP, VOLUME, (24, 16, 3, 3, 3), partial(CONV3D, padding=1)),
    Case(polyphase.STRIDED_VOLUMES, VOLUME, (24, 16, 3, 3, 3), partial(CONV3D, stride=2, padding=1)),
    Case(polyphase.STRIDED_IN_SLICES, VOLUME, (24, 16, 3, 3, 3), partial(CONV3D, stride=IN_SLICES, padding=1)),
    Case(upconv2x2.VOLUME_OP, VOLUME, (16, 24, 2, 2, 2), partial(GROWN_3D, stride=2)),
    Case(conv_by_slice.OP, VOLUME, (16, 16, 1, 3, 3), partial(CONV3D, padding=(0, 1, 1))),
    Case(conv_by_slice.FIRST_OP, (2, 1, 3, 16, 12), (16, 1, 1, 3, 3), partial(CONV3D, padding=(0, 1, 1))),
    Case(conv_by_slice.STRIDED_OP, VOLUME, (16, 16, 1, 3, 3), partial(CONV3D, stride=IN_SLICES, padding=(0, 1, 1))),
    Case(conv_by_slice.TRANSPOSED_OP, VOLUME, (16, 16, 1, 2, 2), partial(GROWN_3D, stride=IN_SLICES)),
]  # fmt: skip


def test_every_kernel_of_a_weight_is_tried_here() -> None:
    others = {"upsampled_conv3x3", "gated_conv1x1"}  # layers of two inputs, which have tests of their own
    assert {tried.op.name for tried in CASES} == {op.name for op in KERNELS if op.pack} - others


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op.name} {list(case.weight)}")
def test_it_is_torch_s_layer(case: Case) -> None:
    """With a bias, an activation that is neither linear nor a ReLU, and a residual, where the kernel has them."""
    op, activation = case.op, NONE if case.op.writes_logits else Activation("silu")
    x, weight = values(*case.x, dtype=torch.float32), values(*case.weight, dtype=torch.float32)
    weight = weight / weight[0].numel() ** 0.5
    y, apart = case.layer(x, weight), case.layer.keywords.get("dilation", 1)
    bias = torch.linspace(-1, 1, y.shape[1], device=x.device)
    added = torch.linspace(-1, 1, y.numel(), device=x.device).view(y.shape) if "residual" in op.folds else None
    wanted = y + bias.view(-1, *[1] * (y.ndim - 2)) + (0 if added is None else added)
    wanted, slices = activation(wanted), x.shape[2] if x.ndim == 5 else 1
    if x.ndim == 5:
        wanted, added = wanted.flatten(2, 3), None if added is None else added.flatten(2, 3)
        x = x if op.reads_image else x.flatten(2, 3)
    ends = Ends(activation, residual=added, slices=slices, dilation=apart)
    found = op.library(x, LibraryParameters(weight, bias), ends)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    residual = None if added is None else added.permute(0, 2, 3, 1).contiguous()
    epilogue = Epilogue(bias=bias, activation=activation, residual=residual, slices=slices, dilation=apart)
    logits, out = torch.empty_like(wanted), wanted.permute(0, 2, 3, 1).contiguous()
    read = x if op.reads_image else x.permute(0, 2, 3, 1).contiguous()
    assert op.pack is not None
    op.reference(read, op.pack(weight), epilogue, Outputs(logits=logits) if op.writes_logits else Outputs(out.zero_()))
    answer = logits if op.writes_logits else out.permute(0, 3, 1, 2)
    rounded = 1e-2 if op.reads_image else 1e-4  # the image is multiplied in fp16
    torch.testing.assert_close(answer, wanted, rtol=rounded, atol=rounded)
