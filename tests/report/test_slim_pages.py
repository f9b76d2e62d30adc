"""Runs of a network and of its slim forms in one chart."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.request_error import RequestError
from pipeline.records.run_record import RunRecord
from pipeline.records.samples import Accuracy
from pipeline.report.slim_pages import points_of, write_pareto
from tests.export.recorded import MACHINE, stage
from tests.made_up_request import asked
from tests.report.made_up_run import pair

FIGURES = Accuracy(0.0, 0.0, 1.0, 0.0, None, 0.0, False, None, None, None, None, 8)


def run_of(seconds: dict[str, float], dice: float | None) -> RunRecord:
    figures = replace(FIGURES, dice=None if dice is None else [0.99, dice])
    stages = [
        replace(stage(name), pairs=[pair("eager", name, (0.004, each), "cpu", blocks=2)], accuracy=figures)
        for name, each in seconds.items()
    ]
    return RunRecord("", "", asked(), MACHINE, stages=stages, finished=True, winner=next(iter(seconds)))


def test_what_is_slower_and_worse_is_not_ahead(tmp_path: Path) -> None:
    runs = [
        ("full", run_of({"eager": 0.004}, 0.95)),
        ("half", run_of({"eager": 0.001}, 0.94)),
        ("bad", run_of({"eager": 0.002}, 0.9)),
    ]
    found = points_of(runs)
    assert [(point.network, point.dice) for point in found] == [("full", 0.95), ("half", 0.94), ("bad", 0.9)]
    assert [[one.beats(other) for other in found] for one in found] == [[False] * 3, [False, False, True], [False] * 3]
    assert write_pareto(found, tmp_path).endswith(f"{tmp_path}/pareto.html\n")
    page = (tmp_path / "pareto.html").read_text()
    assert all(f"{name}, eager" in page for name, _ in runs)


def test_runs_without_labels_or_of_other_batches_are_refused() -> None:
    full = run_of({"eager": 0.004}, 0.95)
    with pytest.raises(RequestError, match=r"slim: its images have no labels"):
        points_of([("full", full), ("slim", run_of({"eager": 0.001}, None))])
    other = replace(full, config=replace(full.config, data=replace(full.config.data, batch_size=7)))
    with pytest.raises(RequestError, match=r"slim: data.batch_size=7, where full has 2"):
        points_of([("full", full), ("slim", other)])
