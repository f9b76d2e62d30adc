"""What the report says of the images of an accuracy check, and of a net whose masks mean nothing."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.analysis.stage_summary import StageSummary
from pipeline.records.data_words import IMAGES
from pipeline.records.goals import Tolerance
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Calibration, DiceLoss, ImageSet
from pipeline.report.answer import choice_table, numbers
from pipeline.report.run_text import samples_text
from pipeline.report.sections.accuracy import at_worst, calibrated_on, judged_on, right, right_in_all
from pipeline.report.sections.ladder import ladder
from pipeline.report.sections.stage import essentials
from pipeline.report.terminal import first_screen
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
    told = half(calibration, pictures, made_up.with_settings(RUN, data={"path": "images", "labels": None})).warnings
    assert any("data.batches=N" in warning.remedy for warning in told) == (pictures in (1, 7))


def test_tensors_that_come_again_are_no_shifts_of_pictures() -> None:
    run = made_up.with_settings(RUN, data={"name": "tensors"})
    apart, same = (half(Calibration(SCALES, None, True, apart), 7, run) for apart in (True, False))
    assert "on 24 images (repeats of 7 samples), none of them calibrated on" in right(apart)
    assert "(repeats of 7 samples), which are repeats of those calibrated on" in right(same)
    said = calibrated_on(same.stage, same.words)
    assert said.endswith("scales from 32 images of 2 samples, repeats of which are judged")
    names = [f"inputs.pt sample {at % 3}" for at in range(8)]
    run = replace(run, reference=replace(RUN.reference, images=names, distinct=3))
    assert samples_text(run).startswith("8 images, 3 samples and repeats of them: inputs.pt sample 0, ")


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        (None, ""),
        (
            Calibration(SCALES, CHOICE, True, True),
            (
                "scales from 32 images of 2 pictures, layers chosen on other 24 images of 1 picture, all of "
                "them apart from the evaluation images"
            ),
        ),
        (
            Calibration(SCALES, SCALES, False, False),
            (
                "scales from 32 images of 2 pictures, layers chosen on the same 32 images of 2 pictures, shifts of "
                "which are judged"
            ),
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
    said = right(replace(stage, stage=replace(stage.stage, accuracy=bounded)))
    assert "class 0 0.9945 (fp32 network 0.9944, loses at most 0.010 points), class 1" in said


LOST = [DiceLoss(0.01, 0.0, 0.02), None, DiceLoss(0.0, -0.02, 0.05)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ["no class loses 0.01 points of Dice"]),
        ({"dice": [0.98, 0.9375]}, ["class 1 loses 0.25 points of Dice"]),
        ({"dice": None, "worst_flipped_share": 0.0006}, ["worst image 0.060 %"]),
        (
            {"dice_lost": LOST[0], "class_lost": LOST},
            [
                "mean Dice of the classes −0.010 points (95 %: −0.020 to −0.000)",
                "class 2 loses at most 0.050 points (95 %)",
            ],
        ),
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
    assert said.startswith(
        "half precision and torch.compile keep their limits. Worst of them, half precision: 0.40 % of"
    )
    assert said.count("Dice by class") == 1
    assert right_in_all(made_up.summary(replace(RUN, stages=[far]))).startswith("torch.compile: Yes: 3.0 %")
