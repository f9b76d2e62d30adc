"""The stage `fp8` says how many layers read fp8; a net of which none can has no candidate that is called fp8."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler import calibrate
from pipeline.compiler.autotune import Tuner
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.budget import Budget
from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.lowering import Plan
from pipeline.profiling.layers import layer_work
from pipeline.records.run_record import Execution, Precision
from pipeline.records.samples import Calibration, ImageSet
from pipeline.stages import fp8
from pipeline.stages.api import CalibrationImages
from pipeline.stages.common import net_candidate, not_rewritten, rewritten_net
from pipeline.stages.common.fewer_bits import JUDGED_BATCHES, apart, calibration, images_given
from pipeline.stages.common.net_candidate import Candidate
from pipeline.stages.common.rewritten_net import Rewritten, composed_flops
from tests.stages.test_fused import Called, all_by_references, as_it_is, small_unet, workload

ANY = Budget(1.0, 1.0)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (net_candidate, not_rewritten):
        monkeypatch.setattr(room, "Captured", Called)
    monkeypatch.setattr(rewritten_net, "choose", all_by_references)
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", as_it_is)


def rewritten(net: nn.Module, folder: Path) -> Rewritten:
    return Rewritten(workload(net, folder), Tuner(folder), None)


def in_fp8(made: Rewritten, kept: str | list[str]) -> Candidate | None:
    """The net in fp8, scaled by four images, with these layers kept in fp16."""
    return fp8.of_sensitivity(made, fp8.sensitivity(made, 4, kept, ANY))


def test_what_ran_counts_the_layers_that_read_fp8(tmp_path: Path) -> None:
    made = rewritten(small_unet(), tmp_path)
    batch = made.workload.batches[0]
    with torch.no_grad():
        wanted = made.workload.model(batch)
    found = in_fp8(made, "none")
    assert found is not None
    assert found.name == "own kernels, 5 layers in fp8"  # the first reads the image
    image: dict[str, Precision] = {"encoder.0.0": "fp16"}
    how = Execution("fp8", image, "NHWC", "own kernels", captured=True, fuses=True, own_kernels=6)
    assert found.execution == replace(how, layer_flops=composed_flops(made.net))
    assert list(found.execution.layer_flops) == ["decoder.0.0"]
    assert found.details["kept_fp16"] == []
    assert set(found.details["stored_fp8"]) == set(found.plan.scales)
    assert float((found.call(batch) - wanted).norm() / wanted.norm()) < 0.1
    one = in_fp8(made, "bottleneck.3")
    assert one is not None
    assert one.name == "own kernels, 4 layers in fp8"
    assert one.execution.layer_precision == {**image, "bottleneck.3": "fp16"}
    assert one.details["kept_fp16"] == ["bottleneck.3"]


class Named(nn.Module):
    """As in nnU-Net a convolution with two names, the first of which no call goes by; and a product of Inductor's."""

    def __init__(self) -> None:
        super().__init__()
        conv, linear = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 16)
        blocks = {"conv": conv, "linear": linear, "all_modules": nn.Sequential(conv, nn.ReLU())}
        self.network = nn.ModuleDict(blocks)
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 16, height, width] of images [batch, 3, height, width]."""
        inner: Tensor = self.network["all_modules"](self.first(image).relu())
        logits: Tensor = self.network["linear"](self.last(inner).permute(0, 2, 3, 1))
        return logits.permute(0, 3, 1, 2)


def test_layers_are_called_as_the_record_calls_them(tmp_path: Path) -> None:
    """An alias was no layer that the report knows, so it was counted in fp8, and so was what Inductor multiplies."""
    made = rewritten(Named().eval(), tmp_path)
    known = {layer.name for layer in layer_work(made.workload.model, made.workload.batches[0]) if layer.flops}
    assert known == {"first", "network.conv", "last", "network.linear"}
    both = in_fp8(made, "none")
    assert both is not None
    assert both.name == "own kernels, 2 layers in fp8"
    assert both.execution.layer_precision == {"first": "fp16", "network.linear": "fp16"}
    one = in_fp8(made, "network.conv")
    assert one is not None
    assert one.execution.layer_precision == dict.fromkeys(("first", "network.conv", "network.linear"), "fp16")


class Attention(nn.Module):
    """Between two convolutions, without a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 16, height, width] of images [batch, 3, height, width]."""
        rows = self.first(image).flatten(2).transpose(1, 2)
        seen: Tensor = nn.functional.scaled_dot_product_attention(rows, rows, rows)
        logits: Tensor = self.last(self.last(seen.transpose(1, 2).reshape(-1, 16, *image.shape[2:])))
        return logits


def test_attention_between_layers_is_not_counted_in_fp8(tmp_path: Path) -> None:
    """Its products are the record's "", which is no layer."""
    found = in_fp8(rewritten(Attention().eval(), tmp_path), "none")
    assert found is not None
    assert found.execution.layer_precision == {"first": "fp16", "": "fp16"}


class Merged(nn.Module):
    """Two convolutions of one value, an up-sampling and a head that other layers do with their own products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.beside, self.up = nn.Conv2d(16, 16, 1), nn.ConvTranspose2d(16, 16, 2, 2)
        self.large, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 2, 2 height, 2 width] of images [batch, 3, height, width]."""
        seen = self.first(image).relu()
        both = (self.second(seen) + self.beside(seen)).relu()
        logits: Tensor = self.head(self.last(self.large(self.up(both)).relu()).relu())
        return logits


def test_what_another_layer_does_is_in_fp8_where_that_one_is(tmp_path: Path) -> None:
    made = rewritten(Merged().eval(), tmp_path)
    assert made.net.merged == {"beside": "second", "up": "large", "head": "last"}
    both, one = in_fp8(made, "none"), in_fp8(made, ["large", "last"])
    assert both is not None
    assert one is not None
    assert both.execution.layer_precision == {"first": "fp16"}
    assert one.execution.layer_precision == dict.fromkeys(("first", "up", "large", "last", "head"), "fp16")


class Twice(nn.Module):
    """One convolution of one value, twice, whose answers are added: it is merged into itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.both = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 16, height, width] of images [batch, 3, height, width]."""
        seen = self.first(image).relu()
        logits: Tensor = self.both(seen) + self.both(seen)
        return logits


def test_a_layer_that_is_merged_into_itself_is_found(tmp_path: Path) -> None:
    made = rewritten(Twice().eval(), tmp_path)
    assert made.net.done_by("both") == "both"
    found = in_fp8(made, "none")
    assert found is not None
    assert found.execution.layer_precision == {"first": "fp16"}


def test_a_layer_that_the_library_runs_is_not_counted_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_library(net: ExportedNet, *given: Any) -> Plan:
        plan = all_by_references(net, *given)
        last = list(plan.tiles)[-1]
        return replace(plan, tiles={name: tile for name, tile in plan.tiles.items() if name != last}, by_library=[last])

    monkeypatch.setattr(rewritten_net, "choose", by_library)
    found = in_fp8(rewritten(Named().eval(), tmp_path), "none")
    assert found is not None
    assert found.execution.layer_precision == dict.fromkeys(("first", "network.linear", "last"), "fp16")


def test_where_every_layer_is_kept_nothing_is_called_fp8(tmp_path: Path) -> None:
    made = rewritten(small_unet(), tmp_path)
    names = ["encoder.0.3", "bottleneck.0", "bottleneck.3", "decoder.0.0", "decoder.0.3"]
    assert in_fp8(made, names) is None


def test_a_net_whose_values_torch_alone_reads_has_no_layer_in_fp8(tmp_path: Path) -> None:
    """A concatenation of rows that a kernel reads, whose parts no kernel stores in fp8 for another to read."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.AvgPool2d(2), nn.Softplus())
    assert in_fp8(rewritten(net, tmp_path), "none") is None


def test_the_choice_of_layers_is_on_other_images_than_the_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch serves one of the two, and the record says which images each had."""
    made = rewritten(small_unet(), tmp_path)
    images = list(map(batched, torch.randn(5, 2, 3, 16, 16)))
    pictures = tuple(f"picture {number // 4}" for number in range(10))
    asked: list[int] = []

    def spare(wanted: int) -> CalibrationImages:
        asked.append(wanted)
        return CalibrationImages(images, True, pictures, (7, 8))

    made.workload = replace(made.workload, spare=spare)
    seen: dict[str, list[Batch]] = {}

    def largest(net: ExportedNet, batches: list[Batch]) -> dict[str, float]:
        seen["scales"] = batches
        return calibrate.largest(net, batches)

    def keep_for(
        net: ExportedNet, _: dict[str, float], batches: list[Batch], __: Budget
    ) -> tuple[list[str], dict[str, float]]:
        seen["choice"] = batches
        return ["decoder.0.3"], {}

    monkeypatch.setattr(fp8, "largest", largest)
    monkeypatch.setattr(fp8, "keep_for", keep_for)
    found = in_fp8(made, "auto")
    assert found is not None
    assert asked == [4 + 2 * JUDGED_BATCHES]
    assert (seen["scales"], seen["choice"]) == (images[:3], images[3:])
    scales, choice = ImageSet(6, ["picture 0", "picture 1"]), ImageSet(4, ["picture 1", "picture 2"])
    assert found.calibration == Calibration(scales, choice, choice_apart=True, apart=True, kept=["decoder.0.3"])
    assert found.left_out == (7, 8)
    named = in_fp8(made, "none")
    assert named is not None
    assert named.calibration is not None
    assert (named.calibration.choice, named.calibration.kept) == (None, None)


def test_fewer_images_than_none_are_refused(tmp_path: Path) -> None:
    """The choice's would have been given to the scales, or none at all."""
    with pytest.raises(ValueError, match=r"^calibration_images=-4: expected an integer ≥ 0$"):
        images_given(workload(small_unet(), tmp_path), -4)


def test_one_batch_serves_both_and_it_is_said() -> None:
    batch = batched(torch.zeros(2, 3, 4, 4))
    assert apart([batch]) == ([batch], [batch])
    given = CalibrationImages([batch], False, ("a", "a"))
    found = calibration(given, 1, chose=True)
    assert found == Calibration(ImageSet(2, ["a"]), ImageSet(2, ["a"]), choice_apart=False, apart=False)
    assert [len(part) for part in apart([batch] * 9)] == [6, 3]
    assert [len(part) for part in apart([batch] * 3)] == [2, 1]
