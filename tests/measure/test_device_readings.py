"""What is read of the machine, through stubs where this machine has no such device."""

import gc
import subprocess
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from pipeline.compiler.batch import batched, of_batches
from pipeline.devices import host, nvml
from pipeline.measure import clock, environment, peaks, torch_device, usage
from pipeline.measure.clock import best_burst_seconds
from pipeline.measure.sampling import FullLoad
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample
from tests.fake_machine import FakeClock

CPU = torch.device("cpu")


class StubGpu(nvml.Gpu):
    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    def uuid(self) -> str:
        return self._uuid


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
    assert [gpu.uuid() for gpu in nvml.visible_gpus([StubGpu("GPU-aa"), StubGpu("GPU-bb")], visible)] == seen


def test_a_gpu_says_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    answers: dict[str, Any] = {
        "nvmlDeviceGetPowerUsage": lambda _: 121_650,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 5_000,
        "nvmlDeviceGetMemoryInfo": refuse,
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
    seen: list[str] = []

    def noted(name: str, answer: int = 7) -> Callable[..., int]:
        def note(*_: object) -> int:
            seen.append(name)
            return answer

        return note

    monkeypatch.setattr(gc, "collect", noted("garbage"))
    for name in ("empty_cache", "reset_peak_memory_stats", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, noted(name))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(usage, "process_bytes", noted("process", 9))
    batch: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
    found = usage.measure(noted("call"), batch, torch.nn.Linear(4, 2), 5)
    before = ["garbage", "empty_cache", "reset_peak_memory_stats", "call"]
    assert seen == [*before, "max_memory_allocated", "max_memory_reserved", "process"]
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


class Drawing(nvml.Gpu):
    """A GPU of 700 W that draws what it is told to, or doesn't know its limit."""

    def __init__(self, *watts: float, limit: float | None = 700.0) -> None:
        self._watts, self._limit = iter(watts), limit

    def watts(self) -> float | None:
        return next(self._watts)

    def limit_watts(self) -> float | None:
        return self._limit


def run_ins(gpu: Drawing | None, samples: int, device: str = "cuda", pauses: Sequence[float] = ()) -> list[int]:
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
    gpu = Drawing(rests, 690.0, rests, 650.0, after_itself, 695.0)
    assert run_ins(gpu, 3) == [300, 300, 30]
    assert run_ins(Drawing(*[690.0] * 8), 4, pauses=[0.2, 1.2, 0.8]) == [300, 30, 300, 30]
    assert run_ins(Drawing(120.0, 400.0, 350.0, 410.0, 350.0, 405.0), 3, pauses=[1.2, 1.2]) == [300, 30, 30]
    assert run_ins(Drawing(*[100.0] * 4, limit=None), 2) == run_ins(None, 2) == [30, 30]
    assert run_ins(None, 1, "cpu") == [0]
