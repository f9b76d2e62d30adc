"""The machine by its operating system: processor, memory, driver, other users of a GPU, and variables that matter."""

import math
import os
import platform
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pynvml

from pipeline.devices.nvml import Gpu

CPUINFO, MEMINFO, VMSTAT = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/vmstat")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # version 2's, as a container sees its own; what it uses lies beside
OLDER_LIMIT = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 1's
INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}  # as Linux names them, the last two Arm's
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them, on x86 the first two
# Up to which instructions oneDNN, which torch calls, may go, in either of its spellings; and those short of sums of
# int8 in 32 bits, and of units for bf16 (oneDNN's "CPU dispatcher control").
INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WITHOUT_INT8 = {"sse41", "avx", "avx2", "avx512_core"}
WITHOUT_BF16 = WITHOUT_INT8 | {"avx2_vnni", "avx2_vnni_2", "avx512_core_vnni"}


def others_on(gpu: Gpu) -> list[str]:
    """Return other processes that hold the device, with their memory; this process's relatives are left out."""
    ours, others = (os.getpid(), os.getppid()), []
    for pid, held in (gpu.processes() or {}).items():
        name, parent = f"process {pid}", None
        with suppress(OSError):
            before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            name, parent = f"{before.partition('(')[2]} ({pid})", int(after.split()[1])
        if pid not in ours and parent not in ours:
            others.append(f"{name}: {(held or 0) / 2**20:.0f} MiB")
    return others


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages by name."""
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def cpu_name() -> str:
    """Return the processor's model name."""
    return next(iter(_said_of_cpu("model name")), "") or platform.processor() or platform.machine()


def why_no_bf16(cpuinfo: Path = CPUINFO) -> str:
    """Return why no unit of the processor (AVX512-BF16, AMX, Arm's) computes bf16, as a clause; empty if one does."""
    # Emulated, a network took seven times as long in bf16 as in fp32 on two AVX2 cores.
    if not _has_any(BF16_FLAGS, cpuinfo):
        return "this CPU has no units for bf16"
    name, most = next(((name, most) for name in INSTRUCTIONS if (most := os.environ.get(name))), ("", ""))
    return f"{name}={most} keeps oneDNN from this CPU's units for bf16" if most.lower() in WITHOUT_BF16 else ""


def sums_int8_exactly(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether the processor adds products of int8 in 32 bits; False if unknown."""
    # Else AVX2 and AVX-512 add pairs of products in 16 bits, which saturate: one factor must keep to 7 bits.
    most = next(filter(None, map(os.environ.get, INSTRUCTIONS)), "")
    return _has_any(INT8_FLAGS, cpuinfo) and most.lower() not in WITHOUT_INT8


def _has_any(wanted: set[str], cpuinfo: Path) -> bool:
    said = [*_said_of_cpu("flags", cpuinfo), *_said_of_cpu("Features", cpuinfo)]
    return any(wanted & set(line.split()) for line in said)


def _said_of_cpu(key: str, cpuinfo: Path = CPUINFO) -> list[str]:
    """Return the values of a key in Linux's list of processors; none on another system."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key]


def memory_bytes(limit: Path = CGROUP_LIMIT, older: Path = OLDER_LIMIT) -> int:
    """Return the memory that this process may use: the machine's, or its container's if that is less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for place in (limit, older):
        with suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(place.read_text()))
    return min(found)


def free_memory_bytes(limit: Path = CGROUP_LIMIT, meminfo: Path = MEMINFO) -> int:
    """Return the memory that could be taken now, of the machine or its container; caches give way."""
    found = [memory_bytes(limit)]
    with suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text().splitlines()
        found.append(next(2**10 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError, KeyError):
        kinds = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
        taken = int(limit.with_name("memory.current").read_text()) - int(kinds["inactive_file"])
        found.append(int(limit.read_text()) - taken)
    return max(0, min(found))


def host_peak_bytes(whose: int = resource.RUSAGE_SELF) -> int:
    """Return the peak resident memory of this process; by RUSAGE_CHILDREN of those that it has waited for."""
    peak = resource.getrusage(whose).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def driver_version() -> str | None:
    """Return the GPU driver's version; None if NVML doesn't answer."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def oom_kills(vmstat: Path = VMSTAT) -> int:
    """Return the number of processes that the kernel has killed for lack of memory; 0 if unknown."""
    try:
        counts = dict(line.split() for line in vmstat.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def processors() -> int:
    """Return the number of processors that this process may use, within `taskset`, container or scheduler."""
    # A quota of 1.5 processors' time keeps two busy in part.
    quota = cpu_quota()
    return seen_processors() if quota is None else min(seen_processors(), max(1, math.ceil(quota)))


def seen_processors() -> int:
    """Return the number of processors that the process may run on, as torch counts them, without quotas."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the processors' worth of time that this process may take, by its groups' least quota; else None."""
    # Version 2 has it in `cpu.max`, "200000 100000" or "max 100000"; version 1 in `cpu.cfs_quota_us`, -1 for none, and
    # `cpu.cfs_period_us` (the kernel's cgroup-v2.rst and sched-bwc.rst).
    found = [quota for folder in _groups(root, own) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of the groups, and of those around them; a container sees its own as the outermost."""
    lines = []
    with suppress(OSError):
        lines = own.read_text().splitlines()
    for line in [*lines, "0::/", "0:cpu:/"]:
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        inner = Path(path.lstrip("/")) if ".." not in path else Path()
        for mounted in {root / kinds, root / "cpu"} if kinds else {root, root / "unified"}:
            yield from (mounted / part for part in (inner, *inner.parents))


def _quota(folder: Path) -> float | None:
    """Return one group's quota; None if it has none, or isn't there."""
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" is no number
        return quota / period
    with suppress(OSError, ValueError):
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    return None


# By the name's beginning, or the whole name where "$" ends it; a stage's YAML names those of its own runtime.
READ = re.compile(
    r"(PY)?TORCH|ATEN_|TRITON_|CUDA_|CUDNN_|CUBLAS|NVIDIA_TF32|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|ONEDNN_|DNNL_"
    r"|MALLOC_|GLIBC_TUNABLES$|LD_PRELOAD$|TMPDIR$|CC$|CXX$"
)
# Variables of places, visible GPUs and logs, which change no code; the record has GPUs and versions anyway.
# Triton has CC compile what begins a kernel, and Inductor has CXX compile a CPU's code itself.
NO_MATTER = re.compile(r"(DIR|DIRECTORY|PATH|HOME|LOGS?|LOG_LEVEL|VERBOSE|DEBUG|DEVICES|VERSION|_OUT)$|^CC$")


def that_matter(beginnings: tuple[str, ...] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables, with their values, that may change which code a stage runs, or its speed."""
    read = {name for name in environment if READ.match(name) or name.startswith(beginnings)}
    return {name: environment[name] for name in sorted(read) if not NO_MATTER.search(name)}
