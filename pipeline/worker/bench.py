"""One stage on the bench: build, verify, sample, check and profile it; `worker.run_stage` gives the order."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pipeline.compiler.agreement import classes, distance
from pipeline.compiler.batch import Batch, of_batches
from pipeline.devices.nvml import DeviceState
from pipeline.measure import accuracy, sampling, usage
from pipeline.measure.accuracy import as_logits, denoised
from pipeline.measure.clock import Clock
from pipeline.measure.rotation import Rotation
from pipeline.measure.sampling import FullLoad, warm_up
from pipeline.measure.torch_device import gpu_behind
from pipeline.profiling import observed_execution, profiler
from pipeline.profiling.collect import explain
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.diagnostics import Diagnostics, Profile
from pipeline.records.disk import file_digest
from pipeline.records.request import Job
from pipeline.records.run_record import Artefact, CompileFacts, Execution, FailureKind, RunWarning, WarningCode
from pipeline.records.samples import Accuracy, Energy, Sample, WarmUp
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.targets import import_target, refusal
from pipeline.worker import contract, reference
from pipeline.worker.contract import ANSWER_MOVED, RIGHT, Finding, Guard
from pipeline.worker.workload import further_batches, judged_images

BRIEF_SECONDS = 0.05  # of a sample


def entries(saved: list[Path], folder: Path) -> list[Artefact]:
    """Return the record's entries of the files that `Runner.save` gave, which must lie in the run's folder."""
    kinds = {".onnx": "onnx", ".pt": "torchscript", ".py": "generated code", ".cpp": "generated code"}
    found = []
    for path in saved:
        if not path.is_relative_to(folder) or not path.is_file():
            raise contract.broken(f"Runner.save gave {path}, which is no file in the run's folder")
        kind = kinds.get(path.suffix, path.suffix.lstrip("."))
        found.append(Artefact(str(path.relative_to(folder)), kind, path.stat().st_size, file_digest(path)))
    return found


class Bench:
    """One stage on the bench: its runner, its inputs, and the instrument."""

    def __init__(self, job: Job, workload: Workload, context_bytes: int | None) -> None:
        workload.folder.mkdir(parents=True, exist_ok=True)  # the stage writes there
        self.job = job
        self.workload = self.called = workload  # the second as the built stage is called
        self.clock = Clock(workload.device)
        self.context_bytes = context_bytes
        self.guard = Guard(workload, Rotation(workload.inputs))
        self.found = RIGHT  # a failure found after the check
        self.verified: list[Tensor] = []
        self.events: list[TraceEvent] = []
        self.warnings: list[RunWarning] = []
        self.runner: Runner
        self.full_load: FullLoad

    @property
    def rotation(self) -> Rotation:
        """The inputs of the stage's calls."""
        return self.guard.rotation

    @property
    def inputs(self) -> list[Batch]:
        """The buffers in rotation."""
        return self.rotation.buffers

    @property
    def run(self) -> Callable[[Batch], Tensor]:
        """The stage as a function of a batch."""
        return of_batches(self.runner.run)

    def build(self) -> dict[str, object]:
        """Build the stage and make its first call."""
        spec = self.job.stage
        if why := refusal(spec.target):
            raise StageError(f"stage {spec.name}: {spec.target} is not imported: {why}")
        try:
            build: Callable[..., Runner] = import_target(spec.target).build
        except (ImportError, AttributeError) as error:
            raise StageError(f"stage {spec.name}: {spec.target} has no build function ({error})") from error
        started = self.clock.now()
        self.runner, lost = contract.checked_runner(build(self.workload, **spec.options), spec.target)
        if self.runner.ends.in_words:  # it is called with images, and these are watched
            self.called = self.workload.called_with(self.runner.ends)
            self.guard.rotation = Rotation(self.called.inputs)
        first = self.rotation.holding(0)
        contract.check_left_out(self.runner, self.workload)
        contract.check_inputs(self.runner, first.names)
        self.clock.synchronize()
        built = self.clock.now()
        with torch.inference_mode():
            answer = self.run(first)
        self.clock.synchronize()
        first_call = self.clock.now() - built
        reason = contract.answer_fault(answer, first, self._gives_classes) or self.guard.changes().reason
        if reason:
            raise contract.broken(reason)
        if lost:
            self.warn(
                "not a number", f"{', '.join(lost)}: NaN or infinite, kept as null", "give numbers, or leave it out"
            )
        return {
            "warnings": self.warnings,
            "build_seconds": built - started,
            "first_call_seconds": first_call,
            "description": self.runner.description,
            "execution": self.runner.execution,
            "net_layout": self.workload.layout_choice.taken,
            "searches_asked": observed_execution.asked(self.runner, self.job.device),
            "calibration": self.runner.calibration,
        }

    @property
    def _gives_classes(self) -> bool:
        return self.runner.ends.after is not None

    def verify(self) -> tuple[Accuracy | None, str, str]:
        """Compare the answers on all judged batches with the reference's: return the figures, status and reason."""
        work, left_out = self.workload, self.runner.left_out
        self.verified = [self._answer(self.rotation.holding(index)) for index in range(work.verified)]
        expected = reference.load_logits(Path(self.job.reference))
        images = judged_images(work, [len(part) for part in expected], left_out)
        labels = None if work.labels is None else torch.from_numpy(work.labels[images])
        labels = labels if work.targets is None else work.targets[images]
        kept = [part for number, part in enumerate(expected) if number not in left_out]
        trained, tolerance = self.job.model.is_trained, self.job.stage.tolerance
        task, pictures = self.job.task, [work.pictures[image] for image in images] if work.pictures else []
        answers: Iterator[Tensor] = (part.to(work.device) for part in self._judged_answers())  # in no time on a GPU
        answers = map(as_logits, answers, kept) if self._gives_classes else answers
        figures, status, reason = accuracy.check(answers, kept, labels, tolerance, trained, task, pictures=pictures)
        if figures is None:
            return None, status, reason
        errors = None
        if status == "ok" and task.name == "diffusion":  # of the latents after each step of a denoising loop
            steps = denoised(self.run, self.rotation.holding(0), task)
            own = reference.load_logits(Path(self.job.reference), "denoised")
            errors = [distance(got, right) for got, right in zip(steps, own, strict=True)]
        return replace(figures, pictures=len(set(pictures)) or None, step_errors=errors), status, reason

    def _judged_answers(self) -> Iterator[Tensor]:
        """Yield the logits of every judged batch in order, without the images that only fill it up."""
        left_out = self.runner.left_out
        yield from (part for number, part in enumerate(self.verified) if number not in left_out)
        for number, (batch, count) in enumerate(further_batches(self.called), len(self.verified)):
            if number not in left_out:
                yield self._answer(batch)[:count]

    def save_masks(self) -> None:
        """Save the masks of the first images as pictures."""
        first = torch.cat([part[: reference.SHOWN] for part in self.verified])[: reference.SHOWN]
        masks = first.to(torch.uint8) if self._gives_classes else classes(first)
        reference.save_pictures(masks.numpy(), self.workload.folder)

    def warm_up(self) -> WarmUp:
        """Call until the time is steady; from the pace follow the calls of a sample and of its run-in."""
        plan, device = self.job.plan, self.job.device
        warmth, per_call = warm_up(self.run, self.rotation.next, self.clock, plan, self.guards)
        self.full_load = FullLoad(plan, device, per_call, gpu_behind(self.workload.device))
        return warmth

    def sample(self, brief: bool = False) -> Sample:
        """Take one timed sample, of inputs in other buffers than before; a `brief` one has fewer calls, no run-in."""
        self.rotation.move_on()
        plan, load, gpu = self.job.plan, self.full_load, self.full_load.gpu
        calls, run_in = load.calls, load.run_in_calls()
        if brief:
            calls, run_in = sampling.calls_per_sample(load.per_call, BRIEF_SECONDS, 1), 0
        state, batches, clock = gpu.state if gpu else DeviceState, self.rotation.next, self.clock
        taken = sampling.take_sample(
            self.run, batches, calls, clock, plan, guards=self.guards, state=state, run_in_calls=run_in
        )
        return load.sampled(taken)

    def check(self, right: bool) -> Finding:
        """Return what the samples have shown to be wrong: another answer than was verified, or something changed.

        The stage was `right` where it was verified.
        """
        # Each picture then lies in another buffer than it did, so that an answer kept by address is stale.
        if not self.rotation.shift:
            self.rotation.move_on()
        if (changed := self.guard.changes()) is not RIGHT:
            return changed
        if reason := observed_execution.gave_up():
            return Finding("wrong device", reason)
        moved = self._moved()
        return self._answers_fresh() if right and moved is RIGHT else moved

    def _moved(self) -> Finding:
        """Return whether an answer to a verified batch has moved; a call on another batch comes right before each."""
        with torch.inference_mode():
            self.run(self.rotation.holding(1))
        for index, before in enumerate(self.verified):
            after = self._answer(self.rotation.holding(index))
            if not bool(torch.isfinite(after).all()):
                reason = f"after the samples the logits of batch {index} hold NaN or infinite values"
                return Finding("wrong answer", reason)
            if (moved := distance(after, before)) > ANSWER_MOVED:
                reason = f"after the samples the answer to batch {index} had moved by {moved:.2g} (relative L2)"
                return Finding("wrong answer", reason)
        return RIGHT

    def _answers_fresh(self) -> Finding:
        """Return whether the stage answers a batch that it never saw as fp32 does."""
        expected = reference.load_logits(Path(self.job.reference), "fresh")
        if not expected:
            return RIGHT
        held = self.rotation.holding(0)
        self.rotation.spare.copy_(held)
        held.copy_(reference.fresh(held))
        answer = self._answer(held)
        off = distance(as_logits(answer, expected[0]) if self._gives_classes else answer, expected[0])
        held.copy_(self.rotation.spare)
        if off <= max(reference.LEAST_LIMIT, reference.ALLOWED_TIMES * self.job.stage.tolerance.relative_l2):
            return RIGHT
        return Finding("wrong answer", f"its answer to a batch that it had never seen is {off:.2g} (relative L2) off")

    def latencies(self) -> dict[str, object]:
        """Measure latencies on the device and host to host, memory and energy."""
        plan, run, following, clock = self.job.plan, self.run, self.rotation.next, self.clock
        steady = sampling.run_in(run, following, clock, plan) if self.job.device == "cuda" else None
        return {
            "latencies": sampling.take_latencies(run, following, clock, plan),
            "latency_steady": steady,
            "host_latencies": sampling.take_host_latencies(run, self.inputs, clock, plan),
            "memory": usage.measure(run, self.inputs[0], self.called.model, self.context_bytes),
            "energy": self.energy(),
        }

    def energy(self) -> Energy | None:
        """Measure the joules of calls; None without a meter, or if the plan has no seconds for it."""
        seconds, images, meter = self.job.plan.energy_seconds, self.workload.shape[0], self.full_load.gpu
        return usage.energy(self.run, self.rotation.next, self.clock, seconds, images, meter) if seconds else None

    def profile(self) -> Profile | None:
        """Run the calls under the profiler."""
        calls = self.job.plan.profile_calls
        if not calls:
            return None
        folder, batches = self.workload.folder, self.inputs
        self.events, text = profiler.record(self.run, batches, calls, folder)
        (folder / "trace.json.gz").write_bytes(gzip.compress(text, compresslevel=6, mtime=0))  # opens in Perfetto
        if batches[0].is_cuda:
            layers = sum(part.ndim > 1 for part in self.workload.model.parameters())
            if reason := profiler.idle_reason(self.events, calls, self.full_load.per_call, layers):
                self.refuse("wrong device", reason)
        return profiler.profile_of(self.events, calls, batches[0].is_cuda, folder.name)

    def observe(self) -> Execution:
        """Return how the stage runs: as it declares, and otherwise as observed in one more call."""
        execution, reason = observed_execution.complete(self.runner, self.called, self.events)
        if reason:
            self.refuse("not as declared", f"{reason}; declare in Runner.execution what runs, or run what it declares")
        return execution

    def refuse(self, failure: FailureKind, reason: str) -> None:
        """Note a failure found after the check; the first one counts."""
        if self.found is RIGHT:
            self.found = Finding(failure, reason)

    def warn(self, code: WarningCode, text: str, remedy: str) -> None:
        """Add a warning to the stage's record."""
        self.warnings.append(RunWarning(code, text, remedy))

    def explain(self) -> Diagnostics | None:
        """Return what explains the profile, from passes of its own."""
        calls, work = self.job.plan.profile_calls, self.called
        return explain(self.runner, work, self.events, calls, self.clock, self.context_bytes) if calls else None

    def export(self) -> list[Artefact]:
        """Return the files that the stage exports, with sizes and digests."""
        folder, save = self.workload.folder, self.runner.save
        return entries(save(folder), folder.parent) if save else []

    def compile_facts(self) -> CompileFacts | None:
        """Return the facts of compiling and tuning so far."""
        return self.runner.compile_facts() if self.runner.compile_facts else None

    def guards(self) -> tuple[int, ...]:
        """Return the counters that must not grow within a sample: compilations and device allocations."""
        return self.runner.compilations(), usage.device_allocations(self.workload.device)

    def _answer(self, batch: Batch) -> Tensor:
        """Return the logits of a batch, on the CPU, in fp32."""
        with torch.inference_mode():
            answer = self.run(batch)
            if reason := contract.answer_fault(answer, batch, self._gives_classes):
                raise contract.broken(reason)
            self.clock.synchronize()  # it may be on a stream that the current one doesn't wait for
            return torch.Tensor.float(answer).cpu().clone()  # so that sums don't overflow
