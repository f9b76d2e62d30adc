"""Where layers keep more bits than they must, or fewer than they should, the report says which budget to try."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.analysis.recommendations import lower_the_budget, recommendations, spend_the_budget
from pipeline.analysis.summary import RunSummary
from pipeline.records.goals import AccuracyLimits, Tolerance
from pipeline.records.samples import Calibration, ImageSet
from pipeline.report.sections.recommendation import worded
from tests.made_up_request import changed as adjusted
from tests.report import made_up_run as made_up

CHOSEN = Calibration(ImageSet(32, []), ImageSet(24, []), choice_apart=True, apart=True, kept=["encoder.0", "head"])
CONF, NO_LIMITS = Path(__file__).resolve().parents[2] / "conf", AccuracyLimits()
OPTIONS: dict[str, object] = {"budget": 7e-4, "error_budget": 5e-2}


def run_of(
    changed: float | None,
    options: dict[str, object] = OPTIONS,
    calibration: Calibration | None = CHOSEN,
    off: float = 6e-3,
    asked: AccuracyLimits = NO_LIMITS,
    trained: bool = True,
    **fields: Any,
) -> RunSummary:
    """A run that compile wins, where its answers change so many pixels, are so far off, and were chosen so."""
    run = made_up.run()

    def made(stage: Any) -> Any:
        if stage.name != "compile":
            return stage
        accuracy = replace(stage.accuracy, flipped_share=changed, relative_l2=off)
        given = {"tolerance": Tolerance(6e-2, 1e-3, ""), "options": options, "calibration": calibration}
        return adjusted(stage, accuracy=accuracy, **given, **fields)

    model = replace(run.config.model, trained=trained)
    settings = replace(run.config, accuracy=asked, model=model)
    return made_up.summary(replace(run, config=settings, stages=[made(stage) for stage in run.stages]))


def test_room_under_the_limit_is_offered() -> None:
    found = run_of(4.8e-4)
    assert found.winner is not None
    (told,) = (each for each in recommendations(found) if each.code == "larger budget")
    assert told.command == "python -m pipeline data.batch_size=8 stage.budget=0.0009"
    assert worded(told).evidence == (
        "compile changes 0.048 % of the pixels (limit 0.10 %), and 2 layers keep more bits, to "
        "hold a budget of 0.070 %; what a larger one changes is judged as before"
    )


@pytest.mark.parametrize(
    "found",
    [
        run_of(7.2e-4),  # 0.093 % is what nine tenths would come to
        run_of(4.8e-4, {"budget": 9e-4, "error_budget": 5e-2}),
        run_of(4.8e-4, {"budget": 7e-4, "error_budget": 7e-3}),  # the logits' distance leaves no room
        run_of(4.8e-4, {}),
        run_of(None),
        run_of(4.8e-4, calibration=None),
        run_of(4.8e-4, calibration=replace(CHOSEN, kept=[])),
        run_of(4.8e-4, calibration=replace(CHOSEN, kept=None)),
        run_of(4.8e-4, calibration=replace(CHOSEN, choice=None)),
        run_of(4.8e-4, trained=False),
        run_of(4.8e-4, asked=AccuracyLimits(min_agreement=0.9995)),
    ],
    ids=[
        "as much",
        "spent",
        "logits",
        "no budget",
        "no masks",
        "uncalibrated",
        "none kept",
        "older",
        "named",
        "random",
        "own limit",
    ],
)
def test_without_room_or_layers_nothing_is_offered(found: RunSummary) -> None:
    assert found.winner is not None
    assert spend_the_budget(found, found.winner) is None


@pytest.mark.parametrize(("apart", "where"), [(True, " on other images"), (False, "")])
def test_a_stage_beyond_the_limit_is_offered_less(apart: bool, where: str) -> None:
    found = run_of(1.4e-3, calibration=replace(CHOSEN, apart=apart), status="inaccurate", failure="wrong answer")
    assert found.winner is not None
    assert found.winner.name != "compile"
    (told,) = (each for each in recommendations(found) if each.code == "smaller budget")
    assert told.command.endswith("stage.budget=0.0004")
    assert worded(told).evidence == (
        "compile changes 0.14 % of the pixels, more than the limit of 0.10 %, though it kept to a budget of 0.070 %"
        + where
    )


@pytest.mark.parametrize(
    "found",
    [
        run_of(4.8e-4),
        run_of(9e-4, status="inaccurate"),
        run_of(1.4e-3, off=0.3, status="inaccurate"),
        run_of(1.4e-3, {}, status="inaccurate"),
        run_of(1.4e-3, trained=False, status="inaccurate"),
    ],
    ids=["right", "another fault", "values too", "no budget", "random"],
)
def test_another_fault_is_no_budgets(found: RunSummary) -> None:
    assert found.winner is not None
    assert lower_the_budget(found, found.winner) is None


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("stage=fp8 stage.error_budget=1e-2 data=stain", "stage"),
        ("stage=compilers stage.rungs.fp8.error_budget=1e-2 data=stain", "stage.rungs.fp8"),
    ],
)
def test_the_command_is_the_users_own_but_for_the_budget(typed: str, key: str) -> None:
    run = run_of(4.8e-4).run
    with initialize_config_dir(str(CONF), version_base=None):
        config = replace(run.config, ladder="rungs" in compose("config", overrides=typed.split()).stage)
        stages = [adjusted(stage, name="fp8") if stage.name == "compile" else stage for stage in run.stages]
        asked_so: dict[str, Any] = {"command": f"python -m pipeline {typed}", "config": config}
        found = made_up.summary(replace(run, stages=stages, **asked_so))
        assert found.winner is not None
        told = spend_the_budget(found, found.winner)
        assert told is not None
        composed = OmegaConf.select(compose("config", overrides=told.command.split()[3:]), key)
    assert (composed.budget, composed.error_budget) == (9e-4, 1e-2)
