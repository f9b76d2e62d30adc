"""One stage from build to record, phase by phase: the order in which a worker does its work."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.config.schema import Job
from pipeline.measure import environment, memory_use, peaks
from pipeline.measure.accuracy import classes
from pipeline.records.run_record import RunWarning
from pipeline.records.samples import Sample
from pipeline.stages.api import Skip, StageError
from pipeline.stages.common.precision import allow_tf32
from pipeline.worker import mask_images, reference, workload
from pipeline.worker.bench import Bench


class Line(Protocol):
    """How a stage speaks to whoever runs it: `pipeline.protocol.PipeReporter`, or a test's own."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def report(self, **fields: Any) -> None:
        """Fields of the StageRecord."""

    def facts(self, **fields: Any) -> None:
        """Fields of the RunRecord."""

    def sampling(self) -> Iterator[None]:
        """Yields when a sample is wanted; ends when there are enough."""

    def sample(self, taken: Sample) -> None:
        """The sample that was wanted."""


def run_stage(job: Job, line: Line) -> None:
    """Take one stage from build to record.

    What comes of each phase goes over `line` at once, so that whatever happens later loses none of it.

    Raises:
        InputError: the net, its weights or its images are not what they should be.
        Skip, StageError, Exception: as the stage's build or call raised it.
    """
    line.phase("start")
    bench = prepare(job)
    if job.role == "reference":
        describe_run(bench, line)
        return
    line.phase("build")
    line.report(**bench.build())
    line.phase("verify")
    if not verify(bench, line) and not job.time_inaccurate:
        return
    line.phase("warmup")
    warm = bench.warm_up()
    line.report(warm_up=warm)
    for _ in line.sampling():
        line.sample(bench.sample())
    if job.role == "stage":
        finish(bench, line)


def prepare(job: Job) -> Bench:
    """The bench with the job's net and images; the device is the one that was asked for.

    Raises:
        StageError: torch doesn't see the device.
    """
    if job.device == "cuda" and not torch.cuda.is_available():
        raise StageError("device=cuda: the driver lists a GPU but torch sees none; is this torch's CPU-only build?")
    if job.threads:
        torch.set_num_threads(job.threads)
    device = torch.device(job.device)
    context_bytes = memory_use.context_bytes(device)
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    return Bench(job, workload.load(job, environment.cache_bytes(device)), context_bytes)


def describe_run(bench: Bench, line: Line) -> None:
    """What the first worker finds out for the whole run: the machine, its ceilings, the reference and its logits."""
    job, work = bench.job, bench.workload
    line.facts(environment=environment.describe(work.device, job.launcher))
    if job.plan.measured_peaks:
        line.phase("measured_peaks")
        line.facts(measured_peaks=peaks.measure(work.device))
    line.phase("reference")
    allow_tf32(False)
    found, logits = reference.compute(work, job)
    reference.save_logits(logits, Path(job.reference))
    line.facts(reference=found)
    assert work.images is not None
    answers = torch.cat([classes(part) for part in logits]).numpy()
    mask_images.save_reference(work.images, answers, Path(job.reference).parent)


def verify(bench: Bench, line: Line) -> bool:
    """Whether the answer is right; the comparison is reported either way."""
    found, status, reason = bench.verify()
    line.report(
        accuracy=found, status=status, reason=reason, details=bench.runner.details, compile_facts=bench.compile_facts()
    )
    if found:
        bench.save_masks()
    return status == "ok"


def finish(bench: Bench, line: Line) -> None:
    """All that follows the turns; once the answer is seen to be unmoved, the headline stands whatever else fails."""
    line.phase("check")
    status, reason = bench.check()
    if status != "ok":
        line.report(status=status, reason=reason)
        return
    afterwards: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("latencies", bench.series),
        ("profile", lambda: {"profile": bench.profile()}),
        ("explain", lambda: {"diagnostics": bench.explain()}),
        ("export", lambda: {"artefacts": bench.export(), "compile_facts": bench.compile_facts()}),
    ]
    noted: list[RunWarning] = []
    for phase, work in afterwards:
        line.phase(phase)
        try:
            line.report(**work())
        except Exception as error:  # noqa: BLE001 - what was measured must not be lost with it
            traceback.print_exc()
            noted = [
                *noted,
                RunWarning("phase failed", f"{phase}: {why(error)}", "see the traceback in the stage's log"),
            ]
            line.report(warnings=noted)


def why(error: Exception) -> str:
    """One line that says what went wrong."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"out of memory: {str(error).splitlines()[0]}"
    if isinstance(error, StageError | Skip):
        return str(error)
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no text'}"
