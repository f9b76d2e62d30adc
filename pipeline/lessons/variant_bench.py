"""Times the variants of a lesson with the pipeline's own code: a warm-up, then interleaved samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from pipeline.lessons.lesson_records import Row
from pipeline.measure.clock import Clock, TorchClock
from pipeline.measure.sampling import calls_per_sample, take_sample, undisturbed, warm_up
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample
from pipeline.worker.failures import failure_of

Call = Callable[[], object]

ROUNDS = 12  # of one sample each: the 3rd to the 10th smallest of 12 contain the median with 96 %
PLAN = Plan(
    gpu_sample_seconds=0.01,
    cpu_sample_seconds=0.03,
    min_calls=2,
    sample_warmup_calls=1,
    warmup_min_calls=3,
    warmup_min_seconds=0.1,
    warmup_window_seconds=0.04,
    warmup_limit_seconds=0.5,
    sampling_seconds=3.0,
)
# Pointwise arithmetic in fp32, in another order or with a multiply-add for two roundings.
RELATIVE, ABSOLUTE = 1e-3, 1e-4


@dataclass(frozen=True)
class Ready:
    """A variant that was built, warmed up and checked."""

    row: Row
    call: Call
    calls: int  # of a sample


class Bench:
    """Times variants of one experiment on one device."""

    def __init__(self, device: torch.device, clock: Clock | None = None, plan: Plan = PLAN) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self._clock = clock or TorchClock(device)
        self._plan = plan

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normal random numbers of this shape on the device: zeros draw less power, and so run faster on a GPU."""
        return torch.randn(shape, device=self.device).to(dtype)

    def sampling(self, variants: list[tuple[Row, Call]], agree: bool = False) -> list[Row]:
        """Interleave the samples of all variants, forward in one round and backward in the next.

        Args:
            variants: what is to be filled with samples, and the call. One that raises keeps its reason instead.
            agree: compare every answer with the first variant's; a variant whose answer differs isn't timed.
        """
        rows: list[Row] = []
        ready: list[Ready] = []
        expected: list[object] = []
        for row, call in variants:
            try:
                rows.append(self._prepare(row, call, expected if agree else None, ready))
            except Exception as error:  # noqa: BLE001 - a variant that can't be built here is a result
                rows.append(replace(row, reason=why(error)))
        taken = self._take(ready)
        return [replace(row, samples=taken.get(row.name, [])) for row in rows]

    def _prepare(self, row: Row, call: Call, expected: list[object] | None, ready: list[Ready]) -> Row:
        """Build, warm up and check one variant; append it to `ready`."""
        with undisturbed():
            began = self._clock.now()
            call()
            self._clock.synchronize()
            first_seconds = self._clock.now() - began
        _, pace = warm_up(lambda _: call(), lambda: None, self._clock, self._plan)
        if expected is not None:
            self._compare(call, expected)
        calls = calls_per_sample(pace, self._plan.sample_seconds(self.device.type), self._plan.min_calls)
        ready.append(Ready(row, call, calls))
        return replace(row, built_seconds=first_seconds) if row.built_seconds is not None else row

    def _compare(self, call: Call, expected: list[object]) -> None:
        """Compare a warm variant's answer with the first variant's, which is kept: TorchScript changes code in use."""
        with undisturbed():
            answer = call()
        if not expected:
            expected.append(answer)
        torch.testing.assert_close(answer, expected[0], rtol=RELATIVE, atol=ABSOLUTE)

    def _take(self, ready: list[Ready]) -> dict[str, list[Sample]]:
        """The samples of every variant, as many of each: a round that began is ended."""
        taken: dict[str, list[Sample]] = {part.row.name: [] for part in ready}
        opened = self._clock.now()
        for number in range(ROUNDS):
            for part in ready if number % 2 == 0 else reversed(ready):
                taken[part.row.name].append(self._sample(part))
            if self._clock.now() - opened > self._plan.sampling_seconds:
                break
        return taken

    def _sample(self, part: Ready) -> Sample:
        return take_sample(lambda _: part.call(), lambda: None, part.calls, self._clock, self._plan)


def why(error: BaseException) -> str:
    """An error's first line, with its kind."""
    return f"failed: {failure_of(error)[1]}"


def skipped(row: Row, reason: str) -> Row:
    """A row that this device can't fill."""
    return replace(row, reason=f"skipped: {reason}")
