"""How many searches for the fastest algorithm a stage made."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.runtime.benchmarking import benchmarker

from pipeline.profiling import observed_execution as counting
from pipeline.profiling.observed_execution import asked, convolution_problems, searches, timed_candidates
from pipeline.records.diagnostics import SearchAsked, SearchCount
from pipeline.records.run_record import CompileFacts
from pipeline.stages.api import Runner

IMAGE = torch.randn(2, 8, 16, 16)


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counters, "inductor", Counter())


def conv(stride: int = 1, groups: int = 1, padding: int = 1, kind: type[nn.Module] = nn.Conv2d) -> nn.Module:
    return kind(8, 8, 3, stride=stride, groups=groups, padding=padding)


def problems(*layers: nn.Module, image: Tensor = IMAGE) -> int:
    return convolution_problems(nn.Sequential(*layers).eval(), image)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (conv(), 1),
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), conv()), 1),
        (conv(stride=2), 2),
        (conv(groups=2), 2),
        (conv(padding=0), 2),
        (nn.Conv2d(8, 8, 3, padding=2, dilation=2), 2),
        (nn.Conv2d(8, 4, 3, padding=1), 2),
        (conv(kind=nn.ConvTranspose2d), 2),
        (nn.Sequential(nn.MaxPool2d(2), conv()), 2),
        (nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last), 2),  # type: ignore[call-overload]
    ],
)
def test_convolutions_that_are_alike_are_one_problem(other: nn.Module, expected: int) -> None:
    assert problems(conv(), other) == expected


def test_what_else_is_a_problem_of_its_own() -> None:
    first, second = conv().eval(), conv().eval().to(torch.bfloat16)
    assert convolution_problems(lambda image: second(first(image).bfloat16()), IMAGE) == 2
    assert problems(nn.Conv1d(8, 8, 3), image=torch.randn(2, 8, 16)) == 1
    assert problems(nn.Conv3d(8, 8, 3), image=torch.randn(2, 8, 4, 8, 8)) == 1
    assert problems(nn.Linear(16, 16), nn.ReLU()) == 0


def test_a_compiled_net_is_counted_and_not_compiled_again() -> None:
    net = nn.Sequential(conv(), nn.ReLU(), conv(stride=2)).eval()
    compiled = torch.compile(net, backend="eager")
    with torch.inference_mode():
        compiled(IMAGE)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    assert convolution_problems(compiled, IMAGE) == 2
    with torch.inference_mode():
        compiled(IMAGE)
    assert counters["stats"]["unique_graphs"] == graphs


def test_inductors_timings_are_counted_under_the_names_of_this_torch_alone() -> None:
    benchmarker.benchmark(lambda: None, (), {}, device="cpu", warmup=0, rep=1)
    assert timed_candidates(counters["inductor"]) == 1
    known = {"benchmarking.InductorBenchmarker.benchmark_gpu": 7, "benchmarking.InductorBenchmarker.benchmark": 7}
    assert timed_candidates(known) == 7
    assert timed_candidates({"extern_calls": 3, "timed.benchmark_gpu": 9, "benchmarking.New.bench": 2}) == 0
    assert timed_candidates({}) == 0


def test_all_who_searched_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = {"select_algorithm_autotune": 3, "benchmarking.InductorBenchmarker.benchmark_gpu": 1204}
    monkeypatch.setitem(counters, "inductor", Counter(timed))
    runner = Runner(conv().eval(), "", compile_facts=lambda: CompileFacts(candidates_measured=12))
    found = [
        SearchCount("Inductor's templates", "problems", 3),
        SearchCount("Inductor", "candidates", 1204),
        SearchCount("own kernels", "candidates", 12),
    ]
    assert searches(runner, IMAGE) == found
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert searches(runner, IMAGE) == found
    assert searches(runner, OnGpu(IMAGE)) == [SearchCount("cuDNN", "problems", 1), *found]
    net = nn.Sequential(conv(), conv(stride=2)).eval()  # seen in place of the graph that is replayed
    assert searches(Runner(torch.relu, "", uncaptured=net), OnGpu(IMAGE)) == [
        SearchCount("cuDNN", "problems", 2),
        *found[:2],
    ]
    own = SearchCount("cuDNN for ONNX Runtime", "nodes", 25, "exhaustive")
    assert own in searches(Runner(torch.relu, "", searched=(own,)), IMAGE)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    assert searches(runner, OnGpu(IMAGE)) == found


def test_a_process_without_a_compiler_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "DYNAMO", str(Path("no", "such", "module")))
    assert searches(Runner(conv().eval(), ""), IMAGE) == []
    assert problems(conv()) == 1


class OnGpu(Tensor):
    @staticmethod
    def __new__(cls: type["OnGpu"], data: Tensor) -> "OnGpu":  # noqa: PYI034 - torch makes the subclass
        return Tensor._make_subclass(cls, data)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def test_who_is_asked_is_the_stages_word_and_torchs_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(torch.relu, "", searches_asked=(SearchAsked("Inductor"),))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert asked(runner, "cuda") == [SearchAsked("cuDNN"), SearchAsked("Inductor")]
    assert asked(runner, "cpu") == [SearchAsked("Inductor")]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    assert asked(runner, "cuda") == [SearchAsked("Inductor")]
