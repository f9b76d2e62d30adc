"""Nets as few people write them keep their answers in fp16 and in fp8: each kind here was once changed or refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import load, save
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.layers import layer_of
from pipeline.compiler.graph.lowering import Plan, lower
from tests.benchmarks.research_nets import GatedUNet, NAFNet, R2UNet, ResUNetA, U2Net, UNet3Plus, WarpedUNet
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import own_calls, rewritten_from

HALVES, FP8 = 3e-3, 0.1  # relative L2: one or two layers' roundings


class Written(nn.Module):
    def __init__(
        self, between: Callable[["Written", Tensor], Tensor], image_channels: int = 3, width: int = 32
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(image_channels, 32, 3, padding=1)
        self.second, self.last = nn.Conv2d(width, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.wide, self.mix = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.spread = nn.Buffer(torch.rand(32) + 0.5)
        self.walk = nn.GRU(32, 32, batch_first=True)
        self.gamma, self.beta = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(32))
        self.table, self.between = nn.Buffer(torch.randn(2, 32, 16, 16)), between
        self.filters = nn.Parameter(torch.randn(32, 16, 9, dtype=torch.complex64))

    def forward(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.last(functional.relu(self.between(self, functional.relu(self.first(batch)))))
        return logits


def computed_norm(net: Written, x: Tensor) -> Tensor:
    return functional.group_norm(net.second(x), 4, 1 + net.gamma, net.beta * 2)


def computed_scale(net: Written, x: Tensor) -> Tensor:
    return functional.instance_norm(net.second(x), weight=net.gamma.exp())


def computed_batch_norm(net: Written, x: Tensor) -> Tensor:
    return functional.batch_norm(net.second(x), net.beta, net.spread, net.gamma * 2, 1 + net.beta)


def computed_bias(net: Written, x: Tensor) -> Tensor:
    y = functional.conv2d(x, net.second.weight, net.beta * 2, padding=1)
    return functional.batch_norm(y, net.beta, net.spread)


def norm_of_the_image(net: Written, x: Tensor) -> Tensor:
    return functional.group_norm(net.second(x), 4, 1 + x.mean((0, 2, 3)), net.beta * x.mean())


def batch_norm_of_the_image(net: Written, x: Tensor) -> Tensor:
    y = functional.conv2d(x, net.second.weight, net.beta * x.mean(), padding=1)
    return functional.batch_norm(y, net.beta, net.spread + x.mean(), net.gamma * x.mean(), x.mean((0, 2, 3)))


def weight_of_the_image(net: Written, x: Tensor) -> Tensor:
    weight = net.second.weight * (1 + x.mean((0, 2, 3)))[:, None, None, None]
    return functional.batch_norm(functional.conv2d(x, weight, padding=1), net.beta, net.spread)


def buffer_in_concatenation(net: Written, x: Tensor) -> Tensor:
    answer: Tensor = net.second(torch.cat([net.table, x], 1))
    return answer


def single_precision_in_concatenation(net: Written, x: Tensor) -> Tensor:
    single = torch.cat([x.float() * 300, (x * 10).float().exp()], 1)
    answer: Tensor = net.second(single.clamp(max=9e4).mul(1e-3).to(x.dtype))
    return answer


def single_precision_added(net: Written, x: Tensor) -> Tensor:
    far = net.gamma.new_full((1, 64, 16, 16), 1e5, dtype=torch.float32)
    answer: Tensor = ((net.wide(x) + far) * 1e-5)[:, 32:].to(x.dtype)
    return answer


def batch_norm_in_single_precision(net: Written, x: Tensor) -> Tensor:
    y = functional.conv2d(x.float(), net.second.weight.float() * 1e6, padding=1)
    answer: Tensor = functional.batch_norm(y, net.beta.float() * 1e6, net.spread.float() * 1e12).to(x.dtype)
    return answer


def up_sampled_in_single_precision(net: Written, x: Tensor) -> Tensor:
    large = functional.interpolate(x[..., ::2, ::2].float() * 1e5, scale_factor=2, mode="bilinear")
    return (large * 1e-5).to(x.dtype)


def whole_numbers_added(net: Written, x: Tensor) -> Tensor:
    marks = (torch.arange(256).reshape(16, 16) % 3).expand(2, 64, 16, 16)
    answer: Tensor = (net.wide(x) + marks)[:, 32:]
    return answer


def whole_numbers_multiplied(net: Written, x: Tensor) -> Tensor:
    marks = (torch.arange(64).reshape(2, 32, 1, 1) % 3).to(torch.int32)
    answer: Tensor = net.mix(x * marks)
    return answer


def up_sampled_by_more_than_twice(net: Written, x: Tensor) -> Tensor:
    large = functional.interpolate(x, scale_factor=2.05, mode="bilinear")
    return functional.max_pool2d(large, 2)


def padded_weight(net: Written, x: Tensor) -> Tensor:
    return functional.conv2d(x, functional.pad(net.second.weight, (1, 1, 1, 1)), padding=2)


def padded_weight_of_the_image(net: Written, x: Tensor) -> Tensor:
    return functional.conv2d(x, functional.pad(net.second.weight * (1 + x.mean()), (1, 1, 1, 1)), padding=2)


def recurrent(net: Written, x: Tensor) -> Tensor:
    rows: Tensor = net.walk(x.mean(2).transpose(1, 2))[0]
    return x + rows.transpose(1, 2)[:, :, None]


def by_frequencies(net: Written, x: Tensor) -> Tensor:
    spectrum = torch.fft.fft2(net.second(x).float())
    turned = torch.complex(spectrum.real, spectrum.imag * 0.5) * torch.polar(torch.ones(16), torch.ones(16) / 2)
    answer: Tensor = torch.fft.ifft2(turned).real.to(x.dtype)
    return answer


def by_learnt_frequencies(net: Written, x: Tensor) -> Tensor:
    answer: Tensor = torch.fft.irfft2(torch.fft.rfft2(net.second(x).float()) * net.filters).to(x.dtype)
    return answer


def by_a_median(net: Written, x: Tensor) -> Tensor:
    answer: Tensor = net.second(x) - torch.quantile(x.flatten(1), 0.5, dim=1)[:, None, None, None]
    return answer


def filled_beyond_half(net: Written, x: Tensor) -> Tensor:
    answer: Tensor = net.second(x).masked_fill(net.table > 0, -1e9).softmax(1) * 8
    return answer


def by_data(net: Written, x: Tensor) -> Tensor:
    answer: Tensor = net.second(x.data).data
    return answer


def written_by_data(net: Written, x: Tensor) -> Tensor:
    """Into memory that is made for it; the order of its axes is an operation of its own in the graph."""
    answer = torch.empty_like(x)
    answer.data.copy_(net.second(x).data)
    return answer


WIDTHS: dict[object, int] = {buffer_in_concatenation: 64, single_precision_in_concatenation: 64}
BETWEEN: list[Callable[[Written, Tensor], Tensor]] = [
    *(computed_norm, computed_scale, computed_batch_norm, computed_bias),
    *(norm_of_the_image, batch_norm_of_the_image, weight_of_the_image),
    *(buffer_in_concatenation, single_precision_in_concatenation, single_precision_added),
    *(whole_numbers_added, whole_numbers_multiplied, up_sampled_by_more_than_twice),
    *(up_sampled_in_single_precision, batch_norm_in_single_precision),
    *(padded_weight, padded_weight_of_the_image, recurrent),
    *(by_frequencies, by_learnt_frequencies, by_data, written_by_data, by_a_median, filled_beyond_half),
]


@pytest.mark.filterwarnings("ignore:The tensor attributes self.net.walk")  # torch's own, of its recurrent layers
@pytest.mark.parametrize("between", BETWEEN, ids=lambda between: str(between.__name__))
@torch.no_grad()
def test_it_keeps_its_answer(between: Callable[[Written, Tensor], Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Written(between, width=WIDTHS.get(between, 32)).eval(), image(2, 3, 16, 16), tmp_path)


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


AS_READ: list[tuple[Callable[[Tensor], Tensor], list[str]]] = [
    (lambda batch: batch.to(torch.int32).to(batch.dtype), []),
    (lambda batch: functional.pad(batch.to(torch.bfloat16), (1, 1)).to(batch.dtype), []),
    (lambda batch: batch.double().to(batch.dtype), ["conv_first"]),
]


@pytest.mark.parametrize(("read", "kernels"), AS_READ)
def test_a_first_layer_reads_the_made_image(
    read: Callable[[Tensor], Tensor], kernels: list[str], tmp_path: Path
) -> None:
    """Its kernel reads the image itself, in fp32, and stands aside where a cast has rounded that."""

    net = Made(lambda batch, conv: conv(read(batch)), nn.Conv2d(3, 32, 3, padding=1)).eval()
    graph = check(net, (image(2, 3, 16, 16) * 5).half().float(), tmp_path)
    assert own_calls(graph) == kernels
    assert all(call.args[0].op == "placeholder" for call in graph.graph.nodes if "layer" in call.meta)


LAYERS: dict[Callable[[], nn.Module], int] = {
    U2Net: 88,
    UNet3Plus: 27,
    NAFNet: 44,
    R2UNet: 51,
    GatedUNet: 23,
    ResUNetA: 26,
    WarpedUNet: 14,
}


@pytest.mark.parametrize(("make", "layers"), LAYERS.items())
@torch.no_grad()
def test_it_answers_with_so_many_layers_by_kernels(make: Callable[[], nn.Module], layers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, batch = lively(make()).eval(), image(2, 3, 32, 32)
    made = rewritten_from(net, batch, torch.float16)
    assert sum(layer_of(made.module, node) is not None for node in made.module.graph.nodes) == layers
    graph = lower(made, Plan())
    assert distance(graph(batch), net(batch)) < 2e-2
    save(graph, batch, tmp_path)
    assert torch.equal(load(tmp_path)(batch), graph(batch))
