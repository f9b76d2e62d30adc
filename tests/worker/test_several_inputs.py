"""Nets of several inputs, of volumes, and a denoising loop, from files to the record."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pipeline.errors import ModelError, TensorError
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.goals import Task, Tolerance
from pipeline.records.request import DataSpec, Job, ModelSpec, StageSpec
from pipeline.stages import int8
from pipeline.stages.api import Runner, Skip, StageError
from pipeline.worker import workload
from pipeline.worker.run_stage import run_stage
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, Recorder, job

NAMES = ("sample", "timestep", "encoder_hidden_states")
LOOP = Task("diffusion", steps=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of six samples, the inputs in another order than the net's, and with one type that is not fp32."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("tensors")
    tensors = {
        "encoder_hidden_states": torch.randn(6, 5, 6).half(),
        "sample": torch.randn(6, 4, 16, 16),
        "timestep": torch.arange(1, 900, 150, dtype=torch.int32)[:6],
    }
    save_file(tensors, place / "inputs.safetensors")
    return place


def asked(folder: Path, stage: StageSpec = EAGER, role: str = "stage", task: Task = LOOP, **data: Any) -> Job:
    labels = data.pop("labels", None)
    spec = DataSpec("tensors", str(folder / "inputs.safetensors"), labels, None, batch_size=2, batches=3, **data)
    model = ModelSpec("conditioned", "tests.input_nets.Conditioned", {}, None)
    return replace(job(stage, folder, role), model=model, data=spec, task=task)


def stage(name: str, **options: object) -> StageSpec:
    tolerance = Tolerance(5e-2, 0.0, "half precision")
    return replace(EAGER, name=name, target=f"pipeline.stages.{name}", tolerance=tolerance, options=options)


def test_each_input_is_known_by_its_name_and_samples_of_their_own_are_counted(folder: Path) -> None:
    work = workload.load(asked(folder), None)
    more = replace(asked(folder), data=replace(asked(folder).data, batches=4))
    assert work.distinct == workload.load(more, None).distinct == 6
    assert (work.name, list(work.others)) == (NAMES[0], list(NAMES[1:]))
    batch = work.inputs[0]
    assert [(list(part.shape), part.dtype) for part in batch] == [
        ([2, 4, 16, 16], torch.float32),
        ([2], torch.int64),
        ([2, 5, 6], torch.float32),
    ]
    assert work.sources[:2] == ("inputs.safetensors sample 0", "inputs.safetensors sample 1")
    assert len(work.inputs) >= 3


def test_an_input_says_nothing_of_what_is_right(folder: Path) -> None:
    with pytest.raises(TensorError, match=r"data\.labels=sample: one of the network's inputs; name the labels"):
        workload.load(asked(folder, labels="sample"), None)


def test_a_stage_goes_the_whole_way(folder: Path) -> None:
    with own_switches():
        line = Recorder(0)
        run_stage(asked(folder, role="reference"), line)
        assert line.run_fields["reference"].flops_per_image > 0
        line = Recorder()
        run_stage(asked(folder, stage("half", dtype="bf16")), line)
    assert line.fields["status"] == "ok", line.fields["reason"]
    found = line.fields["accuracy"]
    assert 0 < found.relative_l2 < 5e-2
    assert len(found.step_errors) == 4
    assert 0 < found.final_error < 1
    assert (found.flipped_share, found.one_class, found.dice, found.psnr) == (None, None, None, None)
    assert not list(folder.rglob("mask_*.png"))
    assert line.fields["diagnostics"].notes_on("layers") == []


def runs(name: str, asked: Job, folder: Path, within: float) -> Runner:
    """Build a stage, and check its answer to the second batch."""
    work = replace(workload.load(asked, None), folder=folder)
    with own_switches(), torch.inference_mode():
        runner: Runner = import_module(f"pipeline.stages.{name}").build(work)
        batch = work.inputs[1]
        torch.testing.assert_close(runner.run(*batch).float(), work.model(*batch), rtol=within, atol=within)
    return runner


@pytest.mark.parametrize("name", ["amp", "channels_last", "torchscript", "onnxruntime"])
def test_each_way_takes_all_inputs(name: str, folder: Path, tmp_path: Path) -> None:
    runs(name, asked(folder), tmp_path, 2e-2)


def test_a_stage_for_one_input_is_refused(folder: Path, tmp_path: Path) -> None:
    work = replace(workload.load(asked(folder), None), folder=tmp_path)
    with pytest.raises(Skip, match="takes networks of one input; this one takes 3: sample, timestep, encoder"):
        int8.build(work)
    one = replace(EAGER, name="mine", target="tests.fault_stages", options={"fault": "zeros"})
    with pytest.raises(StageError, match=r"the network takes 3 inputs \(sample, timestep, encoder_hidden_states\)"):
        run_stage(asked(folder, one), Recorder())


RULES = InputContract(1, "zscore", (), (), 1.0)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, draw = tmp_path_factory.mktemp("volumes"), np.random.default_rng(0)
    for name in ("scans", "masks"):
        (place / name).mkdir()
    for number in range(3):
        scan = draw.integers(-1000, 1000, (8, 12, 16))
        nibabel.save(nibabel.Nifti1Image(scan.T.astype(np.int16), np.eye(4)), place / "scans" / f"case{number}.nii.gz")
        np.save(place / "masks" / f"case{number}.npy", (scan > 0).astype(np.uint8))
    return place


def asked_volumes(scans: Path, stage: StageSpec = EAGER, role: str = "stage") -> Job:
    rules = LabelRules(pattern="*")
    places = (str(scans / "scans"), str(scans / "masks"))
    data = DataSpec("volume", *places, 8, batch_size=1, batches=3, contract=RULES, label_rules=rules)
    model = ModelSpec("volumes", "tests.input_nets.Volumes", {}, None)
    return replace(job(stage, scans, role), model=model, data=data)


def test_volumes_are_cut_into_windows(scans: Path) -> None:
    work = workload.load(asked_volumes(scans), None)
    assert work.shape == (1, 1, 8, 8, 8)
    assert work.judged == 3 * 2 * 2
    assert work.sources[0] == "case0.nii.gz at 0,0,0"
    torch.testing.assert_close(work.batches[0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert int((work.labels[: work.judged] != 255).sum()) == 3 * 8 * 12 * 16


def test_a_stage_takes_volumes_the_whole_way(scans: Path) -> None:
    with own_switches():
        run_stage(asked_volumes(scans, role="reference"), first := Recorder(0))
        line = Recorder()
        name = "channels_last"
        run_stage(asked_volumes(scans, replace(EAGER, name=name, target=f"pipeline.stages.{name}")), line)
    assert line.fields["status"] == "ok", line.fields["reason"]
    found = line.fields["accuracy"]
    assert found.images == 12
    assert (first.run_fields["reference"].spatial_dims, first.run_fields["reference"].labels) == (
        3,
        "the labels given with the volumes",
    )
    assert len(found.dice) == 2
    assert (scans / name / "mask_0.png").exists()
    assert (scans / "reference" / "image_0.png").exists()


@pytest.mark.parametrize("name", ["amp", "half", "torchscript", "onnxruntime"])
def test_each_way_takes_volumes(name: str, scans: Path, tmp_path: Path) -> None:
    runner = runs(name, asked_volumes(scans), tmp_path, 3e-2)
    if name == "half":
        assert runner.details["folded_batch_norms"] == 1


def test_what_has_no_form_for_volumes_says_so(scans: Path, tmp_path: Path) -> None:
    work = replace(workload.load(asked_volumes(scans), None), folder=tmp_path)
    with pytest.raises(Skip, match=r"takes images .*; this network's input has 5 axes"):
        int8.build(work)


def test_a_net_for_images_is_refused_volumes(scans: Path) -> None:
    wrong = replace(
        asked_volumes(scans, role="reference"), model=ModelSpec("unet", "models.unet.UNet", {"base": 4}, None)
    )
    with pytest.raises(ModelError, match=r"UNet fails .* Conv2d alone, and volumes .*model\.options\.spatial_dims=3"):
        run_stage(wrong, Recorder(0))
