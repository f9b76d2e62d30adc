"""What ncu's log says of one call, and which of the profile's kernels it says it of."""

import gzip
import json
from pathlib import Path

import pytest

from pipeline.orchestrate.ncu import (
    CACHE,
    READ,
    WRITTEN,
    CountersError,
    launches,
    plain,
    profiled_call,
    table,
    totals,
    version,
)
from tests.profiling.traced import written

HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
NOISE = ["==PROF== Connected to process 502 (python)", "==WARNING== Note: Running with unmodified GPU clocks.", HEAD]
CONV = "sm90_xmma_fprop_nhwc"
WORKSPACE = "void cask_plugin__5x_cudnn::xmma::init_device_workspace_kernel<int>(int)"
CLAMP = "void at::vectorized_elementwise_kernel<8, at::<unnamed>::launch_clamp(int)::[lambda() (instance 1)]>(int, T2)"
CLAMP_IN_TRACE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::launch_clamp(int)>(int)"
)


def lines(number: int, name: str, read: str, written: str, cache: str) -> list[str]:
    """A kernel's lines, as ncu writes them."""
    values = ((READ, read), (WRITTEN, written), (CACHE, cache))
    return [f'"{number}","502","{name}","{metric}","byte","{value}"' for metric, value in values]


def log(*kernels: list[str]) -> str:
    """The whole log."""
    return "\n".join([*NOISE, *(line for kernel in kernels for line in kernel), "==PROF== Disconnected"])


TWO = log(lines(1, CLAMP, "200", "1,000", "50"), lines(0, CONV, "268,604,928", "10", "7"))


def test_every_kernel_is_read_in_the_order_in_which_it_ran() -> None:
    """By its number, with thousands separated as ncu does."""
    first, second = launches(TWO)
    assert (first.name, first.moved) == (CONV, 268_604_938)
    assert second.counted == {READ: 200, WRITTEN: 1000, CACHE: 50}


def test_the_sums_are_given_to_the_profiles_kernels() -> None:
    """Although ncu writes templates and namespaces otherwise."""
    found = totals(launches(TWO), [CONV, CLAMP_IN_TRACE], "ncu 1")
    assert (found.read_bytes, found.written_bytes, found.cache_bytes, found.kernels) == (268_605_128, 1010, 57, 2)
    assert found.by_kernel == {CONV: 268_604_938, CLAMP_IN_TRACE: 1200}
    assert found.moved_bytes == sum(found.by_kernel.values())
    assert found.alike == 2


@pytest.mark.parametrize(
    ("profiled", "known"),
    [
        ([CONV, "triton_poi_fused_0"], [CONV]),
        ([CLAMP_IN_TRACE, CONV], []),
        ([WORKSPACE, CONV, CLAMP_IN_TRACE], [CONV, CLAMP_IN_TRACE]),
        ([CONV, CONV], []),
        ([CONV], []),
        ([CONV, CLAMP_IN_TRACE, CONV], []),
        ([], []),
    ],
)
def test_a_kernel_gets_bytes_where_the_profile_has_it_at_the_same_places(profiled: list[str], known: list[str]) -> None:
    """In another order or number nothing is known but the sums; what readies a library's memory takes no place."""
    found = totals(launches(TWO), profiled, "ncu 1")
    assert list(found.by_kernel) == known
    assert (found.kernels, found.moved_bytes) == (2, 268_606_138)


def test_kernels_of_one_function_are_told_apart_by_their_templates() -> None:
    """A library's kernels may differ in nothing else."""
    tiles = [f"void cutlass::Kernel<cutlass_tensorop_f16_{size}_nhwc>(T::Params)" for size in ("64x128", "128x128")]
    found = launches(log(lines(0, tiles[0], "1", "2", "9"), lines(1, tiles[0], "3", "4", "9")))
    assert totals(found, tiles, "ncu 1").by_kernel == {tiles[0]: 3}


def test_what_is_kept_of_the_log() -> None:
    """Kernels and bytes, nothing of the machine."""
    assert table(launches(TWO)).splitlines()[:2] == [f"kernel,{READ},{WRITTEN},{CACHE}", f"{CONV},268604928,10,7"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "ERR_NVGPUCTRPERM"),
        ("\n".join(NOISE), "ncu saw no kernel"),
        (log(lines(0, CONV, "1", "2", "3")[:2]), "ncu gave no bytes for sm90"),
    ],
)
def test_a_log_without_figures_says_why(text: str, words: str) -> None:
    """Ncu's own reason where it gives one."""
    with pytest.raises(CountersError, match=words):
        launches(text)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (CLAMP, "vectorized_elementwise_kernel"),
        (CLAMP_IN_TRACE, "vectorized_elementwise_kernel"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<T, 4>(T*)", "CatArrayBatchedCopy"),
        ("void <unnamed>::CatArrayBatchedCopy<T1, (int)4>(T1 *)", "CatArrayBatchedCopy"),
        ("triton_poi_fused_relu_3", "triton_poi_fused_relu_3"),
        ("void cudnn::pooling_fw_kernel_max_nhwc<__half, float, 0>(int)", "pooling_fw_kernel_max_nhwc"),
    ],
)
def test_a_kernels_function(name: str, function: str) -> None:
    """What both writings have in common."""
    assert plain(name) == function


def test_one_call_of_a_trace(tmp_path: Path) -> None:
    """Its kernels in order, without copies; none where the calls differ."""
    copy = written("gpu_memcpy", "Memcpy DtoD", 35, 5)
    call = [written("kernel", "a", 10, 5), written("kernel", "b", 20, 5), copy]
    later = [event | {"ts": event["ts"] + 100} for event in call]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": later + call}).encode()))
    assert profiled_call(path, 2) == ["a", "b"]
    assert profiled_call(path, 3) == []
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*call, later[1]]}).encode()))
    assert profiled_call(path, 1) == ["a", "b", "b"]
    assert profiled_call(path, 2) == []


def test_the_tools_version() -> None:
    """As `ncu --version` says it."""
    assert version("NVIDIA (R) Nsight Compute\nVersion 2025.3.1.0 (build 1)") == "ncu 2025.3.1.0"
