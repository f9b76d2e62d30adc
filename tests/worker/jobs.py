"""A worker's job that takes a moment, and a line that keeps what comes of it, for tests that play the parent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from pipeline.protocol import PipeReporter, TakeSample
from pipeline.records.goals import Tolerance
from pipeline.records.plan import Phase, Plan
from pipeline.records.request import DataSpec, Job, ModelSpec, StageSpec
from pipeline.records.samples import Sample
from pipeline.worker import workload
from pipeline.worker.run_stage import run_stage

PLAN = Plan(
    cpu_sample_seconds=0.0, min_calls=1, sample_warmup_calls=0, warmup_min_calls=1, warmup_min_seconds=0.0,
    warmup_window_seconds=0.0, warmup_tolerance=10.0, warmup_limit_seconds=1.0, latency_calls=2, energy_seconds=0.0,
    profile_calls=1, measured_peaks=False,
)  # fmt: skip
EAGER = StageSpec(
    "eager", "pipeline.stages.eager", "fp32", "", ["cpu"], "", False, Tolerance(1e-5, 0.0, "it is the reference"), {}
)


class Recorder(PipeReporter):
    def __init__(self, samples: int = 3) -> None:
        self.fields: dict[str, Any] = {}
        self.run_fields: dict[str, Any] = {}
        self.said: list[str] = []
        self.phases: list[str] = []
        self.samples: list[Sample] = []
        self.wanted = samples

    def progress(self, text: str) -> None:
        self.said.append(text)

    def enter(self, phase: Phase) -> None:
        self.phases.append(phase)

    def report(self, **fields: Any) -> None:
        self.fields |= fields

    def report_run(self, **fields: Any) -> None:
        self.run_fields |= fields

    def sampling(self) -> Iterator[TakeSample]:
        yield from [TakeSample()] * self.wanted

    def sample(self, taken: Sample) -> None:
        self.samples.append(taken)


def job(stage: StageSpec, folder: Path, role: str = "stage") -> Job:
    return Job(
        role=role, stage=stage,
        model=ModelSpec("small", "models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors"),
        data=DataSpec("samples", None, None, size=48, batch_size=2, batches=3), plan=PLAN, device="cpu", threads=None,
        seed=0, time_inaccurate=False, launcher="basic",
        folder=str(folder / (stage.name if role == "stage" else "reference")),
        reference=str(folder / "reference" / "logits.safetensors"),
    )  # fmt: skip


def small(stage: StageSpec, folder: Path, role: str = "stage", size: int = 16) -> Job:
    asked = job(stage, folder, role)
    return replace(asked, data=replace(asked.data, size=size), plan=replace(asked.plan, profile_calls=0))


def ran(asked: Job, samples: int = 3) -> Recorder:
    """What the worker of a job tells the parent."""
    line = Recorder(samples)
    run_stage(asked, line)
    return line


@contextmanager
def run_of(net: Callable[[], nn.Module], folder: Path) -> Iterator[None]:
    """Within, each worker's net is such a one, and its answer to what is `small` is known in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "net_of", lambda _: net().eval())
        ran(small(EAGER, folder, "reference"), 0)
        yield
