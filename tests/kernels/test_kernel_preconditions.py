"""What the launchers refuse, what a GPU must have, and the packing of weights."""

import pytest
import torch
from torch.nn import functional

from pipeline.kernels import border, conv1x1, conv3x3, conv3x3_first, upconv2x2
from pipeline.kernels.capability import supported
from pipeline.kernels.gluon_boxes import missing
from pipeline.kernels.nhwc import next_power_of_two


def test_references_agree_with_torch():
    """Packed weights and NHWC say the same as torch's own layers."""
    x = torch.randn(2, 6, 8, 10, dtype=torch.float64).float()
    weight, bias = torch.randn(12, 6, 3, 3), torch.randn(12)
    out = torch.empty(2, 8, 10, 12)
    conv3x3.reference(x.permute(0, 2, 3, 1), conv3x3.pack(weight), bias, out, relu=False)
    torch.testing.assert_close(
        out.permute(0, 3, 1, 2), functional.conv2d(x, weight, bias, padding=1), rtol=1e-4, atol=1e-4
    )
    conv3x3_first.reference(x, conv3x3_first.pack(weight), bias, out, relu=False)
    torch.testing.assert_close(
        out.permute(0, 3, 1, 2), functional.conv2d(x, weight, bias, padding=1), rtol=1e-2, atol=1e-2
    )
    grown, up = torch.empty(2, 16, 20, 12), torch.randn(6, 12, 2, 2)
    upconv2x2.reference(x.permute(0, 2, 3, 1), upconv2x2.pack(up), bias, grown)
    wanted = functional.conv_transpose2d(x, up, bias, stride=2)
    torch.testing.assert_close(grown.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)
    mix = torch.randn(12, 6, 1, 1)
    conv1x1.reference(x.permute(0, 2, 3, 1), conv1x1.pack(mix), bias, out)
    torch.testing.assert_close(out.permute(0, 3, 1, 2), functional.conv2d(x, mix, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("capability", "dtype", "word"),
    [
        ((9, 0), torch.float16, None),
        ((9, 0), torch.float8_e4m3fn, None),
        ((10, 0), torch.float16, None),
        ((8, 0), torch.float16, "TMA"),
        ((8, 0), torch.float8_e4m3fn, "fp8"),
        ((8, 9), torch.float8_e4m3fn, "TMA"),
        ((9, 0), torch.bfloat16, "bfloat16"),
    ],
)
def test_capability_is_named_where_it_is_missing(capability, dtype, word):
    reason = supported(capability, dtype)
    assert reason is None if word is None else word in str(reason)


def operands() -> dict[str, torch.Tensor]:
    return {
        "x": torch.zeros(1, 8, 8, 16, dtype=torch.float16),
        "weight": torch.zeros(9, 16, 16, dtype=torch.float16),
        "beta": torch.zeros(16),
        "out": torch.zeros(1, 8, 8, 16, dtype=torch.float16),
    }


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("weight", torch.zeros(9, 16, 8, dtype=torch.float16)),
        ("weight", torch.zeros(9, 16, 16, dtype=torch.float8_e4m3fn)),
        ("beta", torch.zeros(8)),
        ("beta", torch.zeros(16, dtype=torch.float16)),
        ("out", torch.zeros(1, 8, 4, 16, dtype=torch.float16)),
        ("out", torch.zeros(1, 8, 8, 16)),
        ("out", torch.zeros(1, 8, 16, 8, dtype=torch.float16).transpose(2, 3)),
        ("x", torch.zeros(1, 8, 8, 17, dtype=torch.float16)[..., 1:]),
    ],
)
def test_the_operand_at_fault_is_named(name, wrong):
    """A wrong shape, dtype or stride is one line that names the tensor."""
    given = operands() | {name: wrong}
    with pytest.raises(ValueError, match=f"^{name} ") as caught:
        conv3x3.conv3x3(**given)
    assert "\n" not in str(caught.value)


def test_a_head_of_many_classes_is_refused():
    given = operands() | {"out": None}
    head = conv3x3.Head(torch.zeros(9, 16), torch.zeros(9), torch.zeros(1, 9, 8, 8))
    with pytest.raises(ValueError, match="at most 8 classes"):
        conv3x3.conv3x3(**given, head=head)


def test_images_with_a_gap_between_them_are_refused():
    wide = torch.zeros(2, 9, 8, 16, dtype=torch.float16)[:, :8]
    out, weight = torch.zeros(2, 16, 16, 16, dtype=torch.float16), torch.zeros(4, 16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="x's images must follow each other"):
        upconv2x2.upconv2x2(wide, weight, torch.zeros(16), out)


def test_rescaling_needs_equal_shapes():
    with pytest.raises(ValueError, match="out must be"):
        border.rescale(torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 8))


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (27, 32), (64, 64), (65, 128)])
def test_next_power_of_two(number, power):
    assert next_power_of_two(number) == power


@pytest.mark.parametrize(("version", "builds"), [("3.5.1", False), ("3.6.0", True), ("3.7.1", True), ("3.9.0", False)])
def test_the_version_of_triton_that_lacks_a_kernel_is_named(version, builds):
    reason = missing(version)
    assert reason is None if builds else version in str(reason)
