"""One sample, the latencies and the warm-up on a fake clock; what is read of the machine, through stubs."""

import gc
import subprocess
from collections.abc import Callable, Sequence
from itertools import accumulate, count, cycle, repeat
from operator import mul
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
import torch
from torch import Tensor

from pipeline.compiler.batch import Batch, batched, of_batches
from pipeline.devices import host, nvml
from pipeline.devices.nvml import DeviceState
from pipeline.measure import clock, environment, peaks, torch_device, usage
from pipeline.measure.clock import Clock, best_burst_seconds
from pipeline.measure.rotation import Rotation, fingerprint, is_same
from pipeline.measure.sampling import (
    FullLoad,
    calls_per_sample,
    page_locked,
    run_in,
    take_host_latencies,
    take_latencies,
    take_sample,
    warm_up,
)
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample
from tests.fake_machine import FakeClock

PLAN = Plan()


def test_between_the_stamps_stand_the_calls_and_nothing_else() -> None:
    clock = FakeClock()
    batches = count()

    def next_batch() -> int:
        clock.events.append("batch")
        return next(batches)

    def guards() -> tuple[int, ...]:
        clock.events.append("guards")
        return ()

    taken = take_sample(lambda _: clock.work(0.5), next_batch, 3, clock, PLAN, guards=guards)
    timed = ["call"] * 3
    before = ["batch"] * 5 + ["call"] * 2 + ["guards", "synchronize", "begin"]
    assert clock.events == [*before, "now", *timed, "end", "synchronize", "now", "guards"]
    assert (taken.calls, taken.seconds, taken.device_seconds, taken.per_call) == (3, 1.5, 1.5, 0.5)


def test_the_run_in_is_the_same_calls_without_a_rest_and_untimed() -> None:
    """In the place of the plan's two calls before a sample, of which it has more."""
    clock, grown = FakeClock(), iter([0, 1, 1, 1])
    taken = take_sample(
        lambda _: clock.work(0.5), int, 3, clock, PLAN, guards=lambda: (next(grown),), run_in_calls=7
    )  # fmt: skip
    once = ["call"] * 7 + ["synchronize", "begin", "now"] + ["call"] * 3 + ["end", "synchronize", "now"]
    assert clock.events == once * 2
    assert (taken.calls, taken.seconds, taken.retries) == (3, 1.5, 1)


def test_latencies_run_in_until_two_windows_agree_or_the_limit() -> None:
    clock = FakeClock()
    plan = Plan(warmup_window_seconds=0.5, sample_warmup_calls=0)
    assert run_in(lambda _: clock.work(0.01 if clock.wall < 0.495 else 0.0125), int, clock, plan)
    assert clock.wall == pytest.approx(1.5, abs=0.03)
    clock = FakeClock()
    assert not run_in(slowing(clock, 1.002), int, clock, Plan(warmup_window_seconds=0.5))
    assert 3.0 <= clock.wall < 3.6


def slowing(clock: FakeClock, factor: float) -> Callable[[object], None]:
    seconds = accumulate(repeat(factor), mul, initial=0.01 * factor)
    return lambda _: clock.work(next(seconds))


def test_each_call_gets_the_next_batch() -> None:
    seen: list[int] = []
    batches = cycle(range(3))
    take_sample(seen.append, lambda: next(batches), 4, FakeClock(), PLAN)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_gradients_and_garbage_collection_are_off_inside_and_as_before_outside() -> None:
    inside: list[tuple[bool, bool]] = []
    take_sample(lambda _: inside.append((gc.isenabled(), torch.is_inference_mode_enabled())), int, 1, FakeClock(), PLAN)
    assert set(inside) == {(False, True)}
    assert gc.isenabled()
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(RuntimeError, match="injected"):
        take_sample(Mock(side_effect=RuntimeError("injected")), int, 1, FakeClock(), PLAN)
    assert gc.isenabled()


@pytest.mark.parametrize(("disturbed_samples", "retries", "taken_in_all"), [(0, 0, 1), (2, 2, 3), (99, 3, 4)])
def test_a_sample_that_compiled_is_taken_again(disturbed_samples: int, retries: int, taken_in_all: int) -> None:
    clock, compiled, calls = FakeClock(), [0], [0]

    def call(_: object) -> None:
        calls[0] += 1
        if calls[0] % 7 == 0 and calls[0] <= 7 * disturbed_samples:  # the last of two warm-up and five timed calls
            compiled[0] += 1
        clock.work(0.01)

    taken = take_sample(call, int, 5, clock, PLAN, guards=lambda: (compiled[0], 0))
    assert (taken.retries, calls[0]) == (retries, 7 * taken_in_all)
    assert taken.disturbed == (disturbed_samples == 99)


def test_what_compiles_in_the_warm_up_calls_costs_no_repeat() -> None:
    compiled: set[object] = set()
    taken = take_sample(compiled.add, int, 5, FakeClock(), PLAN, guards=lambda: (len(compiled),))
    assert taken.retries == 0


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (DeviceState(1980, {"power": 1.0}), DeviceState(1500, {"power": 1.9}, ("thermal",)), ["power"]),
        (DeviceState(1980, {"power": 1.0}), DeviceState(1980, {"power": 1.001}), []),
        (DeviceState(), DeviceState(1500, None, ("thermal", "power")), ["power", "thermal"]),
        (DeviceState(), DeviceState(), []),
    ],
)
def test_throttling_is_what_counters_saw_meanwhile(before: DeviceState, after: DeviceState, reasons: list[str]) -> None:
    clock, states = FakeClock(), iter([before, after])
    taken = take_sample(lambda _: clock.work(0.2), int, 5, clock, PLAN, state=lambda: next(states))
    assert (taken.throttle_reasons, taken.clock_mhz) == (reasons, after.clock_mhz)


def test_work_on_another_stream_escapes_the_events_which_a_processor_lacks() -> None:
    clock = FakeClock()
    taken = take_sample(lambda _: clock.work(0.01, seen=0.0), int, 5, clock, PLAN)
    assert taken.seconds == pytest.approx(0.05)
    assert taken.device_seconds == 0.0
    taken = take_sample(lambda batch: batch.sum(), lambda: torch.ones(10), 3, Clock(torch.device("cpu")), PLAN)
    assert taken.device_seconds is None
    assert taken.seconds > 0


@pytest.mark.parametrize(("per_call", "calls"), [(0.001, 20), (0.0011, 19), (0.1, 5), (0.0, 20_000_000)])
def test_a_sample_has_the_fewest_calls_that_last_long_enough(per_call: float, calls: int) -> None:
    assert calls_per_sample(per_call, 0.02, 5) == calls


def test_latencies_wait_after_each_call_and_end_with_their_time() -> None:
    clock, durations = FakeClock(), iter([9.0, 9.0, 0.1, 0.2, 0.3])
    latencies = take_latencies(lambda _: clock.work(next(durations)), int, clock, Plan(latency_calls=3))
    assert latencies == pytest.approx([0.1, 0.2, 0.3])
    clock = FakeClock()
    assert len(take_latencies(lambda _: clock.work(4.0), int, clock, Plan(latency_seconds=10.0))) == 3


def test_host_latencies_go_from_a_host_batch_to_host_logits() -> None:
    batches = [torch.full((1, 2), float(index)) for index in range(3)]
    given: list[float] = []

    def call(batch: Batch) -> torch.Tensor:
        given.append(float(batch.first[0, 0]))
        return batch.first * 2

    latencies = take_host_latencies(call, [*map(batched, batches)], Clock(torch.device("cpu")), Plan(latency_calls=4))
    assert len(latencies) == 4
    assert all(second > 0 for second in latencies)
    assert set(given[1:]) == {0.0, 1.0, 2.0}
    assert not {id(batch) for batch in given[1:]} & {id(batch) for batch in batches}


def test_a_steady_stage_is_warm_after_the_least_and_a_slowing_one_unsteady() -> None:
    clock = FakeClock()
    found, pace = warm_up(lambda _: clock.work(0.0625), int, clock, PLAN)
    assert (found.calls, found.seconds, found.steady) == (32, 2.0, True)
    assert pace == 0.0625
    clock = FakeClock()
    found, _ = warm_up(slowing(clock, 1.001), int, clock, PLAN)
    assert not found.steady
    assert 30 <= found.seconds < 32


def test_the_pace_is_that_of_calls_back_to_back() -> None:
    """A synchronisation after each call costs what calls in a row don't pay; samples are made of the latter."""
    clock = FakeClock()
    wait = clock.synchronize

    def slow_wait() -> None:
        wait()
        clock.wall += 0.05

    clock.synchronize = slow_wait  # type: ignore[method-assign]
    _, pace = warm_up(lambda _: clock.work(0.05), int, clock, PLAN)
    assert 0.05 < pace <= 0.07


def test_a_late_compilation_delays_the_end_of_the_warm_up() -> None:
    clock, calls = FakeClock(), [0]

    def call(_: object) -> None:
        calls[0] += 1
        clock.work(0.125)

    quick = warm_up(call, int, clock, PLAN)[0]
    calls[0] = 0
    late = warm_up(call, int, clock, PLAN, lambda: (calls[0] >= 18,))[0]
    assert quick.calls == 20  # the least, however long they last
    assert late.steady
    assert late.calls == 28


class Runtime:
    """CUDA's runtime, as far as it is called: an error code, and what is locked."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, start: int, length: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert flags == 0
        self.locked[start] = length
        return self.code

    def cudaHostUnregister(self, start: int) -> None:  # noqa: N802 - CUDA's name
        del self.locked[start]


@pytest.fixture
def other_backend(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime(0)
    monkeypatch.setattr(Tensor, "pin_memory", Mock(side_effect=RuntimeError))  # anew at each call, and nowhere kept
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def test_cuda_locks_what_torch_cannot_and_lets_it_go(other_backend: Runtime) -> None:
    given = torch.rand(2, 3)
    found = page_locked(given)
    assert torch.equal(found, given)
    assert other_backend.locked == {found.data_ptr(): 24}
    del found
    assert other_backend.locked == {}


def test_memory_that_cannot_be_locked_is_refused(other_backend: Runtime) -> None:
    other_backend.code = 2
    with pytest.raises(torch.cuda.CudaError):
        page_locked(torch.rand(2))


def test_torch_locks_it_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = torch.rand(2)
    monkeypatch.setattr(Tensor, "pin_memory", lambda _: pinned)
    assert page_locked(torch.rand(2)) is pinned


def rotation(count: int) -> tuple[Rotation, list[torch.Tensor]]:
    buffers = [torch.full((1, 1, 2, 2), float(index)) for index in range(count)]
    return Rotation(buffers), buffers


def test_the_buffers_are_called_in_turn() -> None:
    turns, buffers = rotation(3)
    assert [turns.next().first is buffers[index % 3] for index in range(7)] == [True] * 7


def test_every_buffer_holds_another_picture_after_each_move() -> None:
    _, first = rotation(3)
    turns, buffers = rotation(3)
    held = [[float(buffer[0, 0, 0, 0]) for buffer in buffers]]
    for _ in range(3):
        turns.move_on()
        held.append([float(buffer[0, 0, 0, 0]) for buffer in buffers])
    assert held == [[0.0, 1.0, 2.0], [1.0, 2.0, 0.0], [2.0, 0.0, 1.0], [0.0, 1.0, 2.0]]
    assert all(torch.equal(one, other) for one, other in zip(first, buffers, strict=True))


def test_a_picture_is_found_wherever_it_lies_and_named_if_changed() -> None:
    turns, _ = rotation(4)
    for _ in range(6):
        turns.move_on()
        assert [float(turns.holding(index).first[0, 0, 0, 0]) for index in range(4)] == [0.0, 1.0, 2.0, 3.0]
    turns, buffers = rotation(3)
    turns.move_on()
    assert turns.changed() == []
    buffers[0][0, 0, 1, 1] += 1e-6
    assert turns.changed() == [1]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_a_fingerprint_sees_two_values_that_change_places(kind: torch.dtype) -> None:
    values = (torch.arange(12).reshape(3, 4) % 2).to(kind)
    before = fingerprint(values)
    assert is_same(before, values.clone())
    values[0, 0], values[0, 1] = values[0, 1].clone(), values[0, 0].clone()
    assert not is_same(before, values)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_number_has_a_fingerprint_of_both_its_parts(dtype: torch.dtype) -> None:
    values = torch.ones(2, 3, dtype=dtype)
    known = fingerprint(values)
    assert is_same(known, values)
    for change in (1e-6, 1e-6j):
        assert not is_same(known, values + change * torch.eye(2, 3))


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("", []),
        ("1", ["GPU-bb"]),
        ("1,0", ["GPU-bb", "GPU-aa"]),
        ("GPU-b", ["GPU-bb"]),
        ("0,7,1", ["GPU-aa"]),
        ("-1", []),
        (None, ["GPU-aa", "GPU-bb"]),
    ],
)
def test_devices_are_read_as_cuda_does(visible: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus: list[Any] = [Mock(**{"uuid.return_value": uuid}) for uuid in ("GPU-aa", "GPU-bb")]
    assert [gpu.uuid() for gpu in nvml.visible_gpus(gpus, visible)] == seen


def test_a_gpu_says_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "nvmlDeviceGetPowerUsage": lambda _: 121_650,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 5_000,
        "nvmlDeviceGetMemoryInfo": Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)),
        "nvmlDeviceGetClockInfo": lambda *_: 1980,
        "nvmlDeviceGetViolationStatus": lambda *_: SimpleNamespace(violationTime=2_000_000_000),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: pynvml.nvmlClocksEventReasonSwPowerCap,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=1, usedGpuMemory=2**29)],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    gpu = nvml.Gpu(None)
    assert (gpu.watts(), gpu.joules(), gpu.used_bytes()) == (121.65, 5.0, None)
    assert gpu.state() == nvml.DeviceState(1980, dict.fromkeys(nvml.VIOLATIONS, 2.0), ("power",))
    [other] = host.others_on(gpu)
    assert other.endswith("(1): 512 MiB")


class Meter(nvml.Gpu):
    def __init__(self, counts: bool = True) -> None:
        self.calls = 0
        self._counts = counts

    def joules(self) -> float | None:
        return 1000.0 + 3.0 * self.calls if self._counts else None

    def watts(self) -> float | None:
        return 100.0


def test_energy_is_the_difference_over_its_own_calls() -> None:
    clock, meter = FakeClock(), Meter()
    slept: list[float] = []

    def call(_: object) -> None:
        meter.calls += 1
        clock.work(0.125)

    found = usage.energy(call, int, clock, 5.0, 4, meter, sleep=slept.append)
    assert (found.joules, found.seconds, found.images, found.idle_watts) == (120.0, 5.0, 160, 100.0)
    assert slept == [usage.REST_SECONDS]


def test_short_calls_are_not_waited_for_one_by_one_nor_energy_guessed() -> None:
    clock, meter = FakeClock(), Meter()
    found = usage.energy(lambda _: clock.work(1 / 512), int, clock, 1.0, 1, meter, sleep=lambda _: None)
    assert found.images == pytest.approx(512, rel=0.1)
    assert clock.events.count("synchronize") <= 12
    clock = FakeClock()
    assert usage.energy(lambda _: None, int, clock, 5.0, 1, None) is None
    assert usage.energy(lambda _: None, int, clock, 5.0, 1, Meter(counts=False)) is None
    assert clock.events == []


def test_what_a_build_left_goes_back_before_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Mock(**{"max_memory_allocated.return_value": 7, "process.return_value": 9})
    monkeypatch.setattr(gc, "collect", seen.garbage)
    for name in ("empty_cache", "reset_peak_memory_stats", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, getattr(seen, name))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(usage, "process_bytes", seen.process)
    batch: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
    found = usage.measure(seen.call, batch, torch.nn.Linear(4, 2), 5)
    before = ["garbage", "empty_cache", "reset_peak_memory_stats", "call"]
    read = ["max_memory_allocated", "max_memory_reserved", "process"]
    assert [name for name, *_ in seen.mock_calls] == [*before, *read]
    assert (found.allocated_peak_bytes, found.process_bytes, found.context_bytes) == (7, 9, 5)


@pytest.mark.gpu
def test_what_nobody_uses_is_no_part_of_a_stage() -> None:
    device = torch.device("cuda")
    torch.empty(2**28, device=device)  # let go at once, and kept by torch's allocator
    net, batch = torch.nn.Linear(4, 2, device=device), batched(torch.ones(1, 4, device=device))
    assert torch.cuda.memory_reserved(device) >= 2**30
    found = usage.measure(of_batches(net), batch, net, usage.context_bytes(device))
    assert found.reserved_peak_bytes < 2**27


def test_a_processor_has_no_device_memory_and_no_state() -> None:
    net = torch.nn.Linear(4, 2)
    found = usage.measure(of_batches(net), batched(torch.ones(1, 4)), net, usage.context_bytes(CPU))
    assert (found.allocated_peak_bytes, found.process_bytes, found.context_bytes) == (None, None, None)
    assert found.weights_bytes == 40
    assert found.host_peak_bytes > 2**24
    assert usage.device_allocations(CPU) == 0
    assert torch_device.cache_bytes(CPU) is None


def test_the_environment_names_what_gave_the_numbers() -> None:
    found = environment.describe(CPU, "submitit_local")
    assert (found.device, found.device_name, found.launcher) == ("cpu", found.cpu_name, "submitit_local")
    assert found.packages["torch"] == torch.__version__.partition("+")[0] or "+" in found.packages["torch"]
    assert found.cpu_threads == torch.get_num_threads()
    assert found.cpu_name


def test_the_commit_is_the_variables_before_that_of_a_checkout(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.git_state(tmp_path) == (None, None)
    for words in (["init"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "--allow-empty", "-m", "a"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)
    commit, dirty = environment.git_state(tmp_path)
    assert (len(commit or ""), dirty) == (40, False)
    monkeypatch.setenv("UNET_LADDER_COMMIT", "abc")
    assert environment.git_state(tmp_path) == ("abc", None)


@pytest.mark.parametrize("units", [True, False])
def test_a_processors_measured_peaks(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CPU_SIDE": 64, "CPU_COPY_BYTES": 2**16}.items():
        monkeypatch.setattr(peaks, name, value)
    monkeypatch.setattr(clock, "BURSTS", 2)
    monkeypatch.setattr(clock, "BURST_SECONDS", 1e-3)
    monkeypatch.setattr(host, "why_no_bf16", lambda: "" if units else "no units")
    found = peaks.measure(CPU)
    assert set(found.tflops) == ({"fp32", "bf16"} if units else {"fp32"})
    assert min(*found.tflops.values(), found.bandwidth_bytes_per_s) > 0
    assert found.launch_us is None


def test_a_measured_peak_is_the_best_burst() -> None:
    clock = FakeClock()
    durations = iter([0.03, 0.03, 0.05, 0.04, 0.01, *[0.06] * 7])
    assert best_burst_seconds(lambda _: clock.work(next(durations)), clock) == pytest.approx(0.01)


def drawing(*watts: float, limit: float | None = 700.0) -> Mock:
    """A GPU of 700 W that draws what it is told to, or doesn't know its limit."""
    return Mock(**{"watts.side_effect": watts, "limit_watts.return_value": limit})


def run_ins(gpu: Mock | None, samples: int, device: str = "cuda", pauses: Sequence[float] = ()) -> list[int]:
    """The untimed calls, of 10 ms, before so many samples, with pauses in seconds between them."""
    clock = FakeClock()
    load, taken = FullLoad(Plan(), device, 0.01, gpu, clock.now), Sample(1, 1.0, None, 0, disturbed=False)
    found = []
    for _, pause in zip(range(samples), [*pauses, *[0.0] * samples], strict=False):
        found.append(load.run_in_calls())
        assert load.sampled(taken) is taken
        clock.wall += pause
    return found


def test_a_side_at_the_cap_runs_in_for_longer_after_a_rest_and_after_another() -> None:
    rests, after_itself = 300.0, 690.0
    gpu = drawing(rests, 690.0, rests, 650.0, after_itself, 695.0)
    assert run_ins(gpu, 3) == [300, 300, 30]
    assert run_ins(drawing(*[690.0] * 8), 4, pauses=[0.2, 1.2, 0.8]) == [300, 30, 300, 30]
    assert run_ins(drawing(120.0, 400.0, 350.0, 410.0, 350.0, 405.0), 3, pauses=[1.2, 1.2]) == [300, 30, 30]
    assert run_ins(drawing(*[100.0] * 4, limit=None), 2) == run_ins(None, 2) == [30, 30]
    assert run_ins(None, 1, "cpu") == [0]
