"""`fp8` on nets of several inputs, from their file to what is saved, beside a GPU that is made up."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.compiler import candidate, driver, fp8_build
from pipeline.compiler.agreement import Budget, distance
from pipeline.compiler.artifact import load
from pipeline.compiler.batch import Batch
from pipeline.compiler.driver import Rewritten
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.fp8_build import JUDGED_BATCHES, Fp8, largest, of_sensitivity, sensitivity
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.kernels.common.nhwc import FP8_MAX
from pipeline.records.goals import Task
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.samples import Calibration, ImageSet
from pipeline.report.sections import bits
from pipeline.stages import Skip, StageError, fp8, fused
from pipeline.stages.api import CalibrationImages, Runner, Workload
from pipeline.stages.common.compiled import request_of
from pipeline.stages.common.fewer_bits import calibration, images_given
from pipeline.worker import workload
from tests.compiler.made_up_gpu import no_gpu, times
from tests.stages.nets_of_several_inputs import MADE
from tests.worker.jobs import EAGER, job

__all__ = ["no_gpu"]  # a fixture
SAMPLES, SIZE, VERIFIED = 30, 2, 4
WITHIN = Budget(0.02, 5e-2)  # that of the stage in the logits; of so few pixels without training some change


def loaded(name: str, folder: Path, *, samples: int = SAMPLES, labels: str | None = None) -> Workload:
    make, drawn = MADE[name]
    torch.manual_seed(0)
    values = drawn(samples)
    right = {"right": torch.zeros_like(next(iter(values.values())))} if labels else {}
    save_file(values | right, folder / "inputs.safetensors")
    data = DataSpec("tensors", str(folder / "inputs.safetensors"), labels, None, batch_size=SIZE, batches=VERIFIED)
    model = ModelSpec(name, f"{make.__module__}.{make.__qualname__}", {}, None)
    task = Task("segmentation" if name == "masked" else "regression")
    return replace(workload.load(replace(job(EAGER, folder), model=model, data=data, task=task), None), folder=folder)


def on_cuda(work: Workload) -> Workload:
    return replace(work, device=torch.device("cuda"))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (driver, fp8_build):
        monkeypatch.setattr(room, "barred_on", lambda *_: None)


def built(
    work: Workload, monkeypatch: pytest.MonkeyPatch, keep: str = "auto", flips: float = 0.02, error: float = 5e-2
) -> Runner:
    """The stage where its candidate in fp8 is the fastest, and norms are Inductor's: a GPU's clock chooses others."""
    times(monkeypatch, 3.0, 2.0, 1.0)
    monkeypatch.setattr(driver, "put_own_norms", lambda *_: {})
    return fp8.build(
        on_cuda(work),
        calibration_images=8,
        keep_fp16=keep,
        budget=flips,
        error_budget=error,
        tuning_folder=str(work.folder / "tuned"),
        inductor_search="never",
    )


@pytest.mark.parametrize("name", MADE)
def test_layers_are_in_fp8_within_the_budget(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved of them answers with the same bits."""
    work = loaded(name, tmp_path)
    stage = built(work, monkeypatch)
    assert (stage.execution.precision, stage.execution.instead) == ("fp8", "")
    assert stage.details["refused"] == {}
    assert stage.details["stored_fp8"]
    assert stage.save is not None
    net, _ = stage.save(tmp_path / "artefact")
    saved = load(net.parent)
    with torch.no_grad():
        for given in work.inputs[:VERIFIED]:
            assert 1e-4 < distance(stage.run(*given), work.model(*given)) < 6e-2
            assert torch.equal(saved(*given), stage.run(*given))


@pytest.mark.parametrize("labels", [None, "right"])
def test_no_judged_sample_is_looked_at(labels: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = loaded("guided", tmp_path, labels=labels)
    seen: list[Batch] = []

    def watched(net: ExportedNet, batches: Sequence[Tensor | Batch]) -> dict[str, float]:
        seen.extend(batch for batch in batches if isinstance(batch, Batch))
        return largest(net, batches)

    monkeypatch.setattr(fp8_build, "largest", watched)
    stage = built(work, monkeypatch)
    looked_at = work.calibration(8 + SIZE * JUDGED_BATCHES)
    batches = SAMPLES // SIZE
    expected = [*range(VERIFIED, VERIFIED + 7)] if labels is None else [*range(batches - 5, batches)]
    assert stage.left_out == (() if labels is None else tuple(expected))
    assert looked_at.pictures == tuple(f"sample {at}" for number in expected for at in (2 * number, 2 * number + 1))
    assert work.further is not None
    stored = [work.further(SIZE * number, SIZE * (number + 1)) for number in range(max(VERIFIED, work.judged // SIZE))]
    for given in [*seen, *looked_at.batches]:
        assert given.names == ("sample", "added.inside", "added.text", "maps.0")
        assert [part.dtype for part in given] == [torch.float32, torch.bool, torch.float32, torch.float32]
    judged = [part for number, part in enumerate(stored) if number not in stage.left_out]
    assert len(judged) == (VERIFIED if labels is None else batches - 5)
    for given in looked_at.batches:
        assert not any(torch.equal(one, other) for row in judged for one in row.first for other in given.first)
    assert (stage.calibration.apart, stage.calibration.choice_apart) == (True, True)
    assert len(seen) == len(looked_at.batches) - JUDGED_BATCHES + (labels is not None)


def test_where_there_are_too_few_samples_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = built(loaded("guided", tmp_path, samples=VERIFIED * SIZE + 1), monkeypatch)
    assert not stage.calibration.apart
    assert stage.left_out == ()


def test_whole_numbers_reach_the_net_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = loaded("attending", tmp_path)
    stage, (sample, step, states) = built(work, monkeypatch), work.inputs[0]
    near = torch.full_like(step, 998), torch.full_like(step, 999)
    with torch.no_grad():
        one, other = (stage.run(sample, each, states).clone() for each in near)
        wanted = work.model(sample, near[1], states) - work.model(sample, near[0], states)
        assert distance(other - one, wanted) < 0.3


def test_a_map_that_is_given_has_a_scale_of_its_own_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined with a layer's, whose type and scale it shares: the largest of both, over all that scales come from."""
    work = loaded("guided", tmp_path)
    rewritten = Rewritten(request_of(work, str(tmp_path), "never", []), None)
    batches = work.calibration(8 + SIZE * JUDGED_BATCHES).batches
    found = sensitivity(rewritten, Fp8(lambda: batches, WITHIN, "none"), batches)
    made = of_sensitivity(rewritten, found)
    most = max(float(batch.tensors[3].abs().max()) for batch in batches[: found.for_scales])
    assert {round(scale * FP8_MAX / most, 3) for scale in made.plan.scales.values()} == {1.0}


@pytest.mark.parametrize(
    ("keep", "allowed", "why"),
    [
        ("auto", 1e-9, "no layer can be in fp8 within the budget of 1e-09 of the answer (relative L2); "),
        ("joined", 5e-2, "keep_fp16 leaves no layer that could be in it"),
    ],
)
def test_a_net_of_which_no_layer_can_be_in_fp8_says_so(
    keep: str, allowed: float, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = built(loaded("guided", tmp_path), monkeypatch, keep, 1.0, allowed)
    (said,) = stage.details["refused"].values()
    assert said.startswith(why)
    assert stage.execution.instead.endswith(f"layers by own kernels, in fp16: fp8 was refused: {said}")
    found = stage.details["fp8_choice"]
    assert found["in_fp8"] == []
    assert found["limit"] == Budget(1.0, allowed).of_answers(False).in_words
    figures = [alone for alone in found["refused"].values() if alone is not None]
    assert bool(figures) == (keep == "auto")
    assert all(alone > 1 for alone in figures)
    assert said.endswith(f"takes {min(figures):.3g} × it" if figures else "could be in it")


def test_each_layer_s_precision_is_told_and_by_which_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, tight = loaded("attending", tmp_path), 2e-2
    stage = built(work, monkeypatch, error=tight)
    found = stage.details["fp8_choice"]
    assert found["in_fp8"]
    assert found["refused"]
    assert all(alone > 0 for alone in found["refused"].values())
    assert not set(found["in_fp8"]) & set(found["refused"])
    first, second = bits.chosen_layers("fp8", stage.details)
    assert first == f"own kernels (fp8): {', '.join(found['in_fp8'])} can be in fp8."
    assert all(name in second for name in found["refused"])
    assert f"in brackets what each alone takes of the budget of {tight:g} of the answer (relative L2)" in second
    times(monkeypatch, 1.0, 2.0, 3.0)
    options: dict[str, Any] = {"calibration_images": 8, "budget": 0.02, "error_budget": tight}
    slower = fp8.build(on_cuda(work), **options, tuning_folder=str(tmp_path / "again"), inductor_search="never")
    assert "stored_fp8" not in slower.details
    assert slower.details["fp8_choice"] == found
    assert "another form was faster" in bits.chosen_layers("fp8", slower.details)[0]
    assert bits.chosen_layers("half", {}) == []


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("stage", [fused, fp8])
def test_it_runs_in_all_grad_modes(stage: Any, captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "put_own_norms", lambda *_: {})
    times(monkeypatch, 3.0, 2.0, 1.0)
    if not captured:
        fail = OSError("no graph of it")
        monkeypatch.setattr(driver, "Rewritten", Mock(side_effect=UnsupportedError("it looks at its values")))
        monkeypatch.setattr(candidate, "compile_counting_bytes", Mock(side_effect=fail))
        monkeypatch.setattr(torch, "compile", lambda net: net)
        monkeypatch.setattr(driver, "check_compiled", lambda: None)
    work = loaded("guided", tmp_path)
    runner = stage.build(on_cuda(work), tuning_folder=str(tmp_path), inductor_search="never")
    assert runner.execution.captured is captured
    for mode in (torch.inference_mode, torch.no_grad, nullcontext):
        for given in work.inputs[:2]:
            with mode():
                answer = runner.run(*given)
                wanted = work.model(*given).detach()
                assert distance(answer, wanted) < 0.3
                answer.mul_(2)
            assert not answer.requires_grad


@pytest.mark.parametrize("keep", ["auto", "none"])
def test_a_net_whose_values_have_no_scale_says_so(keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_build, "largest", lambda net, _: {node.name: torch.inf for node in net.module.graph.nodes})
    stage = built(loaded("guided", tmp_path), monkeypatch, keep)
    why = "all that its layers could read in fp8 is infinite somewhere, or no number"
    assert stage.details["refused"] == {"fp8": why}


def test_fewer_images_than_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^calibration_images=-4: expected an integer ≥ 0$"):
        images_given(loaded("guided", tmp_path), -4)


def test_the_record_says_which_images_served_for_what() -> None:
    given = CalibrationImages([Batch((torch.zeros(2, 3, 4, 4),))], False, ("a", "a"))
    found = calibration(given, 1, chose=True)
    assert found == Calibration(ImageSet(2, ["a"]), ImageSet(2, ["a"]), choice_apart=False, apart=False)


@pytest.mark.parametrize("stage", [fused, fp8])
def test_a_name_that_the_network_lacks_is_refused_in_one_line(stage: Any, tmp_path: Path) -> None:
    work, folder = loaded("guided", tmp_path), str(tmp_path)
    with pytest.raises(StageError, match=r"^keep_fp32: the network has no module 'entr'; did you mean 'enter'\?$"):
        stage.build(on_cuda(work), keep_fp32=["entr"], tuning_folder=folder)
    if stage is fp8:
        with pytest.raises(StageError, match=r"^keep_fp16=entr: no such layer; choose among "):
            stage.build(on_cuda(work), keep_fp16=["entr"], tuning_folder=folder)


def test_a_gpu_without_fp8_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_build, "barred_on", lambda *_: "it is too old")
    with pytest.raises(Skip, match=r"^it is too old$"):
        fp8.build(on_cuda(loaded("guided", tmp_path)), tuning_folder=str(tmp_path))
