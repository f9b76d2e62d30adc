"""What the operating system's list of processors says."""

from pathlib import Path

import pytest
import torch

from pipeline.devices.host import computes_bf16, free_memory_bytes, memory_bytes, sums_int8_exactly, why_no_bf16
from pipeline.stages.common.precision import half_dtype, why_fp32

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
    assert (computes_bf16(cpuinfo), sums_int8_exactly(cpuinfo)) == (bf16, int8)


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
    assert (computes_bf16(cpuinfo), sums_int8_exactly(cpuinfo)) == (bf16, int8)
    named = next(f"{name}={most}" for name, most in kept_to.items() if most)
    assert why_no_bf16(cpuinfo) == ("" if bf16 else f"{named} keeps oneDNN from this CPU's units for bf16")


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
def test_auto_takes_bf16_only_with_units(asked: str, device: torch.device, units: bool, dtype: torch.dtype) -> None:
    """What is asked for by name runs as it is asked for; fp32 in its place is said in the record."""
    found = half_dtype(asked, device, lambda: units)
    assert found == dtype
    assert why_fp32(found).get("dtype", "").startswith("fp32, as ") is (dtype == torch.float32)


def test_a_record_says_why_it_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.devices.host.why_no_bf16", lambda: "this CPU has no units for bf16")
    said = "fp32, as this CPU has no units for bf16; stage.dtype=bf16 emulates it"
    assert why_fp32(torch.float32) == {"dtype": said}
    assert why_fp32(torch.bfloat16) == {}


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
