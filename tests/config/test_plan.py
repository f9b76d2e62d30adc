"""The plans that can be asked for by name."""

from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml

from pipeline.config.plan import Plan

FOLDER = Path(__file__).parents[2] / "conf" / "measure"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_the_four_plans_are_there() -> None:
    assert [path.stem for path in FILES] == ["quick", "smoke", "standard", "thorough"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_gives_exactly_the_knobs_of_a_plan(path: Path) -> None:
    """A knob that is missing from a file, or that no Plan has, is an error."""
    knobs = yaml.safe_load(path.read_text())
    assert list(knobs) == [knob.name for knob in fields(Plan)]
    assert Plan(**knobs).limits.keys() >= {"start", "build", "verify", "warmup", "sampling", "profile", "export"}


def test_thorough_is_the_default() -> None:
    knobs = yaml.safe_load((FOLDER / "thorough.yaml").read_text())
    assert {**knobs, "interim_analyses": tuple(knobs["interim_analyses"])} == asdict(Plan())


def test_twins_have_one_look_at_their_end() -> None:
    assert Plan(aa_blocks=12).for_aa_pairs().interim_analyses == (12,)
