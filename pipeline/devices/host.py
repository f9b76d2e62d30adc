"""What the operating system says of this machine: its processor, its driver, and who else uses a GPU."""

import os
import platform
from pathlib import Path

import pynvml

from pipeline.devices.nvml import Gpu


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
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
