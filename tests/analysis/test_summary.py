"""A run is summarized once for all that is drawn of it, and tables are lists of columns."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from pipeline.analysis import run_comparison, sweeps
from pipeline.analysis.summary import summarize
from pipeline.compare import main as compare
from pipeline.records import codec
from pipeline.records.run_record import AUTOCAST, EAGER, RunRecord
from pipeline.report.write import main, write_report
from pipeline.stats import intervals
from tests.report import made_up_run as made_up

STAGES = made_up.run().stages


@pytest.fixture
def small() -> RunRecord:
    """Eager, autocast as the baseline, and a stage that is compared with both."""
    return made_up.run(stages=[STAGES[0], STAGES[3], STAGES[7]], baseline=AUTOCAST)


def bootstrapped(record: RunRecord) -> int:
    """The stages whose ratio to eager is composed."""
    return sum(bool(stage.pairs) and stage.name != EAGER for stage in record.stages)


def test_one_report_takes_one_summary(small: RunRecord, tmp_path: Path) -> None:
    with patch.object(intervals, "steady_composed", wraps=intervals.steady_composed) as composed:
        write_report(summarize(small), tmp_path)
    assert composed.call_count == bootstrapped(small) == 2


def test_a_sweep_summarizes_each_job_once(small: RunRecord, tmp_path: Path) -> None:
    for number, size in enumerate((256, 512)):
        (tmp_path / str(number)).mkdir()
        codec.save(made_up.with_settings(small, data={"size": size}), tmp_path / str(number))
    with patch.object(sweeps, "summarize", wraps=summarize) as computed:
        assert main([str(tmp_path)]) == 0
    assert computed.call_count == 2


def test_a_comparison_bootstraps_what_it_compares_alone(small: RunRecord, tmp_path: Path) -> None:
    codec.save(small, tmp_path)
    with (
        patch.object(run_comparison, "steady_composed", wraps=intervals.steady_composed) as changes,
        patch.object(intervals, "steady_composed", wraps=intervals.steady_composed) as composed,
    ):
        assert compare([str(tmp_path), str(tmp_path)]) == 0
    assert (changes.call_count, composed.call_count) == (3, 0)


def test_wrong_and_failed_stages_have_no_outcome() -> None:
    summary = made_up.summary(made_up.run())
    for stage in summary.stages:
        assert (stage.compared.outcome is None) == (not stage.ranked)
    black = summary.stage("black")
    assert black is not None
    assert black.ratio is not None
    assert black.status == "inaccurate"


def test_a_stage_without_energy_has_no_sustained_time() -> None:
    summary = made_up.summary(made_up.run(stages=[replace(STAGES[0], energy=None)]))
    (stage,) = summary.stages
    assert stage.sustained_seconds is None
    assert stage.seconds is not None
    assert stage.pace == stage.seconds.value
