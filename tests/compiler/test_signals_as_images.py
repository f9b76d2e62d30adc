"""Networks of signals run as networks of images, and the build takes the faster form."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler import driver
from pipeline.compiler.batch import batched
from pipeline.compiler.candidate import INDUCTOR
from pipeline.compiler.driver import AS_IMAGES
from pipeline.compiler.graph.exported_net import without_checks
from pipeline.compiler.network_calls import exported_program
from pipeline.compiler.passes.signals_as_images import signals_as_images
from tests.compiler import made_up_gpu
from tests.compiler.made_up_gpu import no_gpu

__all__ = ["no_gpu"]  # a fixture


class SignalNet(nn.Module):
    """Convolutions, pools, norms and what has no form for images: a resize, and a factor for each sample."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 9, padding="same")]
        second = [nn.Conv1d(8, 16, 5, 2, 4, 2), nn.InstanceNorm1d(16), nn.PReLU(16), nn.AvgPool1d(2)]
        self.first = nn.Sequential(*first, nn.GroupNorm(2, 8), nn.SiLU())
        second += [nn.ConvTranspose1d(16, 8, 4, 4), nn.Upsample(scale_factor=2)]
        self.second = nn.Sequential(nn.MaxPool1d(2), *second)
        self.head = nn.Conv1d(16, 2, 1)
        self.scale = nn.Parameter(torch.rand(1, 8, 1))

    def forward(self, signal: Tensor) -> Tensor:
        wide = self.first(signal)
        deep = self.second(wide)[..., : wide.shape[-1]]
        return self.head(torch.cat([wide * self.scale, deep + wide], 1).tanh() * 2)


def test_a_network_of_signals_answers_the_same_as_images() -> None:
    net, signal = SignalNet().eval(), torch.randn(2, 1, 64)
    graph = exported_program(net, [signal]).module()
    without_checks(graph)
    assert signals_as_images(graph)
    left = {str(node.target) for node in graph.graph.nodes if "1d" in str(node.target) and node.op == "call_function"}
    assert left == {"aten.upsample_nearest1d.vec"}
    with torch.no_grad():
        torch.testing.assert_close(graph(signal), net(signal))


@pytest.mark.parametrize("faster", [INDUCTOR, AS_IMAGES])
def test_the_faster_form_of_a_net_of_signals_runs(faster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.times(monkeypatch, *((1.0, 2.0) if faster == INDUCTOR else (2.0, 1.0)))
    asked = made_up_gpu.request(SignalNet(), tmp_path, "never", inputs=batched(torch.randn(2, 1, 64)))
    built = driver.best_form(asked, lambda: None, lambda _: pytest.fail("rewritten"))
    assert built.details["candidates_ms"].keys() == {INDUCTOR, AS_IMAGES}
    assert built.description.startswith(f"fp16, all by {faster}, one CUDA graph")
    with torch.no_grad():
        torch.testing.assert_close(built.run(*asked.inputs).float(), asked.network(*asked.inputs), atol=2e-2, rtol=0)
