"""No interval is shown where there is none, and no comparison claims more than was compared."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.analysis.run_comparison import compare, differences
from pipeline.compare import conclusion, main
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from pipeline.report import formatting
from pipeline.report.charts import bars as charts
from pipeline.stats.intervals import Ratio
from tests.made_up_request import asked, spec
from tests.report import made_up_run as made_up

ONE_BLOCK = Ratio(113.193, 113.193, 113.193, 1, 1, doubt="few blocks")


def few_blocks() -> RunRecord:
    """A smoke run: two blocks a stage, of which no interval can be made."""
    times = (made_up.BASELINE_SECONDS, made_up.BASELINE_SECONDS / 2)
    half = made_up.stage("half", 2.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", times, blocks=2)])
    return made_up.run(stages=[half])


def test_extremes_are_no_interval() -> None:
    """With too few blocks low and high are extremes; they aren't shown as an interval, nor do they bear digits."""
    assert formatting.interval(ONE_BLOCK) == "(no interval)"
    assert formatting.times(ONE_BLOCK) == "113.2 ×"
    assert formatting.interval(Ratio(1.84, 1.82, 1.86, 30)) == "[1.82, 1.86]"


@pytest.mark.parametrize("drawn", [made_up.page, made_up.as_markdown])
def test_report_of_few_blocks_says_so(drawn: object) -> None:
    assert callable(drawn)
    text = drawn(few_blocks())
    assert "(no interval)" in text
    assert "too few for an interval" in text


def test_chart_draws_error_bars_only_of_intervals() -> None:
    bounded = charts.ladder([("half", replace(ONE_BLOCK, doubt=None, low=100.0), "winner")], [], "eager")
    bare = charts.ladder([("half", replace(ONE_BLOCK, low=100.0), "winner")], [], "eager")
    assert "whisker" in bounded
    assert "whisker" not in bare


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A run, and one that lost every stage but the first."""
    whole = made_up.run(stages=made_up.run().stages[:3])
    for name, run in (("a", whole), ("b", replace(whole, stages=whole.stages[:1]))):
        (tmp_path / name).mkdir()
        codec.save(run, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def test_stages_left_out_are_named(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(part) for part in runs]) == 0
    assert "Nothing changed beyond the noise. Not in B: tf32 and channels_last." in capsys.readouterr().out


def test_stages_lost_by_a_run_that_ended_early_are_regressions(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    codec.save(replace(codec.load(runs[1]), finished=False), runs[1])
    assert main([str(part) for part in runs]) == 1
    said = capsys.readouterr().out
    assert "broken: run B did not finish" in said
    assert "Regressed: tf32 and channels_last." in said


def test_nothing_in_common_is_not_called_unchanged() -> None:
    stages = made_up.run().stages
    said = conclusion(compare(made_up.run(stages=stages[:1]), made_up.run(stages=stages[1:2])))
    assert said.startswith("No stage was measured in both runs")
    assert "Nothing changed" not in said


def test_a_wide_interval_is_said_in_place_of_its_middle() -> None:
    """Such as where the baseline is bound by a busy host: 6.8 would claim a digit that nobody measured."""
    assert formatting.times_as_fast(Ratio(6.75, 3.38, 10.2, 6), 2) == "3.4 to 10 ×"
    assert formatting.times_as_fast(Ratio(8.98, 8.9, 9.6, 6), 3) == "8.98 ×"
    assert formatting.times_as_fast(Ratio(6.75, 3.38, 10.2, 2, doubt="few blocks"), 2) == "6.8 ×"


def test_a_stage_of_one_run_alone_is_no_difference_of_settings() -> None:
    """It has a line of its own; of the stages of both what they were asked for is compared, in a ladder or alone."""
    half, amp = spec("half", summary="half precision", adds="no casts", options={"dtype": "auto"}), spec("amp")
    ladder = asked(stages=[half, amp], ladder=True)
    alone = asked(stages=[replace(half, options={"dtype": "bf16"}, summary="another text")])
    first, second = (made_up.run(config=config) for config in (ladder, alone))
    assert [(each.what, each.old, each.new) for each in differences(first, second)] == [
        ("stage.half.dtype", "auto", "bf16")
    ]
    assert differences(first, made_up.run(config=replace(ladder, ladder=False, strict=False))) == []
