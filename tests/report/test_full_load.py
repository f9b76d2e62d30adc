"""What the report says of a stage that full load slows down."""

import csv
import io
from dataclasses import replace

from pipeline.records.samples import Energy
from pipeline.report.answer import choice_table, numbers
from pipeline.report.csv_table import csv_text
from pipeline.report.sections.cost import cost_table, cost_text
from pipeline.report.sections.ladder import ladder
from tests.report import made_up_run as made_up


def test_both_paces_are_shown_and_cost_takes_the_slower() -> None:
    """Interleaved 10 ms per call of 8 images, sustained 12.5 ms: 640 images/s, and both ratios."""
    fast = made_up.stage(
        "half", 4.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (0.04, 0.010))],
        energy=Energy(3000.0, 5.0, 3200, 75.0),
    )  # fmt: skip
    first = made_up.stage(
        "eager", 1.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "eager", (0.04, 0.04))],
        energy=Energy(3000.0, 5.0, 1000, 75.0),
    )  # fmt: skip
    found = made_up.summary(made_up.run(stages=[first, fast]))
    row = found.stage("half")
    assert row is not None
    assert (row.sustained_seconds, row.images_per_second) == (0.0125, 640)
    assert any(warning.code == "slower at steady state" for warning in row.warnings)
    titles = ladder(found).titles
    assert ladder(found).rows[1][titles.index("ms")].text == "12.5"
    assert ladder(found).rows[1][titles.index("ms interleaved")].text == "10.0"
    assert numbers(found)[1].value == "12.5 ms"
    assert numbers(found)[1].note == "eager takes 40.0 ms"
    assert choice_table(found).titles[1] == "ms at steady state"
    assert cost_table(found).rows[1][1].text == "640"


def test_without_a_stretch_at_full_load_the_interleaved_samples_stand_for_it() -> None:
    only = made_up.stage("half", 4.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (0.04, 0.010))], energy=None)
    run = made_up.run(stages=[only])
    (row,) = made_up.summary(run).stages
    assert row.sustained_seconds is None
    assert row.seconds is not None
    assert row.images_per_second == 8 / row.seconds.value
    assert numbers(made_up.summary(run))[1].label == "for 8 images"
    assert numbers(made_up.summary(run))[1].note == "eager took 40.0 ms beside it"  # though it is no stage of its own
    assert choice_table(made_up.summary(run)).titles[1] == "ms"


def test_a_service_is_told_the_pace_that_lasts_beside_the_tail_of_a_call() -> None:
    fast = made_up.stage(
        "half", 4.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (0.04, 0.010))],
        energy=Energy(3000.0, 5.0, 3200, 75.0), latencies=[0.011] * 20,
    )  # fmt: skip
    first = made_up.stage("eager", 1.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "eager", (0.04, 0.04))])
    lines = cost_text(made_up.summary(made_up.run(stages=[first, fast])))
    assert lines[-1] == (
        "For a service that is built and warm: half, 12.5 ms per call at steady state; "
        "p50 11.0 ms, slowest of 20 11.0 ms for single calls on an otherwise idle GPU."
    )


def test_samples_at_full_load_are_shown_once() -> None:
    sustained = [replace(made_up.pair("eager", "half", (0.04, 0.010)), sustained=True)]
    found = made_up.summary(made_up.run(stages=[made_up.stage("half", 4.0, 0.1, 10**9, "", pairs=sustained)]))
    assert "ms" in ladder(found).titles
    assert "ms interleaved" not in ladder(found).titles
    (row,) = csv.DictReader(io.StringIO(csv_text(found)))
    assert row["seconds_per_call"] == row["sustained_seconds_per_call"] != ""
