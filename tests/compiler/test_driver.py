"""The driver: the fastest right candidate or form runs, is named and saved; a second build makes it alone."""

import re
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler import agreement, candidate, driver, fp8_build
from pipeline.compiler.agreement import Budget, distance
from pipeline.compiler.artifact import load, save
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.candidate import SEARCHED, Properties
from pipeline.compiler.custom_ops import REFERENCE
from pipeline.compiler.driver import AS_IMAGES, by_inductor_alone
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.fp8_build import Fp8
from pipeline.compiler.graph.exported_net import without_checks
from pipeline.compiler.network_calls import exported_program
from pipeline.compiler.passes.volumes_as_images import signals_as_images
from pipeline.compiler.tuning.autotune import NothingRunsError
from pipeline.kernels.common import capability
from tests.compiler import made_up_gpu
from tests.compiler.made_up_gpu import exported_once, no_gpu
from tests.compiler.nets import lively
from tests.compiler.nets_that_passes_leave import Made
from tests.input_nets import SEVERAL, of_masked

__all__ = ["exported_once", "no_gpu"]  # fixtures
FIRST, SECOND = made_up_gpu.images()
BARRED = "compute capability 7.5 has no asynchronous copies to shared memory: they came with 8.0"
INDUCTOR: Final = "Inductor"
OURS = "own kernels"
CHOSEN = "the fastest of what was tried"
NONE_SUITS = "no layer of the network suits the project's kernels"


def whole(net: nn.Module, folder: Path, given: str = "", **named: Any) -> driver.Built:
    made = made_up_gpu.rewritten(net, folder, **named)
    return driver.fastest_or_known(made, driver.without_fp8(made), given)


def failing(text: str) -> Mock:
    return Mock(side_effect=RuntimeError(text))


@pytest.mark.parametrize(
    ("barred", "said"),
    [
        (None, ""),
        ("too new", "; kernels are barred: too new; by the library as the kernel failed: 1, such as head (no fit)"),
    ],
)
def test_records_say_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, barred: str | None, said: str) -> None:
    monkeypatch.setattr(driver, "reaching_views_barred", lambda: barred)
    made_up_gpu.times(monkeypatch, 1.0, 2.0)
    progress: list[str] = []
    net = made_up_gpu.small_unet()
    made = made_up_gpu.rewritten(net, tmp_path, progress=progress.append)
    own = made.candidate(lambda _: {}, "fp16")
    own.plan = replace(own.plan, failed={"head": "no fit"} if barred else {})
    built = driver.fastest(made, [own, made.by(INDUCTOR)])
    assert built.description == f"fp16, 6 layers by own kernels, the rest by Inductor, one CUDA graph{said}"
    assert built.details["kernels_failed"] == own.plan.failed
    assert built.properties == Properties(
        "fp16", provider="own kernels", own_kernels=6, layer_flops=driver.composed_flops(made.net)
    )
    assert built.candidates_measured == 5
    assert built.details["kernels_barred"] == (barred or "")
    assert built.details["candidates_ms"] == {OURS: 1.0, INDUCTOR: 2.0}
    assert built.details["passes"]["fold_head"] == ["decoder.0.3"]
    assert list(built.details["choices"].values()) == [REFERENCE] * 6
    assert built.moved_bytes == made_up_gpu.MOVED
    layers = "6 layers by own kernels, the rest by Inductor"
    assert progress == ["exporting the network", layers, "all of it by Inductor"]
    with torch.no_grad():
        assert torch.allclose(built.run(SECOND), net(SECOND), atol=1e-2)


def test_where_inductor_alone_is_faster_it_runs_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graph has none of the project's operations, whatever the kernels' passes did to the network afterwards."""
    made_up_gpu.times(monkeypatch, 2.0, 1.0)
    net = made_up_gpu.small_unet()
    made = made_up_gpu.rewritten(net, tmp_path, "never")
    built = driver.fastest(made, [made.candidate(lambda _: {}, "fp16"), made.by(INDUCTOR)])
    assert built.description == "fp16, all by Inductor, one CUDA graph"
    assert built.properties == Properties("fp16")
    assert built.details["choices"] == {}
    assert built.lowered is None
    assert built.run is made.by(INDUCTOR).captured
    module = made.by(INDUCTOR).call
    targets = " ".join(str(node.target) for node in module.graph.nodes)
    assert not re.search("unet_ladder|kernel_layer|batch_norm", targets)
    with torch.no_grad():
        assert torch.allclose(built.run(SECOND), net(SECOND), atol=1e-2)


def test_a_candidate_that_fails_or_errs_is_refused_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up_gpu.rewritten(made_up_gpu.small_unet(), tmp_path, "never")
    assert made.by(INDUCTOR) is not None  # built before the compiler fails
    none_ran = NothingRunsError("conv3x3: none of 9 candidates ran\nand more")
    monkeypatch.setattr(driver, "choose", Mock(side_effect=none_ran))
    assert made.candidate(lambda _: {}, "fp16") is None
    monkeypatch.setattr(driver, "choose", made_up_gpu.all_by_references)
    monkeypatch.setattr(
        candidate, "compile_counting_bytes", lambda net, *_, mode: (lambda x: 2 * net(x), made_up_gpu.MOVED)
    )
    assert made.candidate(lambda _: {}, "fp8") is None
    built = driver.fastest(made, [None, made.by(INDUCTOR)])
    failed = "NothingRunsError: conv3x3: none of 9 candidates ran"
    assert built.details["refused"].keys() == {"fp16", "fp8"}
    assert built.details["refused"]["fp16"] == failed
    wrong = built.details["refused"]["fp8"]
    told = r"its logits are 1 off those of the network by Inductor \(relative L2\), and 1 off those in fp32, .*"
    assert re.fullmatch(f"WrongAnswerError: {told}", wrong)
    assert built.description == (
        f"fp16, all by Inductor, one CUDA graph; fp16 was refused: {failed}; fp8 was refused: {wrong}"
    )


def test_kernels_may_answer_where_torch_s_operations_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide, head = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 2, 1)  # in one kernel
    wide.weight.data *= 4e5
    head.weight.data *= 1e-3
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), wide, nn.ReLU(), head)
    made_up_gpu.times(monkeypatch, 1.0, 2.0)
    built = whole(net, tmp_path)
    assert "infinite or no numbers, and finite in fp32" in built.details["refused"]["Inductor"]
    assert torch.allclose(built.run(FIRST), net(FIRST), atol=0.5)


def test_where_no_candidate_can_be_built_the_half_net_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "compile_counting_bytes", failing("no compiler here"))
    made = driver.Rewritten(made_up_gpu.request(made_up_gpu.small_unet(), tmp_path), "no TMA")
    assert made.by(INDUCTOR) is None
    built = driver.fastest(made, [made.by(INDUCTOR)])
    assert built.description == "fp16 half network in one CUDA graph: RuntimeError: no compiler here"


class Deciding(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] if float(inputs[-1].sum()) > 0 else -inputs[0]


def test_a_net_with_graph_breaks_runs_as_compile_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncaptured, as a graph would hold one branch; its answer may be changed in place."""
    monkeypatch.setattr(candidate, "compile_counting_bytes", failing("graph break"))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    built = driver.by_inductor_alone(made_up_gpu.request(Deciding(), tmp_path, "never"), "torch can't export it")
    why = "torch can't export it; as one graph by Inductor: RuntimeError: graph break"
    assert built.description == f"fp16, by Inductor, with graph breaks: {why}"
    assert built.details == {"not_rewritten": why}
    assert (built.properties.provider, built.properties.captured) == (INDUCTOR, False)
    assert torch.equal(built.run(-FIRST).mul_(1), built.run(FIRST))


def test_where_nothing_compiles_or_captures_the_half_net_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "compile_counting_bytes", failing("graph break"))
    monkeypatch.setattr(torch, "compile", lambda _: failing("no compiler"))
    asked = made_up_gpu.request(Deciding(), tmp_path, "never")
    built = driver.by_inductor_alone(asked, "no export")
    why = "no export; as one graph by Inductor: RuntimeError: graph break; in pieces: RuntimeError: no compiler"
    assert built.description == f"fp16 half network in one CUDA graph: {why}"
    monkeypatch.setattr(driver, "Captured", failing("not while capturing"))
    built = driver.by_inductor_alone(asked, "no export")
    assert built.description == f"fp16 half network uncaptured: {why}; captured: RuntimeError: not while capturing"
    assert not built.properties.captured
    assert built.run(FIRST).dtype == torch.float16


@pytest.mark.parametrize("failure", ["export", "rewrite"])
def test_what_is_not_rewritten_is_inductor_s(failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = SEVERAL["masked"]
    asked = made_up_gpu.request(lively(make()), tmp_path, "never", inputs=inputs())
    if failure == "export":
        row = Batch((torch.rand(2, 3, 8, 8), torch.tensor([1, 2])), ("batch", "sign"))
        asked = made_up_gpu.request(Deciding(), tmp_path, "never", inputs=row)
    else:
        monkeypatch.setattr(driver, "rewrite", failing("no such node"))
    built = driver.best_form(asked, lambda: None, lambda net: driver.fastest_or_known(net, driver.without_fp8(net)))
    whys = {"export": "torch.export can't take the network", "rewrite": "a rewrite failed: RuntimeError: no such node"}
    assert built.details["not_rewritten"].startswith(whys[failure])
    with torch.no_grad():
        assert torch.allclose(built.run(*asked.inputs).float(), asked.network(*asked.inputs), atol=2e-2)


def test_the_first_input_says_whether_kernels_may_take_a_net(tmp_path: Path) -> None:
    rows = of_masked()
    numbers = Batch((rows.tensors[1], rows.tensors[0]), ("kind", "image"))
    asked = made_up_gpu.request(Made(lambda _, image: image), tmp_path, "never", inputs=numbers)
    built = driver.best_form(asked, lambda: None, failing("rewritten"))
    why = "the project's kernels are for images and volumes, and this network's input has 1 axes"
    assert built.details["not_rewritten"] == why


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_nets_of_several_inputs_are_saved_and_known(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.times(monkeypatch, 2.0, 1.0)
    make, inputs = SEVERAL[name]
    net, given, other = lively(make()), inputs(), inputs()
    built = whole(net, tmp_path, search="never", inputs=given).owned_up("fp16")
    assert (built.properties.provider, built.properties.instead) == (OURS, "")
    assert built.details["refused"] == {}
    assert torch.allclose(built.run(*other), net(*other), atol=2e-2)
    assert built.lowered is not None
    written = save(built.lowered, given, tmp_path / "artefact")
    assert {path.name for path in written} == {"net.pt2", "about.json"}
    assert torch.equal(load(written[0].parent)(*other), built.run(*other))
    made_up_gpu.times(monkeypatch)
    assert whole(net, tmp_path, search="never", inputs=given).details["known"]


@pytest.mark.usefixtures("exported_once")
def test_a_second_build_makes_the_winner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.times(monkeypatch, 2.0, 1.0)
    said: list[str] = []
    first = whole(made_up_gpu.small_unet(), tmp_path, progress=said.append).details
    assert first["candidates_ms"] == {INDUCTOR: 2.0, OURS: 1.0}
    assert "all of it by Inductor" in said
    made_up_gpu.times(monkeypatch)
    said.clear()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(driver, "choose", failing("chosen again"))
        again = whole(made_up_gpu.small_unet(), tmp_path, progress=said.append)
    assert again.details == {**first, "known": True}
    assert "all of it by Inductor" not in said
    file = next(tmp_path.glob("*.json"))
    file.write_text(file.read_text().replace('"tiles"', '"torn"'))
    assert whole(made_up_gpu.small_unet(), tmp_path).details == again.details
    made_up_gpu.times(monkeypatch, 2.0, 1.0)
    assert "known" not in whole(made_up_gpu.small_unet(), tmp_path, "something else").details
    made_up_gpu.times(monkeypatch)
    distances = cycle([0.9, 0.9, 0.01])  # from the plain net, from fp32, and the plain net's own
    monkeypatch.setattr(agreement, "distance", lambda *_: next(distances))
    details = whole(made_up_gpu.small_unet(), tmp_path).details
    assert "known" not in details
    assert "0.9 off those of the network by Inductor" in str(details["refused"])


@pytest.mark.usefixtures("exported_once")
@pytest.mark.parametrize(
    ("passes", "summed", "node", "given", "candidates", "kept"),
    [
        ({}, ["a"], 1.0, (2.0, 1.0), [INDUCTOR, OURS], None),
        ({"norm": 1}, [], 1.0, (2.0, 1.0), [INDUCTOR, OURS], None),
        ({"norm": 1}, ["a"], 0.1, (3.0, 2.0, 1.0), [INDUCTOR, "own kernels and norms", OURS], None),
        ({"norm": 1}, ["a"], 0.1, (3.0, 1.0, 2.0), [INDUCTOR, "own kernels and norms", OURS], {"norm": 1}),
        ({"norm": 1}, ["a"], 9.0, (3.0, 1.0), [INDUCTOR, "own kernels and norms"], {"norm": 1}),  # both take too long
    ],
)  # fmt: skip
def test_norms_by_own_kernels_are_a_candidate_of_their_own(
    passes: dict[str, int], summed: list[str], node: float, given: tuple[float, ...], candidates: list[str], kept: Any,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made_up_gpu.times(monkeypatch, *given)
    monkeypatch.setattr(driver, "A_NODE", node)
    monkeypatch.setattr(driver, "put_own_norms", lambda *_: passes)
    made = made_up_gpu.rewritten(made_up_gpu.small_unet(), tmp_path)
    made.net.matched["sum_where_made"] = summed
    details = driver.fastest_or_known(made, driver.without_fp8(made)).details
    assert list(details["candidates_ms"]) == candidates
    assert details.get("norms") == kept


@pytest.mark.parametrize(
    ("library_ms", "search", "given", "candidates"),
    [
        (2.0, "auto", (1.8,), [OURS]), (2.0, "never", (1.8,), [OURS]),
        (2.0, "auto", (2.1, 1.81), [INDUCTOR, OURS]), (0.0, "auto", (2.1, 1.8), [INDUCTOR, OURS]),
        (2.0, "always", (2.1, 1.8, 2.0), [INDUCTOR, OURS, SEARCHED]),
    ],
)  # fmt: skip
def test_inductor_alone_is_built_where_it_may_be_faster(
    library_ms: float, search: Any, given: tuple[float, ...], candidates: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Not where own kernels take nine tenths of what its convolutions take; a second build asks no more."""
    rounds, choose = [(took,) for took in given], made_up_gpu.all_by_references
    monkeypatch.setattr(driver, "full_load_ms", lambda graphs: rounds[: len(graphs)] if graphs[1:] else rounds[:2][-1:])
    monkeypatch.setattr(driver, "choose", lambda *asked: replace(choose(*asked), library_ms=library_ms))
    for again in (False, True):
        details = whole(made_up_gpu.small_unet(), tmp_path, search=search).details
        assert list(details["candidates_ms"]) == candidates
        assert details.get("known", False) is again
    assert ("library_ms" in details) is (len(candidates) == 1 and not again)


@pytest.fixture
def turing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU as a T4 is; nothing may be compiled for a kernel, nor a layer's tiles be chosen."""
    monkeypatch.setattr(driver, "barred_on", lambda _, dtype: capability.supported((7, 5), dtype))
    for name in ("programs_of", "choose"):
        monkeypatch.setattr(driver, name, failing("a kernel"))


@pytest.mark.usefixtures("turing")
def test_without_kernels_inductor_runs_it_all(tmp_path: Path) -> None:
    net = made_up_gpu.small_unet()
    built = driver.build(made_up_gpu.request(net, tmp_path, "never"))
    assert built.description == f"fp16, all by Inductor, one CUDA graph; kernels are barred: {BARRED}"
    assert (built.details["candidates_ms"], built.details["kernels_barred"]) == ({INDUCTOR: 0.0}, BARRED)
    assert (built.properties.provider, built.properties.own_kernels) == (INDUCTOR, 0)
    assert built.properties.instead == f"all of it by Inductor, in fp16: {BARRED}"
    module = built.call
    assert "unet_ladder" not in " ".join(str(node.target) for node in module.graph.nodes)
    with torch.no_grad():
        assert torch.allclose(built.run(SECOND), net(SECOND), atol=1e-2)
        assert built.plain is not None
        saved = load(save(built.plain, FIRST, tmp_path / "artefact")[0].parent)
        assert torch.equal(saved(FIRST), built.run(FIRST))
    again = driver.build(made_up_gpu.request(net, tmp_path, "never"))
    assert (again.details["known"], again.description) == (True, built.description)


@pytest.mark.parametrize(
    ("precision", "kernels", "promised", "details", "said"),
    [
        ("fp16", 3, "fp16", {}, ""),
        ("fp8", 3, "fp8", {}, ""),
        ("fp8", 3, "fp16", {}, ""),
        ("fp16", 0, "fp8", {"not_rewritten": "5 axes"}, "all of it by Inductor, in fp16: 5 axes"),
        ("fp16", 0, "fp8", {"kernels_barred": "no TMA"}, "all of it by Inductor, in fp16: no TMA"),
        ("fp16", 6, "fp16", {"kernels_barred": "old Triton"}, "6 layers by own kernels, in fp16: old Triton"),
        ("fp16", 0, "fp8", {"refused": {"fp8": "wrong"}}, "all of it by Inductor, in fp16: fp8 was refused: wrong"),
        ("fp16", 0, "fp8", {"candidates_ms": {INDUCTOR: 0.0}}, f"all of it by Inductor, in fp16: {NONE_SUITS}"),
        ("fp16", 0, "fp8", {"candidates_ms": {INDUCTOR: 1.0, OURS: 0.9}}, f"all of it by Inductor, in fp16: {CHOSEN}"),
        ("fp16", 6, "fp8", {"candidates_ms": {INDUCTOR: 1.0, OURS: 1}}, f"6 layers by own kernels, in fp16: {CHOSEN}"),
    ],
)
def test_what_runs_is_said(precision: Any, kernels: int, promised: Any, details: dict[str, Any], said: str) -> None:
    how = Properties(precision, provider="own kernels" if kernels else "Inductor", own_kernels=kernels)
    assert driver.Built(torch.relu, "", how, details).owned_up(promised).properties.instead == said


KEPT = ["level.0", "level.3"]


class Overflowing(nn.Module):
    """A level within which values reach far beyond what fp16 holds, between others that kernels take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.before = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        large, small = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.level = nn.Sequential(large, nn.BatchNorm2d(32), nn.ReLU(), small)
        self.after, self.head = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 2, 1)
        with torch.no_grad():
            large.weight.mul_(1e6)
            small.weight.mul_(1e-6)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.after(self.level(self.before(self.first(image).relu()).relu()).relu()).relu())


@torch.no_grad()
def test_modules_stay_in_fp32_beside_the_kernels(tmp_path: Path) -> None:
    """Without them no answer is finite; the batch norm between them, which would round, is folded."""
    net = Overflowing().eval()
    rounded = made_up_gpu.rewritten(net, tmp_path).candidate(lambda _: {}, "fp16")
    assert rounded is None or not rounded.captured(SECOND).isfinite().all()
    made = made_up_gpu.rewritten(net, tmp_path, kept=KEPT).candidate(lambda _: {}, "fp16")
    assert made.properties.own_kernels == 3  # all but those; the head is made by the last one's
    assert distance(made.captured(SECOND), net(SECOND)) < 1e-2


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
@torch.no_grad()
def test_a_network_is_built_with_what_it_keeps(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (driver, fp8_build):
        monkeypatch.setattr(room, "barred_on", lambda *_: None)
    made_up_gpu.times(monkeypatch, 2.0, 1.5, 1.0)
    net = Overflowing().eval()
    asked = made_up_gpu.request(net, tmp_path, "never", kept=KEPT)
    fp8 = Fp8(lambda: [batched(FIRST)], Budget(1.0, 1.0), ["before", "level.0"])
    made = driver.build(asked) if precision == "fp16" else fp8_build.build(asked, fp8)[0]
    assert made.description.endswith("; level.0, level.3 in fp32, products in TF32")
    assert (made.properties.precision, made.properties.instead) == (precision, "")
    assert distance(made.run(SECOND), net(SECOND)) < 0.1


@torch.no_grad()
def test_a_net_that_doesn_t_run_in_half_precision_is_in_tf32(tmp_path: Path) -> None:
    """For an operation that torch has in fp32 alone, as Fourier transforms of most sizes are on a GPU."""

    def in_fp32_alone(image: Tensor, head: nn.Module) -> Tensor:
        if image.dtype != torch.float32:
            raise RuntimeError("Unsupported dtype Half")
        return head(image)

    net = Made(in_fp32_alone, nn.Conv2d(3, 2, 3, padding=1)).eval()
    with pytest.raises(UnsupportedError) as caught:
        made_up_gpu.rewritten(net, tmp_path)
    built = by_inductor_alone(made_up_gpu.request(net, tmp_path, "never"), str(caught.value))
    why = "in fp16 it doesn't run; torch.export can't take the network: Unsupported dtype Half"
    assert built.description == f"tf32, all by Inductor, one CUDA graph: {why}"
    assert (built.properties.precision, built.properties.provider) == ("tf32", "Inductor")
    assert torch.equal(built.run(SECOND), net(SECOND))


class SignalNet(nn.Module):
    """Convolutions, pools, norms and what has no form for images: a resize, and a factor for each sample."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 9, padding="same")]
        second = [nn.Conv1d(8, 16, 5, 2, 4, 2), nn.InstanceNorm1d(16), nn.PReLU(16), nn.AvgPool1d(2)]
        self.first = nn.Sequential(*first, nn.GroupNorm(2, 8), nn.SiLU())
        second += [nn.ConvTranspose1d(16, 8, 4, 4), nn.Upsample(scale_factor=2)]
        self.second = nn.Sequential(nn.MaxPool1d(2), *second)
        self.head = nn.Conv1d(16, 2, 1)
        self.scale = nn.Parameter(torch.rand(1, 8, 1))

    def forward(self, signal: Tensor) -> Tensor:
        wide = self.first(signal)
        deep = self.second(wide)[..., : wide.shape[-1]]
        return self.head(torch.cat([wide * self.scale, deep + wide], 1).tanh() * 2)


def test_a_network_of_signals_answers_the_same_as_images() -> None:
    net, signal = SignalNet().eval(), torch.randn(2, 1, 64)
    graph = exported_program(net, [signal]).module()
    without_checks(graph)
    assert signals_as_images(graph)
    left = {str(node.target) for node in graph.graph.nodes if "1d" in str(node.target) and node.op == "call_function"}
    assert left == {"aten.upsample_nearest1d.vec"}
    with torch.no_grad():
        torch.testing.assert_close(graph(signal), net(signal))


@pytest.mark.parametrize("faster", [INDUCTOR, AS_IMAGES])
def test_the_faster_form_of_a_net_of_signals_runs(faster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.times(monkeypatch, *((1.0, 2.0) if faster == INDUCTOR else (2.0, 1.0)))
    asked = made_up_gpu.request(SignalNet(), tmp_path, "never", inputs=batched(torch.randn(2, 1, 64)))
    built = driver.best_form(asked, lambda: None, lambda _: pytest.fail("rewritten"))
    assert built.details["candidates_ms"].keys() == {INDUCTOR, AS_IMAGES}
    assert built.description.startswith(f"fp16, all by {faster}, one CUDA graph")
    with torch.no_grad():
        torch.testing.assert_close(built.run(*asked.inputs).float(), asked.network(*asked.inputs), atol=2e-2, rtol=0)
