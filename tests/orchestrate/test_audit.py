"""A stage is as fast as its samples say by the run's own clock too, on pictures that it can't know; on fake clocks."""

import math
from collections.abc import Callable

import pytest

from pipeline.orchestrate import audit
from pipeline.orchestrate.audit import (
    BLANKS,
    MOST_CALLS,
    ROUNDS,
    Audited,
    Claim,
    allowed_distance,
    audited,
    audited_apart,
    claim_of,
    distance,
    questions,
)
from pipeline.protocol import Audit
from tests.fake_machine import steady_pair

CALL, BLANK = 0.025, 0.001  # seconds of the baseline's call, and of what a round adds to it


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share the machine."""
    monkeypatch.setattr(audit, "load_per_processor", lambda: 0.1)


class Party:
    """Answers with a number that only the seed gives, in so long a time for a call."""

    def __init__(self, call: Callable[[int], float], answer: float = 0.0) -> None:
        self.call, self.answer, self.asked = call, answer, 0

    def audit(self, asked: Audit) -> Audited:
        self.asked += not asked.blank
        right = [[1.0 + (asked.seed % 7) + self.answer]] * asked.calls
        return Audited(right, asked.calls * (BLANK + (0.0 if asked.blank else self.call(self.asked))))


BASELINE = Party(lambda _: CALL)
CLAIM = Claim(CALL, CALL / 10, 0.02)


def test_an_honest_stage_is_asked_once() -> None:
    """It is as fast as its samples say, and right."""
    stage = Party(lambda _: CALL / 10)
    assert audited(BASELINE, stage, CLAIM) is None
    assert stage.asked == 1


def test_one_disturbed_round_is_no_lie() -> None:
    """A neighbour slows a round; nothing makes one faster than the stage computes."""
    stage = Party(lambda number: CALL if number < ROUNDS else CALL / 10)
    assert audited(BASELINE, stage, CLAIM) is None
    assert stage.asked == ROUNDS


@pytest.mark.parametrize("times", [1.6, 10.0])
def test_whoever_takes_longer_than_its_samples_say_is_found_out(times: float) -> None:
    """Whatever it did to the clock of its own process."""
    slow = CALL / 10 * times + BLANKS * BLANK
    doubt = audited(BASELINE, Party(lambda _: slow), CLAIM)
    assert doubt is not None
    assert doubt.failure == "impossible"
    assert doubt.reason.startswith("by the run's own clock 10 calls took ")
    assert doubt.reason.endswith(" s, and by its samples they take 0.025 s")


def test_a_machine_that_lags_excuses_a_stage_no_further_than_twice() -> None:
    """The baseline, asked the same, shows how far the machine is behind."""
    lagging, stage = Party(lambda _: 10 * CALL), Party(lambda _: 2 * CALL / 10)
    assert audited(lagging, stage, CLAIM) is None
    assert audited(lagging, Party(lambda _: CALL), CLAIM) is not None


def test_who_cannot_be_told_from_a_liar_on_a_machine_that_lags_is_accused_of_nothing() -> None:
    """Its time isn't known, so that it isn't ranked either."""
    doubt = audited(Party(lambda _: 10 * CALL), Party(lambda _: CALL), CLAIM)
    assert doubt is not None
    assert doubt.fields == {"status": "failed", "failure": "error", "reason": doubt.reason}
    assert doubt.reason.startswith(
        "not resolved, as measured under load: 10 calls took 0.26 s, and by its samples they"
    )
    assert "but the baseline took 10 times what its samples say, at a load of 0.1 for each processor" in doubt.reason
    assert doubt.reason.endswith("leave the machine to the run, and go on with resume=RUN")


@pytest.mark.parametrize(("loaded", "failure"), [(ROUNDS // 2 - 1, "impossible"), (ROUNDS // 2, "error")])
def test_a_machine_that_is_busy_for_a_while_hides_no_liar(loaded: int, failure: str) -> None:
    """The baseline lags in fewer than half of the rounds."""
    seldom = Party(lambda number: 10 * CALL if number <= loaded else CALL)
    doubt = audited(seldom, Party(lambda _: CALL), CLAIM)
    assert doubt is not None
    assert doubt.failure == failure


def test_a_load_of_fifty_for_each_processor_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline may have been lucky where the stage was not. Wrong answers stay wrong."""
    monkeypatch.setattr(audit, "load_per_processor", lambda: 50.0)
    doubt = audited(BASELINE, Party(lambda _: CALL), CLAIM)
    assert doubt is not None
    assert (doubt.failure, doubt.status) == ("error", "failed")
    assert "at a load of 50 for each processor" in doubt.reason
    wrong = audited(BASELINE, Party(lambda _: CALL, answer=5.0), CLAIM)
    assert wrong is not None
    assert (wrong.failure, wrong.status) == ("wrong answer", "inaccurate")
    assert audited(BASELINE, Party(lambda _: CALL / 10), CLAIM) is None


def test_answers_that_are_not_the_baseline_s_are_found_out() -> None:
    """It can't have kept them: the pictures were drawn a moment ago."""
    doubt = audited(BASELINE, Party(lambda _: 0.0, answer=5.0), CLAIM)
    assert doubt is not None
    assert doubt.fields["status"] == "inaccurate"
    assert doubt.failure == "wrong answer"
    assert "to pictures that the run drew" in doubt.reason


def test_a_stage_that_had_to_run_alone_is_judged_by_what_it_answered_then() -> None:
    """The baseline answers the same questions afterwards."""
    stage = Party(lambda _: CALL)
    given = [(asked, stage.audit(asked)) for asked in questions(CALL, 3)]
    doubt = audited_apart(given, BASELINE, CLAIM)
    assert doubt is not None
    assert audited_apart(given, BASELINE, Claim(CALL, CALL, 0.02)) is None


def test_a_round_is_a_quarter_of_a_second_of_the_baseline_and_its_seed_is_drawn() -> None:
    """As many pictures as fit, and no fewer than two."""
    assert [next(questions(call)).calls for call in (0.025, 10.0, 1e-6, 0.0)] == [10, 2, MOST_CALLS, MOST_CALLS]
    assert len({asked.seed for asked in questions(1.0)}) == ROUNDS


@pytest.mark.parametrize(
    ("got", "off"),
    [([[3.0, 4.0]], 0.0), ([[3.0, 9.0]], 1.0), ([[3.0]], math.inf), ([], math.inf), ([[3.0, math.nan]], math.inf)],
)
def test_the_distance_of_answers(got: list[list[float]], off: float) -> None:
    """Relative L2; too few numbers, and no numbers, are as far as can be."""
    assert distance(got, [[3.0, 4.0]]) == off


def test_what_is_allowed_follows_the_tolerances() -> None:
    """Of both sides, from a fiftieth to seven tenths."""
    assert allowed_distance([1e-5, 1e-5]) == 0.02
    assert allowed_distance([0.03, 0.03]) == pytest.approx(0.36)
    assert allowed_distance([1.0]) == 0.7
    assert claim_of([steady_pair(2.0)], [1e-5]).stage == pytest.approx(
        claim_of([steady_pair(2.0)], [1e-5]).baseline / 2
    )
