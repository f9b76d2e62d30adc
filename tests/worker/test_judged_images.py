"""A folder with labels is judged whole, apart from what a stage was calibrated on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.image_batches import to_batch
from pipeline.errors import ModelError
from pipeline.records.goals import SEGMENTATION, AccuracyLimits, Task, Tolerance
from pipeline.records.request import DataSpec, Job, ModelSpec
from pipeline.records.samples import Calibration, ImageSet
from pipeline.stages import eager
from pipeline.stages.api import Runner, Workload
from pipeline.worker import workload
from pipeline.worker.run_stage import prepare, run_stage
from tests.worker.jobs import EAGER, Recorder, job, small

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
    run_stage(labelled(root, role="reference"), Recorder(0))
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
    line = Recorder()
    run_stage(labelled(folder), line)
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
    line = Recorder()
    run_stage(labelled(folder), line)
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
        run_stage(asked, Recorder(0))


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
    stage, companion = Recorder(), Recorder()
    run_stage(asked, stage)
    run_stage(replace(asked, role="companion"), companion)
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
    run_stage(replace(random, role="reference", folder=str(root)), Recorder(0))
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
        run_stage(replace(asked, folder=str(tmp_path / "eager")), line := Recorder())
        assert line.fields["status"] == status


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
    reference, line = Recorder(0), Recorder()
    run_stage(replace(job(EAGER, tmp_path, "reference"), data=data, model=net), reference)
    run_stage(replace(small(half, tmp_path), data=data, model=net), line)
    assert reference.run_fields["reference"].labels == "drawn with the images, no photograph's"
    found = line.fields["accuracy"]
    assert (found.images, found.pictures, line.fields["status"]) == (11, 11, "ok")
    assert found.dice == pytest.approx(found.reference_dice, abs=0.05)
    assert len(found.dice) == 4
    mean = [100 * sum(part[1:]) / 3 for part in (found.reference_dice, found.dice)]
    assert found.dice_lost.points == pytest.approx(mean[0] - mean[1])
    assert found.dice_lost.low <= found.dice_lost.points <= found.dice_lost.high
