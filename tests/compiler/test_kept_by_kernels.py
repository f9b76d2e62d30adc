"""Networks that fp16 doesn't hold: modules stay in fp32 beside the kernels, or all is in TF32."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler import driver, fp8_build
from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import batched
from pipeline.compiler.candidate import Properties
from pipeline.compiler.driver import Built, by_inductor_alone
from pipeline.compiler.errors import CompileError, UnsupportedError
from pipeline.compiler.fp8_build import Fp8
from pipeline.compiler.tuning.budget import Budget
from tests.compiler.made_up_gpu import images, no_gpu, request, rewritten, times

__all__ = ["no_gpu"]  # a fixture
FIRST, SECOND = images()
KEPT = ["level.0", "level.3"]


class Overflowing(nn.Module):
    """A level within which values reach far beyond what fp16 holds, between others that kernels take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.before = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        large, small = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.level = nn.Sequential(large, nn.BatchNorm2d(32), nn.ReLU(), small)
        self.after, self.head = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 2, 1)
        with torch.no_grad():
            large.weight.mul_(1e6)
            small.weight.mul_(1e-6)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.after(self.level(self.before(self.first(image).relu()).relu()).relu()).relu())
        return logits


@torch.no_grad()
def test_modules_stay_in_fp32_beside_the_kernels(tmp_path: Path) -> None:
    """Without them no answer is finite; the batch norm between them, which would round, is folded."""
    net = Overflowing().eval()
    rounded = rewritten(net, tmp_path).candidate({}, "fp16")
    assert rounded is None or not rounded.captured(SECOND).isfinite().all()
    made = rewritten(net, tmp_path, kept=KEPT).candidate({}, "fp16")
    assert made is not None
    assert made.properties.own_kernels == 3  # all but those; the head is made by the last one's
    assert distance(made.captured(SECOND), net(SECOND)) < 1e-2


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
@torch.no_grad()
def test_a_network_is_built_with_what_it_keeps(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is to stay in fp16 as well stays in fp32."""
    for room in (driver, fp8_build):
        monkeypatch.setattr(room, "barred_on", lambda *_: None)
    times(monkeypatch, 2.0, 1.5, 1.0)
    net = Overflowing().eval()
    asked = request(net, tmp_path, "never", kept=KEPT)
    fp8 = Fp8(lambda: [batched(FIRST)], Budget(1.0, 1.0), ["before", "level.0"])
    made = driver.build(asked) if precision == "fp16" else fp8_build.build(asked, fp8)[0]
    assert made.description.endswith("; level.0, level.3 in fp32, products in TF32")
    assert (made.properties.precision, made.properties.instead) == (precision, "")
    assert distance(made.run(SECOND), net(SECOND)) < 0.1


def test_a_network_names_what_it_keeps() -> None:
    how = Properties("fp8", {"head": "fp16", "level.0": "fp16"})
    made, net = Built(torch.relu, "fp8, 3 layers by own kernels", how, {}), Overflowing()
    kept = made.with_kept(net, KEPT)
    assert kept.description == "fp8, 3 layers by own kernels; level.0, level.3 in fp32, products in TF32"
    assert kept.details == {"kept_in_fp32": KEPT}
    assert kept.properties == Properties("fp8", {"head": "fp16", "level.0": "tf32", "level.3": "tf32"})
    assert made.with_kept(net, []).details == {"kept_in_fp32": []}
    within = dict.fromkeys(["level.0", "level.1", "level.3"], "tf32")
    assert made.with_kept(net, ["level"]).properties.layer_precision == {"head": "fp16", **within}


def test_a_name_that_no_module_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"keep_fp32: the network has no module 'hed'; did you mean 'head'\?"):
        rewritten(Overflowing(), tmp_path, kept=["hed"])


class InFp32Alone(nn.Module):
    """An operation that torch has in fp32 alone, as Fourier transforms of most sizes are on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        if image.dtype != torch.float32:
            raise RuntimeError("Unsupported dtype Half")
        logits: Tensor = self.head(image)
        return logits


@torch.no_grad()
def test_a_net_that_doesn_t_run_in_half_precision_is_in_tf32(tmp_path: Path) -> None:
    net = InFp32Alone().eval()
    with pytest.raises(UnsupportedError) as caught:
        rewritten(net, tmp_path)
    built = by_inductor_alone(request(net, tmp_path, "never"), str(caught.value))
    why = "in fp16 it doesn't run; torch.export can't take the network: Unsupported dtype Half"
    assert built.description == f"tf32, all by Inductor, one CUDA graph: {why}"
    assert (built.properties.precision, built.properties.provider) == ("tf32", "Inductor")
    assert torch.equal(built.run(SECOND), net(SECOND))
