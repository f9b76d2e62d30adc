"""What the operating system says of this machine: its processor, its driver, and who else uses a GPU."""

import os
import platform
from contextlib import suppress
from pathlib import Path

import pynvml

from pipeline.devices.nvml import Gpu

CPUINFO, MEMINFO, VMSTAT = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/vmstat")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # version 2's, as a container sees its own; what it uses lies beside
INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}  # as Linux names them, the last two Arm's
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them, on x86 the first two
# Up to which instructions oneDNN, which torch calls, may go, in either of its spellings; and those short of sums of
# int8 in 32 bits, and of units for bf16 (oneDNN's "CPU dispatcher control").
INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WITHOUT_INT8 = {"sse41", "avx", "avx2", "avx512_core"}
WITHOUT_BF16 = WITHOUT_INT8 | {"avx2_vnni", "avx2_vnni_2", "avx512_core_vnni"}


def others_on(gpu: Gpu) -> list[str]:
    """Other processes that hold the device, with their memory; those of this run's own group are not others."""
    found = gpu.processes() or {}
    return [f"{_process_name(pid)}: {(held or 0) / 2**20:.0f} MiB" for pid, held in found.items() if not _ours(pid)]


def _ours(pid: int) -> bool:
    """Whether the process is this one, its parent, or a child of either."""
    if pid in (os.getpid(), os.getppid()):
        return True
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(status.rpartition(")")[2].split()[1]) in (os.getpid(), os.getppid())


def _process_name(pid: int) -> str:
    try:
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} ({pid})"
    except OSError:
        return f"process {pid}"


def cpu_name() -> str:
    """The processor's model name."""
    return next(iter(_said_of_cpu("model name")), "") or platform.processor() or platform.machine()


def computes_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether bf16 runs on units of the processor: AVX512-BF16 or AMX, or Arm's; False where nothing says so.

    Without them bf16 is emulated: on two AVX2 cores a net took seven times as long in bf16 as in fp32.
    """
    return not why_no_bf16(cpuinfo)


def why_no_bf16(cpuinfo: Path = CPUINFO) -> str:
    """Why bf16 doesn't run on units of the processor, as a clause; empty where it does."""
    if not _has_any(BF16_FLAGS, cpuinfo):
        return "this CPU has no units for bf16"
    name, most = _kept_to()
    return f"{name}={most} keeps oneDNN from this CPU's units for bf16" if most.lower() in WITHOUT_BF16 else ""


def _kept_to() -> tuple[str, str]:
    """The variable by which oneDNN is kept to some of the processor's instructions, and its value; else empty."""
    return next(((name, most) for name in INSTRUCTIONS if (most := os.environ.get(name))), ("", ""))


def sums_int8_exactly(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor adds products of int8 in 32 bits; False where nothing says so.

    Without such an instruction AVX2 and AVX-512 add pairs of products in 16 bits, which saturate: one factor must then
    keep to 7 bits.
    """
    return _has_any(INT8_FLAGS, cpuinfo) and _kept_to()[1].lower() not in WITHOUT_INT8


def _has_any(wanted: set[str], cpuinfo: Path) -> bool:
    said = [*_said_of_cpu("flags", cpuinfo), *_said_of_cpu("Features", cpuinfo)]
    return any(wanted & set(line.split()) for line in said)


def _said_of_cpu(key: str, cpuinfo: Path = CPUINFO) -> list[str]:
    """The values of a key in Linux's list of processors; none on another system."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key]


def load_per_processor() -> float:
    """How many programs computed, or waited to, for each processor of the machine, on average over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def memory_bytes(limit: Path = CGROUP_LIMIT) -> int:
    """The memory that this process may use: the machine's, or its container's where that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


def free_memory_bytes(limit: Path = CGROUP_LIMIT, meminfo: Path = MEMINFO) -> int:
    """The memory that could be taken now: the machine's, or its container's where that is less; caches give way."""
    found = [memory_bytes(limit)]
    with suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text().splitlines()
        found.append(next(2**10 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError, KeyError):
        kinds = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
        taken = int(limit.with_name("memory.current").read_text()) - int(kinds["inactive_file"])
        found.append(int(limit.read_text()) - taken)
    return max(0, min(found))


def driver_version() -> str | None:
    """The GPU driver's version; None where NVML doesn't answer."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def oom_kills(vmstat: Path = VMSTAT) -> int:
    """How many processes this system's kernel has killed for want of memory so far; 0 where it doesn't say."""
    try:
        counts = dict(line.split() for line in vmstat.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
