"""Nets whose own code takes views that channels side by side don't allow: exported in NCHW, and right all the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import archive_of, checked_archive
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.passes import FOR_ANY_BACKEND, rewrite
from pipeline.export.artefacts import check_alone
from pipeline.export.request import ExportError
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import own_calls, rewrite_all

# torch's own, of the bytes that it reads: nobody writes to the weights
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.view(self.weight.size(0), -1)
        spread = rows.std(1).view(-1, 1, 1, 1) + 1e-5
        weight = (self.weight - rows.mean(1).view(-1, 1, 1, 1)) / spread
        return functional.conv2d(x, weight, self.bias, padding=1)


class Blurred(nn.Module):
    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.register_buffer("kernel", torch.ones(1, 1, 3, 3) / 9)

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


def standardised() -> nn.Module:
    return nn.Sequential(Standardised(3, 32, 3), nn.ReLU(), Standardised(32, 8, 3))


def modulated() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), Modulated())


VIEWS = [standardised, Blurred, modulated]


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


@pytest.mark.parametrize("net", VIEWS)
@torch.no_grad()
def test_a_net_that_views_across_channels_is_exported_in_nchw(net: Callable[[], nn.Module]) -> None:
    """In channels_last torch can't take it."""
    model, image = made(net)
    with pytest.raises(UnsupportedError, match=r"torch\.export can't take the network: "):
        export(model, image, torch.float32)
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
        answer: Tensor = deformed(y, offsets(y))
        return answer

    def net() -> nn.Module:
        convs = [nn.Conv2d(inner, outer, 3, padding=1) for inner, outer in ((3, 16), (16, 18))]
        return Made(call, *convs, torchvision.ops.DeformConv2d(16, 8, 3, padding=1))

    model, image = made(net)
    exported = export(model, image, torch.float32)
    right(exported, image, model(image))
    (tmp_path / "net.pt2").write_bytes(archive_of(lower(exported, Plan()), image))
    with pytest.raises(
        ExportError, match=r"^--stage fused: the network calls torch\.ops\.torchvision\.deform_conv2d\.default"
    ):
        check_alone(tmp_path / "net.pt2", "fused")


@torch.no_grad()
def test_volumes_are_taken_in_nchw_as_in_nhwc() -> None:
    """By the same kernels: the passes know the step that the net's inputs go through."""
    torch.manual_seed(0)
    model, volumes = of_volumes().eval(), torch.rand(2, 1, 8, 16, 16)
    calls = []
    for layout in ("NHWC", "NCHW"):
        exported = export(model, volumes, torch.float32, layout)
        right(exported, volumes, model(volumes))
        calls.append(own_calls(lower(exported, Plan())))
    assert calls[0] == calls[1]
    assert any("volumes" in str(call) for call in calls[0])
