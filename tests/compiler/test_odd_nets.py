"""Nets as few people write them keep their answers in fp16 and in fp8: each kind here was once changed or refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import archive_of, checked_archive, load, save
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph import exported_net
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.layers import layer_of
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.passes import FOR_ANY_BACKEND, rewrite
from pipeline.export.artefacts import check_alone
from pipeline.export.request import ExportError
from tests.benchmarks.research_nets import NAFNet, R2UNet, ResUNetA, U2Net, UNet3Plus, WarpedUNet
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import own_calls, rewrite_all, rewritten_from

HALVES, FP8 = 3e-3, 0.1  # relative L2: one or two layers' roundings


class Written(nn.Module):
    def __init__(self, between: Callable[["Written", Tensor], Tensor], width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second, self.last = nn.Conv2d(width, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.wide, self.mix = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.spread = nn.Buffer(torch.rand(32) + 0.5)
        self.walk = nn.GRU(32, 32, batch_first=True)
        self.gamma, self.beta = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(32))
        self.table, self.between = nn.Buffer(torch.randn(2, 32, 16, 16)), between
        self.filters = nn.Parameter(torch.randn(32, 16, 9, dtype=torch.complex64))

    def forward(self, batch: Tensor) -> Tensor:
        return self.last(functional.relu(self.between(self, functional.relu(self.first(batch)))))


def weight_of_the_image(net: Written, x: Tensor) -> Tensor:
    weight = net.second.weight * (1 + x.mean((0, 2, 3)))[:, None, None, None]
    return functional.batch_norm(functional.conv2d(x, weight, padding=1), net.beta, net.spread)


def with_a_bias_of_the_image(net: Written, x: Tensor) -> Tensor:
    y = functional.conv2d(x, net.second.weight, net.beta * x.mean(), padding=1)
    return functional.batch_norm(y, net.beta, net.spread + x.mean(), net.gamma * x.mean(), x.mean((0, 2, 3)))


def single_precision_joined(net: Written, x: Tensor) -> Tensor:
    single = torch.cat([x.float() * 300, (x * 10).float().exp()], 1)
    return net.second(single.clamp(max=9e4).mul(1e-3).to(x.dtype))


def batch_norm_in_single_precision(net: Written, x: Tensor) -> Tensor:
    y = functional.conv2d(x.float(), net.second.weight.float() * 1e6, padding=1)
    return functional.batch_norm(y, net.beta.float() * 1e6, net.spread.float() * 1e12).to(x.dtype)


def up_sampled_in_single_precision(net: Written, x: Tensor) -> Tensor:
    large = functional.interpolate(x[..., ::2, ::2].float() * 1e5, scale_factor=2, mode="bilinear")
    return (large * 1e-5).to(x.dtype)


def by_frequencies(net: Written, x: Tensor) -> Tensor:
    spectrum = torch.fft.fft2(net.second(x).float())
    turned = torch.complex(spectrum.real, spectrum.imag * 0.5) * torch.polar(torch.ones(16), torch.ones(16) / 2)
    return torch.fft.ifft2(turned).real.to(x.dtype)


def written_by_data(net: Written, x: Tensor) -> Tensor:
    """Into memory that is made for it; the order of its axes is an operation of its own in the graph."""
    answer = torch.empty_like(x)
    answer.data.copy_(net.second(x).data)
    return answer


def in_patches(net: Written, x: Tensor) -> Tensor:
    """By a computed weight, of a view, and back by the same weight; twice."""
    weight = functional.pad(net.second.weight, (0, 1, 0, 1))
    patches = functional.conv2d(x.mT, weight, net.beta, stride=4) + functional.conv2d(x.flip(2), weight, stride=4)
    return functional.conv_transpose2d(patches, weight, stride=4)


def kept_whole(net: Written, x: Tensor) -> Tensor:
    first, second = functional.dropout(net.wide(x), training=False).contiguous().chunk(2, 1)
    first = functional.alpha_dropout(functional.selu(first)).to(x.dtype, memory_format=torch.contiguous_format)
    return (net.gamma[:, None].expand_as(flat := first.flatten(2)).to(x.dtype) + flat).reshape(x.shape) * second


WIDTHS = {"a buffer joined": 64, "single precision joined": 64}
BETWEEN: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "a computed norm": lambda net, x: functional.group_norm(net.second(x), 4, 1 + net.gamma, net.beta * 2),
    "a computed scale": lambda net, x: functional.instance_norm(net.second(x), weight=net.gamma.exp()),
    "a computed batch norm": lambda net, x: functional.batch_norm(
        net.second(x), net.beta, net.spread, net.gamma * 2, 1 + net.beta),
    "a computed bias": lambda net, x: functional.batch_norm(
        functional.conv2d(x, net.second.weight, net.beta * 2, padding=1), net.beta, net.spread),
    "a norm of the image": lambda net, x: functional.group_norm(
        net.second(x), 4, 1 + x.mean((0, 2, 3)), net.beta * x.mean()),
    "a batch norm of the image": with_a_bias_of_the_image,
    "a weight of the image": weight_of_the_image,
    "a buffer joined": lambda net, x: net.second(torch.cat([net.table, x], 1)),
    "single precision joined": single_precision_joined,
    "single precision added": lambda net, x: (
        (net.wide(x) + net.gamma.new_full((1, 64, 16, 16), 1e5, dtype=torch.float32)) * 1e-5
    )[:, 32:].to(x.dtype),
    "a batch norm in single precision": batch_norm_in_single_precision,
    "up-sampled in single precision": up_sampled_in_single_precision,
    "whole numbers added": lambda net, x: (
        net.wide(x) + (torch.arange(256).reshape(16, 16) % 3).expand(2, 64, 16, 16))[:, 32:],
    "whole numbers multiplied": lambda net, x: net.mix(x * (torch.arange(64).reshape(2, 32, 1, 1) % 3).to(torch.int32)),
    "up-sampled by more than twice": lambda net, x: functional.max_pool2d(
        functional.interpolate(x, scale_factor=2.05, mode="bilinear"), 2),
    "a padded weight": lambda net, x: functional.conv2d(x, functional.pad(net.second.weight, (1, 1, 1, 1)), padding=2),
    "a padded weight of the image": lambda net, x: functional.conv2d(
        x, functional.pad(net.second.weight * (1 + x.mean()), (1, 1, 1, 1)), padding=2),
    "recurrent": lambda net, x: x + net.walk(x.mean(2).transpose(1, 2))[0].transpose(1, 2)[:, :, None],
    "by frequencies": by_frequencies,
    "by learnt frequencies": lambda net, x: torch.fft.irfft2(torch.fft.rfft2(net.second(x).float()) * net.filters).to(
        x.dtype),
    "in patches": in_patches,
    "kept whole": kept_whole,
    "halves of nothing": lambda net, x: net.second(x) + sum(part.sum() for part in x[:, :0].chunk(2, 1)),
    "gated": lambda net, x: x * net.mix(functional.relu(net.mix(x) + net.second(x)))[:, :1].sigmoid(),
    "by data": lambda net, x: net.second(x.data).data,
    "written by data": written_by_data,
    "by a median": lambda net, x: net.second(x) - torch.quantile(x.flatten(1), 0.5, dim=1)[:, None, None, None],
    "filled beyond half": lambda net, x: net.second(x).masked_fill(net.table > 0, -1e9).softmax(1) * 8,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The tensor attributes self.net.walk")  # torch's own, of its recurrent layers
@pytest.mark.parametrize("between", BETWEEN)
@torch.no_grad()
def test_it_keeps_its_answer(between: str, tmp_path: Path) -> None:
    check(Written(BETWEEN[between], width=WIDTHS.get(between, 32)).eval(), image(2, 3, 16, 16), tmp_path)


def check(net: nn.Module, batch: Tensor, folder: Path) -> fx.GraphModule:
    with torch.no_grad():
        wanted = net(batch)
        made = rewritten_from(net, batch, torch.float16)
        # what these nets add and multiply by is no value that a kernel reads: whole numbers, or in fp32
        assert made.matched["fold_residual"] == made.matched["take_gated_conv1x1"] == []
        graph = lower(made, Plan())
        assert distance(graph(batch), wanted) < HALVES
        known = scales(made, [], largest(made, [batch]))
        assert distance(lower(made, Plan(known))(batch), wanted) < FP8
        save(graph, batch, folder)
        assert torch.equal(load(folder)(batch), graph(batch))
    return graph


@torch.no_grad()
def test_a_graph_that_is_not_traced_again_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, graphs = Written(kept_whole).eval(), []
    for again in (exported_net.must_be_traced_again, lambda _: True):
        monkeypatch.setattr(exported_net, "must_be_traced_again", again)
        nodes = lower(rewritten_from(net, image(2, 3, 16, 16), torch.float16), Plan()).graph.nodes
        graphs.append([(node.target, node.kwargs.get("memory_format")) for node in nodes if node.op == "call_function"])
    assert graphs[0] == graphs[1]


AS_READ: list[tuple[Callable[[Tensor], Tensor], list[str]]] = [
    (lambda batch: batch.to(torch.int32).to(batch.dtype), []),
    (lambda batch: functional.pad(batch.to(torch.bfloat16), (1, 1)).to(batch.dtype), []),
    (lambda batch: batch.double().to(batch.dtype), ["conv_first"]),
]


@pytest.mark.parametrize(("read", "kernels"), AS_READ)
def test_a_first_layer_reads_a_made_one(read: Callable[[Tensor], Tensor], kernels: list[str], tmp_path: Path) -> None:
    """Its kernel reads the image itself, in fp32, and stands aside where a cast has rounded that."""
    net = Made(lambda batch, conv: conv(read(batch)), nn.Conv2d(3, 32, 3, padding=1)).eval()
    graph = check(net, (image(2, 3, 16, 16) * 5).half().float(), tmp_path)
    assert own_calls(graph) == kernels
    assert all(call.args[0].op == "placeholder" for call in graph.graph.nodes if "layer" in call.meta)


LAYERS = [(U2Net, 88), (UNet3Plus, 27), (NAFNet, 44), (R2UNet, 51), (ResUNetA, 26), (WarpedUNet, 14)]


@pytest.mark.parametrize(("make", "layers"), LAYERS)
@torch.no_grad()
def test_it_answers_with_so_many_layers_by_kernels(make: Callable[[], nn.Module], layers: int, tmp_path: Path) -> None:
    net, batch = lively(make()).eval(), image(2, 3, 32, 32)
    made = rewritten_from(net, batch, torch.float16)
    assert sum(layer_of(made.module, node) is not None for node in made.module.graph.nodes) == layers
    graph = lower(made, Plan())
    assert distance(graph(batch), net(batch)) < 2e-2
    save(graph, batch, tmp_path)
    assert torch.equal(load(tmp_path)(batch), graph(batch))


# torch's own, of the bytes that it reads: nobody writes to the weights
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.view(self.weight.size(0), -1)
        spread = rows.std(1).view(-1, 1, 1, 1) + 1e-5
        weight = (self.weight - rows.mean(1).view(-1, 1, 1, 1)) / spread
        return functional.conv2d(x, weight, self.bias, padding=1)


class Blurred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.kernel = nn.Conv2d(3, 32, 3, padding=1), nn.Buffer(torch.ones(1, 1, 3, 3) / 9)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).relu()
        batch, channels, height, width = y.shape
        blurred = functional.conv2d(y.view(batch * channels, 1, height, width), self.kernel, padding=1)
        return blurred.view(batch, channels, height, width)


class Modulated(nn.Module):
    """A weight of five axes (StyleGAN2, Karras et al., 2020), scaled and viewed as that of one group for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 8, 16, 3, 3))
        self.style = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        weight = self.weight * self.style(x.mean((2, 3))).view(batch, 1, channels, 1, 1)
        flat = x.reshape(1, batch * channels, height, width)
        y = functional.conv2d(flat, weight.view(-1, channels, 3, 3), padding=1, groups=batch)
        return y.view(batch, -1, height, width)


def turned() -> nn.Module:
    """Pairs of neighbouring columns as complex numbers, after a norm that a pass lays out otherwise."""

    def call(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
        y = norm(conv(x))
        pairs = torch.view_as_complex(y.reshape(*y.shape[:3], -1, 2))
        return torch.view_as_real(pairs * pairs).reshape(y.shape)

    return Made(call, nn.Conv2d(3, 16, 3, padding=1), nn.InstanceNorm2d(16))


def of_volumes() -> nn.Module:
    first, second = nn.Conv3d(1, 16, 3, padding=1), nn.Conv3d(16, 16, 3, padding=1)
    low = [nn.InstanceNorm3d(16), nn.ReLU(), nn.MaxPool3d(2), nn.ConvTranspose3d(16, 16, 2, 2), nn.Conv3d(16, 2, 1)]
    return nn.Sequential(first, nn.ReLU(), second, *low)


VIEWED: dict[str, Callable[[], nn.Module]] = {
    "standardised": lambda: nn.Sequential(Standardised(3, 32, 3), nn.ReLU(), Standardised(32, 8, 3)),
    "blurred": Blurred,
    "modulated": lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), Modulated()),
}


def made(net: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return net().eval(), torch.rand(2, 3, 16, 16)


def right(exported: ExportedNet, image: Tensor, wanted: Tensor) -> None:
    """The passes keep the answer, and what is lowered is right and a file that this program loads."""
    rewrite_all(exported)
    assert distance(exported.module(image), wanted) < 1e-5
    graph = lower(exported, Plan())
    found = graph(image)
    assert distance(found, wanted) < 5e-3
    loaded = torch.export.load(checked_archive(archive_of(graph, image))).module()
    assert torch.equal(loaded(image), found)


@pytest.mark.parametrize("net", VIEWED)
@torch.no_grad()
def test_a_net_that_views_across_channels_is_exported_in_nchw(net: str) -> None:
    model, image = made(VIEWED[net])
    with pytest.raises(UnsupportedError, match=r"torch\.export can't take the network: ") as caught:
        export(model, image, torch.float32)
    assert "\n" not in str(caught.value)
    right(export(model, image, torch.float32, "NCHW"), image, model(image))


@torch.no_grad()
def test_pairs_of_a_complex_number_lie_side_by_side_after_any_pass() -> None:
    model, image = made(turned)
    exported = export(model, image, torch.float32)
    rewrite(exported, FOR_ANY_BACKEND)
    assert distance(exported.module(image), model(image)) < 1e-5


@torch.no_grad()
def test_a_net_with_deformable_convolutions_can_be_saved(tmp_path: Path) -> None:
    """Whose operation is torchvision's; a bundle, which torch alone loads, doesn't take it."""

    def call(x: Tensor, first: nn.Module, offsets: nn.Module, deformed: nn.Module) -> Tensor:
        y = first(x).relu()
        return deformed(y, offsets(y))

    convs = [nn.Conv2d(inner, outer, 3, padding=1) for inner, outer in ((3, 16), (16, 18))]
    model, image = made(lambda: Made(call, *convs, torchvision.ops.DeformConv2d(16, 8, 3, padding=1)))
    exported = export(model, image, torch.float32)
    right(exported, image, model(image))
    (tmp_path / "net.pt2").write_bytes(archive_of(lower(exported, Plan()), image))
    with pytest.raises(ExportError, match=r"^--stage fused: the network calls torch\.ops\.torchvision\.deform"):
        check_alone(tmp_path / "net.pt2", "fused")


@torch.no_grad()
def test_volumes_are_taken_in_nchw_as_in_nhwc() -> None:
    model, volumes = of_volumes().eval(), torch.rand(2, 1, 8, 16, 16)
    calls = []
    for layout in ("NHWC", "NCHW"):
        exported = export(model, volumes, torch.float32, layout)
        right(exported, volumes, model(volumes))
        calls.append(own_calls(lower(exported, Plan())))
    assert calls[0] == calls[1]
    assert any("volumes" in str(call) for call in calls[0])
