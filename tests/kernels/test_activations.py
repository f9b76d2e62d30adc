"""The table of activations: each is torch's, and each form of an operation of a net is told from the others."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.passes.kernel_folding import RECOGNISABLE
from pipeline.kernels.common.activation import ACTIVATIONS, Activation, recognised
from tests.kernels.activation_modules import MODULES


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
