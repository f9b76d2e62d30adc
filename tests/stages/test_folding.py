"""Batch norm is folded into the convolution before it as the net calls its layers, where nothing else would change."""

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from pipeline.compiler.batch import Batch
from pipeline.compiler.folding import folded
from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.half import Half
from pipeline.compiler.network_calls import trial_copy
from pipeline.stages.api import Workload
from pipeline.stages.common.network_forms import half_net
from tests.compiler.nets import lively
from tests.stages.test_stages import references


def test_batch_norm_folded_is_the_same_net(workload: Workload) -> None:
    rewritten, count = folded(workload.model, workload.batches[0])
    assert count == 18
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in rewritten.modules())
    with torch.inference_mode():
        torch.testing.assert_close(rewritten(workload.batches[0]), references(workload)[0], rtol=1e-4, atol=1e-4)


class ByDimensions(torch.nn.Module):
    """It looks something up by what torch.fx gives a proxy for, as the layers of einops do."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, image: Tensor) -> Tensor:
        return {4: self.layers}[image.ndim](image)


COMPUTED: dict[str, Callable[[nn.Conv2d], object]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "the older weight norm": weight_norm,
    "the older spectral norm": spectral_norm,
    "pruned": lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
    "pruned twice": lambda conv: prune.random_unstructured(prune.l1_unstructured(conv, "weight", 0.5), "weight", 0.2),
}


@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_a_weight_that_is_computed_at_each_call_is_computed_once(computed: Callable[[nn.Conv2d], object]) -> None:
    """Its batch norm is folded, half precision rounds it once, and the net that was given computes it as before."""
    net = nn.Sequential(conv := nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    computed(conv)
    net(image := torch.rand(2, 3, 8, 8))
    net.eval()
    with torch.no_grad():
        expected = net(image)
        rewritten, count = folded(net)
        torch.testing.assert_close(rewritten(image), expected, rtol=1e-5, atol=1e-5)
    assert count == 1
    assert "weight" in rewritten.get_submodule("0")._parameters
    assert parametrize.is_parametrized(conv) or conv._forward_pre_hooks
    taken = export(net, image, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(taken.module(image), expected, rtol=1e-5, atol=1e-5)
    assert "net.0.weight" in taken.exact


def test_a_weight_that_a_hook_of_the_nets_own_computes_is_not_folded() -> None:
    net = nn.Sequential(conv := nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    conv.raw = nn.Parameter(conv.weight.detach().clone())
    del conv.weight
    conv.register_forward_pre_hook(lambda layer, _: setattr(layer, "weight", layer.raw.abs()))
    with torch.no_grad():
        net(image := torch.rand(1, 3, 4, 4))
        rewritten, count = folded(net)
        assert count == 0
        torch.testing.assert_close(rewritten(image), net(image))


class Magnitudes(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image).abs()


class Standardised(nn.Conv2d):
    """A convolution by its weight without that one's mean and size."""

    def _conv_forward(self, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(image, (weight - weight.mean()) / weight.std(), bias)


class Activated(nn.BatchNorm2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image).relu()


class Named(nn.Conv2d):
    """A convolution of torch's under another name."""


def with_forward(layer: nn.Module, forward: Callable[[Tensor], Tensor]) -> nn.Module:
    layer.forward = forward
    return layer


def hooked(layer: nn.Module, by: str) -> nn.Module:
    changes = {"forward_pre": lambda _, given: (given[0] * 2,), "forward": lambda _, given, answer: answer * 2}
    getattr(layer, f"register_{by}_hook")(changes[by])
    return layer


CONV, NORM = partial(nn.Conv2d, 3, 4, 1), partial(nn.BatchNorm2d, 4)
OF_THEIR_OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], int]] = {
    "a convolution's forward": (lambda: Magnitudes(3, 4, 1), NORM, 0),
    "a convolution's weight": (lambda: Standardised(3, 4, 1), NORM, 0),
    "a norm's forward": (CONV, lambda: Activated(4), 0),
    "statistics of each batch": (CONV, partial(nn.BatchNorm2d, 4, track_running_stats=False), 0),
    "an instance's forward": (CONV, lambda: with_forward(NORM(), torch.sigmoid), 0),
    "a hook behind the convolution": (lambda: hooked(CONV(), "forward"), NORM, 0),
    "a hook before the norm": (CONV, lambda: hooked(NORM(), "forward_pre"), 0),
    "a hook behind the norm": (CONV, lambda: hooked(NORM(), "forward"), 0),
    "a hook before the convolution": (lambda: hooked(CONV(), "forward_pre"), NORM, 1),
    "a name alone": (lambda: Named(3, 4, 1), NORM, 1),
}


@pytest.mark.parametrize(("conv", "norm", "count"), OF_THEIR_OWN.values(), ids=OF_THEIR_OWN)
@torch.no_grad()
def test_other_layers_are_not_folded(conv: Callable[[], nn.Module], norm: Callable[[], nn.Module], count: int) -> None:
    block, image = nn.Sequential(conv(), norm()), torch.rand(2, 3, 4, 4)
    block(image)  # its statistics
    net = ByDimensions(block).eval()
    (traced, _), (by_neighbours, found) = folded(block), folded(net, image)
    assert found == count
    for rewritten in (traced, by_neighbours):
        torch.testing.assert_close(rewritten(image), net(image))


Forward = Callable[[Any, Tensor], Tensor]
assert_close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)


def conv(inner: int = 4, outer: int = 4) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, 3, padding=1)


class Net(nn.Module):
    """Layers by their names, and what a net's code does with them; torch.fx traces it where it is `traced`."""

    def __init__(self, forward: Forward, traced: bool = False, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.does, self.traced = forward, traced
        self.held: list[nn.Module] = []

    def forward(self, image: Tensor) -> Tensor:
        if not self.traced and image.shape[2] % 2:
            image = functional.pad(image, (0, 0, 0, 1))
        return self.does(self, image)


@torch.no_grad()
def check(net: nn.Module, count: int, norms: int) -> nn.Module:
    """That so many norms are folded and so many others still run, and that the answers are the net's own."""
    lively(net).double()
    image = torch.rand(2, 3, 7, 8, generator=torch.Generator().manual_seed(0)).double()
    rewritten, folds = folded(net, image)
    ran: list[nn.Module] = []
    for part in rewritten.modules():
        part.register_forward_hook(lambda part, *_: ran.append(part))
    assert_close(rewritten(image), net(image))
    assert (folds, sum(isinstance(part, nn.BatchNorm2d) for part in ran)) == (count, norms)
    return rewritten


def with_two_names(*named: int, listed: bool = False) -> nn.Module:
    """A Sequential of convolution, norm and ReLU, some of which have a name in the net before it, or are in a list."""
    layers = [conv(3), nn.BatchNorm2d(4), nn.ReLU()]
    net = Net(lambda net, x: net.block(x), traced=True, **{f"first{number}": layers[number] for number in named})
    if listed:
        net.held, net.does = layers, lambda net, x: net.held[2](net.held[1](net.held[0](x)))
    net.block = nn.Sequential(*layers)
    return net


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("named", [(), (0,), (1,), (0, 1), (0, 1, 2)])
def test_a_layer_with_several_names_is_folded_under_each(named: tuple[int, ...], listed: bool) -> None:
    rewritten = check(with_two_names(*named, listed=listed), 1, 0)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in rewritten.modules())


def test_a_layer_of_two_names_is_folded_where_each_sequential_is_whole() -> None:
    first = conv(3)
    block = nn.Sequential(first, nn.BatchNorm2d(4))
    check(Net(lambda net, x: net.block(x) + net.first(x), traced=True, first=first, block=block), 0, 1)
    shared = conv(3)
    one, two = (nn.Sequential(shared, nn.BatchNorm2d(4, eps=eps)) for eps in (1e-5, 0.1))
    check(Net(lambda net, x: net.one(x) - net.two(x), one=one, two=two), 2, 0)


def reads_more(held: str, net: Any, x: Tensor) -> Tensor:
    """The block, and a further use of a parameter or a buffer that one of its layers holds."""
    answer, values = net.norm(net.conv(x)), attrgetter(held)(net)
    return functional.conv_transpose2d(answer, values) if values.dim() > 1 else answer * values.reshape(1, -1, 1, 1)


NOT_ALONE: dict[str, tuple[Forward, int]] = {
    "a convolution that others read": (lambda net, x: net.norm(y := net.conv(x)) + y, 1),
    "a convolution of two norms": (lambda net, x: net.norm(net.conv(x)) + net.second_norm(net.conv(x)), 2),
    "a norm of two convolutions": (lambda net, x: net.norm(net.conv(x)) + net.norm(net.second(x)), 2),
    **{
        held: (partial(reads_more, held), 1) for held in ("conv.weight", "conv.bias", "norm.weight", "norm.running_var")
    },
}


@pytest.mark.parametrize(("does", "norms"), NOT_ALONE.values(), ids=NOT_ALONE)
def test_a_norm_is_not_folded_where_the_net_reads_what_one_of_both_gives_or_holds(does: Forward, norms: int) -> None:
    layers = {"conv": conv(3), "second": conv(3), "norm": nn.BatchNorm2d(4), "second_norm": nn.BatchNorm2d(4)}
    check(Net(does, traced=True, **layers), 0, norms)


def one_after_another(net: Any, x: Tensor) -> Tensor:
    """The answers of a Sequential's convolutions are kept beside what it answers."""
    kept = []
    for layer in net.block:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            kept.append(x)
    return torch.cat([x, *kept], 1)


def by_dictionary(net: Any, x: Tensor) -> Tensor:
    """The same of the first layer, which is found where torch keeps it."""
    layers: Iterator[nn.Module] = iter(net.block._modules.values())
    x = first = next(layers)(x)
    for layer in layers:
        x = layer(x)
    return x + first


def tied(net: Any, x: Tensor) -> Tensor:
    return functional.conv_transpose2d(net.block(x), net.block[0].weight)


IN_PARTS: dict[str, Forward] = {
    "one after another": one_after_another,
    "by dictionary": by_dictionary,
    "a slice": lambda net, x: net.block[1:](first := net.block[0](x)) + first,
    "its children": lambda net, x: sum(layer(x) for layer in [*net.block.children()][:1]) + net.block(x),
    "by name": lambda net, x: getattr(net.block, "0")(x) + net.block(x),
    "the forward alone": lambda net, x: net.block[0].forward(x) + net.block(x),
    "a norm alone": lambda net, x: net.block[1](net.block(x)),
    "a weight": tied,
    "of torch's class": lambda net, x: type(net.block).forward(net.block, x) + net.block[0](x),
    "a call of parts of the whole": lambda net, x: net.block(x) + net.block[:1](x),
}


@pytest.mark.parametrize("does", IN_PARTS.values(), ids=IN_PARTS)
def test_a_sequential_that_is_called_in_parts_is_not_folded(does: Forward) -> None:
    block = nn.Sequential(conv(3), nn.BatchNorm2d(4), nn.ReLU())
    check(Net(does, block=block), 0, 2 if does is IN_PARTS["a norm alone"] else 1)


def test_sequentials_that_are_called_whole_are_folded() -> None:
    inner = nn.Sequential(conv(3), nn.BatchNorm2d(4), nn.ReLU(), conv(), nn.BatchNorm2d(4))
    parts, again = nn.Sequential(conv(), nn.BatchNorm2d(4)), nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU())

    def forward(net: Any, x: Tensor) -> Tensor:
        y: Tensor = net.again(net.again(net.outer(x).to(net.outer[0][0].weight.dtype)))
        return net.parts[1](net.parts[0](y))

    check(Net(forward, outer=nn.Sequential(inner, nn.ReLU()), parts=parts, again=again), 4, 0)


@pytest.mark.parametrize("norm_first", [False, True])
def test_one_activation_for_all_stays_between_its_layers(norm_first: bool) -> None:
    act = nn.ReLU()
    pairs = [[nn.BatchNorm2d(4), act] if norm_first else [act, nn.BatchNorm2d(4)] for _ in range(2)]
    block = nn.Sequential(conv(3), *pairs[0], conv(), *pairs[1])
    check(Net(lambda net, x: net.block(x), block=block), 2 * norm_first, 2 * (not norm_first))


@pytest.mark.parametrize(
    ("reads", "folds"),
    [
        (lambda norm: norm.running_mean.tolist()[0], 0),
        (lambda norm: norm.weight.shape[0], 0),
        (lambda norm: norm.eps + norm.num_features, 1),
    ],
    ids=["values", "shape", "attributes"],
)
def test_what_a_net_reads_of_a_norm_is_there(reads: Callable[[Any], float], folds: int) -> None:
    block = nn.Sequential(conv(3), nn.BatchNorm2d(4))
    check(Net(lambda net, x: net.block(x) + reads(net.block[1]), block=block), folds, 1 - folds)


@torch.no_grad()
def test_nothing_is_folded_where_no_call_shows_that_a_sequential_is_called_whole() -> None:
    block = nn.Sequential(conv(3), nn.BatchNorm2d(4))
    net, image = Net(lambda net, x: net.block(x), block=block), torch.rand(2, 3, 7, 8)
    assert folded(lively(net))[1] == 0
    net.does = lambda net, x: net.block(x.unflatten(0, (3, -1))[0])
    assert folded(net, torch.rand(3, 3, 7, 8))[1] == 0
    net.does = lambda net, x: net.block(x) if len(x) == 1 else net.block[1:](net.block[0](x)) + net.block[0](x)
    assert folded(net, image)[1] == 0
    net.does = lambda net, x: net.block(x.sub_(0.5))
    kept = image.clone()
    assert folded(net, image[:, :, :6])[1] == 1
    assert torch.equal(image, kept)


def test_stages_fold_as_the_net_calls_its_layers_on_their_inputs(tmp_path: Path) -> None:
    net, image = (
        Net(lambda net, x: net.block(x), block=nn.Sequential(conv(3), nn.BatchNorm2d(4))),
        torch.rand(2, 3, 7, 8),
    )
    work = Workload(lively(net), [image], image.device, tmp_path)
    assert half_net(work, torch.float16).folds == 1
    assert Half(net, torch.float32, inputs=Batch((image,))).folds == 1


def relu_after_norms(net: Any, x: Tensor) -> Tensor:
    """As nets do that hold their layers in one list."""
    for layer in (net.conv, net.norm, net.head):
        x = layer(x).relu() if isinstance(layer, nn.BatchNorm2d) else layer(x)
    return x


def one_more_without_bias(net: Any, x: Tensor) -> Tensor:
    """As a net has it whose bias is a parameter of its own where a layer has none."""
    return net.head(net.norm(net.conv(x)) + (net.conv.bias is None))


@pytest.mark.parametrize("does", [relu_after_norms, one_more_without_bias])
def test_a_net_that_asks_what_its_layers_are_is_left_as_it_is(does: Forward) -> None:
    layers = {"conv": nn.Conv2d(3, 4, 3, bias=False), "norm": nn.BatchNorm2d(4), "head": nn.Conv2d(4, 2, 1)}
    check(Net(does, traced=True, **layers), 0, 1)


KEPT: dict[str, Tensor] = {}


def plus_a_grid_in_a_global(net: Any, x: Tensor) -> Tensor:
    """A grid that the first call of any net of the process makes."""
    x = net.norm(net.conv(x))
    if "grid" not in KEPT:
        KEPT["grid"] = torch.linspace(-1, 1, 8).to(x)
    return x + KEPT["grid"]


def test_what_a_net_keeps_in_a_global_is_a_tensor() -> None:
    KEPT.clear()
    check(Net(plus_a_grid_in_a_global, traced=True, conv=conv(3), norm=nn.BatchNorm2d(4)), 1, 0)
    assert type(KEPT["grid"]) is Tensor


class Lazy(nn.Module):
    """A grid that the first call makes and keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = conv(4), nn.BatchNorm2d(4)
        self.grid: Tensor | None = None

    def forward(self, image: Tensor) -> Tensor:
        if self.grid is None:
            self.grid = torch.zeros_like(image[:, :1]) + 0.5
        return self.norm(self.conv(torch.cat([image, self.grid], 1)))


@torch.no_grad()
def test_what_a_call_leaves_in_a_net_is_not_left_by_tracing_it() -> None:
    net = lively(Lazy()).double()
    rewritten, count = folded(net)
    assert (count, rewritten.grid) == (1, None)
    image = torch.rand(2, 3, 7, 8).double()
    assert_close(rewritten(image), net(image))


@torch.no_grad()
def test_what_a_call_leaves_in_a_net_is_not_left_by_seeing_its_calls() -> None:
    image, block = torch.rand(2, 3, 7, 8).double(), nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    net = lively(Net(lambda net, x: net.lazy(net.block(x)), block=block, lazy=Lazy())).double()
    rewritten, count = folded(net, image)
    assert (count, rewritten.get_submodule("lazy").grid) == (1, None)
    assert_close(rewritten(image), net(image))


def test_a_copy_to_try_shares_the_weights() -> None:
    net = Net(lambda net, x: net.one(x), one=conv(3), norm=nn.BatchNorm2d(4))
    copied, copies = trial_copy(net)
    assert [*map(id, copied.parameters())] == [*map(id, net.parameters())]
    assert not {*copied.modules()} & {*net.modules()}
    assert [*copies.values()] == [*copied.modules()]
