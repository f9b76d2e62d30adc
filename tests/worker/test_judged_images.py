"""What is judged, apart from what calibrated: labelled folders, nets of several inputs, of volumes, and loops."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from models.image_batches import to_batch
from pipeline.errors import ModelError, TensorError
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.goals import SEGMENTATION, AccuracyLimits, Task, Tolerance
from pipeline.records.request import DataSpec, Job, ModelSpec, StageSpec
from pipeline.records.samples import Calibration, ImageSet
from pipeline.stages import eager, int8
from pipeline.stages.api import Runner, Skip, StageError, Workload
from pipeline.worker import workload
from pipeline.worker.run_stage import prepare
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, job, ran, small

IMAGES, SIZE, BATCH = 13, 16, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirteen labelled pictures, of which six are in the verified batches, and the reference's logits of all."""
    root = tmp_path_factory.mktemp("labelled")
    draw = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir()
    for number in range(IMAGES):
        name = f"{number:02d}.png"
        Image.fromarray(draw.integers(0, 255, (SIZE, SIZE, 3), np.uint8)).save(root / "images" / name)
        Image.fromarray(np.full((SIZE, SIZE), number % 2, np.uint8)).save(root / "masks" / name)
    ran(labelled(root, role="reference"), 0)
    return root


def labelled(root: Path, role: str = "stage") -> Job:
    data = DataSpec("folder", str(root / "images"), str(root / "masks"), size=None, batch_size=BATCH, batches=3)
    return replace(small(EAGER, root, role), data=data)


def test_every_labelled_image_is_judged_once(folder: Path) -> None:
    work = workload.load(labelled(folder), None)
    assert (len(work.batches), work.verified, work.judged) == (3, 3, IMAGES)
    batches, counts = zip(*workload.further_batches(work), strict=True)
    assert counts == (2, 2, 2, 1)
    assert {batch.shape for batch in batches} == {(BATCH, 3, SIZE, SIZE)}
    line = ran(labelled(folder))
    found = line.fields["accuracy"]
    assert (found.images, found.pictures) == (IMAGES, IMAGES)
    assert line.fields["status"] == "ok"
    assert found.dice == found.reference_dice


def test_masks_are_no_truth_of_a_net_that_gives_values(tmp_path: Path) -> None:
    """The demo's images bring masks: classes were taken for what the net should answer, or failed in torch."""
    asked = replace(job(EAGER, tmp_path), task=Task("regression"))
    assert workload.load(asked, None).labels is None
    assert workload.load(replace(asked, task=SEGMENTATION), None).labels is not None


def test_a_wrong_answer_beyond_the_first_batches_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = eager.build

    def build(work: Workload) -> Runner:
        runner, known = honest(work), [batch.clone() for batch in work.batches[: work.verified]]

        def run(batch: torch.Tensor) -> torch.Tensor:
            return runner.run(batch) * (1.0 if any(torch.equal(batch, other) for other in known) else -1.0)

        return replace(runner, run=run)

    monkeypatch.setattr(eager, "build", build)
    line = ran(labelled(folder))
    assert line.fields["status"] == "inaccurate"
    assert line.fields["accuracy"].images == IMAGES


def test_an_image_that_the_network_has_no_number_for_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Overflowing(torch.nn.Conv2d):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            means = images.mean((1, 2, 3), keepdim=True)
            return super().forward(images) / ((means - tenth).abs() > 1e-6)

    asked = labelled(folder, role="reference")
    tenth = to_batch(workload.load(asked, None).images[10:11]).mean()
    monkeypatch.setattr(workload, "net_of", lambda _: Overflowing(3, 2, 1).eval())
    with pytest.raises(ModelError, match=r"Overflowing answers in fp32 with NaN or infinite values to 10\.png"):
        ran(asked, 0)


def test_a_stage_is_judged_on_no_batch_that_it_was_calibrated_on(folder: Path) -> None:
    bench = prepare(labelled(folder))
    given = bench.workload.calibration(32)
    assert given.independent
    assert given.left_out == (5,)
    assert given.pictures == ("10.png", "11.png")
    work = bench.workload
    assert torch.equal(given.batches[0].first, to_batch(work.images[10:12]))
    bench.build()
    chosen = Calibration(ImageSet(2, ["10.png", "11.png"]), None, choice_apart=True, apart=True)
    bench.runner = replace(bench.runner, calibration=chosen, left_out=given.left_out)
    found, status, _ = bench.verify()
    assert (found.images, found.pictures, status) == (IMAGES - 2, IMAGES - 2, "ok")
    assert workload.judged_images(work, [2] * 6 + [1], given.left_out) == [*range(10), 12]
    assert found.dice == found.reference_dice


def test_a_limit_of_accuracy_is_asked_of_stages_and_not_of_the_baseline(folder: Path) -> None:
    """Eager is right by its tolerance and knows nothing of these labels; as the others' baseline it is measured."""
    asked = replace(labelled(folder), accuracy=AccuracyLimits(min_dice=0.999))
    stage, companion = ran(asked), ran(replace(asked, role="companion"))
    assert (stage.fields["status"], stage.fields["failure"]) == ("inaccurate", "accuracy limit")
    assert "0.999 asked for (accuracy.min_dice)" in stage.fields["reason"]
    assert (stage.samples, len(companion.samples)) == ([], 3)


def test_images_without_labels_are_judged_by_the_first_batches(folder: Path) -> None:
    bare = replace(labelled(folder), data=replace(labelled(folder).data, labels=None))
    work = workload.load(bare, None)
    assert work.judged == work.verified * BATCH
    assert list(workload.further_batches(work)) == []
    assert work.calibration(2).left_out == ()


def test_random_weights_are_not_judged_by_masks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loose = replace(EAGER, tolerance=replace(EAGER.tolerance, relative_l2=100.0))
    trained, root = replace(labelled(folder), stage=loose), tmp_path / "reference"
    random = replace(trained, model=replace(trained.model, checkpoint=None), reference=str(root / "logits.safetensors"))
    ran(replace(random, role="reference", folder=str(root)), 0)
    honest = eager.build

    def build(work: Workload) -> Runner:
        runner = honest(work)
        shift = torch.zeros(1, 2, 1, 1)

        def run(batch: torch.Tensor) -> torch.Tensor:
            logits = runner.run(batch)
            shift[0, 0] = 2 * (logits[:, 1] - logits[:, 0]).abs().max()
            return logits + shift

        return replace(runner, run=run)

    monkeypatch.setattr(eager, "build", build)
    for asked, status in ((trained, "inaccurate"), (random, "ok")):
        assert ran(replace(asked, folder=str(tmp_path / "eager"))).fields["status"] == status


def test_no_image_is_among_those_that_are_checked(tmp_path: Path) -> None:
    data = DataSpec("samples", None, None, size=64, batch_size=4, batches=2)
    work = workload.load(replace(job(EAGER, tmp_path), data=data), None)
    batches, independent, *_ = work.calibration(10)
    assert independent
    assert [len(batch.first) for batch in batches] == [4, 4, 4]
    checked = torch.cat(work.batches[: work.verified])
    assert not any(torch.equal(image, other) for batch in batches for image in batch.first for other in checked)


def test_where_there_are_no_others_it_is_said(tmp_path: Path) -> None:
    (folder := tmp_path / "images").mkdir()
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(folder / "one.png")
    data = DataSpec("folder", str(folder), None, size=64, batch_size=2, batches=1)
    batches, independent, *_ = workload.load(replace(job(EAGER, tmp_path), data=data), None).calibration(3)
    assert not independent
    assert sum(len(batch.first) for batch in batches) == 4


def test_the_stain_is_judged_on_one_quarter_and_calibrated_on_the_others(tmp_path: Path) -> None:
    data = DataSpec("stain", None, None, size=256, batch_size=2, batches=1)
    found = workload.load(replace(job(EAGER, tmp_path), data=data), None).calibration(3)
    assert found.independent
    assert [picture.rpartition(" at ")[2] for picture in found.pictures] == ["0,0", "0,256", "256,0", "0,0"]


def test_without_a_source_of_more_the_batches_that_are_not_checked_serve() -> None:
    images = [torch.full((2, 3, 4, 4), float(value)) for value in range(4)]
    work = Workload(torch.nn.Identity(), images, torch.device("cpu"), Path(), verified=3)
    assert [batch.first for batch in work.calibration(32).batches] == images[3:]
    assert work.calibration(32).independent
    alone = replace(work, batches=images[:3])
    assert [batch.first for batch in alone.calibration(2).batches] == images[:1]
    assert not alone.calibration(2).independent


def test_drawn_images_are_judged_with_their_labels_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # half sets it
    data = DataSpec("generated", size=32, batch_size=2, images=11)
    net = ModelSpec("small", "models.unet.UNet", {"base": 4, "depth": 2, "classes": 4}, trained=True)
    half = replace(EAGER, name="half", target="pipeline.stages.half", tolerance=Tolerance(0.05, 1.0, "half"))
    reference = ran(replace(job(EAGER, tmp_path, "reference"), data=data, model=net), 0)
    line = ran(replace(small(half, tmp_path), data=data, model=net))
    assert reference.run_fields["reference"].labels == "drawn with the images, no photograph's"
    found = line.fields["accuracy"]
    assert (found.images, found.pictures, line.fields["status"]) == (11, 11, "ok")
    assert found.dice == pytest.approx(found.reference_dice, abs=0.05)
    assert len(found.dice) == 4
    mean = [100 * sum(part[1:]) / 3 for part in (found.reference_dice, found.dice)]
    assert found.dice_lost.points == pytest.approx(mean[0] - mean[1])
    assert found.dice_lost.low <= found.dice_lost.points <= found.dice_lost.high


NAMES = ("sample", "timestep", "encoder_hidden_states")
LOOP = Task("diffusion", steps=4)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_each_input_is_known_by_its_name_and_samples_of_their_own_are_counted(tensors: Path) -> None:
    work = workload.load(asked(tensors), None)
    more = replace(asked(tensors), data=replace(asked(tensors).data, batches=4))
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


def test_an_input_says_nothing_of_what_is_right(tensors: Path) -> None:
    with pytest.raises(TensorError, match=r"data\.labels=sample: one of the network's inputs; name the labels"):
        workload.load(asked(tensors, labels="sample"), None)


def test_a_stage_goes_the_whole_way(tensors: Path) -> None:
    with own_switches():
        assert ran(asked(tensors, role="reference"), 0).run_fields["reference"].flops_per_image > 0
        line = ran(asked(tensors, stage("half", dtype="bf16")))
    assert line.fields["status"] == "ok", line.fields["reason"]
    found = line.fields["accuracy"]
    assert 0 < found.relative_l2 < 5e-2
    assert len(found.step_errors) == 4
    assert 0 < found.final_error < 1
    assert (found.flipped_share, found.one_class, found.dice, found.psnr) == (None, None, None, None)
    assert not list(tensors.rglob("mask_*.png"))
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
def test_each_way_takes_all_inputs(name: str, tensors: Path, tmp_path: Path) -> None:
    runs(name, asked(tensors), tmp_path, 2e-2)


def test_a_stage_for_one_input_is_refused(tensors: Path, tmp_path: Path) -> None:
    work = replace(workload.load(asked(tensors), None), folder=tmp_path)
    with pytest.raises(Skip, match="takes networks of one input; this one takes 3: sample, timestep, encoder"):
        int8.build(work)
    one = replace(EAGER, name="mine", target="tests.fault_stages", options={"fault": "zeros"})
    with pytest.raises(StageError, match=r"the network takes 3 inputs \(sample, timestep, encoder_hidden_states\)"):
        ran(asked(tensors, one))


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
        first, name = ran(asked_volumes(scans, role="reference"), 0), "channels_last"
        line = ran(asked_volumes(scans, replace(EAGER, name=name, target=f"pipeline.stages.{name}")))
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
        ran(wrong, 0)
