"""The machine and the software that give the numbers. Torch is imported only inside what a worker calls."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.measure.nvml import Gpu, all_gpus, gpu_of, visible_gpus
from pipeline.records import Environment

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "torch", "torchvision", "triton", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime", "numpy",
    "hydra-core", "segmentation-models-pytorch", "monai", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
)  # fmt: skip


def cuda_devices() -> list[str]:
    """The names of the GPUs that CUDA may use; empty without a driver."""
    return [gpu.name() for gpu in visible_gpus(all_gpus())]


def describe(device: "torch.device", launcher: str = "basic") -> Environment:
    """The environment as the worker on `device` sees it."""
    import torch

    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    cudnn = torch.backends.cudnn.version() if properties else None
    gpu = gpu_behind(device)
    commit, dirty = git_state(Path(__file__).parent)
    return Environment(
        device=device.type,
        device_name=properties.name if properties else cpu_name(),
        driver=driver_version() if properties else None,
        cuda=torch.version.cuda if properties else None,
        cudnn=str(cudnn) if cudnn else None,
        capability=f"{properties.major}.{properties.minor}" if properties else None,
        multiprocessors=properties.multi_processor_count if properties else None,
        device_memory_bytes=properties.total_memory if properties else None,
        l2_bytes=properties.L2_cache_size if properties else None,
        cpu_name=cpu_name(),
        cpu_threads=torch.get_num_threads(),
        python=platform.python_version(),
        platform=platform.platform(),
        packages=installed(PACKAGES),
        commit=commit,
        dirty=dirty,
        launcher=launcher,
        others_on_device=others_on(gpu) if gpu else [],
    )


def gpu_behind(device: "torch.device") -> Gpu | None:
    """NVML's view of a torch device; None on a CPU, and where NVML doesn't know the device."""
    import torch

    if device.type != "cuda":
        return None
    return gpu_of(str(torch.cuda.get_device_properties(device).uuid))


def cache_bytes(device: "torch.device") -> int | None:
    """The GPU's last cache, which a rotation of inputs must outgrow; None on a CPU, where nothing is kept out of it."""
    import torch

    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else None


def others_on(gpu: Gpu) -> list[str]:
    """Other processes that hold the device, with their memory; those of this run's own group are not others."""
    found = gpu.processes() or {}
    return [f"{_process_name(pid)}: {(held or 0) / 2**20:.0f} MiB" for pid, held in found.items() if not _ours(pid)]


def _ours(pid: int) -> bool:
    """Whether the process is this one, its parent, or another child of its parent."""
    if pid in (os.getpid(), os.getppid()):
        return True
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(status.rpartition(")")[2].split()[1]) == os.getppid()


def _process_name(pid: int) -> str:
    try:
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} ({pid})"
    except OSError:
        return f"process {pid}"


def cpu_name() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def driver_version() -> str | None:
    """The GPU driver's version; None where NVML doesn't answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Name to version of those that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """The commit that the code is at, and whether files differ from it; None and None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None, None
    return commit, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
