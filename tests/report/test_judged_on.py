"""What the report says and shows of masks and of the images they are judged on, and of the software and machine."""

import base64
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.analysis.run_comparison import differences
from pipeline.analysis.stage_summary import StageSummary
from pipeline.records.data_words import IMAGES
from pipeline.records.goals import Tolerance
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Calibration, DiceLoss, ImageSet, MaskCounts
from pipeline.report.answer import choice_table, numbers
from pipeline.report.gallery import CROP, DIFFERS, gallery, marked
from pipeline.report.html import page
from pipeline.report.run_text import faults, inputs_at, machine, net_name, provenance, samples_text, skipped
from pipeline.report.sections.accuracy import at_worst, calibrated_on, judged_on, right, right_in_all
from pipeline.report.sections.ladder import ladder
from pipeline.report.sections.stage import essentials
from pipeline.report.terminal import first_screen
from pipeline.worker import reference
from tests.fake_machine import steady_pair
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

RUN = made_up.run()
SCALES, CHOICE = ImageSet(32, ["retina.jpg", "coffee.png"]), ImageSet(24, ["coffee.png"])


def half(calibration: Calibration | None = None, pictures: int | None = 1, run: RunRecord = RUN) -> StageSummary:
    stage = next(stage for stage in run.stages if stage.name == "half")
    told = replace(stage, calibration=calibration, accuracy=made_up.accuracy(pictures=pictures))
    return made_up.summary(replace(run, stages=[told])).stages[0]


@pytest.mark.parametrize(
    ("calibration", "pictures", "said"),
    [
        (None, 1, "on 24 images (shifts or windows of 1 picture)"),
        (None, 24, "on 24 images"),
        (None, None, "on 24 images"),
        (Calibration(SCALES, None, True, True), 1, "(shifts or windows of 1 picture), none of them calibrated on"),
        (Calibration(SCALES, None, True, False), 7, "of 7 pictures), which are shifts of those calibrated on"),
    ],
)
def test_the_accuracy_check_names_its_images(calibration: Calibration | None, pictures: int | None, said: str) -> None:
    assert judged_on(half(calibration, pictures).stage).endswith(said)
    assert said in right(half(calibration, pictures))
    for labels, remedy in ((None, "data.batches=N"), ("masks", "label more images")):
        told = half(calibration, pictures, made_up.with_settings(RUN, data={"path": "i", "labels": labels})).warnings
        assert any(remedy in warning.remedy for warning in told) == (pictures in (1, 7))


def test_tensors_that_come_again_are_no_shifts_of_pictures() -> None:
    run = made_up.with_settings(RUN, data={"name": "tensors"})
    apart, same = (half(Calibration(SCALES, None, True, apart), 7, run) for apart in (True, False))
    assert "on 24 images (repeats of 7 samples), none of them calibrated on" in right(apart)
    assert "(repeats of 7 samples), which are repeats of those calibrated on" in right(same)
    said = calibrated_on(same.stage, same.words)
    assert said.endswith("scales from 32 images of 2 samples, repeats of which are judged")
    names = [f"in.pt sample {at % 4}" for at in range(8)]
    run = replace(run, reference=replace(RUN.reference, images=names, distinct=4))
    said = "8 images, 4 samples and repeats of them: in.pt sample 0, in.pt sample 1, in.pt sample 2 and 1 more"
    assert samples_text(run).startswith(said)


SAID = "scales from 32 images of 2 pictures, layers chosen on"


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        (None, ""),
        (
            Calibration(SCALES, CHOICE, True, True),
            f"{SAID} other 24 images of 1 picture, all of them apart from the evaluation images",
        ),
        (
            Calibration(SCALES, SCALES, False, False),
            f"{SAID} the same 32 images of 2 pictures, shifts of which are judged",
        ),
    ],
)
def test_what_was_chosen_on_which_images_is_said(calibration: Calibration | None, said: str) -> None:
    assert calibrated_on(half(calibration).stage) == said


def test_dice_has_its_classes_named() -> None:
    found = made_up.accuracy(dice=[0.9945, 0.9804], reference_dice=[0.9944, 0.9801])
    stage = replace(half(), stage=replace(half().stage, accuracy=found))
    assert "Dice by class: class 0 0.9945 (fp32 network 0.9944), class 1 0.9804 (fp32 network 0.9801)" in right(stage)
    bounded = replace(found, class_lost=[DiceLoss(-0.01, -0.03, 0.01), DiceLoss(-0.03, -0.05, -0.01)])
    assert [replace(found, dice=[0.9, 1.0, 0.6], class_lost=each).mean_dice for each in (None, LOST)] == [0.8, 0.6]
    counted = MaskCounts(8, [0], [0], [[1, 0, 1]], [[2, 0, 2]], [[1, 0, 1]], [[2, 0, 2]])
    absent = replace(found, dice=[0.9, 1.0, 0.6], reference_dice=[0.9, 1.0, 0.7], counts=counted)
    assert absent.mean_dice == 0.6
    assert "class 1" not in right(replace(stage, stage=replace(stage.stage, accuracy=absent)))
    said = right(replace(stage, stage=replace(stage.stage, accuracy=bounded)))
    assert "class 0 0.9945 (fp32 network 0.9944, loses at most 0.010 points), class 1" in said


LOST = [DiceLoss(0.01, 0.0, 0.02), None, DiceLoss(0.0, -0.02, 0.05)]
MEAN_LOST = "mean Dice of the classes −0.010 points (95 %: −0.020 to +0.000)"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ["no class loses 0.01 points of Dice"]),
        ({"dice": [0.98, 0.9375]}, ["class 1 loses 0.25 points of Dice"]),
        ({"dice": None, "worst_flipped_share": 0.0006}, ["worst image 0.060 %"]),
        ({"dice_lost": LOST[0], "class_lost": LOST}, [MEAN_LOST, "class 2 loses at most 0.050 points (95 %)"]),
    ],
)
def test_the_worst_image_and_class_stand_on_the_first_screen(fields: dict[str, Any], said: list[str]) -> None:
    found = made_up.accuracy(**fields)
    assert at_worst(found, IMAGES) == said
    compiled = replace(RUN.stages[7], accuracy=found)
    note = numbers(made_up.summary(replace(RUN, stages=[RUN.stages[0], compiled])))[2].note
    assert note == "; ".join(["on 24 images, against fp32", *said])


@pytest.mark.parametrize(("run", "why", "short"), [
    (made_up.with_settings(RUN, model={"checkpoint": None}), "Its masks are not judged: without a c", "not judged"),
    (made_up.run(reference=replace(RUN.reference, mask_classes=[0])), "It can't be told: the fp32", "be told"),
])  # fmt: skip
def test_masks_of_random_weights_or_of_one_class_are_judged_nowhere(run: RunRecord, why: str, short: str) -> None:
    found, said = made_up.summary(run), right(half(run=run))
    assert said.startswith(why)
    assert "The logits alone: yes, relative L2" in said
    assert "Dice" not in said
    assert "pixels that change" not in choice_table(found).titles
    for text in (made_up.page(run), made_up.as_markdown(run), made_up.printed(first_screen(found))):
        assert short in " ".join(text.split())
        assert "pixels change" not in text
    column = ladder(found).titles.index("pixels that change")
    assert {row[column].text for row in ladder(found).rows if row[0].value == "half"} == {"not judged"}
    (row,) = [row for row in made_up.csv_rows(found) if row["stage"] == "half"]
    assert (row["flipped_share"], row["masks_judged"]) == ("", "False")
    assert float(row["relative_l2"]) > 0


def test_p99_says_of_how_many_calls_it_is() -> None:
    few = replace(RUN.stages[0], latencies=RUN.stages[0].latencies[:19])
    sixty = replace(RUN.stages[4], latencies=RUN.stages[4].latencies[:60])
    assert tails(few, sixty) == {"slowest of 19 to 60, ms"}
    many = replace(few, latencies=[0.01] * 1000)
    assert tails(many, sixty) == {"p99 ms", "slowest of 60 to 1000, ms"}
    assert tails(many) == {"p99 ms"}


def tails(*stages: StageRecord) -> set[str]:
    """The ladder's columns of the slowest calls, in Markdown and CSV of these stages."""
    found = made_up.summary(made_up.run(stages=list(stages)))
    (first, *_) = made_up.csv_rows(found)
    assert bool(first["latency_p99_s"]) == (len(stages[0].latencies) >= 1000)
    titles = [title for title in ladder(found).titles if title.startswith(("p99", "slowest"))]
    assert all(title in made_up.as_markdown(found.run) for title in titles)
    latency = dict(essentials(found, found.stages[0]))["latency"].partition("; including")[0]
    assert ("p99" in latency) == (len(stages[0].latencies) >= 1000)
    return set(titles)


def test_where_no_stage_wins_the_one_that_is_furthest_off_stands_for_all() -> None:
    """By its limit, not by its figure: 0.4 % of 0.5 % is further off than 3 % of 10 %."""
    near = changed(half().stage, name="half", accuracy=made_up.accuracy(flipped_share=0.004, relative_l2=0.0))
    far = changed(near, name="compile", accuracy=made_up.accuracy(flipped_share=0.03, relative_l2=0.0))
    near, far = (
        changed(stage, pairs=[made_up.pair("eager", stage.name, (0.04, 0.04), blocks=2)], tolerance=limit)
        for stage, limit in ((near, Tolerance(1.0, 0.005, "")), (far, Tolerance(1.0, 0.10, "")))
    )
    said = right_in_all(made_up.summary(replace(RUN, stages=[near, far])))
    assert said.startswith("half precision and torch.compile keep their limits. Worst of them, half precision: 0.40 %")
    assert said.count("Dice by class") == 1
    assert right_in_all(made_up.summary(replace(RUN, stages=[far]))).startswith("torch.compile: Yes: 3.0 %")


@pytest.mark.parametrize("package", ["onnxruntime-gpu", "onnxruntime"])
def test_header_names_onnxruntime(package: str) -> None:
    """ONNX Runtime's version is named under either of the names that its wheel is installed by."""
    environment = replace(made_up.environment(), packages={"torch": "2.11.0", package: "1.31.1"})
    assert f"{package} 1.31.1" in machine(made_up.run(environment=environment)).versions.split(", ")


def test_variables_that_libraries_read_are_named_and_compared() -> None:
    plain, other = (replace(made_up.environment(), variables=each) for each in ({}, {"OMP_NUM_THREADS": "2"}))
    found = machine(made_up.run(environment=other)).versions
    assert found == f"{machine(made_up.run(environment=plain)).versions}, OMP_NUM_THREADS=2"
    first, second = (made_up.run(environment=each) for each in (plain, other))
    assert [(one.what, one.old, one.new) for one in differences(first, second)] == [("OMP_NUM_THREADS", "not set", "2")]
    assert differences(made_up.run(environment=replace(plain, variables=None)), second) == []


def test_a_gpu_has_its_own_facts_as_far_as_they_are_known() -> None:
    older = made_up.environment()
    clock = "SM clock 1980 to 1980 MHz in the samples"
    first = "compute capability 9.0, 132 multiprocessors, 140 GiB"
    assert provenance(made_up.run(environment=older)) == f"{first}, {clock}, no other process on it at the start"
    known = replace(older, uuid_sha256="ab" * 32, power_limit_watts=700.0, celsius=41)
    shared = replace(known, others_on_device=["python (7)"])
    digest = f"UUID with SHA-256 {'ab' * 8}"
    assert provenance(made_up.run(environment=shared)) == (
        f"{first}, power limit 700 W, 41 °C at the start, {clock}, {digest}, beside python (7) on it at the start"
    )
    assert provenance(made_up.run(environment=replace(older, device="cpu"))) == ""


@pytest.mark.parametrize(
    ("name", "target", "options", "said"),
    [
        ("smp", "models.library_nets.smp_net", {"architecture": "Unet", "encoder_name": "vgg13"}, "smp Unet (vgg13)"),
        ("monai", "models.library_nets.monai_net", {"net": "SegResNet"}, "monai SegResNet"),
        ("diffusers", "models.library_nets.diffusers_net", {"timestep": 10}, "diffusers"),
        ("custom", "smp.Unet", {"encoder_name": "vgg13"}, "smp.Unet (vgg13)"),
        ("custom", "mine.Net", {"net": "other"}, "mine.Net"),
    ],
)
def test_the_net_of_a_library_is_named(name: str, target: str, options: dict[str, str], said: str) -> None:
    run = made_up.run()
    found = replace(run.config, model=ModelSpec(name, target=target, options=dict(options)))
    assert net_name(replace(run, config=found)) == said


@pytest.mark.parametrize(
    ("name", "size", "depth", "said"),
    [
        ("stain", 512, None, "images at 512×512"),
        ("folder", None, None, "images at their own size"),
        ("volume", 128, None, "volumes at 128×128×128"),
        ("volume", 128, 64, "volumes at 64×128×128"),
        ("tensors", None, None, "tensors at their own size"),
    ],
)
def test_what_a_net_is_given_is_told_by_its_kind(name: str, size: int | None, depth: int | None, said: str) -> None:
    assert inputs_at(DataSpec(name, size=size, depth=depth)) == said


def test_why_a_stage_is_not_ranked_is_told_by_the_warning_s_kind() -> None:
    eager, half = made_up.run().stages[0], made_up.run().stages[4]
    elsewhere = steady_pair(2.0, b="half", device_seconds=0.001)  # of 20 ms
    astray, bare = replace(half, pairs=[elsewhere]), changed(half, name="bare", pairs=[])
    found = made_up.summary(made_up.run(stages=[eager, astray, bare]))
    (warning,) = [part for part in found.stages[1].warnings if part.code == "clocks disagree"]
    assert [*faults(found), *skipped(found)] == [
        f"half precision is not ranked: {warning.text}",
        "bare is not measured: no interleaved samples are on record",
    ]


def test_what_failed_is_named_before_what_has_no_form_here() -> None:
    absent = changed(made_up.unwell()[2], name="tf32")
    run = made_up.run(stages=[absent, *made_up.run().stages])
    assert [line.split()[0] for line in faults(made_up.summary(run))] == ["crashed", "hung", "black"]
    assert skipped(made_up.summary(run)) == "eager (TF32) and absent (needs a GPU)"
    first, _, rest = made_up.as_markdown(run).partition("<details>")
    assert "**not ranked**: hung" in first
    assert "needs a GPU" not in first
    assert "Skipped: eager (TF32) and absent (needs a GPU)." in rest


def save(folder: Path, name: str, mask: np.ndarray, index: int = 0) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    reference.mask_picture(mask).save(folder / name / f"mask_{index}.png")


def left(folder: Path, size: int = 128) -> np.ndarray:
    """The image and the reference's mask; compile, which wins, differs in one pixel."""
    mask = np.zeros((size, size), dtype=np.uint8)
    reference.save_pictures(mask[None], folder / "reference", np.zeros((1, size, size, 3), dtype=np.uint8))
    save(folder, "half", mask)
    mask[100, 3] = 1
    save(folder, "compile", mask)
    return mask


def test_the_winner_stands_beside_the_reference_with_their_difference(tmp_path: Path) -> None:
    left(tmp_path)
    found = gallery(made_up.summary(RUN), tmp_path)
    overview, crop, stages = ([part.caption for part in row] for row in (found.overview, found.crop, found.stages))
    assert overview == ["the image", "fp32 reference", "torch.compile", "1 pixel differs"]
    assert crop == ["the image", "fp32 reference", "the winner", "1 pixel differs"]
    assert stages == ["half precision: no pixel differs", "torch.compile: 1 pixel differs"]
    assert page(made_up.summary(RUN), found).count("<img ") == 10


def test_the_image_that_differs_most_is_shown(tmp_path: Path) -> None:
    mask = left(tmp_path)
    save(tmp_path, "reference", np.zeros_like(mask), 1)
    mask[:9] = 1
    save(tmp_path, "compile", mask, 1)
    assert gallery(made_up.summary(RUN), tmp_path).overview[-1].caption == f"{9 * 128 + 1:,} pixels differ"


def test_no_differing_pixel_is_lost_when_a_mask_is_shrunk() -> None:
    differs = np.zeros((2048, 2048), dtype=bool)
    differs[1777, 5] = True
    small = np.asarray(marked(Image.new("RGB", (2048, 2048)), differs, 40))
    assert small.shape == (40, 40, 3)
    assert (small == DIFFERS).all(axis=-1).sum() == 1


def test_crop_s_pixels_are_the_mask_s_own(tmp_path: Path) -> None:
    left(tmp_path)
    data = gallery(made_up.summary(RUN), tmp_path).crop[-1].uri.split(",")[1]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    assert shown.shape == (CROP, CROP, 3)
    assert (shown == DIFFERS).all(axis=-1).sum() == 1


def test_a_stage_s_name_is_never_a_path(tmp_path: Path) -> None:
    """A record that names a stage `..` makes the report read nothing outside the run's folder."""
    left(tmp_path / "run")
    save(tmp_path, "secret", np.zeros((128, 128), dtype=np.uint8))
    sly = made_up.summary(made_up.run(stages=[changed(RUN.stages[0], name="../secret")]))
    assert gallery(sly, tmp_path / "run").stages == []


def test_a_run_that_left_no_masks_shows_none(tmp_path: Path) -> None:
    assert gallery(made_up.summary(RUN), tmp_path).overview == []


def test_what_stands_in_a_mask_s_place_holds_up_no_report(tmp_path: Path) -> None:
    """A pipe, which would wait for its writer, a folder, and a picture of another format have no place in it."""
    left(tmp_path)
    mask = tmp_path / "compile" / "mask_0.png"
    mask.unlink()
    os.mkfifo(mask)
    assert len(gallery(made_up.summary(RUN), tmp_path).overview) == 2
    mask.unlink()
    Image.new("RGB", (128, 128)).save(mask, "GIF")
    assert len(gallery(made_up.summary(RUN), tmp_path).overview) == 2
