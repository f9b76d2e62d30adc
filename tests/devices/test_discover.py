"""Accelerators out of a made-up /sys and NVML."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from pipeline.devices import accelerators

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

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert accelerators.accelerators(tmp_path) == []
