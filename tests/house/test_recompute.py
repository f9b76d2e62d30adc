"""The recorded reports print what their raw samples give, by arithmetic that isn't the program's."""

import json
import shutil
from pathlib import Path

import pytest

from tests.house.recompute import Statement, statements

RECORDED = Path(__file__).parents[2] / "docs" / "h200"


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("classic", 80),
        ("nnunet_3d", 60),
    ],
)
def test_a_recorded_report_agrees_with_its_raw_samples(name: str, least: int) -> None:
    """Of images and of volumes."""
    found = list(statements(RECORDED / name))
    assert len(found) >= least
    assert [statement for statement in found if not statement.agrees] == []


def test_a_record_that_was_changed_is_seen(tmp_path: Path) -> None:
    """Samples 2 % longer: time, ratios, rate and cost are no longer those that were printed."""
    for name in ("results.json", "report.md"):
        shutil.copy(RECORDED / "classic" / name, tmp_path / name)
    run = json.loads((tmp_path / "results.json").read_text())
    for block in run["stages"][-1]["pairs"][0]["blocks"]:
        for taken in block["stage"]:
            taken["seconds"] *= 1.02
    (tmp_path / "results.json").write_text(json.dumps(run))
    wrong = {statement.what for statement in statements(tmp_path) if not statement.agrees}
    assert {"fp8: × amp", "fp8: ms", "fp8: images/s", "fp8: hours", "title: times as fast"} <= wrong
    assert not {what for what in wrong if not what.startswith(("fp8", "title"))}


@pytest.mark.parametrize(
    ("printed", "value", "agrees"),
    [
        ("4.78 ×", 4.7849, True),
        ("4.78 ×", 4.786, False),
        ("▸ 0.054 %", 0.00054375, True),
        ("0.054 %", 0.00056, False),
        ("26,000 images", 25_600, True),
        ("26,000 images", 25_400, False),
        ("9.68 s", 9.684, True),
        ("236 ms", 0.2358, True),
        ("never", 1.0, False),
    ],
)
def test_a_number_agrees_as_far_as_it_is_printed(printed: str, value: float, agrees: bool) -> None:
    assert Statement("", printed, value).agrees == agrees
