"""What the operating system's list of processors says."""

from pathlib import Path

import pytest
import torch

from pipeline.devices.host import computes_bf16, free_memory_bytes, memory_bytes, sums_int8_exactly
from pipeline.stages.common.precision import half_dtype, why_fp32

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", True),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f", False),
        ("vmx flags\t: amx_bf16", False),
        ("model name\t: a bf16 machine", False),
    ],
)
def test_units_for_bf16_are_read_from_the_flags(line: str, found: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert computes_bf16(tmp_path / "cpuinfo") is found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("flags\t\t: fpu avx512f avx512_vnni", True),
        ("flags\t\t: fpu avx2 avx_vnni", True),
        ("Features\t: fp asimd asimddp", True),
        ("flags\t\t: fpu avx2 avx512f avx512bw", False),
    ],
)
def test_exact_sums_of_int8_are_read_from_the_flags(line: str, found: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert sums_int8_exactly(tmp_path / "cpuinfo") is found


def test_a_system_without_the_list_has_none(tmp_path: Path) -> None:
    assert not computes_bf16(tmp_path / "none")
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
def test_auto_takes_bf16_on_a_cpu_only_with_units_for_it(
    asked: str, device: torch.device, units: bool, dtype: torch.dtype
) -> None:
    """What is asked for by name runs as it is asked for; fp32 in its place is said in the record."""
    found = half_dtype(asked, device, lambda: units)
    assert found == dtype
    assert ("no units for bf16" in why_fp32(found).get("dtype", "")) is (dtype == torch.float32)


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
