"""Every Triton kernel against its reference, in the interpreter."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.kernels import border, conv1x1, conv3x3, conv3x3_first, conv3x3_nine, upconv2x2, upsample2x

HALF, FP8 = torch.float16, torch.float8_e4m3fn
LIMIT = {HALF: 2e-3, FP8: 0.13}  # fp8: one step, 1/8, where the order of the sums tips a rounding
# Odd sizes, channels that don't divide the tile, one image and three.
SHAPES = [(1, 13, 17, 32, 48), (3, 6, 10, 48, 80)]
NINE = conv3x3_nine.Tile(8, 16, 32, 32, swap=True, warps=4)


def values(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.full(shape, float("nan")).to(dtype)


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Every element was written, and is the reference's within one rounding of its dtype.

    In fp8 powers of two are left out, and what is below 2^-7 is nothing: Triton 3.9's interpreter drops the carry
    when it rounds up to a power of two, and says 16 for 31.99. A GPU has no such fault: see pipeline/kernels/parity.py.
    """
    assert torch.equal(found.float().isnan(), wanted.float().isnan())
    if found.dtype == FP8:
        told = (wanted.contiguous().view(torch.uint8) & 7 != 0) | (wanted.float() == 0)
        assert told.float().mean() > 0.5
        found, wanted = found[told].float(), wanted[told].float()
        torch.testing.assert_close(found, wanted, rtol=LIMIT[FP8], atol=2**-7)
    else:
        torch.testing.assert_close(found, wanted, rtol=LIMIT[HALF], atol=LIMIT[HALF], equal_nan=True)


def ends(outer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return torch.linspace(-1, 1, outer), torch.linspace(0.02, 0.2, outer) if dtype == FP8 else None


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tile", [NINE, replace(NINE, swap=False)], ids=["swapped", "straight"])
def test_convolution_writes_output_and_pool_as_the_reference(tile, shape, dtype):
    """A convolution reads a channel slice, and writes its output and the maxima, whatever the size."""
    batch, height, width, inner, outer = shape
    x = values(batch, height, width, 2 * inner, dtype=dtype)[..., inner:]
    weight, (beta, alpha) = values(9, outer, inner, dtype=dtype), ends(outer, dtype)
    out, wanted = (poisoned(batch, height, width, outer, dtype=dtype) for _ in range(2))
    pooled, wanted_pooled = (poisoned(batch, height // 2, width // 2, outer, dtype=dtype) for _ in range(2))
    conv3x3.conv3x3(x, weight, beta, out, alpha=alpha, pooled=pooled, tile=tile)
    conv3x3.reference(x, weight, beta, wanted, alpha=alpha, pooled=wanted_pooled)
    assert_near(out, wanted)
    assert_near(pooled, wanted_pooled)


def test_convolution_without_relu_keeps_negative_values():
    x, weight, beta = values(1, 8, 16, 32), values(9, 32, 32), torch.zeros(32)
    out, wanted = poisoned(1, 8, 16, 32), poisoned(1, 8, 16, 32)
    conv3x3.conv3x3(x, weight, beta, out, relu=False, tile=NINE)
    conv3x3.reference(x, weight, beta, wanted, relu=False)
    assert_near(out, wanted)
    assert out.min() < 0


def test_convolution_of_infinities_has_the_infinities_and_nans_of_the_reference():
    """Infinities spread over their 3×3 neighbourhood and no further, and opposite ones meet as NaN."""
    x = values(1, 9, 18, 16)
    x[0, 4, 4, 0], x[0, 4, 5, 0], x[0, 0, 17, 3] = float("inf"), float("-inf"), float("inf")
    weight, beta = values(9, 32, 16), torch.zeros(32)
    out, wanted = poisoned(1, 9, 18, 32), poisoned(1, 9, 18, 32)
    conv3x3.conv3x3(x, weight, beta, out, relu=False, tile=replace(NINE, depth=16))
    conv3x3.reference(x, weight, beta, wanted, relu=False)
    assert torch.equal(out.isnan(), wanted.isnan())
    assert out.isnan().any()
    assert torch.equal(out.isinf(), wanted.isinf())
    assert_near(out, wanted)


@pytest.mark.parametrize("swap", [True, False])
def test_head_alone_writes_logits(swap):
    """With a head and no output only the logits are written, in NCHW."""
    x, weight, beta = values(2, 7, 18, 32), values(9, 24, 32), torch.linspace(-1, 1, 24)
    mix, bias = values(3, 24).float(), torch.tensor([0.5, -0.5, 2.0])
    head, wanted = (conv3x3.Head(mix, bias, poisoned(2, 3, 7, 18, dtype=torch.float32)) for _ in range(2))
    conv3x3.conv3x3(x, weight, beta, None, head=head, tile=replace(NINE, swap=swap))
    conv3x3.reference(x, weight, beta, None, head=wanted)
    torch.testing.assert_close(head.logits, wanted.logits, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_first_convolution_reads_fp32_nchw(channels, dtype):
    image, beta = values(3, channels, 11, 19, dtype=torch.float32), torch.linspace(-1, 1, 48)
    weight, alpha = conv3x3_first.pack(values(48, channels, 3, 3).float()), torch.linspace(0.1, 1, 48)
    out, wanted = poisoned(3, 11, 19, 48, dtype=dtype), poisoned(3, 11, 19, 48, dtype=dtype)
    conv3x3_first.conv3x3_first(image, weight, beta, out, alpha=alpha)
    conv3x3_first.reference(image, weight, beta, wanted, alpha=alpha)
    assert_near(out, wanted)


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("shape", SHAPES)
def test_transposed_convolution_fills_its_half_of_the_concatenation(shape, dtype):
    """The four pixels go where they belong, and the other half of the buffer isn't touched."""
    batch, height, width, inner, outer = shape
    x, weight, (beta, alpha) = values(*shape[:4], dtype=dtype), values(4, outer, inner, dtype=dtype), ends(outer, dtype)
    wide = poisoned(batch, 2 * height, 2 * width, 2 * outer, dtype=dtype)
    wanted = poisoned(batch, 2 * height, 2 * width, outer, dtype=dtype)
    upconv2x2.upconv2x2(x, weight, beta, wide[..., outer:], alpha=alpha)
    upconv2x2.reference(x, weight, beta, wanted, alpha=alpha)
    assert_near(wide[..., outer:], wanted)
    assert wide[..., :outer].float().isnan().all()


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("shape", SHAPES)
def test_1x1_convolution(shape, dtype):
    batch, height, width, inner, outer = shape
    x, weight, (beta, alpha) = values(*shape[:4], dtype=dtype), values(outer, inner, dtype=dtype), ends(outer, dtype)
    out, wanted = (poisoned(batch, height, width, outer, dtype=dtype) for _ in range(2))
    conv1x1.conv1x1(x, weight, beta, out, alpha=alpha, relu=True)
    conv1x1.reference(x, weight, beta, wanted, alpha=alpha, relu=True)
    assert_near(out, wanted)


@pytest.mark.parametrize("dtype", [HALF, FP8])
def test_upsampling_mixes_neighbours_and_clamps_at_the_border(dtype):
    x = values(3, 5, 7, 24, dtype=dtype)
    out, wanted = poisoned(3, 10, 14, 24, dtype=dtype), poisoned(3, 10, 14, 24, dtype=dtype)
    upsample2x.upsample2x(x, out, scale=0.5)
    upsample2x.reference(x, wanted, scale=0.5)
    assert_near(out, wanted)


@pytest.mark.parametrize(("before", "after"), [(torch.float32, HALF), (HALF, FP8), (FP8, HALF)])
def test_rescaling_changes_layout_and_dtype(before, after):
    """NCHW in, a channel slice of an NHWC buffer out."""
    x = values(3, 20, 5, 9, dtype=before).permute(0, 2, 3, 1)
    wide, wanted = poisoned(3, 5, 9, 40, dtype=after), poisoned(3, 5, 9, 20, dtype=after)
    border.rescale(x, wide[..., 20:], scale=3.0)
    border.reference(x, wanted, scale=3.0)
    assert_near(wide[..., 20:], wanted)
    assert wide[..., :20].float().isnan().all()


def test_fp8_saturates_at_its_largest_value():
    x, out = torch.tensor([1e4, -1e4, 448.0, 1.0]).reshape(1, 1, 1, 4), poisoned(1, 1, 1, 4, dtype=FP8)
    border.rescale(x, out)
    assert out.float().flatten().tolist() == [448.0, -448.0, 448.0, 1.0]
