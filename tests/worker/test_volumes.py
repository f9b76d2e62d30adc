"""A net for volumes, from a folder of NIfTI files to its record, and by each way of running it."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.request import DataSpec, Job, ModelSpec, StageSpec
from pipeline.stages import int8
from pipeline.stages.api import Skip
from pipeline.worker import workload
from pipeline.worker.run_stage import run_stage
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, Recorder, job

RULES = InputContract(1, "zscore", (), (), 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, draw = tmp_path_factory.mktemp("volumes"), np.random.default_rng(0)
    for name in ("scans", "masks"):
        (place / name).mkdir()
    for number in range(3):
        scan = draw.integers(-1000, 1000, (8, 12, 16))
        nibabel.save(nibabel.Nifti1Image(scan.T.astype(np.int16), np.eye(4)), place / "scans" / f"case{number}.nii.gz")
        np.save(place / "masks" / f"case{number}.npy", (scan > 0).astype(np.uint8))
    return place


def asked(folder: Path, stage: StageSpec = EAGER, role: str = "stage") -> Job:
    rules = LabelRules(pattern="*")
    places = (str(folder / "scans"), str(folder / "masks"))
    data = DataSpec("volume", *places, 8, batch_size=1, batches=3, contract=RULES, label_rules=rules)
    model = ModelSpec("volumes", "tests.input_nets.Volumes", {}, None)
    return replace(job(stage, folder, role), model=model, data=data)


def test_volumes_are_cut_into_windows(folder: Path) -> None:
    """Of 8×8×8: those of one volume cover it, the last ones end at its edge, where labels are known once."""
    work = workload.load(asked(folder), None)
    assert work.shape == (1, 1, 8, 8, 8)
    assert work.judged == 3 * 2 * 2
    assert work.sources[0] == "case0.nii.gz at 0,0,0"
    torch.testing.assert_close(work.batches[0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert int((work.labels[: work.judged] != 255).sum()) == 3 * 8 * 12 * 16


def test_a_stage_goes_the_whole_way(folder: Path) -> None:
    with own_switches():
        run_stage(asked(folder, role="reference"), first := Recorder(0))
        line = Recorder()
        name = "channels_last"
        run_stage(asked(folder, replace(EAGER, name=name, target=f"pipeline.stages.{name}")), line)
    assert line.fields["status"] == "ok", line.fields["reason"]
    found = line.fields["accuracy"]
    assert found.images == 12
    assert (first.run_fields["reference"].spatial_dims, first.run_fields["reference"].labels) == (
        3,
        "the labels given with the volumes",
    )
    assert len(found.dice) == 2
    assert (folder / name / "mask_0.png").exists()
    assert (folder / "reference" / "image_0.png").exists()


@pytest.mark.parametrize("name", ["amp", "half", "torchscript", "onnxruntime"])
def test_each_way_takes_volumes(name: str, folder: Path, tmp_path: Path) -> None:
    work = replace(workload.load(asked(folder), None), folder=tmp_path)
    with own_switches(), torch.inference_mode():
        runner = import_module(f"pipeline.stages.{name}").build(work)
        batch = work.batches[1]
        torch.testing.assert_close(runner.run(batch).float(), work.model(batch), rtol=3e-2, atol=3e-2)
    if name == "half":
        assert runner.details["folded_batch_norms"] == 1


def test_what_has_no_form_for_volumes_says_so(folder: Path, tmp_path: Path) -> None:
    work = replace(workload.load(asked(folder), None), folder=tmp_path)
    with pytest.raises(Skip, match=r"takes images .*; this network's input has 5 axes"):
        int8.build(work)


def test_a_net_for_images_is_refused_volumes(folder: Path) -> None:
    wrong = replace(asked(folder, role="reference"), model=ModelSpec("unet", "models.unet.UNet", {"base": 4}, None))
    with pytest.raises(ModelError, match=r"UNet fails .* Conv2d alone, and volumes .*model\.options\.spatial_dims=3"):
        run_stage(wrong, Recorder(0))
