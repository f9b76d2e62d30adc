"""Nets that fp16 doesn't hold, in `fused` and `fp8`: modules stay in fp32 beside the kernels, or all is in TF32."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.autotune import Tuner
from pipeline.compiler.budget import Budget
from pipeline.compiler.errors import UnsupportedError
from pipeline.records.run_record import Execution
from pipeline.stages import fp8, fused
from pipeline.stages.api import Runner, StageError
from pipeline.stages.common.not_rewritten import by_inductor_alone
from pipeline.stages.common.rewritten_net import Rewritten
from pipeline.stages.common.what_ran import with_kept
from tests.stages.test_fused import no_gpu, times, workload

__all__ = ["no_gpu"]  # a fixture
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
        """[batch, 2, height, width] of an image [batch, 3, height, width]."""
        logits: Tensor = self.head(self.after(self.level(self.before(self.first(image).relu()).relu()).relu()).relu())
        return logits


@torch.no_grad()
def test_modules_stay_in_fp32_beside_the_kernels(tmp_path: Path) -> None:
    """Without them no answer is finite; the batch norm between them, which would round, is folded."""
    work = workload(Overflowing(), tmp_path)
    wanted = work.model(work.batches[1])
    rounded = Rewritten(work, Tuner(tmp_path), None).candidate({}, "fp16")
    assert rounded is None or not rounded.captured(work.batches[1]).isfinite().all()
    rewritten = Rewritten(work, Tuner(tmp_path), None, kept=KEPT)
    made = rewritten.candidate({}, "fp16")
    assert made is not None
    assert made.execution.own_kernels == 3  # all but those; the head is made by the last one's
    assert distance(made.captured(work.batches[1]), wanted) < 1e-2


@torch.no_grad()
def test_so_they_do_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 2.0, 2.0, 1.0)
    work = workload(Overflowing(), tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), None, kept=KEPT)
    stage = fp8.fastest_of_both(rewritten, 4, "none", Budget(1.0, 1.0))
    assert stage.execution is not None
    assert stage.execution.precision == "fp8"
    assert distance(stage.run(work.batches[1]), work.model(work.batches[1])) < 0.2


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the stages ask of it."""
    for stage in (fused, fp8):
        monkeypatch.setattr(stage, "is_cuda", lambda _: True)
        monkeypatch.setattr(stage, "supported", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.parametrize(("stage", "options"), [(fused, {}), (fp8, {"keep_fp16": ["before", "level.0"]})])
@torch.no_grad()
def test_a_stage_is_built_with_what_it_keeps(
    stage: Any, options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    """As on a GPU; a module that is to stay in fp16 as well stays in fp32."""
    times(monkeypatch, 2.0, 1.5, 1.0)
    work, how = workload(Overflowing(), tmp_path), {"inductor_search": "never", "tuning_folder": str(tmp_path)}
    made = stage.build(work, keep_fp32=KEPT, **how, **options)
    assert made.description.endswith("; level.0, level.3 in fp32, products in TF32")
    assert made.execution.instead == ""
    assert distance(made.run(work.batches[1]), work.model(work.batches[1])) < 0.1


@pytest.mark.parametrize("stage", [fused, fp8])
def test_a_stage_refuses_a_name_that_no_module_has(stage: Any, tmp_path: Path, on_a_gpu: None) -> None:
    with pytest.raises(StageError, match=r"keep_fp32: the net has no module 'hed'; did you mean 'head'\?"):
        stage.build(workload(Overflowing(), tmp_path), keep_fp32=["hed"], tuning_folder=str(tmp_path))


def test_a_stage_names_what_it_keeps() -> None:
    made = Runner(torch.relu, "fp8, 3 layers by own kernels", Execution("fp8", {"head": "fp16", "level.0": "fp16"}))
    net = Overflowing()
    kept = with_kept(made, net, KEPT)
    assert kept.description == "fp8, 3 layers by own kernels; level.0, level.3 in fp32, products in TF32"
    assert kept.details == {"kept_in_fp32": KEPT}
    assert kept.execution == Execution("fp8", {"head": "fp16", "level.0": "tf32", "level.3": "tf32"})
    assert with_kept(made, net, []) == replace(made, details={"kept_in_fp32": []})
    whole = with_kept(made, net, ["level"]).execution
    assert whole is not None
    assert whole.layer_precision == {"head": "fp16", **dict.fromkeys(["level.0", "level.1", "level.3"], "tf32")}


def test_what_stays_in_fp32_needs_not_stay_in_fp16() -> None:
    assert fp8.outside(["level.0", "before"], Overflowing(), KEPT) == ["before"]
    assert fp8.outside("auto", Overflowing(), KEPT) == "auto"


def test_a_name_that_no_module_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"keep_fp32: the net has no module 'hed'; did you mean 'head'\?"):
        Rewritten(workload(Overflowing(), tmp_path), Tuner(tmp_path), None, kept=["hed"])


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
    work = workload(InFp32Alone(), tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        Rewritten(work, Tuner(tmp_path), None)
    stage = by_inductor_alone(work, str(caught.value), Tuner(tmp_path), "never")
    why = "in fp16 it doesn't run; torch.export can't take the net: Unsupported dtype Half"
    assert stage.description == f"tf32, all by Inductor, one CUDA graph: {why}"
    assert stage.execution is not None
    assert (stage.execution.precision, stage.execution.provider) == ("tf32", "Inductor")
    assert torch.equal(stage.run(work.batches[1]), work.model(work.batches[1]))
