"""Fixed inputs; the stage of docs/usage.md, which declares nothing; how near a candidate must be to the net."""

import copy
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.unet import UNet
from pipeline.analysis import recommendations as rules
from pipeline.analysis.roofline import reached_peaks, roofline_of
from pipeline.analysis.summary import summarize
from pipeline.compiler.agreement import AGREES, WrongAnswerError, check_agreement
from pipeline.compiler.batch import Batch
from pipeline.compiler.cuda_graphs import Captured
from pipeline.compiler.input_forms import for_these_alone, form_of
from pipeline.compiler.network_calls import allow_tf32
from pipeline.profiling.observed_execution import complete, tf32_allowed
from pipeline.records.diagnostics import Diagnostics, TimeSplit
from pipeline.records.run_record import Execution, RunRecord
from pipeline.stages import Runner, Workload
from pipeline.stages.common import onnx_models
from tests.compiler.nets_that_passes_leave import Made
from tests.made_up_request import changed
from tests.process_state import own_switches
from tests.profiling.traced import event
from tests.report import made_up_run as made_up

OTHERS = {
    "one image": (torch.ones(1, 3, 4, 5), r"input 0 is \[1, 3, 4, 5\] float32 on cpu, and this network was built for "),
    "another type": (torch.ones(8, 3, 4, 5).double(), r"\[8, 3, 4, 5\] float64 on cpu, and .* \[8, 3, 4, 5\] float32 "),
    "elsewhere": (torch.ones(8, 3, 4, 5, device="meta"), r"float32 on meta, and this network was built for .* on cpu$"),
}


class Replayed:
    """What runs on fixed inputs, as a CUDA graph and a session with bound memory do; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def replay(self) -> None:
        self.calls += 1


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """In the place of CUDA graphs, where no GPU is."""
    graph, stream = Replayed(), SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    for name in ("graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _, **__: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    return graph


def calls_of(replayed: Replayed) -> dict[str, tuple[Callable[..., Tensor], Batch]]:
    batch = Batch((torch.zeros(8, 3, 4, 5), torch.zeros(8)), ("image", "step"))
    captured = Captured(lambda image, step: image + step[:, None, None, None], *batch)
    fixed, stream = batch.clone(), torch.cuda.Stream()
    buffers = (fixed, torch.empty(8, 2, 4, 5), replayed.replay)
    return {
        "CUDA graph": (captured, Batch(captured.fixed, batch.names)),
        "ONNX Runtime": (onnx_models.bound_call(*buffers), fixed),
        "ONNX Runtime on a GPU": (onnx_models.bound_call(*buffers, stream), fixed),
    }


@pytest.mark.parametrize("name", ["CUDA graph", "ONNX Runtime", "ONNX Runtime on a GPU"])
def test_fixed_inputs_take_one_form(name: str, replayed: Replayed) -> None:
    call, fixed = calls_of(replayed)[name]
    for image, said in OTHERS.values():
        with pytest.raises(ValueError, match=said):
            call(image, torch.ones(8))
    with pytest.raises(
        ValueError, match=r"input 1 is \[1\] float32 on cpu, and this network was built for \[8\] float32 "
    ):
        call(torch.ones(8, 3, 4, 5), torch.ones(1))
    with pytest.raises(ValueError, match="1 inputs, and this network was built for 2"):
        call(torch.ones(8, 3, 4, 5))
    assert replayed.calls == 0
    assert not any(bool(part.any()) for part in fixed)
    call(torch.ones(8, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(8))  # type: ignore[call-overload, unused-ignore]
    assert replayed.calls == 1
    assert all(bool(part.all()) for part in fixed)


def test_a_package_is_given_what_it_was_built_for_in_the_order_in_which_it_reads_it() -> None:
    given: list[tuple[Any, ...]] = []

    def package(*inputs: Tensor) -> Tensor:
        given.append(tuple(part.is_contiguous() for part in inputs))
        return inputs[0]

    call = for_these_alone(package, [form_of(torch.zeros(8, 3, 4, 5))])
    for image, said in OTHERS.values():
        with pytest.raises(ValueError, match=said):
            call(image)
    image = torch.rand(8, 3, 4, 5)
    assert torch.equal(call(image.to(memory_format=torch.channels_last)), image)  # type: ignore[call-overload, unused-ignore]
    assert given == [(True,)]


MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "neither": nullcontext}


@pytest.mark.parametrize("called_in", MODES)
@pytest.mark.parametrize("captured_in", MODES)
def test_a_captured_network_runs_in_every_mode(captured_in: str, called_in: str, replayed: Replayed) -> None:
    net = nn.Conv2d(3, 2, 1)
    with MODES[captured_in]():
        captured = Captured(net, torch.zeros(2, 3, 4, 5))
    answer = captured.logits

    def replay() -> None:
        with torch.inference_mode():
            answer.copy_(net(captured.fixed[0]))

    replayed.replay = replay  # type: ignore[method-assign]
    for image in (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5, requires_grad=True)):
        with MODES[called_in]():
            logits = captured(image)
            torch.testing.assert_close(logits, net(image))
            logits.mul_(2)
        assert not logits.requires_grad
        assert not captured.fixed[0].requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_on_a_gpu_answers_for_images_wherever_they_lie(compiled: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)).cuda().eval()
    run: Callable[..., Tensor] = torch.compile(net) if compiled else net
    images = [torch.randn(2, 3, 128, 160, device="cuda") for _ in range(3)]
    with torch.inference_mode():
        run(images[0])
        captured = Captured(run, images[0])
        wanted = [run(image).clone() for image in images]
        beside = torch.empty(images[2].numel() + 1, device="cuda")[1:].view_as(images[2]).copy_(images[2])
    turned = images[2].to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    given, right = [*images, beside, turned, images[1]], [*wanted, wanted[2], wanted[2], wanted[1]]
    for mode in MODES.values():
        chosen: AbstractContextManager[object] = mode()
        with chosen:
            for image, answer in zip(given, right, strict=True):
                assert torch.equal(captured(image), answer)
    captured.graph.replay()
    torch.testing.assert_close(captured.logits, wanted[1], rtol=0, atol=0)


def memory_held(captured: Captured) -> int:
    pool = captured.graph.pool()
    segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == tuple(pool))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch records an empty one for its memory pool
@pytest.mark.gpu
@torch.inference_mode()
def test_a_graph_on_a_gpu_outlives_other_graphs_and_recordings() -> None:
    """cuBLAS needs its workspace for few rows of long sums; torch.compile frees all workspaces when it records."""
    net = nn.Linear(5120, 1280, device="cuda", dtype=torch.float16)
    x = torch.randn(128, 5120, device="cuda", dtype=torch.float16)
    recorded = torch.compile(net, mode="reduce-overhead")
    for _ in range(2):
        recorded(x)
    torch._dynamo.reset()
    first, second = Captured(net, x), Captured(net, x)
    # If one graph held the workspace of both, replays of the other would end in a fault.
    assert memory_held(first) == memory_held(second) > 2**22
    answer = second(x).clone()
    del first
    for _ in range(2):
        recorded(x)
    torch.cuda.empty_cache()
    for _ in range(10):
        again = second(x)
    assert torch.equal(again, answer)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "usage.md"
CALLED = [event("user_annotation", "call", 0, 10)]
REPLAYED = [event("cuda_runtime", "cudaGraphLaunch", 0, 2)]


class Mine(nn.Module):
    """A user's net that can be made faster as the page's stage asks."""

    def __init__(self, net: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net, self.dtype = net.to(dtype), dtype

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image.to(self.dtype))

    def to_something_faster(self, gain: float) -> "Mine":
        return Mine(copy.deepcopy(self.net), torch.bfloat16)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    torch.manual_seed(0)
    net = Mine(UNet(base=8, depth=2).eval()).eval()
    return Workload(net, [torch.randn(2, 3, 32, 32)], torch.device("cpu"), tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def shown(work: Workload) -> Runner:
    """What the page's own code builds."""
    (code,) = re.findall(r"```python\n((?:(?!```).)*?def build.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    room: dict[str, Any] = {}
    exec("\n".join(line.removeprefix("   ") for line in code.splitlines()), room)  # it is the repository's own
    room["to_something_faster"] = Mine.to_something_faster
    return room["build"](work)


def test_it_is_observed(shown: Runner, work: Workload) -> None:
    assert shown.execution is None
    found, contradicted = complete(shown, work, CALLED)
    assert (found.precision, found.layout, found.captured, found.own_kernels) == ("bf16", "NCHW", False, 0)
    assert (found.provider, found.fuses) == (None, None)
    assert found.unknown
    assert contradicted == ""
    assert complete(shown, work, REPLAYED)[0].captured is True
    assert complete(shown, work, [])[0].captured is None


def run_of(execution: Execution, **fields: Any) -> RunRecord:
    """A run in which a stage that is called like none of the project's wins."""
    stages = made_up.run().stages
    return made_up.run(stages=[stages[0], changed(stages[4], name="mine", execution=execution, **fields)])


def test_it_has_a_roofline_and_a_bottleneck(shown: Runner, work: Workload) -> None:
    run = run_of(complete(shown, work, CALLED)[0])
    stage = next(stage for stage in summarize(run).stages if stage.name == "mine")
    bounds = roofline_of(run, stage.stage, reached_peaks(run))
    assert bounds.precision == "bf16"
    assert stage.bottleneck.kind != "unknown"


@pytest.mark.parametrize(("events", "recommended"), [(CALLED, True), (REPLAYED, False), ([], False)])
def test_a_graph_is_advised_where_none_is(shown: Runner, work: Workload, events: list[Any], recommended: bool) -> None:
    waits = Diagnostics(split=TimeSplit(1.2e-2, 4e-3, 3e-4, 9e-4, 4e-4, 0.0))
    idle = run_of(complete(shown, work, events)[0], profile=made_up.profile(0.004), diagnostics=waits)
    found = summarize(idle)
    assert found.winner is not None
    assert found.winner.name == "mine"
    assert (rules.capture_a_graph(found, found.winner) is not None) is recommended


@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_told_from_fp32(allowed: bool) -> None:
    with own_switches():
        allow_tf32(allowed)
        assert tf32_allowed(for_convolutions=True) is allowed
        assert tf32_allowed(for_convolutions=False) is allowed


def test_layers_of_another_precision_are_named(work: Workload) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1)).eval()
    mixed = copy.deepcopy(net[0]), copy.deepcopy(net[1:]).bfloat16()
    stage = Made(lambda image, first, rest: rest(first(image).bfloat16()), *mixed).eval()
    found, _ = complete(Runner(stage, "", module=stage), replace(work, model=net), CALLED)
    assert (found.precision, found.layer_precision) == ("bf16", {"layers.0": "fp32"})


def test_a_stage_that_hides_its_work_says_how_little_was_seen(work: Workload) -> None:
    found, contradicted = complete(Runner(lambda image: image, "hidden"), work, CALLED)
    assert found.precision is None
    assert found.unknown == "only 0 % of the network's FLOPs pass torch's dispatcher"
    assert contradicted == ""


EXACT = torch.linspace(-1.0, 1.0, 4096).reshape(1, 1, 64, 64)


def off(share: float, seed: int) -> Tensor:
    """The exact answer with noise of that share of its norm."""
    noise: Tensor = torch.randn(EXACT.shape, generator=torch.Generator().manual_seed(seed))
    return EXACT + noise * (share * float(EXACT.norm()) / float(noise.norm()))


def never() -> Tensor:
    """For who needn't ask."""
    raise AssertionError("fp32 was computed for nothing")


def test_near_answers_need_no_third() -> None:
    check_agreement(off(0.01, 1), off(0.01, 2), never, "fp16", "Inductor")
    check_agreement(off(0.4, 1), EXACT, never, "fp8", "Inductor")


def test_in_a_net_that_multiplies_roundings_fp32_decides() -> None:
    check_agreement(off(0.3, 1), off(0.3, 2), lambda: EXACT, "fp16", "Inductor")
    told = r"^its logits are 0\.6\d* off .* by Inductor .*, and 0\.6 off those in fp32, from which Inductor's are 0\.3$"
    with pytest.raises(WrongAnswerError, match=told):
        check_agreement(off(0.6, 1), off(0.3, 2), lambda: EXACT, "fp16", "Inductor")


@pytest.mark.parametrize("precision", AGREES)
def test_what_computes_another_net_is_refused(precision: str | None) -> None:
    with pytest.raises(WrongAnswerError, match=r"and 1 off those in fp32"):
        check_agreement(2 * EXACT, off(1e-3, 1), lambda: EXACT, precision, "torch")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    spoilt = EXACT.clone()
    spoilt[0, 0, 0, 0] = value
    with pytest.raises(WrongAnswerError, match=r"^its logits are inf off those of the network by torch \(relative"):
        check_agreement(spoilt, EXACT, never, "fp16", "torch")


@pytest.mark.parametrize("answer", [0 * EXACT, -EXACT, 1000 * EXACT])
def test_nothing_is_near_where_the_plain_net_is_as_far_off_as_zeros(answer: Tensor) -> None:
    with pytest.raises(WrongAnswerError):
        check_agreement(answer, off(1.0, 1), lambda: EXACT, "fp16", "torch")
    plain, spoilt = EXACT.clone(), answer.clone()
    plain[0, 0, 0, 0] = spoilt[0, 0, 0, 0] = math.inf
    with pytest.raises(WrongAnswerError):
        check_agreement(spoilt, plain, lambda: EXACT, "fp16", "torch")
