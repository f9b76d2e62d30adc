"""The plans that can be asked for by name."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from pipeline.config.conversion import converted
from pipeline.config.request_error import RequestError
from pipeline.records.plan import Phase, Plan
from tests.config.test_load import composed

FOLDER = Path(__file__).parents[2] / "conf" / "measure"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_gives_exactly_the_knobs_of_a_plan(path: Path) -> None:
    """A knob that is missing from a composed file, or that no Plan has, is an error."""
    knobs = composed("stage=eager", f"measure={path.stem}")["measure"]
    assert knobs.keys() == {knob.name for knob in fields(Plan)}
    assert converted(knobs, Plan, "measure").phase_limits.keys() == set(Phase)


def test_thorough_is_the_default() -> None:
    knobs = yaml.safe_load((FOLDER / "thorough.yaml").read_text())
    assert list(knobs) == [knob.name for knob in fields(Plan)]
    assert converted(knobs, Plan, "measure") == Plan()


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "thorough"], ids=lambda path: path.stem)
def test_the_other_files_hold_only_what_they_change(path: Path) -> None:
    """A knob with thorough's own value would hide a later change of it."""
    own = yaml.safe_load(path.read_text())
    assert own.pop("defaults") == ["thorough", "_self_"]
    thorough = yaml.safe_load((FOLDER / "thorough.yaml").read_text())
    assert [knob for knob, value in own.items() if thorough[knob] == value] == []


def test_on_a_gpu_its_own_numbers_stand() -> None:
    """Fewer blocks of longer samples, at full load; a CPU's plan is as it was."""
    plan = Plan()
    gpu = plan.on("cuda")
    assert plan.on("cpu") == plan
    assert (gpu.interim_analyses, gpu.sampling_seconds, gpu.for_aa_pairs().interim_analyses) == (
        (12, 24, 48, 96),
        540.0,
        (12,),
    )
    assert (plan.sustained("cuda"), plan.sustained("cpu")) == (True, False)
    assert (plan.run_in_seconds("cuda"), plan.run_in_seconds("cpu")) == (0.3, 0.0)
    assert (plan.rested_run_in_seconds("cuda"), plan.rested_run_in_seconds("cpu")) == (3.0, 0.0)


@pytest.mark.parametrize(("knob", "seconds"), [("gpu_sample_seconds", 0.5), ("gpu_run_in_seconds", 0.2)])
def test_shorter_samples_or_run_ins_are_not_called_full_load(knob: str, seconds: float) -> None:
    """Half a second is half a swing of a GPU's pace at its power limit."""
    assert not converted({knob: seconds}, Plan, "measure").sustained("cuda")


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "smoke"], ids=lambda path: path.stem)
def test_a_gpus_plans_have_an_interval_at_full_load(path: Path) -> None:
    """Six blocks are the least that bound a ratio; a block is four samples with their run-ins, in quick short ones."""
    plan = converted(composed("stage=eager", f"measure={path.stem}")["measure"], Plan, "measure").on("cuda")
    block = 4 * (plan.gpu_sample_seconds + plan.gpu_run_in_seconds)
    assert plan.sustained("cuda") == (path.stem != "quick")
    assert plan.interim_analyses[0] >= 6
    assert plan.aa_blocks >= 6
    assert plan.interim_analyses[-1] * block <= plan.sampling_seconds
    switches = 3  # from one side to the other in a block, the one between blocks counted in
    rested = block + switches * (plan.gpu_rested_run_in_seconds - plan.gpu_run_in_seconds)
    assert 5 * rested <= plan.sampling_seconds  # by then the sixth has begun


@pytest.mark.parametrize(
    ("knob", "value", "said"),
    [
        ("interim_analyses", [5, 5], "measure: interim_analyses=[5, 5]: expected rising block counts"),
        ("min_calls", 10**18, "measure.min_calls=1000000000000000000: expected int <= 1000000"),
        ("counters_limit_seconds", 1e308, "expected float <= 10000000.0"),
        ("limits", {"build": 0.5}, "measure.limits: expected float >= 1.0"),
        ("limits", {"bild": 9.0}, "measure.limits: invalid enum value 'bild'"),
    ],
)
def test_a_plan_that_no_machine_carries_out_is_refused(knob: str, value: object, said: str) -> None:
    """No list has as many calls, and no process starts in less than a second."""
    knobs = composed("stage=eager")["measure"]
    with pytest.raises(RequestError, match=re.escape(said)):
        converted({**knobs, knob: value}, Plan, "measure")
