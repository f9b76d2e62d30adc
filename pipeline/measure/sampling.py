"""Time calls back to back: until they are steady, then one sample at a time, after a run-in at full load."""

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.devices.nvml import DeviceState, Gpu, throttle_reasons
from pipeline.measure.clock import Clock, time_calls
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample, WarmUp

WINDOWS = 3  # whose medians must agree

# Share of the power limit from which the device is at its cap: readings vary by some per cent.
AT_CAP = 0.9
STEADY_SHARE = 0.02  # by which the medians of two windows may differ
Input = TypeVar("Input")


def calls_per_sample(per_call_seconds: float, sample_seconds: float, min_calls: int) -> int:
    """Return the fewest calls that last `sample_seconds`, and at least `min_calls`."""
    return max(min_calls, math.ceil(sample_seconds / max(per_call_seconds, 1e-9)))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Neither gradients nor garbage collection within."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.inference_mode():
            yield
    finally:
        if collects:
            gc.enable()


def take_sample(
    call: Callable[[Input], object], next_batch: Callable[[], Input], calls: int, clock: Clock, plan: Plan, *,
    guards: Callable[[], tuple[int, ...]] = tuple, state: Callable[[], DeviceState] = DeviceState,
    run_in_calls: int = 0,
) -> Sample:  # fmt: skip
    """Time `calls` calls back to back between two device-wide synchronisations.

    All inputs are taken by `next_batch` before the clock is read. If a counter of `guards` grows during the timed
    calls, the sample is taken again; `Sample.disturbed` says that one grew in the last of `plan.most_retries`, too. At
    least `run_in_calls` untimed calls bring the device to full load; the timed ones follow without a pause. `state`
    reads the device's clock and throttling before the untimed calls and after the timed ones.
    """
    untimed, retries, disturbed = max(plan.sample_warmup_calls, run_in_calls), -1, True
    while disturbed and retries < plan.most_retries:
        retries += 1
        before = state()
        warm_up = [next_batch() for _ in range(untimed)]
        batches = [next_batch() for _ in range(calls)]
        with undisturbed():
            for batch in warm_up:
                call(batch)
            counted = guards()  # while the device works, as a pause would let its clock rise
            clock.synchronize()
            seconds, device_seconds = time_calls(call, batches, clock)
            after, disturbed = state(), guards() != counted
    reasons = throttle_reasons(before, after, seconds * (untimed + calls) / calls)
    return Sample(calls, seconds, device_seconds, retries, disturbed, after.clock_mhz, reasons)


def warm_up(
    call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, plan: Plan,
    guards: Callable[[], tuple[int, ...]] = tuple,
) -> tuple[WarmUp, float]:  # fmt: skip
    """Call until the time per call is steady, or for `plan.warmup_limit_seconds`.

    Steady means: at least `warmup_min_calls` and `warmup_min_seconds`, the medians of the last three windows within
    `warmup_tolerance`, and no guard counter grew in the last two windows.

    Return also the seconds per call back to back, from which follows how many calls make a sample.
    """
    opened = clock.now()
    medians: list[float] = []
    counts = [guards()]
    calls = 0
    steady = False
    while not steady and (not medians or clock.now() - opened < plan.warmup_limit_seconds):
        window = take_singly(call, next_batch, clock, plan.warmup_window_seconds)
        calls += len(window)
        medians.append(median(window))
        counts.append(guards())
        enough = calls >= plan.warmup_min_calls and clock.now() - opened >= plan.warmup_min_seconds
        last = medians[-WINDOWS:]
        agree = len(last) == WINDOWS and max(last) <= min(last) * (1 + plan.warmup_tolerance)
        steady = enough and agree and counts[-3] == counts[-1]
    found = WarmUp(calls=calls, seconds=clock.now() - opened, steady=steady)
    with undisturbed():  # calls without a synchronisation after each take up to a few times less
        seconds, _ = time_calls(lambda _: call(next_batch()), window, clock)
    return found, seconds / len(window)


def take_singly(
    call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, seconds: float,
    most: float = math.inf,
) -> list[float]:  # fmt: skip
    """Return the seconds of calls that each end in a synchronisation: one to `most`, none begun after `seconds`."""
    taken: list[float] = []
    with undisturbed():
        opened = clock.now()
        while not taken or (len(taken) < most and clock.now() - opened < seconds):
            batch = next_batch()
            start = clock.now()
            call(batch)
            clock.synchronize()
            taken.append(clock.now() - start)
    return taken


class FullLoad:
    """The calls of a side's samples, by the time of one, and the untimed ones before them."""

    # A GPU may exceed its power cap until its average has come up to it: where it rested, or ran another side. Then a
    # side at the cap is called for longer.

    def __init__(
        self, plan: Plan, device: str, per_call: float, gpu: Gpu | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Arguments: the knobs, "cuda" or "cpu", seconds of a call, the GPU, where one is known, and a clock."""
        self.per_call = per_call
        self.calls = calls_per_sample(per_call, plan.sample_seconds(device), plan.min_calls)
        self.usual = calls_per_sample(per_call, plan.run_in_seconds(device), 0)
        self.rested = calls_per_sample(per_call, plan.rested_run_in_seconds(device), self.usual)
        self.gpu, self.now = gpu, now
        self.others_sample = plan.sample_seconds(device)  # the least that a sample of another side takes
        self.ended = -math.inf  # this side's last sample
        self.most_watts = math.inf  # that this side was seen to draw

    def run_in_calls(self) -> int:
        """Return the number of calls before the sample that begins now."""
        watts, limit = (self.gpu.watts(), self.gpu.limit_watts()) if self.gpu else (None, None)
        if watts is None or limit is None or self.most_watts < AT_CAP * limit:
            return self.usual
        another_ran = self.now() - self.ended >= self.others_sample
        return self.rested if another_ran or watts < AT_CAP * limit else self.usual

    def sampled(self, taken: Sample) -> Sample:
        """Return the sample that has just ended, after reading the device's power."""
        self.ended = self.now()
        if self.gpu is not None and (watts := self.gpu.watts()) is not None:
            self.most_watts = watts if math.isinf(self.most_watts) else max(self.most_watts, watts)
        return taken


def page_locked(part: Tensor) -> Tensor:
    """Return a copy of a CPU tensor of any shape in page-locked memory."""
    # torch's own `pin_memory` first asks a backend that was registered with it, and torchax registers JAX without what
    # is asked for.
    try:
        return part.pin_memory()
    except RuntimeError:
        runtime, held = torch.cuda.cudart(), part.clone()
        torch.cuda.check_error(runtime.cudaHostRegister(held.data_ptr(), held.nbytes, 0))
        weakref.finalize(held, runtime.cudaHostUnregister, held.data_ptr())
        return held


def take_latencies(
    call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, plan: Plan
) -> list[float]:
    """Seconds of single calls as the plan wants them, from a batch on the device to logits on the device."""
    with undisturbed():
        for _ in range(plan.sample_warmup_calls):
            call(next_batch())
        clock.synchronize()
    return take_singly(call, next_batch, clock, plan.latency_seconds, plan.latency_calls)


def run_in(call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, plan: Plan) -> bool:
    """Single calls, not kept, until the medians of two windows in a row agree: whether they did within the limit."""
    # A GPU that has rested gives its first calls, some 75 ms on an H200, a clock that it can't keep.
    opened, before = clock.now(), 0.0
    while clock.now() - opened < plan.gpu_latency_run_in_seconds:
        now = median(take_singly(call, next_batch, clock, plan.warmup_window_seconds))
        if before and abs(now / before - 1) <= STEADY_SHARE:
            return True
        before = now
    return False


def take_host_latencies(call: Callable[[Batch], Tensor], batches: list[Batch], clock: Clock, plan: Plan) -> list[float]:
    """Seconds of each call from a batch in the host's memory to its logits in the host's memory, pinned on a GPU."""
    on_gpu = batches[0].is_cuda
    on_host = [batch.mapped(lambda part: page_locked(part.cpu()) if on_gpu else part.clone()) for batch in batches]
    with torch.inference_mode():
        logits = call(batches[0])
    answer = torch.empty(logits.shape, dtype=logits.dtype)
    answer = page_locked(answer) if on_gpu else answer
    # Made outside of inference mode: for a batch made in it, Dynamo would compile again.
    on_device = batches[0].mapped(torch.empty_like)

    def there_and_back(batch: Batch) -> None:
        on_device.copy_(batch)
        answer.copy_(call(on_device), non_blocking=True)

    return take_latencies(there_and_back, cycle(on_host).__next__, clock, plan)
