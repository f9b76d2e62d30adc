"""Devices are chosen by what is there and what the environment shows."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.devices.accelerators import Accelerator, DeviceError, choose_device
from pipeline.devices.host import that_matter
from pipeline.lessons import __main__ as lessons
from pipeline.measure import torch_device

H200 = Accelerator("cuda", 0, "NVIDIA H200")
MI300 = Accelerator("rocm", 0, "AMD Instinct MI300X")
ARC = Accelerator("xpu", 0, "Intel GPU 0x56a0")
M3 = Accelerator("mps", 0, "Apple GPU")


@pytest.mark.parametrize(
    ("asked", "found", "chosen"),
    [
        ("auto", [], "cpu"),
        ("auto", [H200], "cuda"),
        ("auto", [MI300, H200], "cuda"),
        ("auto", [M3], "cpu"),
        ("cuda", [H200], "cuda"),
        ("cpu", [H200], "cpu"),
        ("cpu", [MI300], "cpu"),
    ],
)
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


ROOT = Path(__file__).resolve().parents[2]
ON_MI300 = """
import sys
from pipeline.cli import app
from pipeline.devices.accelerators import Accelerator

app.cuda_gpus = list
app.accelerators = lambda: [Accelerator("rocm", 0, "AMD Instinct MI300X")]
sys.argv[0] = "pipeline/__main__.py"
from pipeline.__main__ import main

main()
"""


def test_the_program_stops_with_one_line_and_2(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ON_MI300, f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert "device=auto: found AMD Instinct MI300X (ROCm), but this version runs only CUDA GPUs and CPUs" in line
    assert line.endswith("device=cpu runs on the CPU")
    assert not (tmp_path / "run" / "results.json").exists()


def test_lessons_stop_likewise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
