"""What a worker does with one stage, phase by phase; `worker.run_stage` gives the order."""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from pipeline.config.schema import Job
from pipeline.devices.kinds import is_cuda
from pipeline.measure import accuracy, energy, latency, memory_use, sampling
from pipeline.measure.clock import TorchClock
from pipeline.measure.rotation import Rotation
from pipeline.measure.torch_device import gpu_behind
from pipeline.measure.warmup import warm_up
from pipeline.profiling import observed_execution, profiler
from pipeline.profiling.collect import explain
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.diagnostics import Diagnostics, Profile
from pipeline.records.run_record import Artefact, CompileFacts, Execution, RunWarning, WarningCode
from pipeline.records.samples import Accuracy, Energy, Memory, Sample, WarmUp
from pipeline.stages.api import Runner, Workload
from pipeline.worker import mask_images, reference
from pipeline.worker.stage_target import build_function
from pipeline.worker.workload import further_batches, judged_images

ANSWER_MOVED = 1e-2  # relative L2 between the answers before and after the samples; a deterministic stage gives 0


class Bench:
    """One stage on the bench: its runner, its inputs, and the instrument.

    Attributes:
        job: what is to be done.
        workload: the net and the images.
        runner: the stage, once it is built.
        warnings: what a reader must know of the stage, and no other field of its record shows.
    """

    def __init__(self, job: Job, workload: Workload, context_bytes: int | None) -> None:
        self.job = job
        self.workload = workload
        self.clock = TorchClock(workload.device)
        self.state = energy.device_state(workload.device)
        self.context_bytes = context_bytes
        self.rotation = Rotation(workload.batches)
        self.calls, self.run_in_calls = 1, 0
        self.verified: list[Tensor] = []
        self.events: list[TraceEvent] = []
        self.warnings: list[RunWarning] = []
        self.runner: Runner

    def build(self) -> dict[str, object]:
        """Build the stage and make its first call.

        Raises:
            StageError: its module has no `build`, or doesn't take these options.
            Skip: it has no form on this machine.
        """
        spec = self.job.stage
        build = build_function(spec)
        started = self.clock.now()
        self.runner = build(self.workload, **spec.options)
        self.clock.synchronize()
        built = self.clock.now()
        with torch.inference_mode():
            self.runner.run(self.workload.batches[0])
        self.clock.synchronize()
        first_call = self.clock.now() - built
        return {
            "build_seconds": built - started,
            "first_call_seconds": first_call,
            "description": self.runner.description,
            "execution": self.runner.execution,
            "calibration": self.runner.calibration,
        }

    def verify(self) -> tuple[Accuracy | None, str, str]:
        """The answer against the reference's on all that is judged: the comparison, the status and its reason.

        A stage that was calibrated on batches of the verdict is judged on the others. The masks of a net with random
        weights are compared and not judged.
        """
        self.verified, work, left_out = self._answers(), self.workload, self.runner.left_out
        expected = reference.load_logits(Path(self.job.reference))
        images = judged_images(work, [len(part) for part in expected], left_out)
        labels = None if work.labels is None else torch.from_numpy(work.labels[images])
        kept = [part for number, part in enumerate(expected) if number not in left_out]
        trained, tolerance = self.job.model.checkpoint is not None, self.job.stage.tolerance
        found, status, reason = accuracy.check(self._judged_answers(), kept, labels, tolerance, trained)
        pictures = len({work.pictures[image] for image in images}) if found and work.pictures else None
        return replace(found, pictures=pictures) if found else None, status, reason

    def _judged_answers(self) -> Iterator[Tensor]:
        """The logits of every batch that is judged, in order, of its own images alone."""
        left_out = self.runner.left_out
        yield from (part for number, part in enumerate(self.verified) if number not in left_out)
        for number, (batch, count) in enumerate(further_batches(self.workload), len(self.verified)):
            if number not in left_out:
                with torch.inference_mode():
                    yield self.runner.run(batch)[:count].float().cpu()

    def save_masks(self) -> None:
        """Leave the masks of the first images as pictures."""
        classes = torch.cat([accuracy.classes(part) for part in self.verified])[: mask_images.SHOWN]
        for index, mask in enumerate(classes):
            mask_images.save_mask(mask.numpy(), self.workload.folder / f"mask_{index}.png")

    def warm_up(self) -> WarmUp:
        """Call until it is steady; the pace then says how many calls make a sample, and how many its run-in."""
        plan, device = self.job.plan, self.job.device
        warm, per_call = warm_up(self.runner.run, self.rotation.next, self.clock, plan, self.guards)
        self.calls = sampling.calls_per_sample(per_call, plan.sample_seconds(device), plan.min_calls)
        self.run_in_calls = sampling.calls_per_sample(per_call, plan.run_in_seconds(device), 0)
        return warm

    def sample(self) -> Sample:
        """One timed sample, of inputs that lie elsewhere than in the sample before."""
        self.rotation.move_on()
        return sampling.take_sample(
            self.runner.run, self.rotation.next, self.calls, self.clock, self.job.plan, self.guards, self.state,
            self.run_in_calls,
        )  # fmt: skip

    def check(self) -> tuple[str, str]:
        """Whether it still answers as it did when it was verified: the status and its reason.

        Each picture then lies in another buffer than it did, so that no answer is right that was kept by address.
        """
        if not self.rotation.shift:
            self.rotation.move_on()
        for index, (before, after) in enumerate(zip(self.verified, self._answers(), strict=True)):
            if not bool(torch.isfinite(after).all()):
                return "inaccurate", f"after the samples the logits of batch {index} hold NaN or infinite values"
            if (moved := reference.relative_l2(after, before)) > ANSWER_MOVED:
                return (
                    "inaccurate",
                    f"after the samples the answer to batch {index} had moved by {moved:.2g} (relative L2)",
                )
        return "ok", ""

    def series(self) -> dict[str, object]:
        """Latencies at both boundaries, memory and energy."""
        plan, batches, run = self.job.plan, self.workload.batches, self.runner.run
        steady = None
        if is_cuda(self.job.device):
            steady = latency.run_in(run, self.rotation.next, self.clock, plan)
        return {
            "latencies": latency.take_latencies(run, self.rotation.next, self.clock, plan),
            "latency_steady": steady,
            "host_latencies": latency.take_host_latencies(run, batches, self.clock, plan),
            "memory": self._memory(),
            "energy": self._energy(),
        }

    def profile(self) -> Profile | None:
        """The pass under the profiler."""
        calls = self.job.plan.profile_calls
        if not calls:
            return None
        folder, batches = self.workload.folder, self.workload.batches
        self.events, text = profiler.record(self.runner.run, batches, calls, folder)
        profiler.keep(text, folder)
        return profiler.profile_of(self.events, calls, batches[0].is_cuda, folder.name)

    def observe(self) -> Execution:
        """How the stage runs: as it declares, and for the rest as one more call shows."""
        found, reason = observed_execution.complete(self.runner, self.workload, self.events)
        if reason:
            self.warn(
                "precision contradicted", reason, "declare in Runner.execution what runs, or run what it declares"
            )
        return found

    def warn(self, code: WarningCode, text: str, remedy: str) -> None:
        """Note something that a reader must know of the stage."""
        self.warnings.append(RunWarning(code, text, remedy))

    def explain(self) -> Diagnostics | None:
        """What explains the profile; passes of its own, so that none disturbs another."""
        calls, work = self.job.plan.profile_calls, self.workload
        if not calls:
            return None
        return explain(self.runner, work, self.events, calls, self.clock, self.context_bytes)

    def export(self) -> list[Artefact]:
        """What the stage leaves, with sizes and digests."""
        if self.runner.save is None:
            return []
        folder = self.workload.folder
        return [describe(path, folder.parent) for path in self.runner.save(folder)]

    def compile_facts(self) -> CompileFacts | None:
        """What compiling and tuning came to so far."""
        return self.runner.compile_facts() if self.runner.compile_facts else None

    def guards(self) -> tuple[int, ...]:
        """Counters that must not grow within a sample: compilations, and allocations from the device."""
        return self.runner.compilations(), memory_use.device_allocations(self.workload.device)

    def _answers(self) -> list[Tensor]:
        """The logits of the verified batches, on the CPU, in fp32 so that fp16 sums don't overflow."""
        with torch.inference_mode():
            return [self.runner.run(batch).float().cpu().clone() for batch in self._verified_batches()]

    def _verified_batches(self) -> list[Tensor]:
        return [self.rotation.holding(index) for index in range(self.workload.verified)]

    def _memory(self) -> Memory:
        return memory_use.measure(self.runner.run, self.workload.batches[0], self.workload.model, self.context_bytes)

    def _energy(self) -> Energy | None:
        seconds = self.job.plan.energy_seconds
        if not seconds:
            return None
        gpu, images = gpu_behind(self.workload.device), self.workload.shape[0]
        return energy.energy(self.runner.run, self.rotation.next, self.clock, seconds, images, gpu)


def describe(path: Path, run_folder: Path) -> Artefact:
    """A file's entry in the record."""
    kinds = {".onnx": "onnx", ".pt": "torchscript", ".py": "generated code", ".cpp": "generated code"}
    digest = sha256(path.read_bytes()).hexdigest()
    return Artefact(
        path=str(path.relative_to(run_folder)),
        kind=kinds.get(path.suffix, path.suffix.lstrip(".")),
        size_bytes=path.stat().st_size,
        sha256=digest,
    )
