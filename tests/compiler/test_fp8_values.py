"""Which values are stored in fp8, with which scales, and that a net that stores them so answers nearly the same."""

import math
from collections.abc import Callable
from operator import attrgetter

import pytest
import torch
from torch import Tensor, fx, nn

from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import fp8_groups, groups, layers_in_fp8, quantisable, scales
from pipeline.compiler.graph.layers import quantised
from pipeline.kernels.common.nhwc import FP8_MAX, in_fp8
from tests.compiler import rewriting
from tests.compiler.nets import classic, ending_in, image
from tests.compiler.nets_that_passes_leave import Made

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def classic_net() -> rewriting.Exported:
    return rewriting.rewritten("classic")


@torch.no_grad()
def stored(net: ExportedNet, batch: Tensor, keep: list[str]) -> dict[str, float]:
    return scales(net, keep, largest(net, [batch]))


def test_values_that_share_memory_share_type_and_scale() -> None:
    made = rewriting.rewritten("bilinear")
    net = made.net
    together = [{node.name for node in group} for group in groups(net)]
    seen = largest(net, [made.batch])
    for keep in ([], *([name] for name in quantisable(net))):
        known = scales(net, keep, seen)
        for names in together:
            assert len({known.get(name) for name in names}) == 1
    assert sum(len(names) > 1 for names in together) == 2  # at each level: joined values, and the maxima of one
    joined = [node for node in net.module.graph.nodes if str(node.target) == "aten.cat.default"]
    for cat in joined:
        assert any({cat.name, *(part.name for part in cat.all_input_nodes)} <= names for names in together)


def test_the_largest_value_of_a_group_lands_at_the_end_of_e4m3(classic_net: rewriting.Exported) -> None:
    net = classic_net.net
    seen = largest(net, [classic_net.batch])
    known = scales(net, [], seen)
    for group in fp8_groups(net, []):
        assert max(seen[node.name] / known[node.name] for node in group) == pytest.approx(FP8_MAX)


@pytest.mark.parametrize(("name", "count"), [("classic", 9), ("bilinear", 13)])
def test_a_net_is_fp8_but_for_the_image_and_the_logits(name: str, count: int) -> None:
    made = rewriting.rewritten(name)
    known = stored(made.net, made.batch, [])
    graph = rewriting.lowered(made.net, scales=known)
    written = [
        node.kwargs[role].kwargs.get("dtype", FP8)  # of a part of a wide buffer none is said
        for node in graph.graph.nodes
        if "layer" in node.meta
        for role in ("result", "pooled")
        if node.kwargs[role] is not None
    ]
    assert set(written) == {FP8}
    assert rewriting.computing(graph) == set()
    assert layers_in_fp8(made.net, known) == quantisable(made.net)
    assert len(quantisable(made.net)) == count
    assert 1e-3 < made.error(graph) < 0.1


def test_a_kept_layer_reads_what_is_not_in_fp8(classic_net: rewriting.Exported) -> None:
    net = classic_net.net
    assert quantisable(net)[-1] == "decoder.1.3"
    every, but_one = (stored(net, classic_net.batch, keep) for keep in ([], ["decoder.1.3"]))
    assert set(but_one) < set(every)
    assert len(layers_in_fp8(net, but_one)) == 8
    assert classic_net.error(rewriting.lowered(net, scales=but_one)) < 0.1
    none = stored(net, classic_net.batch, quantisable(net))
    assert none == {}
    assert torch.equal(
        rewriting.lowered(net, scales=none)(classic_net.batch), rewriting.lowered(net)(classic_net.batch)
    )


def test_a_net_that_no_kernel_has_been_given_has_no_value_in_fp8() -> None:
    assert quantisable(rewriting.exported("classic").net) == []
    assert quantisable(rewriting.exported("channels no kernel takes").net) == []


@torch.no_grad()
def test_what_follows_an_activation_that_takes_no_scale_is_stored_by_torch() -> None:
    """Neither before an ELU nor after it: the kernel answers in the net's own type, and ATen converts."""
    for end, by_torch in ((nn.ELU, True), (lambda: nn.LeakyReLU(0.2), False), (nn.SiLU, False), (nn.GELU, False)):
        net, batch = ending_in(classic(depth=1), end), image(1, 3, 16, 16)
        made = rewriting.rewritten_from(net, batch)
        known = stored(made, batch, [])
        assert len(known) >= len(quantisable(made)) > 0
        graph = rewriting.lowered(made, scales=known)
        assert ("aten.clamp.default" in rewriting.called(graph)) is by_torch
        assert 1e-3 < rewriting.distance(graph, batch, net(batch)) < 0.1


@torch.no_grad()
@pytest.mark.parametrize("end", [nn.SiLU, nn.GELU, nn.Hardswish, nn.Mish])
def test_a_scale_that_is_a_gain_is_a_power_of_two(end: Callable[[], nn.Module]) -> None:
    """So that kernels for few constants are compiled; the largest value lies within e4m3."""
    net, batch = ending_in(classic(depth=1), end), image(1, 3, 16, 16)
    made = rewriting.rewritten_from(net, batch)
    known, most = stored(made, batch, []), largest(made, [batch])
    assert known
    assert all(math.log2(scale).is_integer() for scale in known.values())
    assert all(scale >= most[name] / 448 for name, scale in known.items())
    calls = [node for node in rewriting.lowered(made, scales=known).graph.nodes if "activation" in node.kwargs]
    gains = {node.kwargs["slope"] for node in calls if node.kwargs["activation"] != "none"}
    assert gains - {1.0} == {1.0 / scale for scale in known.values()}


@torch.no_grad()
def test_what_torch_reads_of_a_value_in_fp8_is_converted_back() -> None:
    for name in ("residual", "nested concatenations", "squeeze and excitation", "group norm, SiLU, attention"):
        made = rewriting.rewritten(name)
        known = stored(made.net, made.batch, [])
        assert known, name
        assert 1e-4 < made.error(rewriting.lowered(made.net, scales=known)) < 0.1, name


@torch.no_grad()
def test_what_is_stored_in_fp8_and_summed_has_its_scale_in_both() -> None:
    """As of a residual block's first layer, which a norm sums where it is made and a convolution reads."""

    def summed(x: Tensor, first: nn.Module, second: nn.Module, normed: nn.Module, short: nn.Module) -> Tensor:
        value = second(first(x).relu())
        return normed(value) + short(value)

    first, second, third = (nn.Conv2d(inner, 64, 3, padding=1) for inner in (3, 64, 64))
    normed = nn.Sequential(nn.GroupNorm(4, 64), nn.SiLU(), third)
    net, batch = Made(summed, first, second, normed, nn.Conv2d(64, 64, 1)).eval(), image(1, 3, 16, 16)
    made = rewriting.rewritten_from(net, batch)
    assert "layers.1" in made.matched["sum_where_made"]
    (layer,) = (node for node in made.module.graph.nodes if node.op == "call_module" and len(node.users) == 2)
    value = next(user for user in layer.users if user.args[1] == 0)
    known = stored(made, batch, [])
    assert known[value.name] < 1
    assert 1e-3 < rewriting.distance(rewriting.lowered(made, scales=known), batch, net(batch)) < 0.1


@torch.no_grad()
def test_a_layer_that_adds_nothing_has_the_plain_epilogue(classic_net: rewriting.Exported) -> None:
    """Whatever its output's scale: a kernel that takes plain epilogues alone must see that it is one."""
    graph = rewriting.lowered(classic_net.net, scales=stored(classic_net.net, classic_net.batch, []))
    calls = [node for node in graph.graph.nodes if "residual_scale" in node.kwargs]
    assert calls
    assert all(node.kwargs["residual_scale"] == 1.0 for node in calls if node.kwargs["residual"] is None)


@torch.no_grad()
def test_a_library_s_layer_in_an_fp8_net_reads_and_writes_values_as_kept(classic_net: rewriting.Exported) -> None:
    net = classic_net.net
    known = stored(net, classic_net.batch, [])
    names = [node.name for node in net.module.graph.nodes if node.op == "call_module"]
    graph = rewriting.lowered(net, scales=known, by_library=names[3:5])
    assert "aten.clamp.default" in rewriting.called(graph)
    assert 1e-3 < classic_net.error(graph) < 0.1


@torch.no_grad()
def test_a_wrong_layer_is_further_off_than_other_roundings_are() -> None:
    """But for the layer before attention, whose bias hardly moves the means that attention takes."""
    made = rewriting.rewritten("group norm, SiLU, attention")
    graph = rewriting.lowered(made.net, scales=stored(made.net, made.batch, []))
    references = graph(made.batch)
    limit = rewriting.limit_in_fp8(references, made.wanted)
    noise = image(*made.batch.shape) * 1e-4
    assert rewriting.distance(graph, made.batch * (1 + noise), references) < limit
    for node in [node for node in graph.graph.nodes if "layer" in node.meta and node.meta["layer"].name != "queries"]:
        for wrong in (without_bias, with_channels_moved):
            kept = dict(node.kwargs)
            wrong(graph, node)
            graph.recompile()
            assert rewriting.distance(graph, made.batch, references) > limit, (wrong.__name__, node.meta["layer"].name)
            node.kwargs = kept
    graph.recompile()
    assert torch.equal(graph(made.batch), references)


def without_bias(graph: fx.GraphModule, node: fx.Node) -> None:
    node.kwargs = {**node.kwargs, "bias": None}


def with_channels_moved(graph: fx.GraphModule, node: fx.Node) -> None:
    whole = attrgetter(str(node.kwargs["weight"].target))(graph)
    moved = whole.view(torch.uint8).unflatten(-1, (-1, whole.itemsize)).roll(1, node.meta["layer"].op.out_axis)
    graph.register_buffer("moved", moved.flatten(-2).view(whole.dtype))
    with graph.graph.inserting_before(node):
        node.kwargs = {**node.kwargs, "weight": graph.graph.get_attr("moved")}


def test_taps_rounded_together_keep_their_sum() -> None:
    weight = image(9, 32, 16)
    apart, scale = quantised(weight, 1)
    together, same = quantised(weight, 1, summed=0)
    exact = (weight / scale[:, None]).sum(0)
    errors = [(q.float().sum(0) - exact).abs().mean() for q in (apart, together)]
    assert torch.equal(scale, same)
    assert errors[1] < errors[0] / 8
    assert float((together.float() * scale[:, None] - weight).norm() / weight.norm()) < 5e-2


def test_a_channel_without_weights_rounds_to_zero_and_too_large_a_value_saturates() -> None:
    weight = torch.zeros(9, 16, 16)
    packed, scale = quantised(weight, 1, summed=0)
    assert not packed.float().any()
    assert bool((scale > 0).all())
    assert in_fp8(torch.tensor([1e9, -1e9])).float().tolist() == [FP8_MAX, -FP8_MAX]
