"""Time the variants of a lesson by the pipeline's own code, interleaved after a warm-up, and count their kernels."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TypeVar

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from pipeline.lessons.lesson_records import Row
from pipeline.measure.clock import Clock
from pipeline.measure.sampling import calls_per_sample, take_sample, undisturbed, warm_up
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample
from pipeline.worker.failures import failure_of

Call = Callable[[], object]
Variant = tuple[Row, Call | str]  # a text says why this device lacks it

ROUNDS = 12  # of one sample each: the 3rd to the 10th smallest of 12 contain the median with 96 %
PLAN = Plan(
    gpu_sample_seconds=0.01, cpu_sample_seconds=0.03, min_calls=2, sample_warmup_calls=1, warmup_min_calls=3,
    warmup_min_seconds=0.1, warmup_window_seconds=0.04, warmup_limit_seconds=0.5, sampling_seconds=3.0,
)  # fmt: skip
# Pointwise arithmetic in fp32, in another order or with a multiply-add for two roundings.
RELATIVE, ABSOLUTE = 1e-3, 1e-4


class Bench:
    """Times variants of one experiment on one device."""

    def __init__(self, device: torch.device, clock: Clock | None = None, plan: Plan = PLAN) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self._clock = clock or Clock(device)
        self._plan = plan

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return normal random numbers of this shape on the device; zeros draw less power and run faster on a GPU."""
        return torch.randn(shape, device=self.device).to(dtype)

    def sampling(self, variants: list[Variant], agree: bool = False) -> list[Row]:
        """Interleave samples of all variants, in turns forward and backward; one that raises keeps its reason instead.

        `agree` compares every answer with the first variant's: one that differs isn't timed.
        """
        rows: list[Row] = []
        samplers: dict[str, Callable[[], Sample]] = {}
        expected: list[object] = []
        for row, call in variants:
            if isinstance(call, str):
                rows.append(replace(row, reason=f"skipped: {call}", built_seconds=None))
                continue
            try:
                built_seconds, samplers[row.name] = self._prepared(call, expected if agree else None)
                rows.append(row if row.built_seconds is None else replace(row, built_seconds=built_seconds))
            except Exception as error:  # noqa: BLE001 - a variant that can't be built here is a result
                rows.append(replace(row, reason=why(error)))
        taken = self._take(samplers)
        return [replace(row, samples=taken.get(row.name, [])) for row in rows]

    def _prepared(self, call: Call, expected: list[object] | None) -> tuple[float, Callable[[], Sample]]:
        """Build, warm up and check one variant; return the seconds of its first call, and what takes a sample."""
        with undisturbed():
            began = self._clock.now()
            call()
            self._clock.synchronize()
            first_seconds = self._clock.now() - began
        _, pace = warm_up(lambda _: call(), lambda: None, self._clock, self._plan)
        if expected is not None:
            with undisturbed():
                answer = call()  # warm: TorchScript changes code in use
            expected.append(answer)
            torch.testing.assert_close(answer, expected[0], rtol=RELATIVE, atol=ABSOLUTE)
        calls = calls_per_sample(pace, self._plan.sample_seconds(self.device.type), self._plan.min_calls)
        return first_seconds, partial(take_sample, lambda _: call(), lambda: None, calls, self._clock, self._plan)

    def _take(self, samplers: dict[str, Callable[[], Sample]]) -> dict[str, list[Sample]]:
        """Sample every variant equally often; a round that began is ended."""
        taken: dict[str, list[Sample]] = {name: [] for name in samplers}
        opened = self._clock.now()
        for number in range(ROUNDS):
            for name in samplers if number % 2 == 0 else reversed(samplers):
                taken[name].append(samplers[name]())
            if self._clock.now() - opened > self._plan.sampling_seconds:
                break
        return taken


def why(error: BaseException) -> str:
    """Return an error's first line, with its kind."""
    return f"failed: {failure_of(error)[1]}"


# A CPU's operators that hand out memory and compute nothing.
NO_WORK = ("aten::empty", "aten::resize_", "aten::detach", "aten::as_strided")

Given = TypeVar("Given")
Made = TypeVar("Made")


def inductor_metrics() -> ModuleType:
    """Return Inductor's counters; imported here because importing Inductor takes as long as importing torch."""
    from torch._inductor import metrics

    return metrics


def compiled_afresh(function: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """Compile the function with torch.compile, after resetting Inductor's count of generated kernels to 0."""
    inductor_metrics().reset()
    compiled: Callable[[Given], Made] = torch.compile(function, dynamic=False)
    return compiled


def on_device(event: FunctionEvent) -> bool:
    """Return whether it is a kernel, a copy or a fill; annotations of compiled code are on the timeline, too."""
    return event.device_type == DeviceType.CUDA and not event.is_user_annotation


def counted(row: Row, call: Call | str, bench: Bench) -> Row:
    """Return the row with the kernels of one call, which must be warm; unchanged where they can't be counted.

    On a GPU the profiler counts them. On a CPU it counts operators that call no other; of compiled code, which it
    doesn't see there, Inductor says how many kernels it generated since `compiled_afresh`.
    """
    if not row.samples or isinstance(call, str):
        return row
    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU] if bench.on_gpu else [ProfilerActivity.CPU]
    with torch.inference_mode(), profile(activities=activities) as session:
        call()
        if bench.on_gpu:
            torch.cuda.synchronize(bench.device)
    events = session.events() or []
    if bench.on_gpu:
        return replace(row, kernels=sum(map(on_device, events)) or None)
    leaves = [event.name for event in events if not event.cpu_children and event.name.startswith("aten::")]
    seen = sum(not name.startswith(NO_WORK) for name in leaves)
    return replace(row, kernels=seen or inductor_metrics().generated_kernel_count or None)


def counted_all(bench: Bench, variants: list[Variant]) -> list[Row]:
    """Sample variants whose answers agree, and count the kernels of each."""
    timed = bench.sampling(variants, agree=True)
    return [counted(row, call, bench) for row, (_, call) in zip(timed, variants, strict=True)]
