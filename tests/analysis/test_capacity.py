"""GPUs for a target, by a queue against theory, and the images from which a stage's set-up has paid for itself."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.analysis import capacity
from pipeline.analysis.capacity import Service, fleet, fleets, simulate, sojourns
from pipeline.analysis.stage_summary import Line, break_even
from pipeline.analysis.summary import RunSummary, change_overs, summarize
from pipeline.records import codec
from pipeline.records.plan import Plan
from pipeline.records.run_record import RunRecord
from pipeline.report.sections.cost import capacity as section
from pipeline.report.sections.cost import capacity_columns, columns, cost_text, ruler
from pipeline.report.tables import Cell, table_of
from pipeline.report.write import main
from tests.fake_machine import pair_of, run_record, stage_record, steady_pair, wide_pair
from tests.made_up_request import asked
from tests.report import made_up_run as made_up

CONF = Path(__file__).resolve().parents[2] / "conf"
SECOND = 0.010  # of service

Target = tuple[float, float]  # images a second, and seconds of the p99


@pytest.fixture
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is made of a p99, however well it is known."""
    monkeypatch.setattr(capacity, "ARRIVALS", 5_000)
    monkeypatch.setattr(capacity, "WARM_UP", 500)


def with_knobs(**knobs: float | None) -> RunRecord:
    """Two healthy stages of a run with these knobs of the report."""
    whole = made_up.run()
    whole = replace(whole, stages=[whole.stages[0], whole.stages[7]])
    return made_up.with_settings(whole, report={"gpu_hour_price": None, **knobs})


def mean_sojourn(services: list[float], load: float, arrivals: int = 50_000) -> float:
    """Of single images that arrive at random, in a queue that takes one at a time."""
    draw = np.random.default_rng(7)
    times = np.cumsum(draw.exponential(np.mean(services) / load, size=arrivals))
    found, _ = sojourns(times.tolist(), draw.choice(services, size=arrivals).tolist(), batch=1)
    return float(np.mean(found))


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("spread", ["constant", "two", "exponential"])
def test_mean_wait_is_what_pollaczek_and_khinchine_say(load: float, spread: str) -> None:
    """W = load × (1 + c²) / (2 (1 - load)) × s, for service of any spread; M/D/1 and M/M/1 are its cases."""
    draw = np.random.default_rng(3)
    drawn = {"constant": [SECOND], "two": [0.5 * SECOND, 2 * SECOND], "exponential": draw.exponential(SECOND, 5000)}
    services = np.asarray(drawn[spread])
    mean, variation = services.mean(), services.var() / services.mean() ** 2
    wait = load * (1 + variation) / (2 * (1 - load)) * mean
    assert mean_sojourn(services.tolist(), load) - mean == pytest.approx(wait, rel=0.08)


def test_quantile_of_an_exponential_queue() -> None:
    """M/M/1: the time in the system is exponential with rate (1 - load) / s, so its p99 is ln 100 times its mean."""
    services = np.random.default_rng(5).exponential(SECOND, 5000)
    found = simulate(Service(1, services.tolist()), 0.5 / services.mean())
    assert found.p99 == pytest.approx(np.log(100) * services.mean() / 0.5, rel=0.1)
    assert found.load == pytest.approx(0.5)


def test_batches_by_hand() -> None:
    """A free GPU takes what waits, up to the batch, and a part batch costs as a full one."""
    found, batches = sojourns([0.0, 1.0, 2.0, 3.0, 50.0], [10.0] * 5, batch=2)
    assert found.tolist() == [10.0, 19.0, 18.0, 27.0, 10.0]
    assert batches == 4


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("rate", [1.0, 2_000.0])
@pytest.mark.parametrize("tail", [1.5, 2.5, 6.0])
def test_fewest_that_hold_the_target(batch: int, rate: float, tail: float) -> None:
    """So many hold it, one fewer doesn't or can't keep up, and more GPUs never make the p99 longer."""
    service, p99 = Service(batch, [0.95 * SECOND, SECOND, 1.05 * SECOND]), tail * SECOND
    gpus = fleet(service, rate, p99).gpus
    assert gpus
    assert simulate(service, rate / gpus).p99 <= p99
    if gpus > 1:
        fewer = simulate(service, rate / (gpus - 1))
        assert fewer.load >= 1 or fewer.p99 > p99
    tails = [simulate(service, rate / count).p99 for count in (gpus, 2 * gpus, 4 * gpus)]
    assert tails == sorted(tails, reverse=True)


@pytest.mark.parametrize(
    ("service", "target", "reason"),
    [
        (Service(8, [0.05] * 100), (10, 0.04), "one batch takes 50.0 ms"),
        (Service(1, [1.0]), (1e6, 5.0), "for the load alone"),
        (Service(1, [1.0] * 95 + [1.001] * 5), (100.0, 1.001), "each idle for 98 % of the time"),
    ],
)
def test_target_out_of_reach_says_why(service: Service, target: Target, reason: str) -> None:
    found = fleet(service, *target)
    assert found.gpus is None
    (told,) = [column for column in capacity_columns(made_up.summary(made_up.run())) if column.title == "note"]
    assert reason in told.cell(("half", found)).text


def test_knobs_without_targets_and_mostly_empty_batches_are_named() -> None:
    neither, one = section(made_up.summary(with_knobs())), section(made_up.summary(with_knobs(target_p99_ms=40.0)))
    assert neither.table.rows == []
    assert one.table.rows == []
    assert "report.target_images_per_second and report.target_p99_ms" in neither.note
    assert "Set report.target_images_per_second to see" in one.note
    assert "python -m pipeline.report RUN" in one.note
    # Where many GPUs are needed only because a part batch costs as a full one, a smaller batch is what to try
    tight = with_knobs(target_images_per_second=500.0, target_p99_ms=12.0)
    wide = with_knobs(target_images_per_second=4_000.0, target_p99_ms=300.0)
    notes = [section(made_up.summary(run)).table.rows[1][-1].text for run in (tight, wide)]
    assert notes == ["mostly empty batches: measure a smaller data.batch_size", ""]


@pytest.mark.usefixtures("short_simulations")
def test_table_of_a_target() -> None:
    run = with_knobs(target_images_per_second=3_000.0, target_p99_ms=30.0, gpu_hour_price=2.5)
    table = section(made_up.summary(run)).table
    titles = table.titles
    eager, fast = (dict(zip(titles, row, strict=True)) for row in table.rows)
    assert eager["note"].text.startswith("not reachable")
    assert fast["an hour"].value == 2.5 * float(fast["GPUs"].value or 0)
    assert float(fast["p99 ms"].value or 1) <= 0.030
    assert "GPUs for the target" in made_up.page(run)


def test_stage_without_latencies_is_unknown() -> None:
    run = with_knobs(target_images_per_second=3_000.0, target_p99_ms=300.0)
    bare = replace(run, stages=[replace(run.stages[0], latencies=[], host_latencies=[])])
    table = section(made_up.summary(bare)).table
    assert table.rows[0][-1].text == "unknown: no latencies on record"


@pytest.mark.usefixtures("short_simulations")
def test_copies_count_where_they_were_measured() -> None:
    run = with_knobs(target_images_per_second=10.0, target_p99_ms=400.0)
    for host, figure in (([0.2] * 10, 0.2), ([], 0.1)):
        stage = replace(run.stages[0], latencies=[0.1] * 10, host_latencies=host)
        found = fleets(made_up.summary(replace(run, stages=[stage])))[stage.name].simulation
        assert found
        assert found.load == pytest.approx(10 * figure / run.batch_size)


@pytest.mark.usefixtures("short_simulations")
def test_drawing_again_with_targets(tmp_path: Path) -> None:
    codec.save(with_knobs(), tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    knobs = ["report.target_images_per_second=3000", "report.target_p99_ms=30", "report.gpu_hour_price=4"]
    assert main([str(tmp_path), *knobs]) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "3,000 images/s at a p99 of 30.0 ms" in text
    assert re.search(r"at 4 an hour each", text)
    assert (tmp_path / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("report.target_p99=3", "did you mean 'report.target_p99_ms'?"),
        ("rport.gpu_hour_price=3", "did you mean 'report.gpu_hour_price'?"),
        ("report.gpu_hour_price=cheap", "report.gpu_hour_price=cheap: expected float | null, got str"),
        ("report.target_p99_ms=nan", "expected float > 0.0"),
        ("report.target_p99_ms=0", "expected float > 0.0"),
        ("report.target_p99_ms=inf", "report.target_p99_ms=inf"),
        ("objective=memroy", "did you mean 'memory'?"),
        ('subject_to=["p98<20ms"]', "no figure 'p98'"),
        ("accuracy.max_dice_drp=0.5", "did you mean 'accuracy.max_dice_drop'?"),
        ("accuracy.max_dice_drop=abc", "expected float"),
        ("subject_to=[", "not a value"),
        ('subject_to=["p99<20ms"]', "300 single calls of a stage, this run made 100; measure them: python -m pipeline"),
    ],
)
def test_wrong_knob_is_one_line(word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and nothing is drawn."""
    codec.save(with_knobs(), tmp_path)
    assert main([str(tmp_path), word]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


BASELINE = Line("eager", 1.0, 0.002)
NOBODY: frozenset[str] = frozenset()


def cost_rows(found: RunSummary) -> list[list[Cell]]:
    """Stage, images a second, hours and so on, of each ranked stage."""
    return table_of(columns(found), found.ranked).rows


@pytest.mark.parametrize(
    ("stage", "images"),
    [
        (Line("compile", 11.0, 0.001), 10_000),
        (Line("quick", 0.5, 0.00125), 0.0),
        (Line("slow", 5.0, 0.0025), None),
        (Line("alike", 2.0, 0.00199), None),
        (BASELINE, 0.0),
    ],
)
def test_break_even_is_where_the_lines_meet(stage: Line, images: float | None) -> None:
    """10 s more of set-up and 1 ms less an image are 10,000 images; at once; never; against itself."""
    found = break_even(stage, BASELINE, alike=stage.name == "alike")
    assert found == (None if images is None else pytest.approx(images))


def test_the_best_stage_changes_where_the_lines_cross() -> None:
    """Slopes 8, 4 and 2 ms with 0, 4 and 104 s: at 1,000 and at 50,000 images."""
    lines = [Line("a", 0.0, 0.008), Line("b", 4.0, 0.004), Line("c", 104.0, 0.002), Line("never", 9.0, 0.009)]
    found = change_overs(lines, NOBODY, 0.01)
    assert [name for name, _ in found] == ["a", "b", "c"]
    assert [start for _, start in found] == pytest.approx([1.0, 1_000.0, 50_000.0])
    lines[2] = Line("c", 3.0, 0.002)  # leads from 500 images on, so that b never does
    assert [name for name, _ in change_overs(lines, NOBODY, 0.01)] == ["a", "c"]


@pytest.mark.parametrize(("ties", "seconds"), [(frozenset({"b", "c"}), 0.002), (NOBODY, 0.00399)])
def test_a_tie_is_no_change(ties: frozenset[str], seconds: float) -> None:
    lines = [Line("a", 0.0, 0.008), Line("b", 4.0, 0.004), Line("c", 10.0, seconds)]
    assert [name for name, _ in change_overs(lines, ties, 0.01)] == ["a", "b"]


def test_of_a_run_it_uses_paces_and_set_up() -> None:
    """At 20 ms for two images and 10: 10 s more of set-up are 2,000 images."""
    stages = [
        stage_record("eager", pair_of(lambda i: (0.2, 0.2)), build_seconds=0.5, first_call_seconds=0.5),
        stage_record("compile", pair_of(lambda i: (0.2, 0.1)), build_seconds=10.0, first_call_seconds=1.0),
    ]
    found = summarize(run_record(stages))
    assert [stage.break_even for stage in found.stages] == [0.0, pytest.approx(2_000)]
    assert found.change_overs == [("eager", 1.0), ("compile", pytest.approx(2_000))]
    assert found.doubt is None
    drawn = ruler(found)
    assert drawn
    assert ">2,000</text>" in drawn.svg
    assert ruler(replace(found, change_overs=found.change_overs[:1])) is None


def test_of_what_is_not_resolved_nothing_is_said() -> None:
    short = asked(plan=Plan(sampling_seconds=6.0))
    found = summarize(run_record([stage_record("compile", wide_pair(1.1))], config=short))
    (stage,) = found.stages
    assert (stage.break_even, stage.break_even_doubt) == (None, "not resolved")
    assert (found.winner, found.change_overs, found.doubt) == (None, [], "not resolved")
    assert (found.change_overs, found.best_for_service) == ([], None)
    assert found.measure_again == "python -m pipeline measure=thorough"
    assert [row[2].text for row in cost_rows(found)] == ["–"]


@pytest.mark.parametrize(
    ("device", "seconds", "asked"), [("cuda", 150, "thorough"), ("cuda", 540, "3"), ("cpu", 60, "3")]
)
def test_what_measured_for_less_than_thorough_is_sent_there(device: str, seconds: float, asked: str) -> None:
    run = run_record([stage_record("compile", wide_pair(1.1))])
    run = replace(run, environment=replace(made_up.environment(), device=device))
    found = summarize(replace(run, config=replace(run.config, plan=Plan(sampling_seconds=seconds))))
    assert found.measure_again.endswith(f"={asked}")


def test_of_a_drifting_baseline_nothing_is_said_that_needs_seconds() -> None:
    steady = run_record([stage_record("half", steady_pair(2.0, b="half"), build_seconds=1.0)])
    assert summarize(steady).stages[0].break_even is not None
    found = summarize(replace(steady, drift=0.12))
    assert found.ranking.winner == "half"
    assert (found.change_overs, found.doubt) == ([], "baseline drifted")
    assert (found.stages[0].break_even, found.stages[0].break_even_doubt) == (None, "baseline drifted")
    assert [row[2].text for row in cost_rows(found)] == ["–"]
    assert cost_rows(summarize(steady))[0][2].value is not None


def test_a_slower_stage_is_not_best_for_a_service_because_the_baseline_was_none_of_its_own() -> None:
    found = summarize(run_record([stage_record("half", steady_pair(0.8, b="half"), latencies=[0.01] * 20)]))
    assert (found.ranking.winner, found.best_for_service) == ("eager", "eager")
    assert not any("service" in line for line in cost_text(found))
