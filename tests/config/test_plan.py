"""The plans that can be asked for by name."""

from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml

from pipeline.config.load import read_group
from pipeline.config.plan import Plan
from tests.config.test_load import composed

FOLDER = Path(__file__).parents[2] / "conf" / "measure"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_the_four_plans_are_there() -> None:
    assert [path.stem for path in FILES] == ["quick", "smoke", "standard", "thorough"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_gives_exactly_the_knobs_of_a_plan(path: Path) -> None:
    """A knob that is missing from a composed file, or that no Plan has, is an error."""
    knobs = composed("stage=eager", f"measure={path.stem}")["measure"]
    assert list(knobs) == [knob.name for knob in fields(Plan)]
    assert read_group(Plan, "measure", knobs).limits.keys() >= {
        "start",
        "build",
        "verify",
        "warmup",
        "sampling",
        "profile",
        "export",
    }


def test_thorough_is_the_default() -> None:
    knobs = yaml.safe_load((FOLDER / "thorough.yaml").read_text())
    assert {**knobs, "interim_analyses": tuple(knobs["interim_analyses"])} == asdict(Plan())


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "thorough"], ids=lambda path: path.stem)
def test_the_other_files_hold_only_what_they_change(path: Path) -> None:
    """A knob with thorough's own value would hide a later change of it."""
    own = yaml.safe_load(path.read_text())
    assert own.pop("defaults") == ["thorough", "_self_"]
    thorough = yaml.safe_load((FOLDER / "thorough.yaml").read_text())
    assert [knob for knob, value in own.items() if thorough[knob] == value] == []


def test_a_a_pairs_have_one_interim_analysis_at_their_end() -> None:
    assert Plan(aa_blocks=12).for_aa_pairs().interim_analyses == (12,)
