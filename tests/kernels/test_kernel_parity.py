"""Every kernel against its reference, interpreted or on a GPU; maps larger than it counts, of a pixel, or of none."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from pipeline.compiler import custom_ops
from pipeline.compiler.custom_ops import NAMES, kernel_call, operation
from pipeline.compiler.ops import BY_NAME
from pipeline.kernels import conv1x1, conv3x3, few_channels, norm_pass
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, SecondSource
from pipeline.kernels.common.nhwc import MOST_PROGRAMS, check, shared_bytes
from pipeline.kernels.conv3x3 import conv3x3_gluon, conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, candidates, shared_by
from pipeline.kernels.conv3x3.conv3x3_triton import STACKED, Operands
from pipeline.kernels.norm_pass import Excitation, Norm, excitation, merge_statistics
from tests.kernels import examples
from tests.kernels.examples import DEVICE, FP8, HALF, PLAIN, Layer, assert_near, example, for_kernel, poisoned
from tests.kernels.kinds import BY_ROWS, GROUPS, KINDS, SMALL, Kind, activations_of, kind_of, made_of, small_tile

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
        made.poison()
        made.run(small_tile(made))
        made.check()


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
        made.poison()
        made.run(small_tile(made))
        made.check()


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
        op.launch(many, made.weight, made.epilogue, Outputs(stored))


def test_more_rows_or_images_than_a_grid_has_are_refused_by_those_that_take_each_for_a_program() -> None:
    ends, weight = Epilogue(bias=torch.zeros(2)), torch.zeros(9, 2, 2).half()
    high, many = torch.zeros(1, MOST_PROGRAMS + 1, 1, 2).half(), torch.zeros(MOST_PROGRAMS + 1, 1, 1, 16).half()
    with pytest.raises(ValueError, match=r"^x's height must be at most 65535"):
        few_channels.conv3x3_few(high, weight, ends, Outputs(high))
    head = BY_NAME["conv_head"]
    with pytest.raises(ValueError, match=r"^x's batch must be at most 65535"):
        head.launch(many, torch.zeros(1, 2, 16).half(), ends, Outputs(logits=torch.zeros(len(many), 2, 1, 1)))
    how = norm_pass.NormPass(Norm(eps=1e-5))
    with pytest.raises(ValueError, match=r"^x's batch must be at most 65535"):
        norm_pass.norm_pass(many, torch.zeros(len(many), 1, 2, 16), how, many)


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
    op.launch(*kernel_call(op, given).operands)
    made.check()


def test_an_operation_has_nothing_to_do_for_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    out = torch.zeros(0, 16, 8, 8).half()
    monkeypatch.setattr(custom_ops, "kernel_call", lambda *_: SimpleNamespace(x=out))
    given = {**dict.fromkeys(NAMES), "weight": torch.zeros(9, 16, 16).half(), "bias": torch.zeros(16), "result": out}
    given |= {**PLAIN_CALL, "layer": "", "tile": "no tile"}
    answer: object = operation("conv3x3")(out, **{name: part for name, part in given.items() if name != "x"})
    assert answer is None
