"""Nets with fewer bits: the layers that stay, and the gate, which a loss that a share of pixels hides doesn't pass."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from pipeline.compiler.agreement import Budget, Spent, overlap, spent
from pipeline.measure import accuracy
from pipeline.stages import Skip, StageError, int8
from pipeline.stages.api import Workload
from pipeline.stages.common.fewer_bits import Judges, judges, layers_to_keep, passed
from pipeline.stages.common.onnx_models import types
from tests.process_state import own_switches
from tests.stages.conftest import small_net
from tests.stages.test_stages import Ran, check_net, references, run_once, spec

BUDGET = Budget(flips=1e-3, error=5e-2, dice=1e-2)


class RareClass(nn.Module):
    """Two classes, one of them in 4 of 64² pixels; `bias` moves all pixels towards the other."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(image) * 0.5 + self.bias, image], 1)


def rare_images() -> list[Tensor]:
    """Noise under the threshold, and a spot of 2×2 pixels barely above it."""
    torch.manual_seed(0)
    images = torch.rand(2, 1, 64, 64) * 0.4
    images[:, :, 10:12, 20:22] = 0.52
    return list(images.split(1))


def judged_by(net: nn.Module, images: list[Tensor]) -> Judges:
    workload = Workload(net, images, torch.device("cpu"), Path("nowhere"), verified=1)
    return judges(workload, 1, "none", BUDGET)


def test_a_stage_that_loses_the_rare_class_silently_does_not_pass() -> None:
    images, spoilt = rare_images(), RareClass(bias=0.03)
    exact = [RareClass()(image) for image in images]
    tolerance = spec("onnxruntime_int8").tolerance
    found = spent(spoilt, images, exact)
    assert found.flips < tolerance.flipped_share
    assert found.error < tolerance.relative_l2
    assert found.dice == 1.0
    with pytest.raises(StageError, match=r"a class loses 1 of Dice against fp32 \(0.01 allowed\)") as raised:
        passed(spoilt, judged_by(RareClass(), images))
    assert raised.value.kind == "wrong answer"


def test_a_stage_that_keeps_its_masks_passes_and_nan_does_not() -> None:
    off = passed(RareClass(bias=1e-3), judged_by(RareClass(), rare_images()))
    assert (off["flips"], off["dice"]) == (0.0, 0.0)
    assert 0 < off["error"] < 5e-3
    with pytest.raises(StageError, match="off by nan"):
        passed(lambda image: RareClass()(image) * float("nan"), judged_by(RareClass(), rare_images()))


def test_dice_is_pooled_over_the_images_and_the_largest_part_counts() -> None:
    mask, right = torch.tensor([[[0, 1, 1, 0]]]), torch.tensor([[[0, 1, 0, 0]]])
    assert overlap(mask.byte(), right.byte(), 3).tolist() == [[2, 1, 0], [5, 3, 0]]
    logits = torch.zeros(1, 3, 1, 4)
    logits[0, 1, 0, 1] = logits[0, 0, 0, [0, 2, 3]] = 1.0
    given = logits.clone()
    given[0, :, 0, 2] = torch.tensor([0.0, 1.0, 0.0])
    assert spent(lambda _: given, [logits], [logits]).dice == pytest.approx(1 - 2 / 3)
    found = Spent(flips=2e-3, error=1e-2, dice=2e-2)
    assert BUDGET.share(found) == pytest.approx(2.0)
    assert Budget(4e-3, 5e-2).share(found) == pytest.approx(0.5)


HARMFUL, HARMLESS = {"first": 1.5, "middle": 0.2, "head": 0.6}, {"first": 0.5, "middle": 0.125, "head": 0.25}


@pytest.mark.parametrize(
    ("asked", "harm", "kept", "gains"),
    [
        ("auto", HARMFUL, ["first"], HARMFUL),
        ("auto", HARMLESS, [], HARMLESS),
        ("none", HARMFUL, [], {}),
        ("head", HARMFUL, ["head"], {}),
        (["head"], HARMLESS, ["head"], {}),
    ],
)
def test_the_layer_that_saves_most_stays_in_fp32(
    asked: str | list[str], harm: dict[str, float], kept: list[str], gains: dict[str, float]
) -> None:
    found = layers_to_keep(asked, list(harm), lambda kept: sum(harm[name] for name in harm if name not in kept))
    assert found == (kept, pytest.approx(gains))


def test_of_a_net_without_masks_the_values_alone_count(workload: Workload) -> None:
    far = Spent(flips=0.3, error=0.02, dice=0.4)
    for masks, used in ((True, 300.0), (False, 0.4)):
        by = judges(replace(workload, has_masks=masks), 4, "none", BUDGET)
        assert by.budget.share(far) == pytest.approx(used)


def test_no_layer_in_int8_and_a_layer_that_is_not_there_are_told() -> None:
    with pytest.raises(StageError, match="no layer can be int8 within the budget"):
        layers_to_keep("auto", ["only"], lambda kept: 0.0 if kept else 9.0)
    with pytest.raises(StageError, match=r"stage.keep_fp32=haed: no such layer; did you mean 'head'\?"):
        layers_to_keep(["haed"], ["first", "head"], lambda kept: 0.0)


@pytest.mark.parametrize("runtime", list(int8.RUNTIMES))
def test_on_a_gpu_they_have_no_form(runtime: Any, workload: Workload) -> None:
    with pytest.raises(Skip, match=r"stage=tensorrt stage\.dtype=int8 runs int8 on a GPU"):
        int8.build(replace(workload, device=torch.device("cuda")), runtime=runtime)


def test_a_method_that_a_runtime_lacks_is_refused(workload: Workload) -> None:
    with pytest.raises(StageError, match=r"stage.method=Entropy: inductor has MinMax alone"):
        int8.build(workload, runtime="inductor", method="Entropy")


@pytest.mark.parametrize(
    ("kind", "activation"), [("int8", "QUInt8"), ("int8 symmetric", "QInt8"), ("fp8", "QFLOAT8E4M3FN")]
)
def test_each_kind_has_its_types(kind: Any, activation: str) -> None:
    from onnxruntime.quantization import QuantType

    assert types(QuantType, kind)["activation_type"] is QuantType[activation]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """ONNX Runtime in int8, the first layer kept, on a net of one level, whose random weights decide by a hair."""
    with own_switches():
        net = build_model("models.unet.UNet", {"base": 8, "depth": 1}, None, seed=10)
        workload = replace(small_net(tmp_path_factory.mktemp("int8")), model=net, verified=1)
        options = {"keep_fp32": ["encoder.0.0"], "budget": 1.0, "dice_budget": 1.0}
        yield run_once("onnxruntime_int8", workload, **options)


def test_onnxruntime_in_int8_answers_within_its_tolerance(ran: Ran) -> None:
    tolerance = spec(ran.name).tolerance
    assert accuracy.check(ran.answers, references(ran.workload), None, tolerance, trained=False)[1:] == ("ok", "")
    check_net(ran)


def test_onnxruntime_in_int8_says_what_is_in_int8(ran: Ran) -> None:
    details, execution = ran.runner.details, ran.runner.execution
    assert (details["int8_layers"], details["kept"]) == (6, ["encoder.0.0"])
    assert (execution.precision, execution.layer_precision) == ("int8", {"encoder.0.0": "fp32"})
    assert ran.runner.save is not None
    (path,) = [path for path in ran.runner.save(ran.workload.folder) if path.suffix == ".onnx"]
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(path).graph.node}


def test_int8_is_calibrated_on_other_images_than_the_evaluation_images(ran: Ran) -> None:
    calibration = ran.runner.calibration
    assert calibration.apart
    assert calibration.scales.images > 0
