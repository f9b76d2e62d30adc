"""What a machine that changed its pace while it measured may still claim."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.records.run_record import RunRecord
from pipeline.records.samples import Pair
from pipeline.report import answer
from pipeline.report.formatting import remedy
from pipeline.report.sections.ladder import ladder_chart
from pipeline.report.terminal import first_screen, outcome_line
from pipeline.stats.intervals import composed, ratio, steady_composed, steady_ratio
from pipeline.stats.outcomes import Noise
from pipeline.stats.ranking import contenders, ranking
from tests.fake_machine import pair_of
from tests.report import made_up_run as made_up


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
    found = steady_ratio([through(step, speedup)])
    assert Noise(0.01).outcome(found) == outcome
    if outcome == "not resolved":
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
