"""A rewrite that can't apply leaves the graph alone."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.compiler.passes.kernel_folding import padding
from tests.compiler.nets import Excited, image, lively
from tests.compiler.nets_that_passes_leave import CASES, conv
from tests.compiler.rewriting import copied, layers, lowered, rewritten_from

PASSES = [*FOR_ANY_BACKEND, *FOR_THE_KERNELS]


class Together(nn.Module):
    """All nets as one, since each export takes half a second: their answers in one row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cases = nn.ModuleList([lively(make()) for make in CASES.values()])

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([case(image).flatten(1) for case in self.cases], dim=1)


BATCH = image(1, 3, 8, 8)


@cache
def together() -> tuple[nn.ModuleList, ExportedNet]:
    """Every net, and all of them exported as one."""
    net = Together().eval()
    return net.cases, export(net, BATCH, torch.float32)


def exported_for(name: str) -> tuple[list[nn.Module], ExportedNet]:
    """The nets of a pass, and of the exported graph what computes their answers, in one row."""
    cases, whole = together()
    chosen = [number for number, case in enumerate(CASES) if case.startswith(f"{name}:")]
    net = copied(whole)
    graph = net.module.graph
    (row,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)[-1:]
    answers = [row.args[0][number] for number in chosen]
    row.args = (answers, 1)
    row.meta["val"] = row.meta["val"][:, : sum(answer.meta["val"].shape[1] for answer in answers)]
    graph.eliminate_dead_code()
    net.module.recompile()
    return [cases[number] for number in chosen], net


@pytest.mark.parametrize("name", sorted({case.partition(":")[0] for case in CASES}))
def test_a_rewrite_that_cannot_apply_changes_nothing(name: str) -> None:
    cases, exported = exported_for(name)
    place = [step.__name__ for step in PASSES].index(name)
    rewrite(exported, PASSES[:place])
    before = snapshot(exported)
    assert PASSES[place](exported) == []
    assert snapshot(exported) == before
    rewrite(exported, PASSES[place:])
    with torch.no_grad():
        answers = [case(BATCH).flatten(1) for case in cases]
        lengths = [answer.shape[1] for answer in answers]
        got = lowered(exported)(BATCH).split(lengths, dim=1)
    for case, answer, wanted in zip(cases, got, answers, strict=True):
        assert float((answer - wanted).norm() / wanted.norm()) < 1e-3, case


def snapshot(net: ExportedNet) -> tuple[object, ...]:
    """All that a pass could change."""
    own = {**dict(net.module.named_parameters()), **dict(net.module.named_buffers())}
    made = [
        (name, layer.op.name, layer.activation, layer.pool, layer.head, layer.stores_out)
        for name, layer in layers(net).items()
    ]
    return str(net.module.graph), {name: id(tensor) for name, tensor in own.items()}, list(net.exact), made


def activated(net: nn.Module, batch: Tensor) -> list[str]:
    """The activations that the layers of a rewritten net end in."""
    return [str(layer.activation) for layer in layers(rewritten_from(net.eval(), batch)).values()]


def test_an_activation_s_form_is_not_lost() -> None:
    """As GELU's `approximate`, which is asked by keyword."""
    net = export(nn.Sequential(conv(3, 16), nn.ReLU()).eval(), image(1, 3, 8, 8), torch.float32)
    rewrite(net, PASSES[: [step.__name__ for step in PASSES].index("fold_activation")])
    for node in net.module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        node.target, node.kwargs = torch.ops.aten.gelu.default, {"approximate": "tanh"}
    rewrite(net, PASSES[[step.__name__ for step in PASSES].index("fold_activation") :])
    assert [str(layer.activation) for layer in layers(net).values()] == ["gelu_tanh"]


def test_two_activations_are_not_both_folded() -> None:
    net = nn.Sequential(conv(3, 16), nn.ReLU(), nn.SiLU())
    assert activated(net, image(1, 3, 8, 8)) == ["relu"]


def test_a_gate_of_a_layer_s_own_output_is_not_part_of_it() -> None:
    """The layer whose channels are squeezed is read again, as it is."""
    net, batch = lively(Excited()), image(1, 3, 8, 8)
    rewritten = rewritten_from(net, batch)
    assert [layer.activation.name for layer in layers(rewritten).values()][:2] == ["relu", "relu"]
    assert rewritten.matched["fold_head"] == []


@pytest.mark.parametrize(
    ("given", "window", "sides"),
    [
        ("same", (3, 5), (1, 2)),
        ("same", (2, 4), (-1, -1)),
        ("same", (3, 4), (-1, -1)),
        ("valid", (3, 3), (0, 0)),
        ([1, 2], (3, 3), (1, 2)),
        ([1], (3, 3), (1, 1)),
    ],
)
def test_a_padding_by_a_word_is_known_where_both_sides_are_equal(
    given: str | list[int], window: tuple[int, int], sides: tuple[int, int]
) -> None:
    assert padding(given, window) == sides


@pytest.mark.parametrize(("dilation", "sides"), [((2, 3), (2, 3)), ((1, 2), (1, 2))])
def test_a_padding_by_a_word_reaches_as_far_as_the_taps(dilation: tuple[int, int], sides: tuple[int, int]) -> None:
    assert padding("same", (3, 3), dilation) == sides
    assert padding("same", (2, 3), (2, 1)) == (1, 1)
    assert padding("same", (2, 3), (1, 1)) == (-1, -1)
