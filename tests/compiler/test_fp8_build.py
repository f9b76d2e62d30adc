"""The stage `fp8` says how many layers read fp8; a net of which none can has no candidate that is called fp8."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.image_batches import to_batch
from pipeline.compiler import driver, fp8_build
from pipeline.compiler.agreement import NO_NUMBER, Budget, filled, spent
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.candidate import Candidate, Properties
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import groups, layers_in_fp8, quantisable, scales
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.half import Precision
from pipeline.inputs.datasets import dataset_loader
from pipeline.kernels.common import capability
from tests.compiler.made_up_gpu import all_by_references, images, no_gpu, request, rewritten, small_unet, times
from tests.compiler.nets import classic, image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import rewritten as rewritten_from_list
from tests.compiler.rewriting import rewritten_from
from tests.input_nets import SEVERAL

__all__ = ["no_gpu"]  # a fixture
ANY = Budget(1.0, 1.0)
CALIBRATION = list(map(batched, images()))


def sensitivity_of(
    made: driver.Rewritten, kept: str | list[str], batches: list[Batch] | None = None
) -> fp8_build.Sensitivity:
    given = CALIBRATION if batches is None else batches
    return fp8_build.sensitivity(made, fp8_build.Fp8(lambda: given, ANY, kept), given)


def in_fp8(made: driver.Rewritten, kept: str | list[str]) -> Candidate | None:
    return fp8_build.of_sensitivity(made, sensitivity_of(made, kept))


def test_what_ran_counts_the_layers_that_read_fp8(tmp_path: Path) -> None:
    made = rewritten(small_unet(), tmp_path)
    batch = images()[0]
    with torch.no_grad():
        wanted = made.request.network(batch)
    found = in_fp8(made, "none")
    assert found.name == "own kernels, 5 layers in fp8"  # the first reads the image
    image: dict[str, Precision] = {"encoder.0.0": "fp16"}
    how = Properties("fp8", image, provider="own kernels", own_kernels=6)
    assert found.properties == replace(how, layer_flops=driver.composed_flops(made.net))
    assert list(found.properties.layer_flops) == ["decoder.0.0"]
    assert found.details["kept_fp16"] == []
    assert set(found.details["stored_fp8"]) == set(found.plan.scales)
    assert float((found.call(batch) - wanted).norm() / wanted.norm()) < 0.1
    one = in_fp8(made, "bottleneck.3")
    assert one.name == "own kernels, 4 layers in fp8"
    assert one.properties.layer_precision == {**image, "bottleneck.3": "fp16"}
    assert one.details["kept_fp16"] == ["bottleneck.3"]


class Named(nn.Module):
    """As in nnU-Net a convolution with two names, the first of which no call goes by; and a product of Inductor's."""

    def __init__(self) -> None:
        super().__init__()
        conv, linear = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 12)
        blocks = {"conv": conv, "linear": linear, "all_modules": nn.Sequential(conv, nn.ReLU())}
        self.network = nn.ModuleDict(blocks)
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        inner: Tensor = self.network["all_modules"](self.first(image).relu())
        logits: Tensor = self.network["linear"](self.last(inner).permute(0, 2, 3, 1))
        return logits.permute(0, 3, 1, 2)


def test_layers_are_called_as_the_record_calls_them(tmp_path: Path) -> None:
    """An alias was no layer that the report knows, so it was counted in fp8, and so was what Inductor multiplies."""
    made = rewritten(Named(), tmp_path)
    both = in_fp8(made, "none")
    assert both.name == "own kernels, 2 layers in fp8"
    assert both.properties.layer_precision == {"first": "fp16", "network.linear": "fp16"}
    one = in_fp8(made, "network.conv")
    assert one.properties.layer_precision == dict.fromkeys(("first", "network.conv", "network.linear"), "fp16")


def test_attention_between_layers_is_not_counted_in_fp8(tmp_path: Path) -> None:
    def attention(image: Tensor, first: nn.Module, last: nn.Module) -> Tensor:
        rows = first(image).flatten(2).transpose(1, 2)
        seen: Tensor = nn.functional.scaled_dot_product_attention(rows, rows, rows)
        return last(last(seen.transpose(1, 2).reshape(-1, 16, *image.shape[2:])))

    net = Made(attention, nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
    found = in_fp8(rewritten(net, tmp_path), "none")
    assert found.properties.layer_precision == {"layers.0": "fp16", "": "fp16"}


class Merged(nn.Module):
    """Two convolutions of one value, an up-sampling and a head that other layers do with their own products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.beside, self.up = nn.Conv2d(16, 16, 1), nn.ConvTranspose2d(16, 16, 2, 2)
        self.large, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        seen = self.first(image).relu()
        both = (self.second(seen) + self.beside(seen)).relu()
        return self.head(self.last(self.large(self.up(both)).relu()).relu())


def test_what_another_layer_does_is_in_fp8_where_that_one_is(tmp_path: Path) -> None:
    made = rewritten(Merged(), tmp_path)
    assert made.net.merged == {"beside": "second", "up": "large", "head": "last"}
    both, one = in_fp8(made, "none"), in_fp8(made, ["up", "last"])
    assert both.properties.layer_precision == {"first": "fp16"}
    assert one.properties.layer_precision == dict.fromkeys(("first", "up", "large", "last", "head"), "fp16")


def test_a_layer_that_is_merged_into_itself_or_between_modules_is_found(tmp_path: Path) -> None:
    def twice(image: Tensor, first: nn.Module, both: nn.Module, mixed: nn.Linear) -> Tensor:
        tokens = (both(seen := first(image).relu()) + both(seen)).mT.contiguous()
        return (nn.functional.linear(tokens, mixed.weight) + mixed(tokens)).mT

    layers = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 16)
    made = rewritten(Made(twice, *layers), tmp_path)
    assert made.net.done_by("layers.1") == "layers.1"
    assert in_fp8(made, "none").properties.layer_precision == {"layers.0": "fp16"}


def test_a_layer_that_the_library_runs_is_not_counted_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_library(net: ExportedNet, *given: Any) -> Plan:
        plan = all_by_references(net, *given)
        last = list(plan.tiles)[-1]
        return replace(plan, tiles={name: tile for name, tile in plan.tiles.items() if name != last}, by_library=[last])

    monkeypatch.setattr(driver, "choose", by_library)
    found = in_fp8(rewritten(Named(), tmp_path), "none")
    assert found.properties.layer_precision == dict.fromkeys(("first", "network.linear", "last"), "fp16")


def test_tokens_that_are_faster_in_fp16_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "choose", lambda *given: replace(all_by_references(*given), slower=["layers.2"]))
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 16)
    made = rewritten(Made(lambda x, a, b, mixed: mixed(b(a(x)).mT.contiguous()).mT, *layers), tmp_path)
    found = in_fp8(made, "none")
    assert found.name == "own kernels, 1 layers in fp8"
    assert found.properties.layer_precision == {"layers.0": "fp16", "layers.2": "fp16"}
    assert made.findings[fp8_build.LAYERS] == {"in_fp8": ["layers.1"], "faster_in_fp16": ["layers.2"]}


def test_a_net_whose_values_torch_alone_reads_has_no_layer_in_fp8(tmp_path: Path) -> None:
    """A concatenation of rows that a kernel reads, whose parts no kernel stores in fp8 for another to read."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.AvgPool2d(2), nn.Softplus())
    assert in_fp8(rewritten(net, tmp_path), "none") is None


def test_the_choice_of_layers_is_on_other_images_than_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rewritten(small_unet(), tmp_path)
    batches = list(map(batched, torch.randn(5, 2, 3, 16, 16)))
    seen: dict[str, list[Batch]] = {}
    measured = fp8_build.largest

    def largest(net: ExportedNet, given: list[Batch]) -> dict[str, float]:
        seen["scales"] = given
        return measured(net, given)

    def keep_for(
        net: ExportedNet, _: dict[str, float], given: list[Batch], __: Budget
    ) -> tuple[list[str], dict[str, float]]:
        seen["choice"] = given
        return ["decoder.0.3"], {}

    monkeypatch.setattr(fp8_build, "largest", largest)
    monkeypatch.setattr(fp8_build, "keep_for", keep_for)
    found = sensitivity_of(made, "auto", batches)
    assert (seen["scales"], seen["choice"]) == (batches[:3], batches[3:])
    assert (found.for_scales, found.chose, found.kept) == (3, True, ["decoder.0.3"])
    assert not sensitivity_of(made, "none", batches).chose


def test_scales_and_harm_are_known_for_weights_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(added: float) -> fp8_build.Sensitivity:
        given = [batch.mapped(lambda part: part + added) for batch in CALIBRATION]
        return sensitivity_of(rewritten(small_unet(), tmp_path), "bottleneck.3", given)

    first = found(0.0)
    monkeypatch.setattr(fp8_build, "largest", Mock(side_effect=LookupError))
    again = found(0.0)
    assert (again.seen, again.kept, again.taken) == (first.seen, ["bottleneck.3"], {})
    with pytest.raises(LookupError):
        found(1e-3)


class Choosing(nn.Module):
    shown: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = small_unet()
        self.register_buffer("shown", torch.tensor([True, True]))

    def forward(self, batch: Tensor) -> Tensor:
        return self.net(batch)[:, self.shown]


@pytest.mark.parametrize("unknown", ["sizes", "values"])
def test_a_net_that_isn_t_measured_is_in_fp16(unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if unknown == "values":
        monkeypatch.setattr(fp8_build, "largest", Mock(side_effect=RuntimeError("a value without elements")))
    made = rewritten(Choosing() if unknown == "sizes" else small_unet(), tmp_path)
    assert fp8_build.sensitivity_or_why(made, fp8_build.Fp8(lambda: CALIBRATION, ANY)) is None
    said = {"sizes": "GuardOnDataDependentSymNode: ", "values": "RuntimeError: a value without elements"}
    assert made.refused["fp8"].startswith(said[unknown])


def test_fp8_of_layers_that_all_read_the_image_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_build, "barred_on", lambda *_: None)
    times(monkeypatch, 2.0, 1.0)
    make, inputs = SEVERAL["conditioned"]
    asked = request(lively(make()), tmp_path, "never", inputs=inputs())
    built, chosen_by = fp8_build.build(asked, fp8_build.Fp8(list, ANY))
    why = "none of its layers can read fp8"
    assert chosen_by is None
    assert built.details["refused"] == {"fp8": why}
    assert built.properties.instead == f"2 layers by own kernels, in fp16: fp8 was refused: {why}"
    assert built.details["candidates_ms"] == {"Inductor": 2.0, "own kernels": 1.0}


def test_a_gpu_without_fp8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_build, "barred_on", lambda _, dtype: capability.supported((8, 6), dtype))
    with pytest.raises(fp8_build.UnsupportedDeviceError, match=r"8\.6 has no fp8 matrix instructions"):
        fp8_build.build(request(small_unet(), tmp_path), fp8_build.Fp8(lambda: CALIBRATION, ANY))


HARM = {"large": 0.5, "small": 0.3, "tiny": 0.1}
PRICE = {"large": 10.0, "small": 1.0, "tiny": 1.0}


def kept_in(budget: float, units: Sequence[Sequence[str]] = (("large",), ("small",), ("tiny",))) -> list[str]:
    """What is kept within so much of the harm of all layers, which adds up in squares."""

    def cost(kept: list[str]) -> float:
        return math.hypot(*(harm for name, harm in HARM.items() if name not in kept)) / budget

    kept, taken = filled(units, cost, lambda kept: sum(PRICE[name] for name in kept))
    assert cost(kept) <= 1
    assert not kept or set(taken) == set(HARM)
    return kept


def test_the_cheaper_of_those_that_are_enough_are_kept() -> None:
    assert math.hypot(*HARM.values()) == pytest.approx(0.592, abs=1e-3)
    assert kept_in(0.6) == []
    assert kept_in(0.52) == ["small"]
    assert kept_in(0.505) == ["small", "tiny"]
    assert kept_in(0.4) == ["large"]
    assert kept_in(0.2) == ["large", "small"]
    assert kept_in(0.05) == ["large", "small", "tiny"]


@torch.no_grad()
def test_layers_that_share_their_input_are_paid_for_together() -> None:
    """A skip is read by the next level and by the decoder: both read fp16, whichever of them is to."""
    net = rewritten_from_list("classic").net
    seen = {value.name: 1.0 for group in groups(net) for value in group}

    def seconds(*kept: str) -> float:
        return fp8_build.least_seconds(net, scales(net, kept, seen))

    both = seconds("encoder.1.0", "decoder.1.0")
    assert seconds() < seconds("encoder.1.0") == pytest.approx(both)
    assert seconds("encoder.1.0") < seconds("encoder.1.0", "encoder.0.3")


def test_no_number_is_within_a_budget_and_the_same_answer_within_none() -> None:
    """Unless it should be none, as the infinite logit of a class that is ruled out."""
    right = torch.tensor([[-torch.inf, 1.0], [torch.nan, 2.0]])[..., None, None]
    budget = Budget(1e-3, 5e-2)
    assert budget.used(lambda given: given, [right], [right]) == 0.0
    for place, wrong in (((0, 1), torch.nan), ((0, 1), torch.inf), ((0, 0), 1.0), ((1, 0), 1.0)):
        given = right.clone()
        given[place] = wrong
        for asked in (budget, budget.of_answers(masks=False)):
            assert asked.used(lambda batch: batch, [given], [right]) == NO_NUMBER
    nothing, right = Budget(0.0, 0.0, 0.0), torch.tensor([[1.0, 2.0], [3.0, 0.0]])[..., None, None]
    assert nothing.used(lambda given: given, [right], [right]) == 0.0
    assert nothing.used(lambda given: given + 1e-3, [right], [right]) == NO_NUMBER


@pytest.mark.parametrize("parts", [(-1e-3, 0.1, 0.1), (1e-3, math.nan, 0.1), (1e-3, 0.1, -math.inf)])
def test_a_budget_below_nothing_is_refused(parts: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"^a budget must be 0 or more, got -?(0\.001|nan|inf)$"):
        Budget(*parts)


def test_values_have_no_classes() -> None:
    right = torch.tensor([3.0, 4.0])
    assert Budget(1e-3, 0.1).of_answers(masks=False).used(lambda given: given + 0.3, [right], [right]) > 0.8
    assert spent(lambda given: given, [right], [right], masks=False).flips == 0.0


@torch.no_grad()
def test_what_reads_a_value_without_end_reads_no_fp8() -> None:
    net = rewritten_from_list("classic").net
    finite = {value.name: 1.0 for group in groups(net) for value in group}
    every = scales(net, [], finite)
    group = next(found for found in groups(net) if len(found) > 1 and next(iter(found)).name in every)
    names = {value.name for value in group}
    for amount in (math.inf, math.nan):
        left = scales(net, [], finite | {next(iter(names)): amount})
        assert left
        assert not names & left.keys()
        assert all(map(math.isfinite, left.values()))


class Judged:
    def __init__(self, module: nn.Module, batches: list[Tensor]) -> None:
        self.module, self.batches = module, batches
        self.net: ExportedNet = rewritten_from(module, batches[0])
        self.seen = fp8_build.largest(self.net, batches)
        self.exact = [module(batch) for batch in batches]

    def answers(self, keep: list[str]) -> list[Tensor]:
        run = lower(self.net, Plan(scales(self.net, keep, self.seen)))
        return [run(batch) for batch in self.batches]

    def error(self, keep: list[str]) -> float:
        got, want = torch.cat(self.answers(keep)), torch.cat(self.exact)
        return float((got - want).norm() / want.norm())

    def flips(self, keep: list[str]) -> float:
        got, want = torch.cat(self.answers(keep)), torch.cat(self.exact)
        return float((got.argmax(1) != want.argmax(1)).float().mean())


@pytest.fixture(scope="module")
def small() -> Judged:
    torch.manual_seed(0)
    with torch.no_grad():
        return Judged(classic(depth=1), list(image(4, 3, 32, 32).split(2)))


@torch.no_grad()
def test_a_trained_net_keeps_its_masks_in_fp8() -> None:
    shipped = build_model("models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors", 0)
    trained = Judged(shipped, list(to_batch(dataset_loader("samples", None, None, 64)(4).images).split(2)))
    known = scales(trained.net, [], trained.seen)
    assert layers_in_fp8(trained.net, known) == quantisable(trained.net)
    assert len(quantisable(trained.net)) == 17  # all but the one at the image
    assert 1e-3 < trained.error([]) < 3e-2
    assert trained.flips([]) < 5e-3
    assert trained.error(quantisable(trained.net)) < 2e-3


@torch.no_grad()
def test_layers_are_kept_until_the_masks_are_within_the_budget(small: Judged) -> None:
    every = small.flips([])
    assert every > 0
    kept, taken = fp8_build.keep_for(small.net, small.seen, small.batches, Budget(0.6 * every, 1.0))
    assert 0 < len(kept) < len(quantisable(small.net))
    assert set(taken) == set(quantisable(small.net))
    assert small.flips(kept) <= 0.6 * every * 1.2  # judged by fp16's masks, which are nearly the net's
    assert fp8_build.keep_for(small.net, small.seen, small.batches, Budget(2 * every, 1.0)) == ([], {})


@torch.no_grad()
def test_layers_are_kept_until_the_logits_are_within_the_budget(small: Judged) -> None:
    every = small.error([])
    kept, _ = fp8_build.keep_for(small.net, small.seen, small.batches, Budget(1.0, 0.7 * every))
    assert kept
    assert small.error(kept) < 0.75 * every
