"""What a profile, the dispatcher and Dynamo's metrics show of a stage that isn't what it claims to be."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pipeline.profiling import observed_execution
from pipeline.profiling.observed_execution import Seen, complete, contradiction, named_tf32
from pipeline.profiling.operators import Dispatched
from pipeline.profiling.profiler import idle_reason
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.run_record import Execution
from pipeline.stages.api import Runner, Workload
from tests.profiling.traced import event

DRIVER = event("cuda_runtime", "cudaDeviceSynchronize", 0.0, 5.0)
COPY = event("gpu_memcpy", "Memcpy DtoH", 0.0, 900.0)


FILL = event("kernel", "fill", 0.0, 10.0)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([DRIVER], "did no work on the GPU"),
        ([DRIVER, COPY], "did no work on the GPU"),
        ([DRIVER, COPY, FILL], "did no work on the GPU: its kernels ran for 5 µs of the 1e+03 µs that a call takes"),
        ([DRIVER, event("kernel", "convolution", 0.0, 100.0)], ""),
        ([COPY], ""),
    ],
    ids=["nothing", "copies alone", "a fiftieth of a call's kernels", "a net of tiny layers", "an unseen driver"],
)
def test_a_stage_that_leaves_the_gpu_idle_is_told(events: list[TraceEvent], said: str) -> None:
    found = idle_reason(events, 2, 1e-3)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def dynamo(*entries: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(get_compilation_metrics=lambda: list(entries))


def entry(failed: str | None = None, why: str | None = None, cause: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(fail_type=failed, fail_reason=why, recompile_reason=cause)


LIMIT = entry("Unsupported", "Dynamo recompile limit exceeded\n  Explanation: …", "0/7: n == 7   # n += 1  # at a.py:6")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], ""),
        ([entry(), entry("Unsupported", "a graph break")], ""),
        ([entry(), LIMIT], "fell back to eager: Dynamo reached its recompile limit (0/7: n == 7)"),
        (
            [entry("Unsupported", "recompile limit exceeded", f"0/7: skipped in file {torch.__file__}")],
            "fell back to eager: Dynamo reached its recompile limit (0/7: skipped in file torch/__init__.py)",
        ),
        ([entry("BackendCompilerFailed", "no")] * 2, "fell back to eager: Dynamo compiled none of 2 frames"),
    ],
)
def test_compilers_give_up(entries: list[SimpleNamespace], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, observed_execution.DYNAMO, dynamo(*entries))
    found = observed_execution.gave_up()
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_without_a_compiler_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, observed_execution.DYNAMO, raising=False)
    assert observed_execution.gave_up() == ""


@pytest.mark.parametrize(
    ("declared", "flops", "said"),
    [
        ("fp32", {"fp32": 60, "tf32": 40}, "it declares fp32, and 40 % of its FLOPs ran in tf32"),
        ("fp32", {"fp32": 97, "tf32": 3}, ""),
        ("fp16", {"fp16": 60, "fp32": 40}, ""),
        ("fp16", {"fp16": 60, "fp8": 40}, "it declares fp16, and 40 % of its FLOPs ran in fp8"),
        ("fp16", {"fp32": 100}, "it declares fp16, and 100 % of its FLOPs ran in fp32"),
    ],
)
def test_a_coarser_part_contradicts_a_declaration(declared: str, flops: dict[str, int], said: str) -> None:
    seen = Seen()
    seen.by_precision.update(flops)  # type: ignore[arg-type]
    assert contradiction(Execution(declared), seen, 1.0) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("aside", "said"), [(True, ""), (False, "it declares bf16, and 100 % of its FLOPs ran in fp32")]
)
def test_the_net_that_torch_runs_in_its_place_says_nothing_of_a_runtime(aside: bool, said: str, tmp_path: Path) -> None:
    net = torch.nn.Conv2d(3, 4, 3).eval()
    work = Workload(net, [torch.rand(1, 3, 8, 8)], torch.device("cpu"), tmp_path)
    runner = Runner(net, "", Execution("bf16", provider="its own"), steps_aside=aside)
    assert complete(runner, work, [])[1] == said


@pytest.mark.parametrize(("declared", "named"), [("fp32", True), ("tf32", False), (None, False)])
def test_kernels_named_for_tf32_contradict_fp32(declared: str | None, named: bool) -> None:
    kernels = [
        event("kernel", "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32", 0.0, 90.0),
        event("kernel", "elementwise", 90.0, 10.0),
    ]
    said = named_tf32(Execution(declared), kernels)  # type: ignore[arg-type]
    assert said == ("it declares fp32, and 90 % of its kernels' time is in kernels for TF32" if named else "")
    assert named_tf32(Execution("fp32"), kernels[1:]) == ""


NETS = {4: nn.Conv2d(4, 4, 3), 5: nn.Conv3d(4, 4, 3)}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("axes", [4, 5])
def test_the_layout_that_a_convolution_reads_is_seen(axes: int) -> None:
    batch = torch.zeros(1, 4, *[4] * (axes - 2))
    for layout, given in (("NCHW", batch), ("NHWC", batch.to(memory_format=CHANNELS_LAST[axes]))):
        seen = Seen()
        with torch.inference_mode(), Dispatched(seen.see):
            NETS[axes](given)
        assert seen.layout == layout
