"""What the system says of processors, memory and accelerators, and which device is chosen by that and what is asked."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pynvml
import pytest
import torch

from pipeline.config import load
from pipeline.config.load import check_threads, quota_warning
from pipeline.config.request_error import RequestError
from pipeline.devices import accelerators, host
from pipeline.devices.accelerators import Accelerator, DeviceError, choose_device
from pipeline.devices.host import (
    cpu_quota,
    free_memory_bytes,
    memory_bytes,
    sums_int8_exactly,
    that_matter,
    why_no_bf16,
)
from pipeline.lessons import __main__ as lessons
from pipeline.measure import torch_device
from pipeline.stages.common.network_forms import half_dtype, why_fp32

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("line", "bf16", "int8"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", True, False),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", True, False),
        ("Features\t: fp asimd bf16 i8mm", True, True),
        ("flags\t\t: fpu avx2 avx512f avx512bw", False, False),
        ("vmx flags\t: amx_bf16", False, False),
        ("model name\t: a bf16 machine", False, False),
        ("flags\t\t: fpu avx512f avx512_vnni", False, True),
        ("flags\t\t: fpu avx2 avx_vnni", False, True),
        ("Features\t: fp asimd asimddp", False, True),
    ],
)
def test_units_for_bf16_and_int8_are_read_from_flags(line: str, bf16: bool, int8: bool, tmp_path: Path) -> None:
    (cpuinfo := tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert (why_no_bf16(cpuinfo) == "", sums_int8_exactly(cpuinfo)) == (bf16, int8)


@pytest.mark.parametrize(
    ("kept_to", "bf16", "int8"),
    [
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, False),
        ({"ONEDNN_MAX_CPU_ISA": "avx512_core"}, False, False),
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE_VNNI"}, False, True),
        ({"ONEDNN_MAX_CPU_ISA": "", "DNNL_MAX_CPU_ISA": "AVX2"}, False, False),
        ({"ONEDNN_MAX_CPU_ISA": "ALL", "DNNL_MAX_CPU_ISA": "AVX2"}, True, True),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True, True),
    ],
)
def test_what_onednn_is_kept_from_counts_as_none(
    kept_to: dict[str, str], bf16: bool, int8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then emulates bf16: on two cores `half` took six times as long as fp32, where auto had taken it for fast."""
    (cpuinfo := tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx512f avx512_vnni avx512_bf16\n")
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, most in kept_to.items():
        monkeypatch.setenv(name, most)
    assert (why_no_bf16(cpuinfo) == "", sums_int8_exactly(cpuinfo)) == (bf16, int8)
    named = next(f"{name}={most}" for name, most in kept_to.items() if most)
    assert why_no_bf16(cpuinfo) == ("" if bf16 else f"{named} keeps oneDNN from this CPU's units for bf16")


def test_a_system_without_the_list_has_none(tmp_path: Path) -> None:
    assert why_no_bf16(tmp_path / "none")
    assert not sums_int8_exactly(tmp_path / "none")


@pytest.mark.parametrize(
    ("asked", "device", "units", "dtype"),
    [
        ("auto", GPU, False, torch.float16),
        ("auto", CPU, True, torch.bfloat16),
        ("auto", CPU, False, torch.float32),
        ("bf16", CPU, False, torch.bfloat16),
        ("fp16", CPU, True, torch.float16),
    ],
)
def test_auto_takes_bf16_only_with_units(
    asked: str, device: torch.device, units: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "" if units else "this CPU has no units for bf16"
    monkeypatch.setattr("pipeline.devices.host.why_no_bf16", lambda: why)
    assert half_dtype(asked, device) == dtype
    said = {"dtype": f"fp32, as {why}; stage.dtype=bf16 emulates it"}
    assert why_fp32(dtype) == (said if dtype == torch.float32 else {})


def test_free_memory_is_the_machine_s_or_its_container_s(tmp_path: Path) -> None:
    """Whichever is less; what a container keeps of files gives way, and where nothing is said all of it is free."""
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    assert free_memory_bytes(limit, meminfo) == memory_bytes()
    meminfo.write_text("MemTotal: 8 kB\nMemAvailable:       6 kB\n")
    assert free_memory_bytes(limit, meminfo) == 6 * 2**10
    limit.write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 2000\n")
    assert free_memory_bytes(limit, meminfo) == 4000
    (tmp_path / "memory.current").write_text("9000\n")
    assert free_memory_bytes(limit, meminfo) == 0
    limit.write_text("max\n")
    assert free_memory_bytes(limit, meminfo) == 6 * 2**10


QUOTAS: dict[str, tuple[dict[str, str], str, float | None]] = {
    "version 2": ({"cpu.max": "200000 100000"}, "0::/", 2.0),
    "none, version 2": ({"cpu.max": "max 100000"}, "0::/", None),
    "a group within another": (
        {"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "900000 100000"}, "0::/a/b", 4.0,
    ),
    "of a group by the host's name": ({"cpu.max": "150000 100000"}, "0::/docker/0123", 1.5),
    "outside what is mounted": ({"cpu.max": "150000 100000", "other/cpu.max": "1 100000"}, "0::/../other", 1.5),
    "version 2 beside version 1": ({"unified/a/cpu.max": "300000 100000"}, "4:memory:/x\n0::/a", 3.0),
    "version 1": ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", 0.5),
    "version 1, with another": (
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "600000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        "3:cpu,cpuacct:/a", 6.0,
    ),
    "none, version 1": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", None),
    "of another kind": ({"memory/cpu.max": "1 100000"}, "4:memory:/", None),
    "torn": ({"cpu.max": "2"}, "nonsense", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUOTAS)
def test_a_quota_is_read_as_either_version_has_it(kind: str, tmp_path: Path) -> None:
    files, own, quota = QUOTAS[kind]
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert cpu_quota(root, tmp_path / "own") == quota


def test_a_system_without_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path / "neither") is None


@pytest.fixture
def of_64(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    return monkeypatch


@pytest.mark.parametrize(("quota", "most"), [(None, 64), (2.0, 2), (1.5, 2), (0.25, 1), (100.0, 64)])
def test_a_quota_leaves_those_it_keeps_busy(quota: float | None, most: int, of_64: pytest.MonkeyPatch) -> None:
    of_64.setattr(host, "cpu_quota", lambda: quota)
    assert (host.processors(), host.seen_processors()) == (most, 64)


def test_threads_beyond_a_quota_are_refused_with_its_figure(of_64: pytest.MonkeyPatch) -> None:
    for place in (host, load):
        of_64.setattr(place, "cpu_quota", lambda: 1.5)
    found = "2 processors of 64, by its container's CPU quota of 1.5"
    with pytest.raises(RequestError, match=f"threads=64: this program may use {found}; expected at most 2, or null"):
        check_threads(64)
    check_threads(2)
    said = quota_warning()
    assert said.text == f"this program may use {found}, and takes as many threads"
    of_64.setattr(load, "cpu_quota", lambda: None)
    assert quota_warning() is None


def test_torch_takes_no_more_threads_than_a_quota_keeps_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    for most in (2, 64, 128):
        monkeypatch.setattr(torch_device, "processors", lambda most=most: most)
        torch_device.keep_to_quota()
    assert taken == [2]


H200 = Accelerator("cuda", 0, "NVIDIA H200")
MI300 = Accelerator("rocm", 0, "AMD Instinct MI300X")
ARC = Accelerator("xpu", 0, "Intel GPU 0x56a0")
M3 = Accelerator("mps", 0, "Apple GPU")


@pytest.mark.parametrize(
    ("asked", "found", "chosen"),
    [
        ("auto", [], "cpu"), ("auto", [H200], "cuda"), ("auto", [MI300, H200], "cuda"), ("auto", [M3], "cpu"),
        ("cuda", [H200], "cuda"), ("cpu", [H200], "cpu"), ("cpu", [MI300], "cpu"),
    ],
)  # fmt: skip
def test_the_device_is_the_one_asked_for(asked: str, found: list[Accelerator], chosen: str) -> None:
    assert choose_device(asked, found) == chosen


@pytest.mark.parametrize("other", [MI300, ARC], ids=["ROCm", "XPU"])
@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_another_accelerator_never_becomes_a_cpu_run_by_itself(asked: str, other: Accelerator) -> None:
    with pytest.raises(DeviceError) as caught:
        choose_device(asked, [other])
    text = str(caught.value)
    assert "\n" not in text
    for part in (f"device={asked}", other.title, "only CUDA GPUs and CPUs", "device=cpu runs on the CPU"):
        assert part in text


def test_a_gpu_that_is_not_there_is_refused_and_others_are_counted() -> None:
    with pytest.raises(DeviceError, match=r"found 8 × AMD Instinct MI300X \(ROCm\), but"):
        choose_device("auto", [MI300] * 8)
    with pytest.raises(DeviceError, match="device=cuda: no CUDA device is visible here; device=cpu runs on the CPU"):
        choose_device("cuda", [])
    with pytest.raises(DeviceError, match=r"--device cuda: .*; --device cpu runs"):
        choose_device("cuda", [], "--device ")


@pytest.mark.parametrize("asked", ["cuda0", "rocm", "xpu", None])
def test_a_device_of_another_name_is_refused_with_the_choices(asked: object) -> None:
    with pytest.raises(DeviceError, match=f"device={asked}: this version runs CUDA.*choose one of: auto, cuda, cpu"):
        choose_device(asked, [MI300])


def test_lessons_stop_where_only_another_gpu_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lessons, "accelerators", lambda: [ARC])
    assert lessons.main([]) == 2
    shown = capsys.readouterr()
    assert "--device auto: found Intel GPU 0x56a0 (Intel XPU)" in shown.err
    assert shown.err.rstrip().endswith("--device cpu runs on the CPU")


def test_a_rocm_build_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    with pytest.raises(DeviceError, match=r"ROCm build \(HIP 6\.4\.1\).*device=cpu runs on the CPU"):
        torch_device.open_device("cuda")
    assert torch_device.open_device("cpu") == torch.device("cpu")


def test_an_instinct_is_no_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))
    gpu = torch.device("cuda", 0)
    assert [torch_device.has_compute(gpu, least) for least in ((8, 9), (9, 0), (10, 0))] == [True, True, False]
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    assert not torch_device.has_compute(gpu, (8, 0))
    assert not torch_device.has_compute(torch.device("cpu"), (8, 0))


def test_what_may_change_a_stage_is_kept_and_where_files_lie_is_not() -> None:
    kept = [
        "ATEN_CPU_CAPABILITY", "CUDA_MODULE_LOADING", "CXX", "GLIBC_TUNABLES", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_FREEZING",
        "TVM_NUM_THREADS", "XLA_FLAGS",
    ]  # fmt: skip
    left = [
        "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDNN_PATH", "CC", "HOME", "MY_TORCH", "OMP_DISPLAY_VERBOSE", "PATH",
        "PYTORCH_VERSION", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TRITON_CACHE_DIR",
        "ORT_OTHER",
    ]  # fmt: skip
    assert that_matter(("TVM_", "XLA_"), dict.fromkeys([*left, *kept], "x")) == dict.fromkeys(kept, "x")


MI300_NODE = {"cpu_cores_count": 0, "simd_count": 1216, "gfx_target_version": 90402}
CPU_NODE = {"cpu_cores_count": 96, "simd_count": 0, "gfx_target_version": 0}
LAPTOP_NODE = {"cpu_cores_count": 16, "simd_count": 24, "gfx_target_version": 90012}
MI300A_NODE = {"cpu_cores_count": 24, "simd_count": 912, "gfx_target_version": 90402}


def with_kfd(root: Path, *nodes: dict[str, int]) -> None:
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kfd").touch()
    for index, node in enumerate(nodes):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{index}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text("".join(f"{key} {value}\n" for key, value in node.items()))


def with_card(root: Path, number: int, vendor: str, driver: str, pci: str, **files: str) -> None:
    device = root / "sys/devices" / pci
    device.mkdir(parents=True)
    for name, text in {"vendor": vendor, **files}.items():
        (device / name).write_text(f"{text}\n")
    (root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
    (device / "driver").symlink_to(root / "sys/drivers" / driver)
    (root / "dev/dri").mkdir(parents=True, exist_ok=True)
    (root / f"dev/dri/renderD{number}").touch()
    link = root / f"sys/class/drm/renderD{number}"
    link.mkdir(parents=True)
    (link / "device").symlink_to(device)


def test_a_rocm_machine_shows_its_gpus(tmp_path: Path) -> None:
    with_kfd(tmp_path, CPU_NODE, MI300_NODE, MI300_NODE)
    with_card(tmp_path, 128, "0x1002", "amdgpu", "0000:05:00.0", product_name="AMD Instinct MI300X")
    with_card(tmp_path, 129, "0x1002", "amdgpu", "0000:06:00.0", product_name="AMD Instinct MI300X")
    found = accelerators.rocm_gpus(tmp_path)
    assert [gpu.title for gpu in found] == ["AMD Instinct MI300X (ROCm)"] * 2
    assert [gpu.index for gpu in found] == [0, 1]


def test_a_rocm_gpu_without_a_name_is_found(tmp_path: Path) -> None:
    with_kfd(tmp_path, MI300_NODE)
    assert [gpu.title for gpu in accelerators.rocm_gpus(tmp_path)] == ["AMD GPU (ROCm)"]
    other = tmp_path / "container"
    with_card(other, 128, "0x1002", "amdgpu", "0000:05:00.0", product_name="AMD Instinct MI210")
    with_kfd(other)
    assert [gpu.name for gpu in accelerators.rocm_gpus(other)] == ["AMD Instinct MI210"]


def test_a_laptops_processor_is_no_rocm_machine(tmp_path: Path) -> None:
    """Its KFD node has cores of both sorts; the MI300A's has, too, and is a data centre's GPU all the same."""
    with_kfd(tmp_path, LAPTOP_NODE)
    assert accelerators.rocm_gpus(tmp_path) == []
    (tmp_path / "server").mkdir()
    with_kfd(tmp_path / "server", MI300A_NODE)
    assert len(accelerators.rocm_gpus(tmp_path / "server")) == 1


def test_without_amds_compute_driver_there_is_no_rocm(tmp_path: Path) -> None:
    with_card(tmp_path, 128, "0x1002", "amdgpu", "0000:05:00.0", product_name="AMD Radeon")
    assert accelerators.rocm_gpus(tmp_path) == []


@pytest.mark.parametrize(
    ("vendor", "driver", "pci", "found"),
    [
        ("0x8086", "xe", "0000:03:00.0", ["Intel GPU 0x56a0 (Intel XPU)"]),
        ("0x8086", "i915", "0000:03:00.0", ["Intel GPU 0x56a0 (Intel XPU)"]),
        ("0x8086", "i915", "0000:00:02.0", []),  # part of the processor
        ("0x8086", "vfio-pci", "0000:03:00.0", []),  # lent to a virtual machine
        ("0x10de", "nouveau", "0000:03:00.0", []),
    ],
)
def test_an_intel_card_is_found(tmp_path: Path, vendor: str, driver: str, pci: str, found: list[str]) -> None:
    with_card(tmp_path, 128, vendor, driver, pci, device="0x56a0")
    assert [gpu.title for gpu in accelerators.intel_gpus(tmp_path)] == found


def test_a_card_that_this_process_cannot_open_is_none(tmp_path: Path) -> None:
    with_card(tmp_path, 128, "0x8086", "xe", "0000:03:00.0", device="0x56a0")
    (tmp_path / "dev/dri/renderD128").unlink()
    assert accelerators.intel_gpus(tmp_path) == []


def test_an_apple_processor_has_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert accelerators.accelerators(tmp_path)[-1].kind == "mps"


def test_cuda_gpus_come_from_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: ("NVIDIA L4", "NVIDIA H200")[handle],
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=handle * 2**30),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    found = accelerators.accelerators(tmp_path)
    assert [(gpu.kind, gpu.index, gpu.name) for gpu in found] == [("cuda", 0, "NVIDIA H200"), ("cuda", 1, "NVIDIA L4")]
    assert found[0].telemetry.used_bytes() == 2**30


def test_without_a_driver_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_driver = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=no_driver))
    assert accelerators.accelerators(tmp_path) == []
