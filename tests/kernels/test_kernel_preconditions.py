"""What launchers refuse, what a GPU must have, the packing of weights, and that references and library are torch's."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler.ops import KERNELS, TILES
from pipeline.kernels import (
    conv1x1,
    conv3x3,
    conv3x3_grouped,
    conv_by_slice,
    conv_first,
    conv_head,
    depthwise,
    few_channels,
    norm_pass,
    polyphase,
    upconv2x2,
    upsample2x,
)
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, RELU, Activation
from pipeline.kernels.common.block_statistics import blocks_of, merged, statistics_of
from pipeline.kernels.common.capability import gluon_barred, reaching_views_barred, supported
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import NO_WEIGHT, Ends, KernelOp, LayerDescription, LibraryParameters
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_triton
from tests.kernels.examples import DEVICE, HALF, MODULES, PLAIN, Layer, example, for_kernel, taken, values
from tests.kernels.test_other_convolutions import SHAPES

HALVED: dict[str, Any] = {"stride": (2, 2), "out_size": (4, 4)}
BY_CHANNEL = LayerDescription("conv2d", 24, 24, (8, 8), (8, 8), (5, 5), (1, 1), (2, 2), groups=24)
STEM = LayerDescription("conv2d", 3, 64, (64, 64), (32, 32), (7, 7), (2, 2), (3, 3), reads_image=True)
HEAD = LayerDescription("conv2d", 16, 2, (64, 64), (64, 64), (3, 3), (1, 1), (1, 1))
IN_HALVES = LayerDescription("conv2d", 32, 64, (8, 18), (9, 9), (3, 3), (2, 2), (1, 1))
IN_GROUPS = [
    LayerDescription("conv2d", channels, channels, (8, 8), (8, 8), (3, 3), padding=(1, 1), groups=groups)
    for channels, groups in ((128, 32), (1024, 32), (512, 4), (96, 3), (96, 4))  # of RepVGG's 128 channels, and of 24
]
# Kernels, a layer that each takes, and what changes such a layer to one that it leaves.
TAKEN: list[tuple[KernelOp, LayerDescription, list[dict[str, Any]]]] = [
    (depthwise.OP, BY_CHANNEL, [
        {"groups": 12}, {"outer": 48}, {"padding": (1, 1)}, {"window": (5, 3)}, {"dilation": (2, 2)}, HALVED,
        {"inner": 12, "outer": 12, "groups": 12}, {"window": (9, 9), "padding": (4, 4)}, {"kind": "conv_transpose2d"},
    ]),
    (depthwise.STRIDED_OP, replace(BY_CHANNEL, **HALVED), [{"stride": (1, 1), "out_size": (8, 8)}]),
    (depthwise.DILATED_OP, replace(BY_CHANNEL, dilation=(3, 3), padding=(6, 6)), [
        {"dilation": (3, 2)}, {"padding": (2, 2)}, {"stride": (2, 2)}, {"groups": 12},
        {"dilation": (1, 1), "padding": (2, 2)},
    ]),
    (conv_first.STRIDED_OP, STEM, [
        {"stride": (3, 3)}, {"padding": (2, 2)}, {"window": (9, 9), "padding": (4, 4)}, {"inner": 5}, {"outer": 20},
        {"reads_image": False}, {"window": (7, 3)},
    ]),
    (conv_first.OP, replace(STEM, stride=(1, 1), out_size=(64, 64)), [{"stride": (2, 2), "out_size": (32, 32)}]),
    (conv_head.OP, HEAD, [{"outer": 9}, {"inner": 12}, {"stride": (2, 2)}, {"window": (11, 11), "padding": (5, 5)}]),
    (conv_head.OP, replace(HEAD, window=(1, 1), padding=(0, 0)), []),
    (polyphase.STRIDED, IN_HALVES, [
        {"in_size": (9, 18)}, {"in_size": (8, 17)}, {"stride": (1, 1)}, {"window": (4, 4)}
    ]),
    (polyphase.STRIDED_4X4, replace(IN_HALVES, window=(4, 4)), [{"window": (3, 3)}]),
]  # fmt: skip
TAKEN += [
    (conv3x3_grouped.OP, layer, [
        HALVED, {"padding": (0, 0)}, {"dilation": (2, 2)}, {"outer": 2 * layer.outer}, {"groups": 1},
        {"groups": layer.inner}, {"inner": 36, "outer": 36, "groups": 9},  # rows of 72 bytes
    ]) for layer in IN_GROUPS
]  # fmt: skip
TAKEN += [
    (conv3x3_grouped.STRIDED_OP, replace(layer, **HALVED), [
        {"stride": (1, 1)}, {"in_size": (7, 8)}, {"outer": 2 * layer.outer}
    ]) for layer in IN_GROUPS
]  # fmt: skip


@pytest.mark.parametrize(("op", "layer", "changes"), TAKEN)
def test_a_kernel_takes_the_layers_it_can(op: KernelOp, layer: LayerDescription, changes: list[dict[str, Any]]) -> None:
    assert taken(op, layer)
    assert not [changed for changed in changes if taken(op, replace(layer, **changed))]


def test_every_kernel_and_tile_has_a_name_of_its_own() -> None:
    assert len({op.name for op in KERNELS}) == len(KERNELS)
    assert set(TILES.values()) == {norm_pass.Tile, *(tile for op in KERNELS for tile in op.tile_types)}


@pytest.mark.parametrize(
    ("capability", "dtype", "word"),
    [
        ((9, 0), torch.float16, None), ((9, 0), torch.float8_e4m3fn, None), ((10, 0), torch.float16, None),
        ((8, 0), torch.float16, None), ((7, 5), torch.float16, "asynchronous copies"),
        ((8, 0), torch.float8_e4m3fn, "fp8"), ((8, 9), torch.float8_e4m3fn, None), ((9, 0), torch.bfloat16, "bfloat16"),
    ],
)  # fmt: skip
def test_a_missing_capability_is_named(capability: tuple[int, int], dtype: torch.dtype, word: str | None) -> None:
    reason = supported(capability, dtype)
    assert reason is None if word is None else word in str(reason)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("weight", torch.zeros(9, 16, 8, dtype=torch.float16)),
        ("weight", torch.zeros(9, 16, 16, dtype=torch.float8_e4m3fn)),
        ("bias", torch.zeros(8)),
        ("bias", torch.zeros(16, dtype=torch.float16)),
        ("bias", None),
        ("out", torch.zeros(1, 8, 4, 16, dtype=torch.float16)),
        ("out", torch.zeros(1, 8, 8, 16)),
        ("out", torch.zeros(1, 8, 16, 8, dtype=torch.float16).transpose(2, 3)),
        ("x", torch.zeros(1, 8, 8, 17, dtype=torch.float16)[..., 1:]),
    ],
)
def test_the_operand_at_fault_is_named(name: str, wrong: torch.Tensor) -> None:
    x = torch.zeros(1, 8, 8, 16, dtype=HALF)
    given = {"x": x, "weight": torch.zeros(9, 16, 16, dtype=HALF), "bias": torch.zeros(16), "out": x.clone()}
    given[name] = wrong
    with pytest.raises(ValueError, match=f"^{name} ") as caught:
        conv3x3.conv3x3(given["x"], given["weight"], Epilogue(bias=given["bias"]), Outputs(given["out"]), TILE)
    assert "\n" not in str(caught.value)


def test_what_a_kernel_does_not_fold_is_refused() -> None:
    x, tile = torch.zeros(1, 8, 8, 16, dtype=torch.float16), conv1x1.Tile(64, 16, 16)
    pooled = Outputs(x.clone(), torch.zeros(1, 4, 4, 16, dtype=torch.float16))
    with pytest.raises(ValueError, match="pool must not be asked of this kernel"):
        conv1x1.conv1x1(x, x[0, 0].repeat(2, 1), Epilogue(bias=torch.zeros(16), pool=True), pooled, tile)
    with pytest.raises(ValueError, match="pool and its output must be given together"):
        conv1x1.conv1x1(x, x[0, 0].repeat(2, 1), Epilogue(bias=torch.zeros(16)), pooled, tile)
    grown = Outputs(torch.zeros(1, 16, 16, 16, dtype=torch.float16))
    with pytest.raises(ValueError, match="the epilogue must only scale, got relu"):
        upsample2x.upsample2x(x, NO_WEIGHT, Epilogue(activation=RELU), grown, upsample2x.Tile())


def test_images_with_a_gap_between_them_are_refused() -> None:
    wide = torch.zeros(2, 9, 8, 16, dtype=torch.float16)[:, :8]
    out, weight = torch.zeros(2, 16, 16, 16, dtype=torch.float16), torch.zeros(4, 16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="x's images must follow each other"):
        upconv2x2.upconv2x2(wide, weight, Epilogue(bias=torch.zeros(16)), Outputs(out), upconv2x2.Tile(8, 8, 16, 16))


@pytest.mark.parametrize(("version", "builds"), [("3.5.1", False), ("3.7.1", True), ("3.8.0", False), ("3.9.0", True)])
def test_the_version_of_triton_that_lacks_a_kernel_is_named(version: str, builds: bool) -> None:
    reason = reaching_views_barred(version)
    assert reason is None if builds else version in str(reason)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_only_a_hopper_gpu_gets_the_gluon_kernels(capability: tuple[int, int]) -> None:
    assert gluon_barred((9, 0)) is None
    for barred in (gluon_barred(capability), reaching_views_barred("3.7.1", capability)):
        assert f"this GPU has {capability[0]}.{capability[1]}" in str(barred)


def test_another_gpu_gets_the_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (8, 6))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for op in PLAIN:
        tiles = example(op, HALF, for_kernel(op, Layer())).candidates()
        assert tiles
        assert not [tile for tile in tiles if "gluon" in tile.kernel or "narrow" in tile.kernel]


def test_every_activation_of_the_table_is_tried_here() -> None:
    assert {activation.name for _, activation in MODULES if activation} | {"none"} == set(ACTIVATIONS)


TILE = conv3x3_triton.Tile(8, 16, 32, 32, warps=4)
PRELU = Activation("prelu")


def test_all_parts_at_once() -> None:
    layer = Layer(1, (8, 18), 16, 16, PRELU, pool=True, classes=2, residual=HALF, statistics=True)
    made = example(conv3x3.OP, HALF, layer)
    assert made.epilogue.parts == conv3x3.OP.folds
    made.run(replace(TILE, depth=16))
    made.check()
    assert made.epilogue.key == "prelu, pool, head 2, residual float16 [4608, 576, 32, 1], statistics"


def apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have memory of their own each, as torch demands of an operation's answers."""
    return one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("size", [(8, 16), (26, 38)])
@pytest.mark.parametrize(("group_width", "channels"), [(1, 12), (2, 12), (4, 12), (8, 24), (16, 48), (64, 128)])
def test_the_kernel_merges_as_torch_does(group_width: int, channels: int, size: tuple[int, int], phases: int) -> None:
    y = values(2, *size, channels, dtype=torch.float32) * 3 + 100 + torch.arange(channels, device=DEVICE) % 7
    counted, norm = statistics_of(y, phases), norm_pass.Norm(eps=1e-5, group_width=group_width)
    with patch.object(norm_pass, "MOST_ROWS", 16 * group_width):
        found = norm_pass.merge_statistics(counted, size, phases, norm._replace(eps=None))
        factor, shift = norm_pass.merge_statistics(counted, size, phases, norm)
    assert apart(*found)
    for part, wanted in zip(found, merged(counted, *size, phases, group_width), strict=True):
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=0)
    exact = functional.group_norm(y.double().permute(0, 3, 1, 2), channels // group_width).permute(0, 2, 3, 1).float()
    torch.testing.assert_close(y * factor[:, None, None] + shift[:, None, None], exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group_width", [1, 4, 16])
def test_many_blocks_are_merged_in_bands(group_width: int) -> None:
    """Of whole rows of blocks, groups once after them; where groups are wide, bands begin at fewer blocks."""
    counted = statistics_of(values(2, 48, 40, 32, dtype=torch.float32) * 3 + 100 + torch.arange(32, device=DEVICE))
    with patch.object(norm_pass, "MOST_ENTRIES", 17), patch.object(norm_pass, "MOST_BANDS", 5):
        assert norm_pass.bands_of(48, 18, group_width) == 3
        assert norm_pass.bands_of(44, 18, group_width) == 1
        assert [norm_pass.bands_of(48, 17, wide) for wide in (8, 16)] == [1, 3]
        found = norm_pass.merge_statistics(counted, (48, 40), norm=norm_pass.Norm(group_width=group_width))
    assert apart(*found)
    for part, wanted in zip(found, merged(counted, 48, 40, 1, group_width), strict=True):
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=0)


def test_statistics_of_a_kernel_keep_the_variance_far_from_zero() -> None:
    """The bias puts all values near 1000, and the deviations of the blocks are still those of the sums."""
    x, weight = values(1, 16, 16, 16), values(9, 16, 16)
    bias = torch.full((16,), 1e3, device=DEVICE)
    outputs = Outputs(torch.empty(1, 16, 16, 16, device=DEVICE, dtype=HALF))
    outputs = replace(outputs, statistics=torch.empty(1, blocks_of(16, 16), 2, 16, device=DEVICE))
    conv3x3.conv3x3(x, weight, Epilogue(bias=bias, statistics=True), outputs, replace(TILE, depth=16))
    taps = weight.double().reshape(3, 3, 16, 16).permute(2, 3, 0, 1)
    sums = functional.conv2d(x.double().permute(0, 3, 1, 2), taps, padding=1)
    assert outputs.statistics is not None
    _, found = merged(outputs.statistics, 16, 16)
    torch.testing.assert_close(found.double(), sums.var(dim=(2, 3), correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("asked", "given", "message"),
    [
        ({"residual": torch.zeros(1, 8, 8, 8, dtype=HALF)}, {}, "^residual must be"),
        ({"residual": torch.zeros(1, 8, 8, 16)}, {}, "^residual must be float16 or"),
        ({"slopes": torch.zeros(16)}, {}, "^slopes must be given with an activation that has them, got none"),
        ({"activation": PRELU}, {}, "^slopes must be given"),
        ({"activation": PRELU, "slopes": torch.zeros(8)}, {}, r"^slopes must be \[16\]"),
        ({"statistics": True}, {}, "^statistics and its output must be given together"),
        ({"statistics": True}, {"statistics": torch.zeros(1, 2, 2, 16)}, "^statistics must be"),
        ({"head": Head(torch.zeros(9, 16), torch.zeros(9))}, {"logits": torch.zeros(1, 9, 8, 8)}, "at most 8 classes"),
    ],
)
def test_the_part_at_fault_is_named(asked: dict[str, Any], given: dict[str, Any], message: str) -> None:
    x = torch.zeros(1, 8, 8, 16, dtype=HALF)
    epilogue = Epilogue(bias=torch.zeros(16), **asked)
    with pytest.raises(ValueError, match=message):
        conv3x3.conv3x3(x, torch.zeros(9, 16, 16, dtype=HALF), epilogue, Outputs(x.clone(), **given), TILE)


def test_a_kernel_without_a_part_and_a_tile_without_its_blocks_refuse() -> None:
    x, weight, bias = torch.zeros(1, 8, 8, 16, dtype=HALF), torch.zeros(9, 16, 16, dtype=HALF), torch.zeros(16)
    counted = Outputs(x.clone(), statistics=torch.zeros(1, 1, 2, 16))
    with pytest.raises(ValueError, match="statistics must not be asked of this kernel"):
        conv1x1.conv1x1(x, weight[0], Epilogue(bias=bias, statistics=True), counted, conv1x1.Tile(64, 16, 16))
    asked = Epilogue(bias=bias, statistics=True)
    with pytest.raises(ValueError, match="blocks of 8 × 16 pixels, and the tile has 8 × 8"):
        conv3x3.conv3x3(x, weight, asked, counted, replace(TILE, cols=8))
    with pytest.raises(ValueError, match=r"the tile has 4 × 64"):
        conv3x3.conv3x3(x, weight, asked, counted, conv3x3_narrow.Tile(4))
    with pytest.raises(ValueError, match="this tile pads x"):
        conv3x3.conv3x3(x, weight, Epilogue(bias=bias), Outputs(x[:, 2:, 2:].clone()), conv3x3_narrow.Tile(8))
    image, packed = torch.zeros(1, 3, 8, 8), conv_first.pack(torch.zeros(16, 3, 3, 3))
    for tile in (conv_first.PlainTile(4, 32, 16), conv_first.GatherTile(4)):
        with pytest.raises(ValueError, match=f"the tile has {tile.rows} × "):
            conv_first.conv_first(image, packed, asked, counted, tile)
    with pytest.raises(ValueError, match=r"^statistics must be"):
        norm_pass.merge_statistics(torch.zeros(1, 2, 2, 16), (8, 8))


CONV, CONV3D = functional.conv2d, functional.conv3d


def edged(x: Tensor, weight: Tensor, *, mode: str, stride: int = 1) -> Tensor:
    return CONV(functional.pad(x, [weight.shape[2] // 2] * 4, mode), weight, stride=stride)


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
    Case(conv3x3.VALID_OP, (2, 6, 8, 10), (12, 6, 3, 3), partial(CONV)),
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
    Case(conv_head.OP, (2, 16, 6, 7), (3, 16, 7, 7), partial(edged, mode="reflect")),
    Case(conv_first.STRIDED_OP, (2, 3, 6, 7), (16, 3, 7, 7), partial(edged, mode="reflect", stride=2)),
    Case(conv_first.OP, (2, 3, 6, 7), (16, 3, 5, 5), partial(edged, mode="replicate")),
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
    Case(conv3x3.WIDE_VOLUME_OP, VOLUME, (24, 16, 5, 5, 5), partial(CONV3D, padding=2)),
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
    y, named = case.layer(x, weight), {"dilation": 1, "mode": "zeros", **case.layer.keywords}
    how = {"dilation": named["dilation"], "padding_mode": named["mode"]}
    bias = torch.linspace(-1, 1, y.shape[1], device=x.device)
    added = torch.linspace(-1, 1, y.numel(), device=x.device).view(y.shape) if "residual" in op.folds else None
    wanted = y + bias.view(-1, *[1] * (y.ndim - 2)) + (0 if added is None else added)
    wanted, slices = activation(wanted), x.shape[2] if x.ndim == 5 else 1
    if x.ndim == 5:
        wanted, added = wanted.flatten(2, 3), None if added is None else added.flatten(2, 3)
        x = x if op.reads_image else x.flatten(2, 3)
    ends = Ends(activation, residual=added, slices=slices, **how)
    found = op.library(x, LibraryParameters(weight, bias), ends)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    residual = None if added is None else added.permute(0, 2, 3, 1).contiguous()
    epilogue = Epilogue(bias=bias, activation=activation, residual=residual, slices=slices, **how)
    logits, out = torch.empty_like(wanted), wanted.permute(0, 2, 3, 1).contiguous()
    read = x if op.reads_image else x.permute(0, 2, 3, 1).contiguous()
    assert op.pack is not None
    op.reference(read, op.pack(weight), epilogue, Outputs(logits=logits) if op.writes_logits else Outputs(out.zero_()))
    answer = logits if op.writes_logits else out.permute(0, 3, 1, 2)
    rounded = 1e-2 if op.reads_image else 1e-4  # the image is multiplied in fp16
    torch.testing.assert_close(answer, wanted, rtol=rounded, atol=rounded)
