"""The kernels as operations of torch: what torch demands of them holds, and each gives its layer's answer."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import pipeline.compiler
import pipeline.kernels
from pipeline.compiler import custom_ops
from pipeline.compiler.custom_ops import NAMES, NAMESPACE, OPERATIONS, OUTPUTS, REFERENCE, kernel_call, operation
from pipeline.compiler.graph.layers import KernelLayer
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.ops import KERNELS, tile_of, tile_text
from pipeline.kernels import conv_first, upsample2x
from pipeline.kernels.common.block_statistics import statistics_of
from pipeline.kernels.conv3x3 import conv3x3_triton
from tests.compiler.rewriting import Calls, rewritten

# The last traces forwards and backwards through a compiler's front end, which takes nine tenths of the time; what
# writes into its arguments refuses it where gradients are wanted.
ALL_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
NETS = (
    *("one level, batch 3", "bilinear, odd size", "residual", "strided shortcut", "dilated", "grouped", "pix2pix"),
    *("transposed with norm", "squeeze and excitation", "residuals, sums for norms, slopes", "unpadded"),
    *("few channels", "norms up to the logits", "late windows, depthwise, squeeze and excitation"),
    *("volumes", "volumes of slices far apart", "volumes, a stride within slices"),
)


@dataclass(frozen=True)
class Call:
    name: str
    layer: KernelLayer
    inputs: list[Tensor]
    given: dict[str, Any]

    @property
    def kind(self) -> tuple[str, ...]:
        roles = [role for role in (*OUTPUTS, "second", "residual", "slopes") if self.given[role] is not None]
        return (self.name, *roles)

    def poisoned(self) -> dict[str, Any]:
        fresh = {role: torch.full_like(self.given[role], torch.nan) for role in OUTPUTS if self.given[role] is not None}
        return {**self.given, **fresh}


def calls() -> Iterator[Call]:
    for name in NETS:
        made = rewritten(name)
        walk = Calls(lower(made.net, Plan()))
        walk.run(made.batch)
        for layer, x, given in walk.seen:
            yield Call(layer.op.name, layer, [x] if given["second"] is None else [x, given["second"]], given)


@pytest.fixture(scope="module")
def of_each_kind() -> list[Call]:
    with torch.no_grad():
        return list({call.kind: call for call in calls()}.values())


def test_every_operation_is_tried_here(of_each_kind: list[Call]) -> None:
    assert {call.name for call in of_each_kind} == {op.name for op in KERNELS} == set(OPERATIONS)
    kinds = {call.kind for call in of_each_kind}
    assert kinds >= {
        ("conv3x3", "result", "pooled"), ("conv3x3", "logits", "slopes"), ("conv3x3", "result", "residual"),
        ("conv3x3", "result", "statistics"), ("upsampled_conv3x3", "result", "second"),
        ("conv_first", "result", "statistics"), ("conv3x3_strided", "result", "statistics"),
        ("transposed3x3", "result", "statistics"), ("conv3x3x3", "result", "statistics"),
    }  # fmt: skip


def test_torch_finds_no_fault_with_an_operation(of_each_kind: list[Call]) -> None:
    """Of every kind what it says it changes, and its fake; of each operation its way through a compiler's tracing."""
    whole = {call.name: call for call in of_each_kind}
    for call in of_each_kind:
        checks = ALL_CHECKS if whole[call.name] is call else ALL_CHECKS[:3]
        torch.library.opcheck(operation(call.name), (call.inputs[0],), call.given, test_utils=checks)


def test_wanted_gradients_are_refused_in_one_line(of_each_kind: list[Call]) -> None:
    """What it writes into has none: a net that was trained through it would stand still without a word."""
    for call in {call.name: call for call in of_each_kind}.values():
        said = f"^unet_ladder.{call.name}.default: no gradient is defined; call it within torch.no_grad"
        for name, part in (("x", call.inputs[0]), ("weight", call.given["weight"])):
            if part is not None and part.is_floating_point():
                wanted = {"x": call.inputs[0], **call.given, name: part.detach().clone().requires_grad_()}
                with pytest.raises(RuntimeError, match=said):
                    operation(call.name)(**wanted)
                with torch.no_grad():
                    operation(call.name)(**wanted)


def test_a_backward_through_what_merges_statistics_is_refused_in_one_line() -> None:
    counted = statistics_of(torch.randn(2, 16, 36, 8), 2)
    layers = [torch.zeros(4, 8), torch.zeros(4), torch.zeros(4, 8), torch.zeros(8)]
    answers: dict[str, Callable[[Tensor], Tensor]] = {
        "merged_statistics": lambda given: custom_ops.merge(given, 16, 36, 2)[0],
        "norm_factors": lambda given: custom_ops.norm(given, None, None, 1e-5, [16, 36], 2)[0],
        "excitation": lambda given: custom_ops.excite(given, layers, "relu", 0.0, "sigmoid", [16, 36], 2),
    }
    for name, answer in answers.items():
        total = answer(counted.clone().requires_grad_()).sum()
        with pytest.raises(RuntimeError, match=f"^unet_ladder.{name}: no gradient is defined; call it within "):
            torch.autograd.backward(total)


@torch.no_grad()
def test_an_operation_gives_its_layer_s_answer(of_each_kind: list[Call]) -> None:
    for call in of_each_kind:
        given = call.poisoned()
        operation(call.name)(call.inputs[0], **given)
        wanted = call.layer(torch.float32, *call.inputs, residual=call.given["residual"])
        for role, part in zip(OUTPUTS, wanted, strict=True):
            assert (given[role] is None) == (part is None), (call.kind, role, call.given["layer"])
            if part is not None:
                assert float((given[role] - part).norm() / part.norm()) < 1e-3, call.kind


def test_the_user_s_image_may_have_any_layout_and_floating_type() -> None:
    """The kernels read fp32 in NCHW; a bundle's net is called with what its user has."""
    image, out = torch.randn(2, 3, 9, 12).half(), torch.zeros(2, 16, 9, 12).half().to(memory_format=torch.channels_last)
    given = {**dict.fromkeys(NAMES), "weight": torch.zeros(3, 3, 4, 16).half(), "bias": torch.zeros(16), "result": out}
    given |= {"activation": "relu", "slope": 0.0, "tile": "", "slices": 1, "dilation": 1, "residual_scale": 1.0}
    for other in (image, image.double().to(memory_format=torch.channels_last), image.float().transpose(2, 3).mT):
        seen = kernel_call(conv_first.OP, {**given, "x": other}).x
        assert seen.dtype == torch.float32
        assert seen.is_contiguous()
        assert torch.equal(seen, image.float())


def test_kernels_are_launched_on_their_operands_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes the current one, which need not be that of a net on a second GPU."""
    entered: list[Tensor] = []

    @contextmanager
    def noted(tensor: Tensor) -> Iterator[None]:
        entered.append(tensor)
        yield

    monkeypatch.setattr(torch.cuda, "device_of", noted)
    monkeypatch.setattr(custom_ops, "is_cuda", lambda _: True)
    counted, layers = torch.zeros(2, 1, 2, 8), [torch.zeros(4, 8), torch.zeros(4), torch.zeros(4, 8), torch.zeros(8)]
    custom_ops.merge(counted, 8, 16, 1)
    custom_ops.norm(counted, None, None, 1e-5, [8, 16], 1)
    custom_ops.excite(counted, layers, "relu", 0.0, "sigmoid", [8, 16], 1)
    assert len(entered) == 3


def test_a_tile_s_text_names_the_same_tile() -> None:
    for tile in (conv3x3_triton.Tile(8, 16, 64, 32), upsample2x.Tile()):
        assert tile_of(tile_text(tile)) == tile
        assert json.loads(tile_text(tile))["kernel"] == tile.kernel


@pytest.mark.parametrize(
    "text", ["", "reference", "[]", "{}", '{"kernel": "conv9x9"}', '{"kernel": "conv3x3_triton", "sides": 3}']
)
def test_a_text_that_names_no_tile_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="no tile of this version's kernels") as caught:
        tile_of(text)
    assert "\n" not in str(caught.value)


Sample = tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]  # arguments, the named ones, and what is checked


def registered() -> set[str]:
    """The operations of the namespace once every module of both rooms is imported, whoever registers them."""
    for room in (pipeline.compiler, pipeline.kernels):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(found.name)
    names = (name.split("::") for name in torch._C._dispatch_get_all_op_names())
    return {name.partition(".")[0] for namespace, name in names if namespace == NAMESPACE}


def of_norms() -> dict[str, list[Sample]]:
    """A norm's pass and the convolution that norms what it reads: with groups, a residual, without statistics."""
    y = torch.randn(2, 8, 16, 16)
    x, counted, weight = y.permute(0, 3, 1, 2), statistics_of(y), torch.rand(16)[:, None, None]
    norm: dict[str, Any] = {"counted": counted, "norm_weight": weight, "norm_bias": None, "eps": 1e-5, "phases": 1}
    norm |= {"norm_activation": "relu", "norm_slope": 0.0, "tile": REFERENCE}
    alone = {**norm, "norm_scale": 1.0, "result": torch.empty_like(x)}
    kept = {"weight": torch.randn(9, 8, 16), "bias": torch.rand(8), "activation": "none", "slope": 0.0, "layer": "a"}
    made = {"result": torch.empty(2, 8, 16, 8).permute(0, 3, 1, 2), "statistics": torch.empty(2, 1, 2, 8)}
    groups, whole = {"group_width": 4}, {**norm, **kept, **made}
    head = {"head_weight": torch.randn(2, 16), "head_bias": torch.rand(2), "result": torch.empty(2, 2, 8, 16)}
    added = {"residual": torch.randn(2, 8, 16, 8).half().permute(0, 3, 1, 2), "residual_scale": 0.5}
    return {
        "normalised": [((x,), alone | named, ALL_CHECKS) for named in ({}, groups, head)],
        "normed_conv3x3": [
            ((x,), whole | named, ALL_CHECKS[:3]) for named in ({}, groups, added, {"statistics": None})
        ],
    }


def samples() -> dict[str, list[Sample]]:
    counted, vector = statistics_of(torch.randn(2, 16, 36, 8), 2), torch.randn(8)
    layers = [torch.randn(4, 8), torch.randn(4), torch.randn(4, 8), vector]
    factors = [(counted, *ends, 1e-5, [16, 36], 2) for ends in ((vector, vector), (None, None))]
    return {
        "merged_statistics": [((counted, 16, 36, 2), {}, ALL_CHECKS)],
        "norm_factors": [((*given, *width), {}, ALL_CHECKS) for given in factors for width in ((), (4,))],
        "excitation": [((counted, layers, "silu", 0.0, "sigmoid", [16, 36], 2), {}, ALL_CHECKS)],
        **of_norms(),
    }


@pytest.mark.parametrize("name", sorted(registered() - set(OPERATIONS)))
def test_torch_finds_no_fault_with_an_operation_beside_the_kernels(name: str) -> None:
    """Of each there must be a sample: an operation that was added without one fails."""
    for given, named, checks in samples()[name]:
        torch.library.opcheck(operation(name), given, named, test_utils=checks)
