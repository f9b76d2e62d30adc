"""What the launchers refuse, what a GPU must have, and the packing of weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.ops import KERNELS, TILES
from pipeline.compiler.passes.kernel_folding import RECOGNISABLE
from pipeline.kernels import conv1x1, conv3x3, few_channels, norm_pass, upconv2x2, upsample2x
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, RELU, Activation, recognised
from pipeline.kernels.common.capability import gluon_barred, reaching_views_barred, supported
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import NO_WEIGHT, Ends
from tests.kernels.activation_modules import MODULES
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
    "conv3x3_few": (few_channels.conv3x3_few, torch.zeros(1, 8, 8, 2), torch.zeros(9, 3, 2), 8),
    "transposed3x3_few": (few_channels.transposed3x3_few, torch.zeros(1, 8, 8, 16), torch.zeros(16, 3, 16), 16),
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
        assert not [tile for tile in tiles if "gluon" in tile.kernel or "narrow" in tile.kernel]


def test_every_activation_of_the_table_is_tried_here() -> None:
    assert {activation.name for _, activation in MODULES if activation} | {"none"} == set(ACTIVATIONS)


@pytest.mark.parametrize(("module", "wanted"), MODULES, ids=lambda part: str(part)[:24])
def test_a_module_s_operation_is_recognised_and_its_reference_is_torch_s(
    module: nn.Module, wanted: Activation | None
) -> None:
    y = torch.linspace(-4, 4, 32).reshape(2, 4, 2, 2)
    exported = torch.export.export(module.eval(), (y,))
    (node,) = (node for node in exported.graph.nodes if node.op == "call_function")
    assert recognised(str(node.target), node.args[1:], node.kwargs) == wanted
    if wanted is not None:
        slopes = module.weight.detach().expand(4)[:, None, None] if isinstance(module, nn.PReLU) else None
        with torch.no_grad():
            torch.testing.assert_close(wanted(y, slopes), module(y.clone()))


@pytest.mark.parametrize(
    ("target", "arguments", "keywords"),
    [
        ("aten.elu.default", (1.6732632423543772, 1.0507009873554805), {}),  # SELU, decomposed
        ("aten.gelu.default", (), {"approximate": "erf"}),
        ("aten.relu.default", (), {"approximate": "tanh"}),
        ("aten.silu.default", (0.1,), {}),
        ("aten.prelu.default", (), {}),
        ("aten.sigmoid.default", (), {}),
    ],
)
def test_a_form_that_no_kernel_has_is_not_taken_for_another(
    target: str, arguments: tuple[object, ...], keywords: dict[str, object]
) -> None:
    assert recognised(target, arguments, keywords) is None


def test_every_entry_s_operation_is_looked_for_in_a_graph() -> None:
    """So that an entry alone makes an activation foldable."""
    assert {kind.aten for kind in ACTIVATIONS.values()} == RECOGNISABLE | {""}


def test_arguments_by_keyword_are_those_by_position() -> None:
    assert recognised("aten.leaky_relu.default", (), {"negative_slope": 0.3}) == Activation("leaky_relu", 0.3)
    assert recognised("aten.elu.default", (), {"alpha": 0.5, "scale": 1.0}) == Activation("elu", 0.5)


def test_a_slope_for_each_channel_is_the_last_axis_s_in_a_reference() -> None:
    y, slopes = torch.randn(2, 3, 3, 4), torch.tensor([0.0, 0.5, -1.0, 2.0])
    wanted: Tensor = nn.functional.prelu(y.permute(0, 3, 1, 2), slopes).permute(0, 2, 3, 1)
    torch.testing.assert_close(Activation("prelu")(y, slopes), wanted)
