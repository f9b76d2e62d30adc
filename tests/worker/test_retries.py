"""A net is made before anything is asked of it; where a stage in half precision or channels_last fails, and after."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from models.unet import UNet
from pipeline.compiler.batch import batched
from pipeline.compiler.half import Half
from pipeline.errors import ModelError
from pipeline.orchestrate.trials import as_built
from pipeline.records.diagnostics import PrecisionFault, fault_text
from pipeline.records.goals import Tolerance
from pipeline.records.request import ModelSpec, StageSpec
from pipeline.records.run_record import Execution, Precision, StageRecord
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common.network_forms import KeepFp32, half_net
from pipeline.worker import retries, workload
from pipeline.worker.net_contract import copied
from pipeline.worker.reference import fp64_error, save_logits
from pipeline.worker.retries import Side, locate
from pipeline.worker.run_stage import run_stage
from pipeline.worker.workload import net_of_spec
from tests.worker.jobs import Recorder, ran, run_of, small


def stage(name: str, **options: object) -> StageSpec:
    tolerance = Tolerance(3e-2, 5e-3, "of a test")
    return StageSpec(name, f"pipeline.stages.{name}", "", "", ["cpu"], "", False, tolerance, options)


HALF = stage("half", dtype="fp16", cudnn_benchmark=False, keep_fp32="auto")
IN_BF16 = stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32="none")
TIMES = 1e6  # by which a layer's weights grow, and the next one's shrink


def build(
    workload: Workload, *, says: Precision, keep_fp32: KeepFp32 = "auto", keeps: bool = True, factor: float = 1.0
) -> Runner:
    """A stage in half precision in one piece, whose modules nobody sees; it answers `factor` times too much."""
    net = half_net(workload, torch.float16, keep_fp32)

    def run(*inputs: Tensor) -> Tensor:
        return net(*inputs) * factor

    how = Execution(says, layout="NHWC", provider="of a test", captured=False, fuses=True)
    return Runner(run, "in one piece", how, {"kept_in_fp32": net.kept} if keeps else {}, steps_aside=True)


class Net(nn.Module):
    """Three levels of convolutions; the second's first answers beyond what fp16 holds, and its second divides again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
            for width in (3, 4)
        )
        self.head = nn.Conv2d(4, 2, 1)
        with torch.no_grad():
            for layer, factor in (("encoder.1.0", TIMES), ("encoder.1.3", 1 / TIMES)):
                self.get_parameter(f"{layer}.weight").mul_(factor)
            self.get_parameter("encoder.1.0.bias").mul_(TIMES)

    def forward(self, image: Tensor) -> Tensor:
        for level in self.encoder:
            image = level(image)
        return self.head(image)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("overflowing")
    with run_of(Net, folder):
        yield folder


def test_a_layer_that_overflows_is_named_kept_in_fp32_and_measured(overflowing: Path) -> None:
    line = ran(small(HALF, overflowing), 1)
    faults = line.fields["precision_faults"]
    assert [(each.module, each.level, each.kind, each.kept) for each in faults] == [
        ("encoder.1.0", "encoder 1", "overflow", True),
        ("encoder.1.3", "encoder 1", "overflow", True),
    ]
    assert faults[0].magnitude > 65504
    assert faults[1].input_magnitude > 65504 > faults[1].magnitude
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
    blank = StageRecord(HALF, precision_faults=faults)
    assert as_built(blank).spec.options["keep_fp32"] == ["encoder.1.0", "encoder.1.3"]
    assert line.fields["description"].endswith("encoder.1.0, encoder.1.3 in fp32")
    assert line.phases[:5] == ["start", "build", "verify", "verify", "verify"]  # none goes back
    assert line.samples


@pytest.mark.parametrize("says", ["fp16", "fp8"])
def test_so_is_one_of_a_stage_that_is_one_piece(says: str, overflowing: Path) -> None:
    spec = replace(HALF, target=__name__, options={"says": says, "keep_fp32": "auto"})
    line = ran(small(spec, overflowing), 1)
    assert [(it.module, it.kept) for it in line.fields["precision_faults"]] == [
        ("encoder.1.0", True),
        ("encoder.1.3", True),
    ]
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")


@pytest.mark.parametrize("module", [None, "encoder.1.0"])
def test_without_it_is_built_once(module: str | None, overflowing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = PrecisionFault(module, "encoder 1", "overflow", "fp16", 1e6, 1.0, None, 1e-3) if module else None
    if fault:
        monkeypatch.setattr(retries, "first_fault", lambda _: fault)
    options = {"says": "fp16", "keep_fp32": "auto", "keeps": False}
    line = ran(small(replace(HALF, target=__name__, options=options), overflowing), 1)
    assert line.fields["status"] == "inaccurate"
    assert not any(each.kept for each in line.fields.get("precision_faults", []))


class Cancelling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.main, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.near, self.difference = nn.Conv2d(3, 2, 1, bias=False), nn.Conv2d(2, 1, 1, bias=False)
        with torch.no_grad():
            self.difference.weight.copy_(torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
            self.near.weight[1] = self.near.weight[0] * 1.0001

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.main(image) + 1e-3 * self.difference(self.near(image)))


def test_half_precision_is_not_blamed_for_what_is_wrong_without_it(tmp_path: Path) -> None:
    options = {"says": "fp8", "keep_fp32": "auto", "factor": 1.2}
    with run_of(Cancelling, tmp_path):
        line = ran(small(replace(HALF, target=__name__, options=options), tmp_path), 1)
    assert line.fields["status"] == "inaccurate"
    assert "precision_faults" not in line.fields
    assert line.phases.count("verify") == 1


def test_a_stage_that_keeps_none_says_where_it_overflows(overflowing: Path) -> None:
    line = ran(small(replace(HALF, options={**HALF.options, "keep_fp32": "none"}), overflowing), 1)
    assert (line.fields["status"], line.samples) == ("inaccurate", [])
    assert "NaN or infinite" in line.fields["reason"]
    assert "first at encoder.1.0: fp32 reaches" in line.fields["reason"]
    assert "fp16 holds no more than 65504" in line.fields["reason"]
    assert [each.kept for each in line.fields["precision_faults"]] == [False]


def test_an_error_that_jumps_is_found_within_its_level() -> None:
    near_equal, difference = nn.Conv2d(2, 2, 1, bias=False), nn.Conv2d(2, 1, 1, bias=False)
    exact = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU()), nn.Sequential(near_equal, difference))
    with torch.no_grad():
        difference.weight.copy_(torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
        near_equal.weight[1] = near_equal.weight[0] * 1.0001
    image = torch.rand(1, 1, 8, 8) + 1
    half = Half(exact, torch.float16)
    found = locate(Side(exact, lambda: exact(image)), Side(half.net, lambda: half(image)), "fp16")
    assert found is not None
    assert (found.module, found.kind) == ("1.1", "error jump")
    assert found.error is not None
    assert found.error > 8 * found.error_before
    assert "its error is" in fault_text(found)


def test_a_sum_that_overflows_within_is_told_and_nothing_where_all_is_right() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    half, image = Half(net, torch.float16), torch.rand(1, 3, 8, 8)
    assert locate(Side(net, lambda: net(image)), Side(half.net, lambda: half(image)), "fp16") is None
    fault = PrecisionFault("head", "head", "overflow", "fp16", 3e4, 10.0, None, 1e-3)
    assert fault_text(fault) == "first at head: fp16 overflows within it, where fp32 reaches 3e+04"


AGAIN = "again in NCHW, as the network doesn't take channels_last"
NEEDED = "NCHW, as the network's own code needs"


class Rows(nn.Module):
    """Two convolutions, the first by a weight that is viewed as rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        weight = self.first.weight
        largest = weight.view(weight.size(0), -1).abs().amax(1).view(-1, 1, 1, 1)
        return self.head(nn.functional.conv2d(image, weight / largest, self.first.bias, padding=1).relu())


class Thinned(Rows):
    """Every second pixel, by steps that hold where channels lie one map after another."""

    def forward(self, image: Tensor) -> Tensor:
        maps = self.first(image).relu()
        batch, channels, height, width = maps.shape
        steps = (channels * height * width, height * width, 2 * width, 2)
        thin = maps.as_strided((batch, channels, height // 2, width // 2), steps)
        return nn.functional.interpolate(self.head(thin), scale_factor=2)


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rows")
    with run_of(Rows, folder):
        yield folder


@pytest.mark.parametrize(
    "spec",
    [
        stage("amp", dtype="bf16", cudnn_benchmark=False),
        IN_BF16,
        stage("torchscript", method="trace", dtype="fp32"),
        stage("torchscript", method="script", dtype="fp32"),
    ],
    ids=["amp", "half", "traced", "scripted"],
)
def test_a_stage_runs_the_net_in_nchw_where_it_needs_that(of_rows: Path, spec: StageSpec) -> None:
    line = ran(small(spec, of_rows), 1)
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
    assert AGAIN in line.said
    assert NEEDED in line.fields["description"]
    assert line.fields["net_layout"] == "NCHW"
    (warning,) = line.fields["warnings"]
    assert warning.code == "something else ran"
    assert f"{spec.name} runs the network in NCHW, as the network's own code doesn't take" in warning.text
    assert "(in Rows.forward, test_retries.py:" in warning.text
    assert line.samples


@pytest.mark.parametrize("keep_fp32", ["none", "auto"])
def test_a_stage_that_answers_wrongly_runs_the_net_in_nchw_where_it_needs_that(keep_fp32: str, tmp_path: Path) -> None:
    spec = stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32=keep_fp32)
    with run_of(Thinned, tmp_path):
        line = ran(small(spec, tmp_path), 1)
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
    assert line.fields["net_layout"] == "NCHW"
    assert NEEDED in line.fields["description"]
    (warning,) = line.fields["warnings"]
    assert "in NCHW, as the network's own code answers differently in channels_last; its" in warning.text
    assert line.phases[:4] == ["start", "build", "verify", "verify"]  # none goes back


def test_a_second_build_that_fails_leaves_what_the_first_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_built_as_it_lies", Mock(side_effect=MemoryError("no memory")))
    with run_of(Thinned, tmp_path):
        line = ran(small(IN_BF16, tmp_path), 1)
    assert line.fields["status"] == "inaccurate"
    assert "logits differ" in line.fields["reason"]


def test_channels_last_says_that_the_net_doesn_t_take_it(of_rows: Path) -> None:
    with pytest.raises(
        StageError,
        match=r"the network's own code doesn't take channels_last: .*\(in Rows\.forward, test_retries\.py:\d+\)",
    ):
        ran(small(stage("channels_last"), of_rows))


UNKNOWN = stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32=["hed"])
FALLS_BACK = replace(stage("busy", fault="falls_back"), target="tests.fault_stages")


@pytest.mark.parametrize(
    ("net", "spec", "said", "again"),
    [
        (Rows, UNKNOWN, "no module 'hed'", True),
        (partial(nn.Conv2d, 3, 2, 1), UNKNOWN, "no module 'hed'", False),
        (Rows, FALLS_BACK, "the session landed on CPU", False),
    ],
    ids=["fails in NCHW too", "a net that takes channels_last", "a stage that asked for no layout"],
)
def test_what_the_layout_is_not_to_blame_for_fails_as_before(
    net: Callable[[], nn.Module],
    spec: StageSpec,
    said: str,
    again: bool,
    of_rows: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workload, "net_of", lambda _: net().eval())
    line = Recorder(1)
    with pytest.raises(StageError, match=said):
        run_stage(small(spec, of_rows), line)
    assert (AGAIN in line.said) is again


def test_a_net_that_can_t_be_copied_fails_as_before(of_rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.held = self.first.weight * 2  # which deepcopy refuses

    monkeypatch.setattr(workload, "net_of", lambda _: Held().eval())
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        ran(small(IN_BF16, of_rows))


def test_a_layer_kept_in_fp32_leaves_the_layout_on_record(tmp_path: Path) -> None:
    class Overflowing(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 3, 1, bias=False)
            with torch.no_grad():
                self.large.weight.mul_(1e6)
                self.small.weight.mul_(1e-6)

        def forward(self, image: Tensor) -> Tensor:
            return super().forward(self.small(self.large(image)))

    with run_of(Overflowing, tmp_path):
        line = ran(small(HALF, tmp_path), 1)
    assert line.fields["details"]["kept_in_fp32"]
    assert line.fields["net_layout"] == "NCHW"


class Plain(nn.Module):
    def __init__(self, **further: Any) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        for name, part in further.items():
            setattr(self, name, part)


class Normed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.utils.weight_norm(self.head)


class Doubles(Plain):
    def __init__(self) -> None:
        torch.set_default_dtype(torch.float64)
        super().__init__()


class Threads(Plain):
    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(torch.get_num_threads() + 1)


def made(name: str) -> nn.Module:
    return net_of_spec(ModelSpec("custom", f"{__name__}.{name}", {}, None), seed=0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Plain(table=nn.Buffer(torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8))),
            "makes table with a sparse or quantized layout; make a network whose weights are plain tensors",
        ),
        (lambda: Plain(table=nn.Buffer(torch.eye(4).to_sparse())), "makes table with a sparse or quantized layout"),
        (lambda: Plain(table=nn.Parameter(torch.empty(4, device="meta"))), "makes table with no values"),
        (lambda: Plain(table=nn.LazyConv2d(2, 1)), r"makes table\.weight with no values"),
        (
            lambda: torch.jit.script(Plain()),
            r"is what torch\.jit\.script or torch\.jit\.load made already; give the layer itself",
        ),
        (lambda: sys.exit(3), r"ends the program \(sys\.exit\(3\)\) when it is made"),
    ],
)
def test_a_net_that_cannot_be_made_is_named(
    make: Callable[[], nn.Module], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "of_a_user", make, raising=False)
    with pytest.raises(ModelError, match=rf"^model\.target: {__name__}\.of_a_user {said}"):
        made("of_a_user")


@pytest.mark.parametrize(
    ("name", "said"),
    [("Doubles", r"default dtype was torch\.float32, is torch\.float64"), ("Threads", r"threads was \d+, is \d+")],
)
def test_a_net_that_changes_the_process_as_it_is_made_is_named(name: str, said: str) -> None:
    """Doubles beside fp32 would make the baseline slow, and every ratio large; the others change what was asked."""
    threads = torch.get_num_threads()
    try:
        with pytest.raises(ModelError, match=f"{name} changes the process where it is imported or made: {said}"):
            made(name)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert made("Plain").get_parameter("head.weight").dtype is torch.float32


class InFp32(Plain):
    """Its input becomes fp32, which no convolution of fp64 takes."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(image.float())


def test_a_net_that_has_no_form_in_fp64_lacks_that_figure_alone(capsys: pytest.CaptureFixture[str]) -> None:
    net, image = InFp32().eval(), torch.rand(1, 3, 4, 4)
    with torch.inference_mode():
        assert fp64_error(net, batched(image), net(image), []) is None
        apart = fp64_error(net.head, batched(image), net(image), [])
    assert apart < 1e-6
    assert "no figure against fp64, in which the network fails: RuntimeError" in capsys.readouterr().err


class Itself(UNet):
    def __deepcopy__(self, memo: object) -> "Itself":
        return self


class AnotherNet(UNet):
    def __deepcopy__(self, memo: object) -> "AnotherNet":
        return AnotherNet(base=2, depth=1)


class NoNet(UNet):
    def __deepcopy__(self, memo: object) -> None:
        return None


class Locked(UNet):
    def __init__(self, base: int, depth: int) -> None:
        super().__init__(base=base, depth=depth)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Locked, r"Locked can't be copied, .*: TypeError: cannot pickle '_thread\.lock' object"),
        (Itself, "Itself gives its own weights to its copy"),
        (AnotherNet, r"a copy of AnotherNet hasn't its [\w.]+ \(by its"),
        (NoNet, "NoNet gives a NoneType for its copy"),
    ],
)
def test_a_net_that_cannot_be_copied_is_named(kind: type[UNet], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        copied(kind(base=2, depth=1))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_a_net_with_torchs_older_weight_norm_can_be_copied() -> None:
    image = torch.rand(1, 3, 4, 4)
    net = made("Normed").get_submodule("head")
    copy = copied(net)
    with torch.inference_mode():
        assert torch.equal(copy(image), net(image))


def test_answers_that_no_disk_takes_are_told_with_their_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"^{tmp_path}: can't be written .*Is a directory"):
        save_logits({"judged": [torch.zeros(1)]}, tmp_path)
