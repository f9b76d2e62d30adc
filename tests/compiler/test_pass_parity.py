"""A rewritten net gives the untouched net's answer, whatever the net, and says what it matched."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.driver import composed_flops
from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.kernels.common.activation import Activation
from tests.compiler import rewriting
from tests.compiler.nets import NETS, classic, ending_in, image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.kernels.examples import MODULES


@pytest.mark.parametrize("name", NETS)
def test_the_net_keeps_its_answer_from_export_to_lowering(name: str) -> None:
    """Within rounding until it is lowered: the references read the first layer's weights in fp16."""
    made = rewriting.exported(name)
    assert made.error(made.net.module) < 1e-5
    for step in [*FOR_ANY_BACKEND, *FOR_THE_KERNELS]:
        before = made.net.module.code
        rewrite(made.net, [step])
        if made.net.matched[step.__name__] or made.net.module.code != before:
            assert made.error(made.net.module) < 1e-5, step.__name__
    assert made.error(made.net.module) < 1e-5
    graph = rewriting.lowered(made.net)
    assert made.error(graph) < 1e-3
    assert len(rewriting.own_calls(graph)) == len(rewriting.layers(made.net))


def test_the_library_gives_the_references_answer() -> None:
    for name in (
        *("classic", "bilinear", "nested concatenations", "residuals, sums for norms, slopes", "volumes", "unpadded"),
        "late windows, depthwise, squeeze and excitation",
    ):
        made = rewriting.rewritten(name)
        graph = rewriting.lowered(made.net, by_library=list(rewriting.layers(made.net)))
        assert rewriting.called(graph).count("LibraryLayer") == len(rewriting.layers(made.net))
        assert rewriting.own_calls(graph) == []
        assert made.error(graph) < 1e-5


def test_the_layer_that_can_sum_for_a_norm_adds_the_other() -> None:
    layers = nn.Conv2d(8, 64, 3, padding=1), nn.Conv2d(8, 64, 1), nn.GroupNorm(8, 64)
    net = Made(lambda x, conv, shortcut, norm: norm(conv(x) + shortcut(x.sigmoid())), *layers)
    found = rewriting.kept(net, image(2, 8, 16, 24))
    assert found.matched["fold_residual"] == found.matched["sum_where_made"] == ["layers.0"]


def test_a_rewrite_leaves_the_net_alone() -> None:
    net, batch = classic(depth=1), image(1, 3, 16, 16)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    layout = {name: tensor.stride() for name, tensor in net.state_dict().items()}
    exporting = export(net, batch, torch.float16)
    rewriting.rewrite_all(exporting)
    with torch.no_grad():
        rewriting.lowered(exporting)(batch)
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {name: tensor.stride() for name, tensor in after.items()} == layout
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_lowering_leaves_the_rewritten_graph_alone() -> None:
    made = rewriting.rewritten("one level, batch 3")
    before = str(made.net.module.graph)
    names = list(rewriting.layers(made.net))
    graph = rewriting.lowered(made.net)
    rewriting.lowered(made.net, by_library=names)
    assert str(made.net.module.graph) == before
    assert made.error(graph) == made.error(rewriting.lowered(made.net))


def test_of_the_classic_net_nothing_is_left_to_torch() -> None:
    made = rewriting.rewritten("classic")
    graph = rewriting.lowered(made.net)
    calls = rewriting.own_calls(graph)
    assert {name: calls.count(name) for name in calls} == {"conv_first": 1, "conv3x3": 7, "upsampled_conv3x3": 2}
    assert rewriting.computing(graph) == set()
    assert {name: len(found) for name, found in made.net.matched.items() if found} == {
        "fold_batch_norm": 10, "compose_upsampling": 2, "take_conv3x3": 7, "take_conv_first": 1,
        "fold_activation": 10, "pool_where_it_is_made": 2, "fold_head": 1,
    }  # fmt: skip


# The kernels that a net's layers go to, in order.
CALLS = {
    "bilinear": "conv_first" + " conv3x3" * 5 + 2 * " conv1x1 upsample2x conv3x3 conv3x3",
    "norms up to the logits": "conv_first conv3x3_strided transposed3x3",
    "late windows, depthwise, squeeze and excitation": (
        "conv_first_strided depthwise gated_conv1x1 conv1x1 depthwise_strided gated_conv1x1 depthwise gated_conv1x1"
        " upsampled_conv3x3 conv_head"
    ),
    "few channels": "conv_first transposed3x3_few conv3x3_few transposed3x3_few",
    "strided shortcut": "conv_first conv3x3_strided conv1x1_strided conv3x3",
    "blocks of pixels": "conv_first_strided conv1x1",
    "dilated": "conv_first conv1x1 conv3x3_dilated conv3x3_dilated depthwise_dilated" + " conv3x3_dilated" * 4,
    "grouped": "conv_first" + " conv3x3_grouped" * 3 + " conv3x3_grouped_strided conv1x1 conv3x3_grouped conv_head",
    "unpadded": "conv_first" + " conv3x3_valid" * 5,
    "pix2pix": "conv_first_strided conv4x4_strided conv4x4_strided transposed4x4 transposed4x4 conv_head",
    "volumes": "conv_first_volumes conv3x3x3 conv3x3x3_strided conv3x3x3 upconv2x2x2 conv3x3x3",
    "volumes, a stride within slices": "conv5x5x5 conv3x3x3_strided_in_slices conv5x5x5",
    "volumes of slices far apart": (
        "conv1x3x3_first conv1x3x3 conv1x3x3 conv1x3x3_strided conv3x3x3 upconv1x2x2 conv1x3x3"
    ),
}
# The layers that passes match in a net.
MATCHED: dict[str, dict[str, Any]] = {
    "norms up to the logits": {"norms_in_nhwc": 3, "sum_where_made": 3, "head_after_pointwise": 1},
    "strided shortcut": {"fold_residual": ["last"]},
    "blocks of pixels": {"read_before_unshuffling": ["first"], "centre_windows": ["first"], "fold_activation": 1},
    "late windows, depthwise, squeeze and excitation": {
        "centre_windows": ["stem.1", "low.depthwise.1"], "excite_where_summed": 3, "fold_residual": 1,
    },
    "blocks of few channels": {
        "fold_residual": ["convs.1", "convs.3"], "sum_where_made": ["first", "convs.0", "convs.1", "convs.2"],
    },
    "dropouts and pads": {
        "fold_padding": ["low.1"], "drop_empty_parts": ["", ""], "compose_upsampling": ["last.0"],
        "fold_activation": ["high.0", "last.0"],
    },
    "depthwise": {"fold_batch_norm": ["0", "3", "6", "9", "12"]},
    "bilinear, odd size": {"take_conv_first": ["encoder.0.0"]},
    "instance norm": {"norms_in_nhwc": ["high.1", "low.1", "last.1"]},
    "group norm, SiLU, attention": {
        "norms_in_nhwc": [f"norms.{number}" for number in range(4)], "take_tokens": ["kept", "mixed.0", "mixed.2"],
        "join_linear_layers": ["moments.0", "kept"],
        "fold_activation": ["mixed.0"], "drop_identities": [""], "sum_where_made": ["first", "down", "convs.2"],
    },
    "dilated": {"fold_residual": ["second.0"], "sum_where_made": ["normed.0"], "fold_head": ["last.0"]},
    "grouped": {
        "take_conv3x3_grouped_strided": ["down"], "take_conv3x3_grouped": ["narrow.0", "normed.0", "wide", "odd"],
        "fold_residual": ["narrow.0"], "sum_where_made": ["normed.0"], "pool_where_it_is_made": ["wide"],
    },
    "unpadded": {
        "sum_where_made": ["mirrored"], "fold_residual": ["added"], "pool_where_it_is_made": ["pooled"],
        "fold_head": ["last.0"], "fold_activation": ["first", "added", "pooled", "low", "last.0"],
    },
    "pix2pix": {
        "centre_windows": ["first"], "take_conv4x4_strided": ["second.1", "third.1"], "sum_where_made": ["third.1"],
    },
    "patches": {"multiply_patches": ["0", "5", "9"], "take_tokens": ["0", "5", "9"], "norms_in_nhwc": ["8"]},
    "patches, volumes": {"multiply_patches": ["0", "1"]},
    "volumes": {
        "volumes_as_images": ["first.0", "high.0", "down.0", "low.0", "grow", "last.0"],
        "norms_in_nhwc": 5, "sum_where_made": 4, "head_after_pointwise": 1,
    },
    "volumes, residuals, an odd depth": {
        "volumes_as_images": ["first.0", "second", "last.0"], "fold_residual": ["second"],
        "fold_activation": ["first.0", "last.0"],
    },
    "volumes, a stride within slices": {"sum_where_made": ["2"]},
    "volumes of slices far apart": {
        "volumes_as_images": ["first.0", "high.0", "mixed", "down.0", "low.0", "grow", "last.0"],
        "fold_residual": ["mixed"], "sum_where_made": ["first.0", "high.0", "down.0", "low.0"],
    },
}  # fmt: skip
# What is left to torch, or isn't.
LEFT: dict[str, dict[str, int]] = {
    "norms up to the logits": {"var_mean.correction": 0, "rsqrt.default": 0},
    "dropouts and pads": {"clone.default": 0},
    "bilinear, odd size": {"pad.default": 1, "clone.default": 0},
    "late windows, depthwise, squeeze and excitation": {"mean.dim": 0, "mul.Tensor": 0, "add.Tensor": 0},
    "volumes": {"conv3d.default": 0, "cat.default": 1},
    "volumes, residuals, an odd depth": {"conv3d.default": 1},
    "volumes of slices far apart": {"conv3d.default": 0, "conv_transpose3d.default": 0},
}


@pytest.mark.parametrize("name", CALLS)
def test_each_layer_goes_to_its_kernel(name: str) -> None:
    assert rewriting.own_calls(rewriting.lowered(rewriting.rewritten(name).net)) == CALLS[name].split()


@pytest.mark.parametrize("name", MATCHED)
def test_each_pass_says_what_it_matched(name: str) -> None:
    for step, wanted in MATCHED[name].items():
        found = rewriting.rewritten(name).net.matched[step]
        assert (len(found) if isinstance(wanted, int) else found) == wanted, step


@pytest.mark.parametrize("name", LEFT)
def test_torch_does_what_is_left(name: str) -> None:
    calls = rewriting.called(rewriting.lowered(rewriting.rewritten(name).net))
    assert {operation: calls.count(f"aten.{operation}") for operation in LEFT[name]} == LEFT[name]


def test_the_library_s_convolution_reads_volumes_without_gaps() -> None:
    graph = rewriting.lowered(rewriting.rewritten("volumes, residuals, an odd depth").net).graph
    (conv,) = graph.find_nodes(op="call_function", target=torch.ops.aten.conv3d.default)
    (view,) = [node for node in conv.all_input_nodes if node.target is torch.ops.aten.reshape.default]
    assert view.args[0].target is torch.ops.aten.contiguous.default


def test_a_constant_after_a_norm_that_is_no_weight_of_it_stays_where_it_is() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Conv2d(inner, 32, 3, padding=1) for inner in (3, 32, 32))
            self.norm = nn.InstanceNorm2d(32)
            self.pixels, self.images = nn.Buffer(image(1, 1, 8, 4)), nn.Buffer(image(2, 1, 1, 1))
            self.vector = nn.Buffer(image(1, 32, 1, 1))

        def forward(self, batch: Tensor) -> Tensor:
            value = self.norm(self.first(batch)) * self.pixels
            value = self.norm(self.second(value)) * self.images
            return torch.add(self.norm(self.third(value)), self.vector, alpha=2)

    assert len(rewriting.kept(Scaled(), image(2, 3, 8, 4)).matched["sum_where_made"]) == 3


@pytest.mark.parametrize(
    "how", [{"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}]
)
@pytest.mark.parametrize("grown", [{"size": (9, 14)}, {"scale_factor": 2.0}])
def test_a_pointwise_convolution_before_an_up_sampling_is_the_same(how: dict[str, Any], grown: dict[str, Any]) -> None:
    """In float64, but for the fp32 logits: borders, corners, sizes that are no multiples, and the bias."""
    batch = image(2, 6, 5, 7).double()
    net = Made(lambda x, mix: mix(nn.functional.interpolate(x, **how, **grown)), nn.Conv2d(6, 4, 1)).double().eval()
    made = export(net, batch, torch.float64)
    rewrite(made, FOR_ANY_BACKEND)
    assert made.matched["pointwise_before_upsampling"] == ["layers.0"]
    conv = made.module.graph.find_nodes(op="call_function", target=torch.ops.aten.conv2d.default)[0]
    assert conv.meta["val"].shape == (2, 4, 5, 7)
    with torch.no_grad():
        assert rewriting.distance(made.module, batch, net(batch)) < 1e-7


def test_layers_go_by_the_names_that_the_user_gave_them() -> None:
    made = rewriting.rewritten("one level, batch 3")
    assert [layer.name for layer in rewriting.layers(made.net).values()] == [
        "encoder.0.0", "encoder.0.3", "bottleneck.0", "bottleneck.3", "decoder.0.0", "decoder.0.3",
    ]  # fmt: skip
    named = [node.kwargs["layer"] for node in rewriting.lowered(made.net).graph.nodes if "layer" in node.meta]
    assert named == [layer.name for layer in rewriting.layers(made.net).values()]
    assert set(named) <= {name for name, _ in made.module.named_modules()}


# But those with a slope for each channel, which the first layer's kernel doesn't take: `nets.Wide` has one.
OF_ONE_SLOPE = [(module, activation) for module, activation in MODULES if activation and not activation.kind.by_channel]


@pytest.mark.parametrize(("module", "activation"), OF_ONE_SLOPE, ids=str)
def test_a_net_of_this_activation_is_left_whole_to_the_kernels(module: nn.Module, activation: Activation) -> None:
    net, batch = ending_in(classic(depth=0), lambda: copy.deepcopy(module)), image(1, 3, 8, 12)
    rewritten = rewriting.rewritten_from(net, batch)
    assert len(rewritten.matched["fold_activation"]) == 2
    assert [layer.activation for layer in rewriting.layers(rewritten).values()] == [activation, activation]
    graph = rewriting.lowered(rewritten)
    assert rewriting.computing(graph) == set()
    with torch.no_grad():
        wanted = net(batch)
    assert rewriting.distance(graph, batch, wanted) < 1e-3
    assert (
        rewriting.distance(rewriting.lowered(rewritten, by_library=list(rewriting.layers(rewritten))), batch, wanted)
        < 1e-5
    )


def test_a_transposed_convolution_ends_in_it_too_and_what_no_kernel_takes_keeps_its_own() -> None:
    grow, strided = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(16, 16, 5, 2, 2)
    odd = nn.ConvTranspose2d(16, 8, 3, 2)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), grow, nn.SiLU(), strided, nn.SiLU(), odd, nn.LeakyReLU(0.3)).eval()
    batch = image(1, 3, 8, 8)
    rewritten = rewriting.rewritten_from(net, batch)
    assert [str(layer.activation) for layer in rewriting.layers(rewritten).values()] == ["none", "silu"]
    graph = rewriting.lowered(rewritten)
    assert {"aten.silu.default", "aten.leaky_relu.default"} <= rewriting.computing(graph)
    with torch.no_grad():
        assert rewriting.distance(graph, batch, net(batch)) < 1e-3


ORDERS = {"first": (0, 1, 2), "between": (1, 0, 2), "last": (1, 2, 0)}


class Grown(nn.Module):
    """A convolution of an up-sampled map beside two others, in every order, and of the map alone."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.low, self.one, self.other = (nn.Conv2d(3, outer, 3, padding=1) for outer in (32, 16, 48))
        self.grow = nn.ModuleDict({name: nn.ConvTranspose2d(32, 16, 2, 2) for name in [*ORDERS, "alone"]})
        self.transposed = transposed
        grown = 16 if transposed else 32
        self.joined = nn.ModuleDict({name: nn.Conv2d(grown + 64, 16, 3, padding=1) for name in ORDERS})
        self.alone = nn.Conv2d(grown, 16, 3, padding=1, bias=False)

    def up(self, name: str, low: Tensor) -> Tensor:
        return self.grow[name](low) if self.transposed else functional.interpolate(low, scale_factor=2.0)

    def forward(self, batch: Tensor) -> Tensor:
        low, one, other = self.low(functional.avg_pool2d(batch, 2)), self.one(batch), self.other(batch)
        answers = [self.alone(self.up("alone", low)).relu()]
        for name, order in ORDERS.items():
            parts = (self.up(name, low), one, other)
            answers.append(self.joined[name](torch.cat([parts[place] for place in order], dim=1)).sigmoid())
        return torch.cat(answers, dim=1)


@pytest.mark.parametrize("transposed", [True, False], ids=["transposed", "nearest"])
def test_an_upsampling_joins_the_convolution_after_it(transposed: bool) -> None:
    """At the border, too, where the composed window hangs over: sizes of a few pixels are nearly all border."""
    torch.manual_seed(0)
    net, batch = lively(Grown(transposed=transposed)), image(2, 3, 6, 10)
    rewritten = rewriting.rewritten_from(net, batch)
    composed = [layer.name for layer in rewriting.layers(rewritten).values() if layer.op.name == "upsampled_conv3x3"]
    assert composed == rewritten.matched["compose_upsampling"]
    assert composed == ["alone", *(f"joined.{name}" for name in ORDERS)]
    flops = composed_flops(rewritten)
    assert flops["alone"] == 2 * 16 * (3 * 5) * 32 * 16  # four phases of 2×2 taps for each pixel of the small map
    assert flops["joined.last"] == flops["alone"] + 2 * 9 * (6 * 10) * 64 * 16
    with torch.no_grad():
        wanted = net(batch)
        assert rewriting.distance(rewritten.module, batch, wanted) < 1e-5
        assert rewriting.distance(rewriting.lowered(rewritten), batch, wanted) < 1e-3
