"""A whole program on a machine with an accelerator that this version doesn't run, or under a torch built for one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.devices.accelerators import Accelerator, Capabilities, DeviceError
from pipeline.lessons import lessons_command as lessons
from pipeline.measure import torch_device

ROOT = Path(__file__).resolve().parents[2]
ON_MI300 = """
import sys
from pipeline.cli import app
from pipeline.devices.accelerators import Accelerator, Capabilities

app.cuda_gpus = list
app.accelerators = lambda: [Accelerator("rocm", 0, "AMD Instinct MI300X", Capabilities("amd", (9, 4)))]
sys.argv[0] = "pipeline/__main__.py"
from pipeline.__main__ import main

main()
"""


def test_the_program_stops_with_one_line_and_2(tmp_path: Path) -> None:
    """Where the user named no device, on a machine with ROCm: no run on the CPU is begun."""
    command = [sys.executable, "-c", ON_MI300, f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert "device=auto: found AMD Instinct MI300X (ROCm), but this version runs only CUDA GPUs and CPUs" in line
    assert line.endswith("device=cpu runs on the CPU")
    assert not (tmp_path / "run" / "results.json").exists()


def test_lessons_stop_likewise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arc = Accelerator("xpu", 0, "Intel GPU 0x56a0", Capabilities("intel"))
    monkeypatch.setattr(lessons, "accelerators", lambda: [arc])
    assert lessons.main([]) == 2
    shown = capsys.readouterr()
    assert "--device auto: found Intel GPU 0x56a0 (Intel XPU)" in shown.err
    assert shown.err.rstrip().endswith("--device cpu runs on the CPU")


def test_a_rocm_build_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls its devices "cuda", and would time AMD's GPU under NVIDIA's name."""
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    with pytest.raises(DeviceError, match=r"ROCm build \(HIP 6\.4\.1\).*device=cpu runs on the CPU"):
        torch_device.open_device("cuda")
    assert torch_device.open_device("cpu") == torch.device("cpu")


def test_capabilities_of_a_torch_device_carry_their_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))
    gpu = torch.device("cuda", 0)
    assert torch_device.capabilities(gpu) == Capabilities("nvidia", (9, 4))
    assert torch_device.has_compute(gpu, (9, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    assert torch_device.capabilities(gpu) == Capabilities("amd", (9, 4))
    assert not torch_device.has_compute(gpu, (9, 0))
    assert torch_device.capabilities(torch.device("cpu")) is None
