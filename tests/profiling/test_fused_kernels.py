"""What a compiler put into a kernel, what bytes a call moves, and a stage that isn't what it claims to be."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from pipeline.profiling import observed_execution
from pipeline.profiling.fusion import compiled_layout_changes, direction, kernels_of, traffic
from pipeline.profiling.observed_execution import Seen, complete, contradiction, named_tf32
from pipeline.profiling.operators import Dispatched, counted
from pipeline.profiling.profiler import classify, idle_reason
from pipeline.records.chrome_trace import TraceEvent, nested
from pipeline.records.diagnostics import Fusion
from pipeline.records.run_record import Execution
from pipeline.stages.api import Runner, Workload, no_traffic
from pipeline.stages.common.inductor import generated
from tests.profiling.traced import event


def node(name: str, operator: str, *needed: str) -> str:
    values = ", ".join(f"%{value}" for value in needed)
    call = f"call_function[target=torch.ops.aten.{operator}.default](args = ({values}), kwargs = {{}})"
    return f'#   %{name} : Tensor "f16[8]cuda:0"[num_users=1] = {call}'


def given(name: str) -> str:
    return f'#   %{name} : Tensor "f16[8]cuda:0" = PlaceHolder[target={name}]'


def program(name: str, *comments: str, body: str = "size_hints={'x': 64}") -> str:
    lines, calls = "\n".join(comments), f"    {name}.run(a)\n    {name}.run(b)\n"
    return f"{lines}\n{name} = async_compile.triton('{name}', '''\n{body}\n''', device_str='cuda')\n\n{calls}"


def test_what_a_library_did_before_is_not_the_kernels() -> None:
    text = program(
        "triton_poi_fused_convolution_relu_2", given("buf3"), given("bias_2"),
        node("first", "convolution", "image", "weight_1", "bias_1"), node("relu", "relu", "first"),
        node("second", "convolution", "relu", "weight_2", "bias_2"), node("relu_1", "relu", "second"),
    )  # fmt: skip
    (kernel,) = kernels_of(text, "generated/a.py")
    assert kernel.operators == ["convolution (its bias)", "relu"]
    assert (kernel.direction, kernel.launches_per_call, kernel.turns_layout) == ("vertical", 2, False)


def test_a_template_does_the_convolution_and_a_layout_says_so() -> None:
    layout = (given("cat"), node("convolution", "convolution", "cat", "weight", "bias"))
    (kernel,) = kernels_of(program("triton_poi_1", *layout, body="size_hints={'y': 8, 'x': 64}"), "a.py")
    assert kernel.operators == ["convolution (its input made ready)"]
    assert kernel.turns_layout
    comments = (
        given("buf1"), given("weight"), node("relu", "relu", "before"),
        node("convolution", "convolution", "relu", "weight"), node("relu_1", "relu", "convolution"),
    )  # fmt: skip
    (kernel,) = kernels_of(program("triton_tem_fused_0", *comments), "a.py")
    assert kernel.operators == ["convolution", "relu"]


def test_c_kernels_name_their_operators() -> None:
    name = "cpp_fused_max_pool2d_with_indices_relu_2"
    mentioned = "# Original ATen: [aten.relu, aten.max_pool2d_with_indices]"
    text = f"{mentioned}\n{name} = async_compile.cpp_pybinding(['x'], r'''\n''')\n"
    (kernel,) = kernels_of(text, "a.py")
    assert kernel.operators == ["max_pool2d_with_indices", "relu"]
    assert kernel.direction == "unknown"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"a": []}, "single"),
        ({"a": [], "b": ["a"], "c": ["b"]}, "vertical"),
        ({"a": ["x"], "b": ["x"]}, "horizontal"),
        ({"a": [], "b": ["a"], "c": []}, "both"),
        ({"a": [], "b": [], "c": ["a", "b"]}, "vertical"),
    ],
)
def test_chains_are_told_from_siblings(own: dict[str, list[str]], said: str) -> None:
    assert direction(own) == said


def test_kernels_that_turn_the_layout_are_found_in_the_trace() -> None:
    comments = (given("cat"), node("convolution", "convolution", "cat", "weight"))
    kernels = [
        kernel
        for name in ("triton_poi_1", "triton_poi_2")
        for kernel in kernels_of(program(name, *comments, body="size_hints={'y': 8, 'x': 64}"), "a.py")
    ]
    events = [
        event(category, "triton_poi_1", 10 * at, length)
        for at in range(4)
        for category, length in (("cpu_op", 9), ("kernel", 3))
    ]
    found = compiled_layout_changes(Fusion(2, None, None, "", kernels), events, 2, {})
    assert [change.seconds_per_call for change in found] == [pytest.approx(6e-6), None]
    assert [change.times_per_call for change in found] == [2, 2]
    ran = [event for event in events if event.category == "kernel"]
    spots = {event.index: f"between {index % 2} and b" for index, event in enumerate(ran)}
    first, second, _ = compiled_layout_changes(Fusion(2, None, None, "", kernels), events, 2, spots)
    assert (first.where, second.where) == ("between 0 and b", "between 1 and b")
    assert {first.where_kind, second.where_kind} == {"gap"}
    assert {change.where_kind for change in found} == {"operators"}
    assert [part.seconds_per_call for part in (first, second)] == [pytest.approx(3e-6)] * 2
    assert (first.times_per_call, second.times_per_call) == (1, 1)


def test_bytes_are_counted_at_the_dispatcher_or_unknown_with_a_reason() -> None:
    convolution, image = nn.Conv2d(3, 8, 3, padding=1), torch.randn(2, 3, 16, 16)
    expected = 4 * (image.numel() + 8 * 27 + 8 + 2 * 8 * 256)
    assert counted(convolution, image) == expected
    assert counted(lambda batch: batch.permute(0, 2, 3, 1)[:1], image) == 0
    assert counted(lambda batch: torch.empty_like(batch).copy_(batch), image) == 2 * 4 * image.numel()
    assert counted(torch.relu_, image.clone()) == 2 * 4 * image.numel()
    image, breaks = torch.zeros(1), Mock(side_effect=RuntimeError("no such dispatch\nmore"))
    assert traffic(Runner(torch.relu, "", traffic=no_traffic), image)[0] is None
    moved, source, why = traffic(Runner(breaks, ""), image)
    assert (moved, source) == (None, None)
    assert "no such dispatch" in why


@pytest.mark.parametrize("said", [("a", "b"), (1.5, "operators"), (1,), (1, "me"), "ab"])
def test_bytes_that_a_stage_says_are_a_number_and_who_counted_them(said: Any) -> None:
    moved, source, why = traffic(Runner(torch.relu, "", traffic=lambda _: said), torch.zeros(1))
    assert (moved, source) == (None, None)
    assert why == f"Runner.traffic gave {said!r}; bytes and who counted them are wanted"


def test_innermost_operators_are_those_that_call_no_other() -> None:
    spans = (("conv", 0, 9), ("a", 1, 3), ("b", 5, 3), ("relu", 10, 2))
    operators = [event("cpu_op", name, start, length) for name, start, length in spans]
    assert [operator.event.name for operator in nested(operators) if operator.innermost] == ["a", "b", "relu"]


def test_generated_files_name_no_place_of_this_machine(tmp_path: Path) -> None:
    cache = tmp_path / "inductor"
    cache.mkdir()
    (cache / "program.py").write_text(f"# kernel path: {cache}/a.py\nasync_compile\n# {sys.prefix}/lib")
    (cache / "graph_0.txt").write_text(f"# File: {Path.cwd()}/models/unet.py:91")
    kept = generated(cache, tmp_path)
    texts = [path.read_text() for path in kept]
    assert [path.name for path in kept] == ["program.py", "graph_0.txt"]
    assert texts == ["# kernel path: inductor/a.py\nasync_compile\n# python/lib", "# File: ./models/unet.py:91"]


def test_generated_files_are_kept_without_a_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "graph_0.txt").write_text(f"# {tmp_path}/a.py, {sys.prefix}/lib")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert [path.read_text() for path in generated(tmp_path, tmp_path)] == ["# inductor/a.py, python/lib"]


FOLDER = Path(__file__).resolve().parents[2] / "pipeline" / "kernels"
LAUNCH = re.compile(r"^\s+on_grid\((_?\w+), .*\)\($", re.MULTILINE)
PAST_IT = re.compile(r"^\s+_?\w+\[.*\]\($", re.MULTILINE)  # Triton's own way, which nothing notes
NO_PRODUCTS = {
    "_merged_statistics": "normalisation",
    "_norm_pass": "normalisation",
    "_upsample2x": "pointwise",
    "_excitation": "matmul",
}
SOURCES = [path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")]
LAUNCHED = sorted({name for source in SOURCES for name in LAUNCH.findall(source)})


def test_every_kernel_is_found() -> None:
    assert {"_polyphase_gluon", "_conv3x3_gluon", "conv3x3_rows", "_transposed3x3_few", "_conv1x1"} <= set(LAUNCHED)
    assert not [line for source in SOURCES for line in PAST_IT.findall(source)]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_kernel_of_this_project_has_its_class(name: str) -> None:
    assert classify(name) == NO_PRODUCTS.get(name, "convolution")


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
        ([DRIVER, *[FILL] * 6], ""),
        ([COPY], ""),
    ],
    ids=["nothing", "copies alone", "a few kernels", "tiny layers", "a busy CPU", "an unseen driver"],
)
def test_a_stage_that_leaves_the_gpu_idle_is_told(events: list[TraceEvent], said: str) -> None:
    found = idle_reason(events, 2, 1e-3, 3)
    assert found.startswith(said) if said else not found


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
