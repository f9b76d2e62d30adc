"""A rewrite that can't apply leaves the graph alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.exported_net import ExportedNet, export
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.compiler.passes.kernel_matching import padding
from tests.compiler.nets import Excited, image, lively
from tests.compiler.rewriting import copied, layers, lowered, rewritten_from

PASSES = [*FOR_ANY_BACKEND, *FOR_THE_KERNELS]


class Made(nn.Module):
    """A net out of some layers and a function of them and the image."""

    def __init__(self, call: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.call = call

    def forward(self, image: Tensor) -> Tensor:
        return self.call(image, *self.layers)


def conv(inner: int, outer: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, size, padding=options.pop("padding", size // 2), **options)


CASES: dict[str, Callable[[], nn.Module]] = {
    "drop_identities: another layout": lambda: Made(
        lambda x, c: c(x).permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format), conv(3, 16)
    ),
    "fold_padding: sides that differ": lambda: Made(
        lambda x, c: c(functional.pad(x, (0, 1, 0, 1))), conv(3, 16, padding=0)
    ),
    "fold_padding: another value": lambda: Made(
        lambda x, c: c(functional.pad(x, (1, 1, 1, 1), value=2.0)), conv(3, 16, padding=0)
    ),
    "fold_padding: a copy of the border": lambda: Made(
        lambda x, c: c(functional.pad(x, (1, 1, 1, 1), mode="replicate")), conv(3, 16, padding=0)
    ),
    "fold_padding: it is read twice": lambda: Made(
        lambda x, c: (lambda y: c(y) + y[:, :1, 1:-1, 1:-1])(functional.pad(x, (1, 1, 1, 1))), conv(3, 16, padding=0)
    ),
    "fold_padding: in three dimensions": lambda: Made(
        lambda x, c: c(functional.pad(x, (0, 0, 0, 0, 1, 0))), conv(4, 16)
    ),
    "fold_padding: cut off": lambda: Made(lambda x, c: c(functional.pad(x, (-1, -1, -1, -1))), conv(3, 16)),
    "fold_batch_norm: the convolution is read twice": lambda: Made(
        lambda x, c, n: (lambda y: n(y) + y)(c(x)), conv(3, 16), nn.BatchNorm2d(16)
    ),
    "fold_batch_norm: the convolution is transposed and grouped": lambda: Made(
        lambda x, c, n: n(c(x)), nn.ConvTranspose2d(3, 6, 3, padding=1, groups=3), nn.BatchNorm2d(6)
    ),
    "fold_batch_norm: by the batch itself": lambda: Made(
        lambda x, c, n: n(c(x)), conv(3, 16), nn.BatchNorm2d(16, track_running_stats=False)
    ),
    "fold_batch_norm: the weight is computed": lambda: Made(
        lambda x, c, n: n(functional.conv2d(x, c.weight * 2)), conv(3, 16), nn.BatchNorm2d(16)
    ),
    "fold_batch_norm: no convolution before it": lambda: Made(lambda x, n: n(x), nn.BatchNorm2d(3)),
    "pointwise_before_upsampling: an activation follows": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=2)).relu(), conv(3, 16), conv(16, 16, 1)
    ),
    "pointwise_before_upsampling: more channels": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=2)), conv(3, 16), conv(16, 17, 1)
    ),
    "pointwise_before_upsampling: a wider window": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=2)), conv(3, 16), conv(16, 16)
    ),
    "pointwise_before_upsampling: padded": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=2)), conv(3, 16), conv(16, 16, 1, padding=1)
    ),
    "pointwise_before_upsampling: to a smaller size": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=0.5, mode="bilinear")), conv(3, 16), conv(16, 16, 1)
    ),
    "pointwise_before_upsampling: read twice": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y)(functional.interpolate(a(x), scale_factor=2)), conv(3, 16), conv(16, 16, 1)
    ),
    "norms_in_nhwc: no image": lambda: Made(lambda x, n: n(x.flatten(2))[..., None], nn.GroupNorm(3, 3)),
    "norms_in_nhwc: by running statistics": lambda: Made(
        lambda x, n: n(x), nn.InstanceNorm2d(3, track_running_stats=True)
    ),
    "fold_activation: the convolution is read twice": lambda: Made(
        lambda x, c: (lambda y: functional.relu(y) + y)(c(x)), conv(3, 16)
    ),
    "fold_activation: one that no kernel ends in": lambda: Made(lambda x, c: functional.softplus(c(x)), conv(3, 16)),
    "fold_activation: a form that no kernel has": lambda: Made(
        lambda x, c: torch.ops.aten.elu.default(c(x), 1.0, 2.0), conv(3, 16)
    ),
    "fold_activation: slopes that its kernel doesn't take": lambda: Made(
        lambda x, c, p: p(c(x)), conv(3, 16), nn.PReLU(16)
    ),
    "fold_residual: few channels": lambda: Made(lambda x, a, b: (lambda y: b(y) + y)(a(x)), conv(3, 16), conv(16, 16)),
    "fold_residual: read by what isn't an addition": lambda: Made(
        lambda x, a, b: (lambda y: b(y).chunk(1)[0] + y)(a(x)), conv(3, 64), conv(64, 64)
    ),
    "fold_residual: one value for all pixels": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y.mean((2, 3), keepdim=True))(a(x)), conv(3, 64), conv(64, 64)
    ),
    "fold_residual: a multiple of it": lambda: Made(
        lambda x, a, b: (lambda y: torch.add(b(y), y, alpha=2))(a(x)), conv(3, 64), conv(64, 64)
    ),
    "sum_where_made: few channels": lambda: Made(
        lambda x, a, b, n: n(b(a(x))), conv(3, 16), conv(16, 16), nn.InstanceNorm2d(16)
    ),
    "sum_where_made: no layer before it": lambda: Made(lambda x, n: n(x.repeat(1, 32, 1, 1)), nn.GroupNorm(4, 96)),
    "fold_activation: no convolution before it": lambda: Made(lambda x, c: c(functional.silu(x)), conv(3, 16)),
    "take_conv3x3: dilated": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, dilation=2, padding=2)),
    "take_conv3x3: strided": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, stride=2)),
    "take_conv3x3: grouped": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, groups=16)),
    "take_conv3x3: another padding": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, padding=0)),
    "take_conv3x3: the weight is computed": lambda: Made(
        lambda x, a, b: functional.conv2d(a(x), b.weight * 2, padding=1), conv(3, 16, 1), conv(16, 16)
    ),
    "take_conv3x3: one dimension": lambda: Made(
        lambda x, a, b: b(a(x).flatten(2))[..., None], conv(3, 16, 1), nn.Conv1d(16, 16, 3, padding=1)
    ),
    "take_conv3x3: channels in no multiple of 8": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 20, 1), conv(20, 16)),
    "take_conv_first: it isn't first": lambda: Made(lambda x, c: c(x * 2), conv(3, 16)),
    "take_conv_first: many channels": lambda: Made(lambda x, c: c(x.repeat(1, 5, 1, 1)), conv(15, 16)),
    "take_upconv2x2: a wider window": lambda: Made(
        lambda x, a, b: b(a(x)), conv(3, 16, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)
    ),
    "take_upconv2x2: channels in no multiple of 8": lambda: Made(
        lambda x, a, b: b(a(x)), conv(3, 16, 1), nn.ConvTranspose2d(16, 12, 2, 2)
    ),
    "pool_where_it_is_made: overlapping windows": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 3, 2, 1), conv(3, 16), conv(16, 16)
    ),
    "pool_where_it_is_made: an odd size": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x[..., :7])), 2), conv(3, 16), conv(16, 16)
    ),
    "pool_where_it_is_made: no convolution before it": lambda: Made(lambda x: functional.max_pool2d(x, 2)),
    "pool_where_it_is_made: the ceiling of a size": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 2, ceil_mode=True), conv(3, 16), conv(16, 16)
    ),
    "pool_where_it_is_made: another stride": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 2, 1), conv(3, 16), conv(16, 16)
    ),
    "fold_head: too many classes": lambda: Made(
        lambda x, a, b, h: h(b(a(x))), conv(3, 16), conv(16, 16), conv(16, 9, 1)
    ),
    "fold_head: its input is read twice": lambda: Made(
        lambda x, a, b, h: (lambda y: h(y) + y[:, :2])(b(a(x))), conv(3, 16), conv(16, 16), conv(16, 2, 1)
    ),
    "fold_head: the maxima are wanted": lambda: Made(
        lambda x, a, b, h: (lambda y: h(y) + functional.max_pool2d(y, 2).mean())(b(a(x))),
        conv(3, 16),
        conv(16, 16),
        conv(16, 2, 1),
    ),
    "fold_head: its answer isn't the logits": lambda: Made(
        lambda x, a, b, h: h(b(a(x))).half() * 2, conv(3, 16), conv(16, 16), conv(16, 2, 1)
    ),
    "take_head: too many classes": lambda: Made(lambda x, a, h: h(a(x)), conv(3, 16), conv(16, 9, 1)),
    "take_head: a wider window": lambda: Made(lambda x, a, h: h(a(x)), conv(3, 16), conv(16, 2, 5)),
    "take_head: its answer isn't the logits": lambda: Made(
        lambda x, a, h: h(a(x)).half() * 2, conv(3, 16), conv(16, 2)
    ),
    "head_after_pointwise: its input is read twice": lambda: Made(
        lambda x, a, h: (lambda y: h(y) + y[:, :2])(a(x).tanh().relu()), conv(3, 16), conv(16, 2, 1)
    ),
    "head_after_pointwise: after a layer": lambda: Made(lambda x, a, h: h(a(x)), conv(3, 16), conv(16, 2, 1)),
    "head_after_pointwise: a wider window": lambda: Made(lambda x, a, h: h(a(x) * 2), conv(3, 16), conv(16, 2)),
    "take_conv3x3_few: many channels": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16), conv(16, 8)),
    "take_transposed3x3_few: another window": lambda: Made(
        lambda x, a, b: b(a(x)), conv(3, 16), nn.ConvTranspose2d(16, 2, 4, 2, 1)
    ),
    "compose_upsampling: read twice": lambda: Made(
        lambda x, a, b: (lambda y: b(y) + y)(functional.interpolate(a(x), scale_factor=2)), conv(3, 16), conv(16, 16)
    ),
    "compose_upsampling: an activation between": lambda: Made(
        lambda x, a, u, b: b(u(a(x)).relu()), conv(3, 16), nn.ConvTranspose2d(16, 16, 2, 2), conv(16, 16)
    ),
    "compose_upsampling: by three": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=3)), conv(3, 16), conv(16, 16)
    ),
    "compose_upsampling: then a stride": lambda: Made(
        lambda x, a, b: b(functional.interpolate(a(x), scale_factor=2)), conv(3, 16), conv(16, 16, stride=2)
    ),
    "compose_upsampling: a wider window": lambda: Made(
        lambda x, a, u, b: b(u(a(x))), conv(3, 16), nn.ConvTranspose2d(16, 16, 4, 2, 1), conv(16, 16)
    ),
    "compose_upsampling: the concatenation is read twice": lambda: Made(
        lambda x, a, b, c: (lambda y: c(y) + y.mean(1, keepdim=True))(
            torch.cat([functional.interpolate(a(x), scale_factor=2), b(functional.interpolate(x, scale_factor=2))], 1)
        ),
        conv(3, 16),
        conv(3, 16),
        conv(32, 16),
    ),
    "compose_upsampling: beside channels in no multiple of 16": lambda: Made(
        lambda x, a, c: c(torch.cat([functional.interpolate(a(x), scale_factor=2), x.repeat(1, 1, 2, 2)], 1)),
        conv(3, 16),
        conv(19, 16),
    ),
    "take_upsample2x: corners aligned": lambda: Made(
        lambda x, a: functional.interpolate(a(x), scale_factor=2, mode="bilinear", align_corners=True), conv(3, 16)
    ),
    "take_upsample2x: by three": lambda: Made(
        lambda x, a: functional.interpolate(a(x), scale_factor=3, mode="bilinear"), conv(3, 16)
    ),
}


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
    given: object, window: tuple[int, int], sides: tuple[int, int]
) -> None:
    assert padding(given, window) == sides
