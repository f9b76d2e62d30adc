"""What the launchers refuse, what a GPU must have, and the packing of weights."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler.ops import KERNELS, TILES
from pipeline.kernels import (
    conv1x1,
    conv3x3,
    conv3x3_few,
    norm_pass,
    transposed3x3_few,
    upconv2x2,
    upsample2x,
)
from pipeline.kernels.common.activation import NONE, RELU
from pipeline.kernels.common.capability import gluon_barred, reaching_views_barred, supported
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import NO_WEIGHT, Ends
from pipeline.kernels.common.nhwc import next_power_of_two
from tests.kernels.examples import HALF, PLAIN, Layer, assert_torch_s, example, for_kernel


def test_kernels_of_one_window_are_torch_s_own_layers() -> None:
    x, weight, bias = torch.randn(2, 6, 8, 10), torch.randn(12, 6, 3, 3), torch.randn(12)
    mix, up = torch.randn(12, 6, 1, 1), torch.randn(6, 12, 2, 2)
    assert_torch_s(conv3x3.OP, x, weight, functional.conv2d(x, weight, bias, padding=1), Ends(NONE), bias)
    assert_torch_s(conv1x1.OP, x, mix, functional.conv2d(x, mix, bias), Ends(NONE), bias)
    assert_torch_s(upconv2x2.OP, x, up, functional.conv_transpose2d(x, up, bias, stride=2), Ends(NONE), bias)


def test_every_kernel_and_tile_has_a_name_of_its_own() -> None:
    assert len({op.name for op in KERNELS}) == len(KERNELS)
    assert set(TILES.values()) == {norm_pass.Tile, *(tile for op in KERNELS for tile in op.tile_types)}


@pytest.mark.parametrize(
    ("capability", "dtype", "word"),
    [
        ((9, 0), torch.float16, None),
        ((9, 0), torch.float8_e4m3fn, None),
        ((10, 0), torch.float16, None),
        ((8, 0), torch.float16, None),
        ((7, 5), torch.float16, "asynchronous copies"),
        ((8, 0), torch.float8_e4m3fn, "fp8"),
        ((8, 9), torch.float8_e4m3fn, None),
        ((9, 0), torch.bfloat16, "bfloat16"),
    ],
)
def test_capability_is_named_where_it_is_missing(
    capability: tuple[int, int], dtype: torch.dtype, word: str | None
) -> None:
    reason = supported(capability, dtype)
    assert reason is None if word is None else word in str(reason)


def run(**changed: torch.Tensor) -> None:
    given = {
        "x": torch.zeros(1, 8, 8, 16, dtype=torch.float16),
        "weight": torch.zeros(9, 16, 16, dtype=torch.float16),
        "bias": torch.zeros(16),
        "out": torch.zeros(1, 8, 8, 16, dtype=torch.float16),
    } | changed
    conv3x3.conv3x3(given["x"], given["weight"], Epilogue(bias=given["bias"]), Outputs(given["out"]))


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
    with pytest.raises(ValueError, match=f"^{name} ") as caught:
        run(**{name: wrong})
    assert "\n" not in str(caught.value)


def test_a_head_of_many_classes_is_refused() -> None:
    x, weight = torch.zeros(1, 8, 8, 16, dtype=torch.float16), torch.zeros(9, 16, 16, dtype=torch.float16)
    epilogue = Epilogue(bias=torch.zeros(16), head=Head(torch.zeros(9, 16), torch.zeros(9)))
    with pytest.raises(ValueError, match="at most 8 classes"):
        conv3x3.conv3x3(x, weight, epilogue, Outputs(logits=torch.zeros(1, 9, 8, 8)))


def test_what_a_kernel_does_not_fold_is_refused() -> None:
    x, out = torch.zeros(1, 8, 8, 16, dtype=torch.float16), torch.zeros(1, 8, 8, 16, dtype=torch.float16)
    pooled = Outputs(out, torch.zeros(1, 4, 4, 16, dtype=torch.float16))
    with pytest.raises(ValueError, match="pool must not be asked of this kernel"):
        conv1x1.conv1x1(x, x[0, 0].repeat(2, 1), Epilogue(bias=torch.zeros(16), pool=True), pooled)
    with pytest.raises(ValueError, match="pool and its output must be given together"):
        conv1x1.conv1x1(x, x[0, 0].repeat(2, 1), Epilogue(bias=torch.zeros(16)), pooled)
    grown = Outputs(torch.zeros(1, 16, 16, 16, dtype=torch.float16))
    with pytest.raises(ValueError, match="the epilogue must only scale, got relu"):
        upsample2x.upsample2x(x, NO_WEIGHT, Epilogue(activation=RELU), grown)


FEW: dict[str, tuple[Any, Tensor, Tensor, int]] = {
    "conv3x3_few": (conv3x3_few.conv3x3_few, torch.zeros(1, 8, 8, 2), torch.zeros(9, 3, 2), 8),
    "transposed3x3_few": (transposed3x3_few.transposed3x3_few, torch.zeros(1, 8, 8, 16), torch.zeros(16, 3, 16), 16),
}


@pytest.mark.parametrize("name", FEW)
def test_a_kernel_of_few_channels_names_the_operand_at_fault(name: str) -> None:
    launch, x, weight, side = FEW[name]
    x, weight, out = x.half(), weight.half(), torch.zeros(1, side, side, 3).half()
    ends = Epilogue(bias=torch.zeros(3))
    for found, message in (
        ((x, weight.float(), ends, Outputs(out)), "^weight must be"),
        ((x.float(), weight.float(), ends, Outputs(out)), r"^x must be float16 or"),
        ((x, weight, ends, Outputs(out[:, :4])), "^out must be"),
        ((x, weight, Epilogue(), Outputs(out)), "^bias must be given"),
        ((x, weight, Epilogue(bias=ends.bias, pool=True), Outputs(out, out)), "^pool must not be asked"),
    ):
        with pytest.raises(ValueError, match=message):
            launch(*found)
    many = weight.repeat(1, 3, 1)
    with pytest.raises(ValueError, match=r"^weight must have at most"):
        launch(x, many, Epilogue(bias=torch.zeros(9)), Outputs(torch.zeros(1, side, side, 9).half()))


def test_images_with_a_gap_between_them_are_refused() -> None:
    wide = torch.zeros(2, 9, 8, 16, dtype=torch.float16)[:, :8]
    out, weight = torch.zeros(2, 16, 16, 16, dtype=torch.float16), torch.zeros(4, 16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="x's images must follow each other"):
        upconv2x2.upconv2x2(wide, weight, Epilogue(bias=torch.zeros(16)), Outputs(out))


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (27, 32), (64, 64), (65, 128)])
def test_next_power_of_two(number: int, power: int) -> None:
    assert next_power_of_two(number) == power


@pytest.mark.parametrize(("version", "builds"), [("3.5.1", False), ("3.6.0", True), ("3.7.1", True), ("3.9.0", False)])
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
        assert not [tile for tile in tiles if "gluon" in type(tile).__module__ or "narrow" in type(tile).__module__]
