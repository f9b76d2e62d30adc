"""One rule says what may be claimed: in a report, a comparison of runs, in lessons, and where a machine drifted."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from pipeline.analysis.run_comparison import anything_told, compare
from pipeline.analysis.summary import Since, summarize
from pipeline.compare import conclusion
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, drift_of
from pipeline.records.diagnostics import Diagnostics, TimeSplit
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Pair, Sample
from pipeline.report import answer
from pipeline.report.formatting import interval, remedy, way_to_resolve
from pipeline.report.sections.ladder import ladder_chart
from pipeline.report.sections.recommendation import recommendation_texts
from pipeline.report.terminal import first_screen, outcome_line
from pipeline.stats.intervals import (
    CROWDED,
    ITSELF,
    Ratio,
    allowing,
    composed,
    ratio,
    seconds_per_call,
    steady_composed,
    steady_ratio,
)
from pipeline.stats.outcomes import Cause, Noise, vague
from pipeline.stats.ranking import contenders, ranking
from tests.fake_machine import Machine, pair_of, run_record, sampling, stage_record, steady_pair, wide_pair
from tests.made_up_request import changed
from tests.report import made_up_run as made_up


def ladder(baseline: Pair, **speedups: float) -> RunRecord:
    """A run whose baseline is a stage of its own, with these samples beside itself."""
    rng = np.random.default_rng(0)
    others = [stage_record(name, sampling(Machine(rng), speedup)) for name, speedup in speedups.items()]
    return run_record([stage_record("eager", baseline), *others])


@pytest.mark.parametrize(
    ("value", "low", "high", "said_vague"),
    [
        (3.3, 1.4, 7.7, True),  # of a busy laptop
        (6.75, 3.43, 10.2, False),
        (8.24, 8.0, 14.0, False),
        (1.5, 1.05, 2.0, False),  # less than twice
        (1 / 3.3, 1 / 7.7, 1 / 1.4, True),
        (1 / 6.75, 1 / 10.2, 1 / 3.43, False),
    ],
)
def test_an_interval_wider_than_its_distance_is_void(value: float, low: float, high: float, said_vague: bool) -> None:
    found = Ratio(value, low, high, 12)
    assert vague(found) is said_vague
    assert (Noise().outcome(found) == "not resolved") is said_vague
    assert not said_vague or Noise().unresolved(found).cause == "wide interval"


def test_two_runs_differ_by_no_less_than_their_baselines_differ_from_themselves() -> None:
    quiet, busy = (sampling(Machine(np.random.default_rng(1), noise=noise), 1.0) for noise in (0.001, 3.0))
    for one, other, outcome in ((quiet, quiet, "faster"), (quiet, busy, "not resolved"), (busy, busy, "not resolved")):
        changes = {change.stage: change for change in compare(ladder(one, half=1.5), ladder(other, half=3.0))}
        assert changes["half"].outcome == outcome
        assert changes["half"].change.value == pytest.approx(2.0, rel=0.01)


def rows(first: list[float], second: list[float]) -> Rows:
    """Two variants of a lesson by their seconds, round by round."""
    named = {"slow": first, "fast": second}
    return Rows([Row(name, samples=[Sample(1, each, None) for each in taken]) for name, taken in named.items()])


def pace(number: int, before: float, after: float) -> float:
    """Of twelve rounds, those from the seventh on at another pace."""
    return before if number < 6 else after


def test_which_row_comes_first_changes_nothing() -> None:
    """A drift of either row counts for both ways of the pair, which say the same; it needn't be the first row's."""
    steady = [1.0 + 0.001 * (number % 3) for number in range(12)]
    for change, outcomes in ((1.05, ("faster", "slower")), (1.6, ("not resolved", "not resolved"))):
        drifting = [1.5 * each * pace(number, 1.0, change) for number, each in enumerate(steady)]
        for pair in (rows(drifting, steady), rows([2.25 * each for each in steady], drifting)):
            assert (pair.outcome("slow", "fast"), pair.outcome("fast", "slow")) == outcomes
    for far, outcome in ((1.0099, "same"), (1.01005, "not resolved")):  # 1 / 1.01005 is more than 0.99
        edge = rows([1.0] * 12, [far, 1.0] * 6)
        assert edge.outcome("slow", "fast") == edge.outcome("fast", "slow") == outcome


@pytest.mark.parametrize("rounds", [6, 7, 10, 11, 12, 13, 24])
def test_what_differs_by_turns_has_not_drifted(rounds: int) -> None:
    first = [2.0 * (1.0 if number % 2 else 1.35) for number in range(rounds)]
    assert rows(first, [1.0] * rounds).outcome("slow", "fast") == "faster"
    assert drift_of(rows(first, first)[0]) == pytest.approx(0.0)


def on_a_busy_machine(run: RunRecord, share: float) -> RunRecord:
    """The run with so much of its processors taken by others, while all of its stages were timed."""
    taken = [[replace(pair, taken_share=share) for pair in stage.pairs] for stage in run.stages]
    return replace(run, stages=[replace(stage, pairs=own) for stage, own in zip(run.stages, taken, strict=True)])


@pytest.mark.parametrize(("share", "winner"), [(CROWDED - 0.01, "half"), (CROWDED, None), (0.6, None)])
def test_where_others_take_the_processors_no_winner_is_named(share: float, winner: str | None) -> None:
    """However narrow its interval: a stage that waits for a processor needn't lose as much as the baseline does."""
    run = on_a_busy_machine(ladder(steady_pair(1.0, spread=0.0), half=3.0), share)
    found = ranking(run)
    assert found.winner == winner
    if winner is None:
        assert found.unresolved is not None
        assert f"took {100 * share:.0f} % of the processors" in remedy(found.unresolved)
        assert "idle machine" in remedy(found.unresolved)
        assert interval(found.ratios["half"]) == "(no interval)"


def test_a_choice_that_is_not_resolved_has_no_ratio_beside_the_others() -> None:
    run = ladder(steady_pair(1.0, spread=0.0), half=3.0)
    busy = changed(run.stages[1], name="quick", pairs=[replace(run.stages[1].pairs[0], taken_share=0.5)])
    accurate = [replace(stage, build_seconds=cost) for stage, cost in zip([*run.stages, busy], (1, 9, 2), strict=True)]
    table = answer.choice_table(summarize(replace(run, stages=accurate)))
    shown = {str(row[0].value).split()[-1]: row[table.titles.index("× eager")].text for row in table.rows}
    assert shown == {"half": "2.99 ×", "quick": "not resolved", "eager": "1 ×"}


@pytest.mark.parametrize(("slow", "quick", "tied"), [(0.46, 2.43, False), (0.9, 2.43, False), (2.2, 2.43, True)])
def test_what_others_took_makes_no_tie_of_a_slow_stage(slow: float, quick: float, tied: bool) -> None:
    """A stage without an interval, as others had 12 % of its processors: it may lie 12 % off, and no further."""
    run = ladder(steady_pair(1.0, spread=0.0), quick=quick, slow=slow)
    busy = replace(run.stages[2], pairs=[replace(run.stages[2].pairs[0], taken_share=0.12)])
    run = replace(run, stages=[*run.stages[:2], busy])
    found = ranking(run)
    assert found.outcomes["slow"] == "not resolved"
    assert (found.winner, found.ties) == ("quick", ["slow"] if tied else [])
    assert contenders(run) == (["quick", "slow"] if tied else ["quick"])


def test_what_others_took_keeps_no_stage_from_the_baseline_that_is_far_slower() -> None:
    """Nothing is faster than the baseline, though one that takes twice as long has no interval; one like it may be."""
    eager = steady_pair(1.0, spread=0.0)
    for speedup, winner in ((0.5, "eager"), (0.95, None)):
        run = ladder(eager, slow=speedup)
        busy = replace(run.stages[1], pairs=[replace(run.stages[1].pairs[0], taken_share=0.12)])
        assert ranking(replace(run, stages=[run.stages[0], busy])).winner == winner


def test_who_is_shown_head_to_head_to_be_faster_leads_with_an_interval_or_without() -> None:
    run = ladder(steady_pair(1.0, spread=0.0), half=2.0, quick=3.0, slow=1.2)
    (first,) = run.stages[2].pairs
    for unsure in (replace(first, taken_share=0.12), replace(first, blocks=first.blocks[:4])):
        stages = [replace(stage, pairs=[unsure]) if stage.name == "quick" else stage for stage in run.stages]
        assert contenders(replace(run, stages=stages)) == ["quick", "half"]
    pairs = [met("graph", "compile", 1.05), met("graph", "half", 1.0495)]
    found = ranking(run_of({"half": 2.9999, "compile": 3.0, "graph": 3.0003}, head_to_head=pairs))
    assert (found.winner, found.ties) == ("compile", ["half"])
    assert found.order[0] == "compile"


def test_a_baseline_measured_beside_others_still_shows_how_far_it_is_from_itself() -> None:
    quiet, stage = Ratio(1.02, 0.80, 1.25, 12), Ratio(1.2, 1.15, 1.24, 12)
    for itself in (quiet, allowing(quiet, 0.0, 0.3)):
        assert Noise(0.01, itself).reach == pytest.approx(math.log(1.25))
        assert Noise(0.01, itself).outcome(stage) == "not resolved"
    few = replace(quiet, blocks=4, doubt="few blocks")
    for silent in (ITSELF, few, allowing(few, 0.0, 0.3)):
        assert Noise(0.01, silent).reach == 0
        assert Noise(0.01, silent).outcome(stage) == "faster"


def test_such_a_run_says_so_first_and_how_to_measure_again() -> None:
    calm = replace(made_up.run(), environment=replace(made_up.environment(), device="cpu"))
    busy = on_a_busy_machine(calm, 0.5)
    summary = made_up.summary(busy)
    assert answer.headline(summary) == "Not resolved: measure longer, or on an idle machine"
    assert "measure=thorough" in answer.longer(summary)
    (tried,) = recommendation_texts(summary)
    assert tried.text == "Measure on an idle machine before choosing torch.compile"
    changes = compare(calm, busy)
    assert {change.outcome for change in changes if change.change} == {"not resolved"}
    assert conclusion(changes).startswith("Not resolved: the noise is larger than any change")
    assert conclusion(compare(calm, calm)).startswith("Nothing changed beyond the noise")
    since = replace(summary, since=Since("earlier", "", 3, [], [], anything_told(changes)))
    assert answer.paragraph(since)[-1].endswith("whether anything changed is not resolved.")


@pytest.mark.parametrize("cause", get_args(Cause))
def test_what_to_do_is_what_the_reason_asks_for(cause: Cause) -> None:
    why = replace(Noise().unresolved(Ratio(1.1, 0.9, 1.3, 12)), cause=cause)
    assert way_to_resolve(why) == ("Measure on an idle machine" if "idle machine" in remedy(why) else "Measure longer")


def ranked(**ratios: float) -> list[object]:
    return [stage_record(name, steady_pair(value, b=name)) for name, value in ratios.items()]


def run_of(ratios: dict[str, float], **fields: object) -> RunRecord:
    return run_record(ranked(**ratios), **fields)  # type: ignore[arg-type]


def met(leader: str, contender: str, value: float) -> Pair:
    return steady_pair(value, a=leader, b=contender)


def test_the_fastest_wins_and_those_not_set_apart_tie() -> None:
    found = ranking(run_of({"amp": 2.0, "compile": 3.0, "graph": 3.0003, "half": 2.5}))
    assert (found.winner, found.ties) == ("graph", ["compile"])
    assert found.order == ["graph", "compile", "half", "amp", "eager"]
    assert found.outcomes == {
        "amp": "faster", "compile": "faster", "graph": "faster", "half": "faster", "eager": "same",
    }  # fmt: skip
    assert found.ratios["half"].value == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("ratios", "order", "ties"),
    [
        ({"compile": 3.0, "graph": 3.02}, ["graph", "compile", "eager"], ["compile"]),  # A/A pairs lie 1 % apart
        ({"slow": 0.8}, ["eager", "slow"], []),
        ({"tf32": 1.002}, ["tf32", "eager"], ["eager"]),
        ({"eager": 1.001, "compile": 3.0}, ["compile", "eager"], []),
    ],
)
def test_the_baseline_is_ranked_and_ties_as_stages(ratios: dict[str, float], order: list[str], ties: list[str]) -> None:
    found = ranking(run_of(ratios))
    assert (found.winner, found.order, found.ties) == (order[0], order, ties)
    assert found.ratios["eager"].value == pytest.approx(ratios.get("eager", 1.0))


@pytest.mark.parametrize(("value", "ties"), [(0.95, []), (0.997, ["compile"]), (1.003, ["compile"])])
def test_head_to_head_with_the_winner_decides(value: float, ties: list[str]) -> None:
    run = run_of({"compile": 3.0, "graph": 3.0003}, head_to_head=[met("graph", "compile", value)])
    found = ranking(run)
    assert (found.winner, found.ties) == ("graph", ties)


def beside_a_wave(ratio: float, seconds: float) -> Pair:
    """Steady samples of a stage beside a baseline whose pace goes up and down by a third."""
    return replace(pair_of(lambda at: (ratio * math.exp(0.3 * (at % 3 - 1)), seconds)), sustained=True)


@pytest.mark.parametrize(
    ("times", "kernels", "host", "winner", "ties"),
    [
        ((1.0, 1.1), 0.8, 0.0, "quick", []),
        ((1.1, 1.0), 1.0, 1.0, "slow", []),  # although its ratio to a baseline that waits for the host is less
        ((1.0, 1.1), 0.8, 1.0, "quick", ["slow"]),  # both wait for the host
        ((1.0, 1.02), 1.0, 1.0, "quick", ["slow"]),  # builds differ as much
    ],
)
def test_samples_apart_make_no_tie(
    times: tuple[float, float], kernels: float, host: float, winner: str, ties: list[str]
) -> None:
    stages = []
    for name, each, times_as_fast in zip(("quick", "slow"), times, (3.3, 3.0), strict=True):
        pair = beside_a_wave(times_as_fast, each)
        split = TimeSplit(1.0, kernels * seconds_per_call([pair]).value, 0.0, host, 0.0, 0.0)
        stages.append(stage_record(name, pair, diagnostics=Diagnostics(split=split)))
    found = ranking(run_record(stages))
    assert (found.winner, found.ties) == (winner, ties)


def test_the_wrong_the_unmeasured_and_the_unclear_never_rank() -> None:
    fast = steady_pair(9.0)
    stages = [
        stage_record("wrong", fast, status="inaccurate"),
        stage_record("dead", fast, status="failed"),
        stage_record("unmeasured", None),
        stage_record("empty", Pair("eager", "empty", [])),
        stage_record("sly", steady_pair(9.0, device_seconds=0.001)),
        stage_record("honest", steady_pair(1.2, device_seconds=0.02)),
    ]
    run = run_record(stages)
    assert ranking(run).order == ["honest", "eager"]
    assert contenders(run) == ["honest"]


def test_contenders_are_the_fastest_and_those_near_it_or_none() -> None:
    run = run_record([stage_record("wrong", None, status="inaccurate")])
    found = ranking(run)
    assert (found.winner, found.order, contenders(run), found.unresolved) == (None, [], [], None)
    assert contenders(run_of({"amp": 2.0, "compile": 3.0, "graph": 3.01, "half": 2.99})) == ["graph", "compile", "half"]


def wide(value: float, name: str) -> StageRecord:
    return stage_record(name, wide_pair(value, b=name))


def test_what_is_not_resolved_is_not_named_a_winner() -> None:
    """Alone, beside slower ones, and beside one that is the same as the baseline: it may be faster than all of them."""
    for others in ({}, {"slow": 0.8}, {"tf32": 1.002}):
        found = ranking(run_record([*ranked(**others), wide(1.1, "compile")]))  # type: ignore[list-item]
        assert found.winner is None
        assert found.ties == []
        assert found.order[0] == "compile"
        assert (found.unresolved.cause, found.unresolved.blocks) == ("wide interval", 30)


def test_what_is_not_resolved_is_a_tie_or_leaves_the_baseline_its_place() -> None:
    found = ranking(run_record([*ranked(half=1.5), wide(1.6, "compile")]))  # type: ignore[list-item]
    assert (found.winner, found.ties, found.unresolved) == ("half", ["compile"], None)
    # 0.99 with its whole interval below 1: too little to be called slower, and no reason to doubt
    found = ranking(run_record([stage_record("near", steady_pair(0.992, spread=0.004, b="near"))]))
    assert found.outcomes["near"] == "not resolved"
    assert found.winner == "eager"


@pytest.mark.parametrize(("speedup", "outcome"), [(2.0, "not resolved"), (0.5, "not resolved"), (4.0, "faster")])
def test_what_the_baseline_does_to_itself_shows_nothing(speedup: float, outcome: str) -> None:
    """On busy cores its own interval reaches three times: twice as fast, or half as fast, is no difference there."""
    run = run_record([wide(1.0, "eager"), *ranked(compile=speedup)])  # type: ignore[list-item]
    found = ranking(run)
    assert found.outcomes["compile"] == outcome
    assert (found.winner == "compile") == (outcome == "faster")
    if speedup == 2.0:
        assert found.unresolved is not None
        assert found.unresolved.cause == "baseline not itself"
        assert "against itself was 0.33 to 3.00 ×, so a ratio within" in remedy(found.unresolved)


def through(step: float, speedup: float, name: str = "compile", jitter: float = 0.001) -> Pair:
    """Twelve blocks of a stage so many times as fast, on a machine that is slower by `step` from the seventh on."""

    def seconds(index: int) -> tuple[float, float]:
        pace = (1 + step * (index > 5)) * (1 + jitter * (index % 3))
        return pace, pace / speedup / (1 + jitter * (index % 2))

    return pair_of(seconds, blocks=12, a="eager", b=name)


CALM = through(0.0, 1.0, jitter=0.0)  # whose blocks are all alike, so that nothing is bootstrapped


def test_an_unfair_drift_moves_both_ends_apart_and_a_steady_machine_none() -> None:
    for step in (0.0, 0.08):
        assert steady_ratio([through(step, 1.5)]) == ratio(through(step, 1.5))
    assert steady_composed([through(0.08, 1.5, jitter=0.0)], [CALM]) == composed(through(0.08, 1.5, jitter=0.0), CALM)
    # 12 % slower at the end: the interval is 1.12 times as far on either side; composed, by both sides' drifts
    pair = through(0.12, 1.5, jitter=0.0)
    found, plain = steady_ratio([pair]), ratio(pair)
    assert math.expm1(found.drift) == pytest.approx(0.12)
    assert (found.value, found.low, found.high) == pytest.approx((plain.value, plain.low / 1.12, plain.high * 1.12))
    both = steady_composed([pair], [through(-0.2, 1.2, jitter=0.0)])
    assert both.drift == pytest.approx(math.log(1.12 / 0.8))


def test_a_pace_that_jumps_within_every_block_stays_inside_the_interval() -> None:
    """Two equal stages: the baseline's samples are all taken at the slow pace, the stage's at the fast one."""
    unlucky = pair_of(lambda index: (1.0 if index < 6 else 1.3, 1.0), blocks=12)
    assert ratio(unlucky).high > 1.2
    assert steady_ratio([unlucky]).low < 1 < steady_ratio([unlucky]).high


@pytest.mark.parametrize(
    ("step", "speedup", "outcome"),
    [(0.12, 2.0, "faster"), (0.4, 1.3, "not resolved"), (0.4, 0.5, "slower"), (0.12, 1.0, "not resolved")],
)
def test_what_is_larger_than_the_drift_may_be_claimed(step: float, speedup: float, outcome: str) -> None:
    """Where single calls leave a clear ratio open, as for objective=latency, the drift is the reason, too."""
    found = steady_ratio([through(step, speedup)])
    assert Noise(0.01).outcome(found) == outcome
    why = Noise(0.01).unresolved(found)
    assert why.cause == "baseline drifted"
    assert f"drifted by {100 * step:.0f} %" in remedy(why)
    assert "idle machine" in remedy(why)


@pytest.fixture
def drifting() -> Callable[[float], RunRecord]:
    """A CPU's run of eager and compile, 1.5 times as fast, whose baseline drifts by so much within their samples."""
    eager, compiled = (next(part for part in made_up.run().stages if part.name == one) for one in ("eager", "compile"))

    def run(step: float) -> RunRecord:
        stages = [
            replace(eager, pairs=[through(step, 1.0, "eager")]),
            replace(compiled, pairs=[through(step, 1.5)], energy=None),
        ]
        return replace(
            made_up.run(), stages=stages, aa_pairs=[], head_to_head=[], baseline="eager", drift=step,
            environment=replace(made_up.environment(), device="cpu"),
        )  # fmt: skip

    return run


def test_a_drift_as_large_as_the_difference_leaves_no_winner(drifting: Callable[[float], RunRecord]) -> None:
    """No stage is named, drawn as a result or offered, on page, Markdown and terminal; the command says what to do."""
    record = drifting(0.6)
    summary = made_up.summary(record)
    assert summary.ranking.winner is None
    assert answer.headline(summary) == "Not resolved: measure longer, or on an idle machine"
    assert "drifted by 60 %" in " ".join(answer.paragraph(summary))
    assert answer.longer(summary).endswith("measure=thorough")
    assert answer.choice_table(summary).rows == []
    assert "Use compile" not in made_up.as_markdown(record) + made_up.page(record)
    assert "hatch" in ladder_chart(summary)
    assert "not resolved" in outcome_line(summary.run, summary.run.stages[1])
    assert summary.change_overs == []


def test_a_smaller_one_leaves_the_winner_and_says_nothing_of_times(drifting: Callable[[float], RunRecord]) -> None:
    """1.3 to 1.7 times is more than 12 %; what needs seconds of different moments is in doubt."""
    summary = made_up.summary(drifting(0.12))
    assert answer.headline(summary).startswith("Use torch.compile: 1.3 to 1.7 × as fast as eager")
    assert (summary.doubt, summary.change_overs) == ("baseline drifted", [])
    assert [stage.host_ratio for stage in summary.stages] == [None, None]
    assert ranking(summary.run).ratios["compile"].drift > 0
    assert contenders(summary.run)[0] == "compile"
    assert first_screen(summary)
