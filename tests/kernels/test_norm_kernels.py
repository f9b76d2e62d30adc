"""Every kernel against its reference, interpreted or on a GPU, also norms, and maps larger than it counts, or empty."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler import custom_ops
from pipeline.compiler.custom_ops import NAMES, kernel_call, operation
from pipeline.compiler.ops import BY_NAME
from pipeline.kernels import conv1x1, conv3x3, few_channels, norm_pass
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.block_statistics import blocks_of, statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, SecondSource
from pipeline.kernels.common.nhwc import MOST_PROGRAMS, check, shared_bytes
from pipeline.kernels.conv3x3 import conv3x3_gluon, conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, candidates, shared_by
from pipeline.kernels.conv3x3.conv3x3_triton import STACKED, Operands
from pipeline.kernels.norm_pass import Excitation, Norm, NormPass, Tile, excitation, merge_statistics
from tests.kernels import examples
from tests.kernels.examples import (
    DEVICE,
    FP8,
    HALF,
    PLAIN,
    Layer,
    assert_near,
    assert_outputs_near,
    example,
    for_kernel,
    poisoned,
    values,
)
from tests.kernels.kinds import BY_ROWS, GROUPS, KINDS, SMALL, Kind, activations_of, kind_of, made_of, small_tile

LEAKY = Activation("leaky_relu", 0.1)


def head_of(classes: int, channels: int) -> Head:
    return Head(values(classes, channels, dtype=torch.float32), values(classes, dtype=torch.float32))


def normed(
    size: tuple[int, ...], phases: int = 1, ends: bool = True, group_width: int = 1
) -> tuple[Tensor, Tensor, NormPass]:
    """A map [N, H, W, C] far from zero in a part of the channels of a wider one, its statistics, and a norm of it."""
    batch, height, width, channels = size
    y = values(batch, height, width, channels, dtype=torch.float32) * 3 + 7 + torch.arange(channels, device=DEVICE) % 5
    wide = poisoned(batch, height, width, 2 * channels)
    wide[..., channels:] = y
    weight, bias = (values(channels, dtype=torch.float32) + part if ends else None for part in (1, 2))
    how = NormPass(Norm(weight, bias, 1e-5, group_width), LEAKY, phases=phases)
    return wide[..., channels:], statistics_of(y, phases), how


def stored(how: NormPass, x: Tensor, counted: Tensor, dtype: torch.dtype, tile: Tile | None) -> Tensor:
    """What a tile of the pass, or without one its reference, writes into a part of a wider map, and nothing beside."""
    wide = poisoned(*x.shape[:3], 2 * x.shape[3], dtype=dtype)
    out = wide[..., x.shape[3] :]
    if how.head is not None:
        out = torch.full((len(x), len(how.head.bias), *x.shape[1:3]), torch.nan, device=DEVICE)
    if tile is None:
        norm_pass.reference(x, counted, how, out)
    else:
        norm_pass.norm_pass(x, counted, how, out, tile)
    assert wide[..., : x.shape[3]].float().isnan().all()
    return out


@dataclass(frozen=True)
class After:
    """What comes after the sums of a convolution that norms what it reads: all that its operation lets through."""

    residual: torch.dtype | None = None
    statistics: bool = True
    activation: Activation = NONE


PLAIN_END = After()
# Each residual with and without sums, and each end that the layer after a norm may have.
AFTER = [
    *(After(residual, statistics) for residual in (None, HALF, FP8) for statistics in (True, False)),
    After(None, True, Activation("silu")),
    After(None, False, RELU),
    After(HALF, False, Activation("leaky_relu", 0.1)),
    After(FP8, True, Activation("gelu")),
]


def convolution(
    size: tuple[int, ...], outer: int, group_width: int = 1, after: After = PLAIN_END
) -> tuple[Operands, Tensor, NormPass]:
    x, counted, how = normed(size, group_width=group_width)
    residual = None if after.residual is None else values(*size[:3], 2 * outer, dtype=after.residual)[..., outer:]
    epilogue = Epilogue(
        bias=values(outer, dtype=torch.float32),
        activation=after.activation,
        residual=residual,
        residual_scale=0.5 if after.residual == FP8 else 1.0,
        statistics=after.statistics,
    )
    whole = torch.full((size[0], blocks_of(*size[1:3]), 2, outer), torch.nan, device=DEVICE)
    outputs = Outputs(poisoned(*size[:3], outer), statistics=whole if after.statistics else None)
    return Operands(x, values(9, outer, size[3]) * 0.1, epilogue, outputs), counted, how


# Channels and a group's, phases, the type that is stored, and what the pass ends in: at a size that fills no tile, by
# programs that take two steps and ones that take less; of a program's channels several groups or one. A scale to fp8
# passes through an activation or comes after it.
PASSES = [
    *(
        (width, channels, 2, HALF, LEAKY)
        for width, channels in ((1, 24), (2, 24), (4, 24), (8, 24), (16, 48), (64, 128))
    ),
    (1, 24, 2, FP8, LEAKY),
    *((8, 24, 1, FP8, activation) for activation in (NONE, RELU)),
    *((4, 24, 1, dtype, end) for dtype in (HALF, FP8) for end in (Activation("silu"), Activation("elu", 0.5))),
]


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize(("group_width", "channels", "phases", "dtype", "activation"), PASSES, ids=str)
def test_the_pass_writes_what_its_reference_writes(
    group_width: int, channels: int, phases: int, dtype: torch.dtype, activation: Activation, merges: bool
) -> None:
    x, counted, how = normed((2, 10, 34, channels), phases=phases, group_width=group_width)
    how = replace(how, activation=activation, scale=0.02 if dtype == FP8 else 1.0)
    found, wanted = (stored(how, x, counted, dtype, tile) for tile in (Tile(4096, 2, merges), None))
    assert_near(found, wanted, dtype)


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize(("classes", "channels", "group_width"), [(1, 24, 1), (3, 32, 4), (8, 64, 16)])
def test_the_pass_makes_a_head_s_logits(classes: int, channels: int, group_width: int, merges: bool) -> None:
    x, counted, how = normed((2, 10, 34, channels), phases=2, group_width=group_width)
    how = replace(how, head=head_of(classes, channels))
    found, wanted = (stored(how, x, counted, HALF, tile) for tile in (Tile(4096, 2, merges), None))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    between = stored(replace(how, head=None), x, counted, HALF, None).float().permute(0, 3, 1, 2)
    logits = functional.conv2d(between, how.head.weight[:, :, None, None], how.head.bias)
    assert float((wanted - logits).norm() / logits.norm()) < 1e-3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": torch.zeros(1, 8, 16, 8)}, r"^x must be \[1, 8, 16, 8\] float16 or"),
        ({"out": torch.zeros(1, 8, 16, 16).half()}, r"^out must be \[1, 8, 16, 8\]"),
        ({"out": torch.zeros(1, 8, 8, 16).half().transpose(2, 3)}, "^out must have its channels side by side"),
        ({"statistics": torch.zeros(1, 2, 2, 8)}, "^statistics must be"),
        ({"how": NormPass(Norm(torch.zeros(4), eps=1e-5))}, r"^weight must be \[8\]"),
        ({"how": NormPass(Norm(eps=1e-5), Activation("prelu"))}, "^activation must be .* got prelu and 1e-05$"),
        ({"how": NormPass(Norm())}, "^activation must be .*, after a norm with eps, got none"),
        *(
            ({"how": NormPass(Norm(eps=1e-5, group_width=width))}, rf"^group_width must be .* divides 8, got {width}$")
            for width in (-8, -1, 0, 3, 16, 128, 2**40)
        ),
        (
            {"how": NormPass(Norm(eps=1e-5), head=head_of(9, 8))},
            "^head must have at most 8 classes of 64 channels.* 9 of",
        ),
        (
            {"how": NormPass(Norm(eps=1e-5), scale=0.5, head=head_of(2, 8))},
            "^head must .* no scale, got 2 of 8 and 0.5$",
        ),
        ({"how": NormPass(Norm(eps=1e-5), head=head_of(2, 4))}, r"^head's weight must be \[2, 8\]"),
        ({"how": NormPass(Norm(eps=1e-5), head=head_of(2, 8))}, r"^out must be \[1, 2, 8, 16\] contiguous float32"),
    ],
)
def test_what_the_pass_cannot_take_is_named(wrong: dict[str, Any], message: str) -> None:
    x = torch.zeros(1, 8, 16, 8).half()
    given: dict[str, Any] = {"x": x, "statistics": torch.zeros(1, 1, 2, 8), "out": x.clone()}
    given |= {"how": NormPass(Norm(eps=1e-5)), **wrong}
    with pytest.raises(ValueError, match=message):
        norm_pass.norm_pass(**given, tile=Tile(4096, 4, False))


@pytest.mark.parametrize("after", AFTER, ids=str)
def test_the_convolution_s_reference_ends_in_all_that_it_may(after: After) -> None:
    operands, counted, how = convolution((1, 9, 20, 16), 8, after=after)
    conv3x3.normed_reference(operands, counted, how)
    epilogue, outputs = operands.epilogue, operands.outputs
    before = stored(how, operands.x, counted, HALF, None)
    taps = operands.weight.float().reshape(3, 3, 8, 16).permute(2, 3, 0, 1)
    sums = functional.conv2d(before.permute(0, 3, 1, 2).float(), taps, padding=1).permute(0, 2, 3, 1) + epilogue.bias
    if epilogue.residual is not None:
        sums = sums + epilogue.residual.float() * (0.5 if after.residual == FP8 else 1.0)
    wanted = after.activation(sums)
    torch.testing.assert_close(outputs.out.float(), wanted, rtol=4e-3, atol=4e-3)
    assert (outputs.statistics is not None) == after.statistics
    if outputs.statistics is not None:
        torch.testing.assert_close(outputs.statistics, statistics_of(wanted), rtol=1e-2, atol=0.1)


@pytest.mark.parametrize(
    ("activation", "slope"),
    [(NONE, 1.0), (RELU, 0.0), (LEAKY, 0.1), (Activation("leaky_relu", 2.0), None), (Activation("silu"), None)],
)
def test_the_larger_of_a_value_and_its_slope_is_the_activation(activation: Activation, slope: float | None) -> None:
    y = torch.linspace(-2, 2, 9)
    assert conv3x3.slope_of(activation) == slope
    if slope is not None:
        assert torch.equal(torch.maximum(y, slope * y), activation(y))


NO_FIT = r"^x must be float16, after a norm with eps and a ReLU"
NO_GROUPS = r"^group_width must be a power of two up to 64 .* 16, got"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"activation": Activation("silu")}, NO_FIT),
        ({"scale": 0.5}, NO_FIT),
        ({"norm": Norm()}, NO_FIT),
        *(({"norm": Norm(eps=1e-5, group_width=width)}, f"{NO_GROUPS} {width}$") for width in (0, 3, 32)),
    ],
)
def test_the_convolution_takes_no_other_norm(wrong: dict[str, Any], message: str) -> None:
    operands, counted, how = convolution((1, 8, 16, 16), 8)
    with pytest.raises(ValueError, match=message):
        conv3x3.normed_conv3x3(operands, counted, replace(how, **wrong), conv3x3_narrow.Tile(16))


SIZES = [(9, 17, 1, 24, 6), (16, 36, 2, 40, 10)]  # height, width, phases, channels, those of the narrow layer
LARGE = [(256, 256, 1, 32, 8), (16, 16, 1, 1152, 48), (8, 8, 1, 2304, 96)]


def layers(channels: int, inner: int, gate: str) -> norm_pass.Excitation:
    weights = [values(inner, channels) / channels**0.5, values(channels, inner).T.contiguous() / inner**0.5]
    biases = [values(length, dtype=torch.float32) for length in (inner, channels)]
    return norm_pass.Excitation(weights[0], biases[0], weights[1], biases[1], Activation("silu"), gate)


def check_factors(shape: tuple[int, int, int, int, int], gate: str) -> None:
    height, width, phases, channels, inner = shape
    counted = statistics_of(values(2, height, width, channels, dtype=torch.float32) + 1, phases)
    parts = layers(channels, inner, gate)
    found, again = (norm_pass.excitation(counted, (height, width), phases, parts) for _ in range(2))
    assert torch.equal(found, again)
    wanted = norm_pass.excitation_reference(counted, (height, width), phases, parts)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("shape", "gate"), [*zip(SIZES, norm_pass.GATES, strict=True)])
def test_the_factors_are_the_reference_s(shape: tuple[int, int, int, int, int], gate: str) -> None:
    check_factors(shape, gate)


def test_what_is_refused_is_named() -> None:
    counted, parts = statistics_of(torch.zeros(1, 8, 16, 8)), norm_pass.Excitation(
        torch.zeros(2, 8), torch.zeros(2), torch.zeros(2, 8), torch.zeros(8), RELU, "sigmoid"
    )  # fmt: skip
    wide = torch.zeros(130, 8)
    refused: dict[str, dict[str, Any]] = {
        r"^reduce must be contiguous \[at most 128, 8\]": {"reduce": wide},
        r"^expand must be contiguous": {"expand": torch.zeros(3, 8)},
        r"^reduce_bias must be \[2\]": {"reduce_bias": torch.zeros(3)},
        r"^expand_bias must be \[8\]": {"expand_bias": torch.zeros(2)},
        r"^gate must be one of sigmoid, hardsigmoid, got tanh": {"gate": "tanh"},
    }
    for message, changed in refused.items():
        with pytest.raises(ValueError, match=message):
            norm_pass.excitation(counted, (8, 16), 1, parts._replace(**changed))
    with pytest.raises(ValueError, match=r"^statistics must be"):
        norm_pass.excitation(counted, (8, 17), 1, parts)


def check_gated(size: tuple[int, int, int], channels: tuple[int, int], tiles: list[conv1x1.Tile] | None = None) -> None:
    """Of a slice of a wider map, with a residual."""
    inner, outer = channels
    x, weight = values(*size, 2 * inner)[..., inner:], values(outer, inner) / inner**0.5
    second = SecondSource(torch.rand(size[0], 1, 1, inner, device=DEVICE).half())
    bias = torch.linspace(-1, 1, outer, device=DEVICE)
    epilogue = Epilogue(bias=bias, activation=RELU, residual=values(*size, outer))
    found, wanted = (Outputs(poisoned(*size, outer)) for _ in range(2))
    conv1x1.gated_reference(x, weight, epilogue, wanted, second)
    for tile in tiles or conv1x1.candidates(x, weight, epilogue):
        conv1x1.gated_conv1x1(x, weight, epilogue, found, second, tile)
        assert_outputs_near(found, wanted, HALF)


def test_each_image_is_multiplied_by_its_own_factors() -> None:
    check_gated((3, 5, 7), (24, 40), [conv1x1.Tile(16, 32, 16)])


@pytest.mark.parametrize(
    "wrong", [None, torch.zeros(2, 1, 1, 8).half(), torch.zeros(1, 1, 1, 8), torch.zeros(1, 8).half()]
)
def test_a_gate_of_another_shape_or_type_is_refused(wrong: Tensor | None) -> None:
    x, weight, tile = torch.zeros(1, 4, 4, 8).half(), torch.zeros(8, 8).half(), conv1x1.Tile(64, 16, 16)
    with pytest.raises(ValueError, match=r"^gate must be \[1, 1, 1, 8\], float16 as x"):
        conv1x1.gated_conv1x1(x, weight, Epilogue(bias=torch.zeros(8)), Outputs(x.clone()), SecondSource(wrong), tile)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", norm_pass.GATES)
@pytest.mark.parametrize("shape", [*SIZES, *LARGE])
def test_the_factors_are_right_at_every_size_of_a_net(shape: tuple[int, int, int, int, int], gate: str) -> None:
    check_factors(shape, gate)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [(96, 24), (144, 40), (1152, 192)])
def test_every_gated_tile_is_the_reference_s(channels: tuple[int, int]) -> None:
    check_gated((3, 33, 29), channels)


TILE = conv3x3_triton.Tile(8, 16, 32, 32, warps=4)


def name_of(op: KernelOp) -> str:
    return op.name


@pytest.mark.parametrize("dtype", [examples.HALF, examples.FP8])
@pytest.mark.parametrize(
    "layer", [examples.Layer(1, (9, 17)), examples.Layer(3, (2, 6), 48, 80)], ids=["odd", "three images"]
)
@pytest.mark.parametrize("op", examples.PLAIN, ids=name_of)
def test_a_kernel_stores_what_its_reference_stores(op: KernelOp, layer: examples.Layer, dtype: torch.dtype) -> None:
    """It reads a slice of channels and stores into one, whatever the size, and leaves the other channels alone."""
    if op.name in BY_ROWS:  # the interpreter walks over each row's windows
        layer = replace(layer, size=(3 if layer.batch == 1 else 1, layer.size[1]))
    made = examples.example(op, dtype, examples.for_kernel(op, layer))
    made.run(small_tile(made))
    made.check()


@pytest.mark.parametrize("activation", examples.ACTIVE, ids=str)
def test_an_activation_keeps_a_nan(activation: Activation) -> None:
    x, weight, bias = examples.values(1, 8, 16, 32), examples.values(9, 32, 32), torch.zeros(32, device=examples.DEVICE)
    x[0, 4, 4, 0] = float("nan")
    outputs, wanted = (
        Outputs(examples.poisoned(1, 8, 16, 32)),
        Outputs(torch.zeros(1, 8, 16, 32, device=examples.DEVICE, dtype=examples.HALF)),
    )
    epilogue = Epilogue(bias=bias, activation=activation, slopes=examples.slopes_of(activation, 32))
    conv3x3.conv3x3(x, weight, epilogue, outputs, TILE)
    conv3x3.reference(x, weight, epilogue, wanted)
    assert int(outputs.out.isnan().sum()) == 9 * 32
    assert torch.equal(outputs.out.isnan(), wanted.out.isnan())


def test_convolution_of_infinities_has_the_infinities_and_nans_of_the_reference() -> None:
    """Infinities spread over their 3×3 neighbourhood and no further, and opposite ones meet as NaN."""
    x = examples.values(1, 9, 18, 16)
    x[0, 4, 4, 0], x[0, 4, 5, 0], x[0, 0, 17, 3] = float("inf"), float("-inf"), float("inf")
    weight, epilogue = examples.values(9, 32, 16), Epilogue(bias=torch.zeros(32, device=examples.DEVICE))
    outputs, wanted = Outputs(examples.poisoned(1, 9, 18, 32)), Outputs(examples.poisoned(1, 9, 18, 32))
    conv3x3.conv3x3(x, weight, epilogue, outputs, replace(TILE, depth=16))
    conv3x3.reference(x, weight, epilogue, wanted)
    assert outputs.out is not None
    assert wanted.out is not None
    assert torch.equal(outputs.out.isnan(), wanted.out.isnan())
    assert outputs.out.isnan().any()
    assert torch.equal(outputs.out.isinf(), wanted.out.isinf())
    examples.assert_near(outputs.out, wanted.out, examples.HALF)


def test_fp8_saturates_at_its_largest_value() -> None:
    x = examples.values(1, 8, 16, 32, dtype=examples.FP8)
    bias = torch.tensor([1e4, -1e4, 448.0, 0.0] * 8, device=examples.DEVICE)
    outputs = Outputs(examples.poisoned(1, 8, 16, 32, dtype=examples.FP8))
    weight = torch.zeros(9, 32, 32, device=examples.DEVICE).to(examples.FP8)
    conv3x3.conv3x3(x, weight, Epilogue(bias=bias, activation=NONE), outputs, TILE)
    assert outputs.out.float()[0, 3, 5, :4].tolist() == [448.0, -448.0, 448.0, 0.0]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_every_kind_stores_what_the_reference_stores(group: tuple[str, str, str]) -> None:
    for kind in GROUPS[group]:
        made = made_of(kind)
        assert told(made) == kind
        made.store_and_check(small_tile(made))


def told(made: examples.Example) -> Kind:
    second, outputs = made.second or SecondSource(), made.outputs
    stored = {**vars(outputs), "result": outputs.out, "residual": made.epilogue.residual}
    given = {**stored, "slopes": made.epilogue.slopes, "second": second.map, "border": second.border}
    return kind_of(made.op, made.x.dtype, given)


@pytest.mark.parametrize("op", BY_NAME.values(), ids=name_of)
def test_a_kernel_ends_in_any_activation(op: KernelOp) -> None:
    kind = next(kind for kind in KINDS if kind.op == op.name and "fp8-residual" not in kind.parts)
    for activation in activations_of(op):
        made = made_of(kind, SMALL, activation)
        made.store_and_check(small_tile(made))


OF_GLUON = [kind for kind in KINDS if kind.op in ("conv3x3", "conv3x3x3")]
CHANNELS = [(16, 16), (32, 64), (64, 64), (80, 144), (256, 128)]


@pytest.mark.parametrize(("inner", "outer"), CHANNELS)
def test_every_candidate_fits_on_hopper(inner: int, outer: int) -> None:
    for kind in OF_GLUON:
        made = made_of(kind, replace(SMALL, inner=inner, outer=outer))
        stacked = kind.op == "conv3x3x3" and outer <= STACKED and not any("residual" in part for part in kind.parts)
        for one in [made, replace(made, weight=conv3x3.stacked(made.weight))] if stacked else [made]:
            operands = Operands(one.x, one.weight, one.epilogue, one.outputs)
            taken = [shared_by(tile, operands) for tile in candidates(operands)]
            assert taken
            assert max(taken) <= shared_bytes(made.x.device) - RESERVED_BYTES, kind


PLAIN_CALL = {"activation": "relu", "slope": 0.0, "tile": "", "slices": 1, "dilation": 1, "residual_scale": 1.0}
IN_ROWS = ["depthwise", "depthwise_strided", "conv3x3_few", "transposed3x3_few", "upsample2x"]


def far_apart(value: Tensor) -> Tensor:
    """The values [1, H, W, C] of a map whose last row begins more than 2^31 of them after the first.

    As in a map of 8192² with 64 channels, for which a tuner's machine may have the memory. Here what lies between the
    rows is asked for, and never touched.
    """
    _, height, width, channels = value.shape
    step = -(-(2**31) // (height - 1) // 64) * 64
    storage = torch.empty((height - 1) * step + width * channels, dtype=value.dtype, device=value.device)
    return storage.as_strided(value.shape, [step * height, step, channels, 1]).copy_(value)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="memory that is never touched is no GPU's")
@pytest.mark.parametrize("name", IN_ROWS)
def test_a_row_may_begin_where_32_bits_do_not_reach(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter refuses sums and products that overflow; a GPU would write elsewhere."""
    from triton.runtime.interpreter import GridExecutor

    # It would copy each storage onto itself, and touch gigabytes.
    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_: None)
    op = BY_NAME[name]
    stored_as, size = HALF if op.writes == {"fp16"} else FP8, (5, 3) if op.growth < 1 else (3, 3)
    layer = for_kernel(op, Layer(size=size, inner=16, outer=16, stored_as=stored_as))
    made = example(op, FP8 if "fp8" in op.reads else HALF, layer)
    wanted = made.expected()["out"]
    far = replace(made, x=far_apart(made.x), outputs=Outputs(far_apart(poisoned(*wanted.shape, dtype=stored_as))))
    far.run(made.candidates()[-1])
    assert far.outputs.out is not None
    assert_near(far.outputs.out, wanted, made.dtype)


def without_memory(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=HALF, device="meta")


def test_more_pixels_than_32_bits_number_are_refused() -> None:
    """32 images of 8192² with 8 channels take 32 GiB."""
    large, weight, bias = without_memory(32, 8192, 8192, 8), without_memory(8, 8), torch.zeros(8)
    with pytest.raises(ValueError, match=r"^x must have less than 2147479552 pixels"):
        conv1x1.conv1x1(large, weight, Epilogue(bias=bias), Outputs(large), conv1x1.Tile(64, 16, 16))
    size, counted = (65536, 32768), without_memory(1, 1, 2, 8)
    layers = Excitation(weight, bias, weight, bias, Epilogue().activation, "sigmoid")
    for refused in (lambda: merge_statistics(counted, size), lambda: excitation(counted, size, 1, layers)):
        with pytest.raises(ValueError, match=r"^the map of these statistics must have less than"):
            refused()


@pytest.mark.parametrize("name", ["depthwise", "conv3x3_few", "transposed3x3_few"])
def test_more_images_than_a_grid_has_are_refused(name: str) -> None:
    op = BY_NAME[name]
    made = example(op, HALF, for_kernel(op, Layer(size=(2, 2), inner=16, outer=16)))
    many, stored = (part.repeat(MOST_PROGRAMS + 1, 1, 1, 1) for part in (made.x, made.outputs.out))
    with pytest.raises(ValueError, match=r"^x's batch must be at most 65535, got 65536$"):
        op.launch(many, made.weight, made.epilogue, Outputs(stored), made.candidates()[0])


def test_more_rows_or_images_than_a_grid_has_are_refused_by_those_that_take_each_for_a_program() -> None:
    ends, weight = Epilogue(bias=torch.zeros(2)), torch.zeros(9, 2, 2).half()
    high, many = torch.zeros(1, MOST_PROGRAMS + 1, 1, 2).half(), torch.zeros(MOST_PROGRAMS + 1, 1, 1, 16).half()
    with pytest.raises(ValueError, match=r"^x's height must be at most 65535"):
        few_channels.conv3x3_few(high, weight, ends, Outputs(high), few_channels.Tile(128))
    head = BY_NAME["conv_head"]
    with pytest.raises(ValueError, match=r"^x's batch must be at most 65535"):
        head.launch(many, torch.zeros(1, 2, 16).half(), ends, Outputs(logits=torch.zeros(len(many), 2, 1, 1)), None)
    how = norm_pass.NormPass(Norm(eps=1e-5))
    with pytest.raises(ValueError, match=r"^x's batch must be at most 65535"):
        norm_pass.norm_pass(many, torch.zeros(len(many), 1, 2, 16), how, many, Tile(4096, 4, False))


def test_more_values_than_the_kernel_of_few_channels_counts_are_refused() -> None:
    """It is a candidate among others, which take an image of 8192² with a slice of 64 channels."""
    x, wide, weight = without_memory(1, 8192, 8192, 32), without_memory(1, 8192, 8192, 64), without_memory(9, 32, 32)
    for name, read, stored in (("out", x[:, :-1], wide[:, :-1, :, 32:]), ("x", wide[..., 32:], x)):
        operands = Operands(read, weight, Epilogue(bias=torch.zeros(32)), Outputs(stored))
        with pytest.raises(ValueError, match=rf"^{name} must have less than 2\^31 values an image"):
            conv3x3_narrow.launch(operands, conv3x3_narrow.Tile(16))


def test_weights_that_stay_need_a_multiprocessor_for_each_block_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a GPU may have 16 of them: of 17 blocks none would be made."""
    monkeypatch.setattr(conv3x3_gluon, "multiprocessors", lambda _: 16)
    made = example(BY_NAME["conv3x3"], HALF, Layer(size=(8, 16), inner=16, outer=17 * 64))
    with pytest.raises(ValueError, match="a multiprocessor for each of 17 blocks of channels"):
        made.run(conv3x3_gluon.Tile(16, 16, 64, 16, 4, 0, 2, 4))


@pytest.mark.parametrize("x", [torch.zeros(0, 8, 8, 16).half(), torch.zeros(1, 8, 8, 16).half().expand(3, -1, -1, -1)])
def test_what_is_empty_or_expanded_is_no_map_for_bulk_copies(x: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^x must be neither empty nor expanded"):
        check("x", x, tuple(x.shape))


def any_steps(value: Tensor) -> Tensor:
    """A map [N, H, W, C] as torch may hold it, [N, C, H, W]: sides of one pixel step by 1."""
    steps = [1 if length == 1 else step for length, step in zip(value.shape, value.stride(), strict=True)]
    return value.as_strided(value.shape, steps).permute(0, 3, 1, 2)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize(
    "op", [op for op in PLAIN if not op.reads_image and op.growth_deep == 1], ids=lambda op: op.name
)
def test_a_side_of_one_pixel_may_have_any_step(op: KernelOp, size: tuple[int, int]) -> None:
    """A map [N, C, 1, 1] has steps of 1 whatever layout it is asked for, and TMA takes multiples of 16 bytes."""
    made = example(op, HALF, for_kernel(op, Layer(1, size, 16, 16)))
    assert made.outputs.out is not None
    ends, memory = made.epilogue, {"x": any_steps(made.x), "result": any_steps(made.outputs.out)}
    given = {**dict.fromkeys(NAMES), **memory, "weight": made.weight, "scale": ends.scale, "bias": ends.bias}
    given |= {**PLAIN_CALL, "activation": ends.activation.name}
    op.launch(*kernel_call(op, given).operands, made.candidates()[0])
    made.check()


def test_an_operation_has_nothing_to_do_for_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    out = torch.zeros(0, 16, 8, 8).half()
    monkeypatch.setattr(custom_ops, "kernel_call", lambda *_: SimpleNamespace(x=out))
    given = {**dict.fromkeys(NAMES), "weight": torch.zeros(9, 16, 16).half(), "bias": torch.zeros(16), "result": out}
    given |= {**PLAIN_CALL, "layer": "", "tile": "no tile"}
    answer: object = operation("conv3x3")(out, **{name: part for name, part in given.items() if name != "x"})
    assert answer is None
