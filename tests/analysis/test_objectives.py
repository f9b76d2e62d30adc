"""The winner by what was asked for, under bounds, and where none keeps them; the gate of a student: what passes it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.analysis.objectives import equal_within
from pipeline.analysis.run_comparison import compare, differences
from pipeline.analysis.slim_gate import Verdict, judge
from pipeline.analysis.summary import RunSummary, check_calls, summarize, to_be_least
from pipeline.config.goal_request import read_goal
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from pipeline.records.goals import AccuracyLimits, Goal
from pipeline.records.run_record import RunRecord
from pipeline.report import answer, csv_table, markdown
from pipeline.report import write as redraw
from pipeline.report.answer import numbers
from pipeline.report.write import rejudged
from pipeline.stats.dice import overlap
from tests.report import made_up_run as made_up

# compile 10.8 × eager, onnxruntime 10.75 ×; compile takes least memory, its 1.1 GB beside 512 MiB of the process
FEW = ("eager", "half", "compile", "onnxruntime")
STAGES = [stage for stage in made_up.run().stages if stage.name in FEW]


def wanted(objective: str = "throughput", *bounds: str, run: RunRecord | None = None, **limits: Any) -> RunSummary:
    whole = run or replace(made_up.run(stages=STAGES), aa_pairs=made_up.run().aa_pairs[:1])
    goal = read_goal(objective, list(bounds), 3.5)
    whole = replace(whole, config=replace(whole.config, goal=goal))
    return summarize(rejudged(whole, AccuracyLimits(**limits)) if limits else whole)


def with_stage(name: str, **fields: Any) -> RunRecord:
    return made_up.run(stages=[replace(part, **fields) if part.name == name else part for part in STAGES])


def test_bounds_leave_the_fastest_of_those_that_keep_them() -> None:
    plain = wanted()
    assert plain.choice is None
    assert (plain.ranking.winner, plain.ranking.ties) == ("compile", ["onnxruntime"])
    bound = wanted("throughput", "setup<10s")
    assert (bound.ranking.winner, bound.ranking.order) == ("half", plain.ranking.order)
    assert [stage.place for stage in bound.stages] == ["", "winner", "", ""]
    assert answer.headline(bound).endswith("; keeps setup<10s")
    assert "Left out: torch.compile misses setup<10s (33.8 s); ONNX Runtime misses" in " ".join(answer.paragraph(bound))
    tied = wanted("throughput", "memory<8GiB")
    assert (tied.ranking.winner, tied.ranking.ties) == ("compile", ["onnxruntime"])
    assert "compile keeps memory" in " ".join(answer.paragraph(tied))


@pytest.mark.parametrize(
    ("objective", "winner", "said"),
    [
        ("latency", "compile", "median of single calls, which has no interval"),
        ("memory", "compile", "one reading of the process"),
        ("energy", "compile", "one reading of the energy counter"),
        ("cost", "compile", "for the least cost of a million images"),
    ],
)
def test_the_winner_is_best_by_the_objective(objective: str, winner: str, said: str) -> None:
    """The same price for each second orders by speed; the others have one figure and no interval, which is said."""
    found = wanted(objective)
    assert found.ranking.winner == winner
    assert said in " ".join([answer.headline(found), *answer.paragraph(found)])


def test_memory_may_name_a_slower_stage_and_its_equals() -> None:
    small = STAGES[1].memory
    least = replace(small, process_bytes=10**9)
    run = made_up.run(stages=[STAGES[0], replace(STAGES[1], memory=least), *STAGES[2:]])
    found = wanted("memory", run=run)
    assert (found.ranking.winner, found.ranking.ties) == ("half", [])
    assert answer.resolved(found)
    said = "Use half precision for the least memory (0.931 GiB): 7.1 × as fast as eager"
    assert answer.headline(found).startswith(said)
    few = made_up.pair("eager", "half", (made_up.BASELINE_SECONDS, made_up.BASELINE_SECONDS / 2), blocks=2)
    vague = wanted("memory", run=made_up.run(stages=[STAGES[0], replace(STAGES[1], memory=least, pairs=[few])]))
    assert "whether it is faster than eager is not resolved" in answer.headline(vague)
    assert not answer.speed_is_told(vague)
    assert not any("as fast as" in number.label for number in numbers(vague))
    alone = wanted("memory", run=made_up.run(stages=[replace(STAGES[1], memory=least)]))
    assert "for the least memory (0.931 GiB, of this stage alone)" in answer.headline(alone)
    near = made_up.run(stages=[replace(STAGES[0], memory=replace(least, process_bytes=1_004_000_000)), *run.stages[1:]])
    tied = wanted("memory", run=near)
    assert tied.ranking.ties == ["eager"]
    assert "equally good: eager" in " ".join(answer.paragraph(tied))


def test_a_busy_machine_makes_no_more_stages_equal_in_memory() -> None:
    order = wanted("memory").ranking
    busy = replace(order, noise=replace(order.noise, effect=0.8))
    assert equal_within(Goal("memory"), busy) == 0.01
    assert equal_within(Goal("energy"), busy) == 0.8


def test_where_none_keeps_the_bounds_or_was_measured_the_nearest_is_named() -> None:
    none = wanted("throughput", "memory<1GiB", "p50<20ms")
    assert (none.winner, none.choice and none.choice.nearest) == (None, "compile")
    text = answer.headline(none)
    assert text == "No stage keeps memory<1GiB and p50<20ms: the nearest is torch.compile, memory<1GiB (1.52 GiB)"
    assert text in markdown.markdown(none).replace("\\", "").replace("&lt;", "<")
    rows = dict(zip(*(csv_table.rows(none)[at] for at in (0, 2)), strict=True))
    assert (rows["objective"], rows["constraints_missed"]) == ("throughput", "memory<1GiB (1.62 GiB)")
    one = wanted("throughput", "energy<100J", run=with_stage("compile", energy=None))
    assert one.ranking.winner == "onnxruntime"
    assert "compile misses energy<100J (not known)" in " ".join(answer.paragraph(one))
    bare = made_up.run(stages=[replace(part, energy=None) for part in STAGES])
    every = wanted("throughput", "energy<100J", run=bare)
    assert answer.headline(every) == "No stage is known to keep energy<100J: energy was not measured"
    by_it = wanted("energy", run=bare)
    assert answer.headline(by_it) == "No winner: energy an image was not measured of any stage"


def with_calls(count: int) -> RunRecord:
    return made_up.run(stages=[replace(part, latencies=(part.latencies * 10)[:count]) for part in STAGES])


@pytest.mark.parametrize("bound", ["p99", "host_p99"])
def test_a_bound_on_p99_is_held_against_its_upper_limit(bound: str) -> None:
    """Of 300 calls that is the slowest; of fewer, no stage is known to keep the bound."""
    calls = {"p99": "latencies", "host_p99": "host_latencies"}[bound]
    tails = [0.008] * 300 + [0.1]
    stages = [replace(part, **{calls: tails[len(tails) - 300 :]}) for part in STAGES]  # type: ignore[arg-type]
    missed = wanted("throughput", f"{bound}<20ms", run=made_up.run(stages=stages))
    assert answer.headline(missed).startswith(f"No stage keeps {bound}<20ms")
    stages = [replace(part, **{calls: tails[:300]}) for part in STAGES]  # type: ignore[arg-type]
    assert wanted("throughput", f"{bound}<20ms", run=made_up.run(stages=stages)).winner


def test_too_few_calls_for_a_bound_are_told_with_the_command_that_makes_more() -> None:
    few = wanted("throughput", "p99<20s", run=with_calls(20))
    assert answer.headline(few) == "No stage is known to keep p99<20s: p99 takes 300 single calls"
    assert answer.longer(few).endswith("measure.latency_calls=300 measure.latency_seconds=60")
    assert wanted("throughput", "p99<20s", run=with_calls(300)).winner
    asked = made_up.with_settings(wanted("throughput", "p90<1s").run, plan={"latency_calls": 20})
    with pytest.raises(RequestError, match=r"p90<1s: it takes 30 single calls of a stage, measure.latency_calls is 20"):
        check_calls(asked.config, "python -m pipeline")


def test_single_calls_on_a_busy_machine_name_no_winner() -> None:
    busy = made_up.run(stages=[replace(it, pairs=[replace(at, taken_share=0.86) for at in it.pairs]) for it in STAGES])
    found = wanted("latency", run=busy)
    assert answer.headline(found).startswith("Not resolved")
    assert "Other programs took 86 %" in " ".join(answer.paragraph(found))


def test_a_stage_beyond_a_limit_is_inaccurate_and_shown() -> None:
    worse = made_up.accuracy(dice=[0.98, 0.932])
    run = with_stage("compile", accuracy=worse)
    found = wanted(run=run, max_dice_drop=0.5)
    record = found.run.stages[2]
    assert (record.status, record.failure) == ("inaccurate", "accuracy limit")
    assert record.reason == "its worst class loses 0.8 points of Dice, 0.5 allowed (accuracy.max_dice_drop)"
    assert found.ranking.winner == "onnxruntime"
    assert answer.headline(found).endswith("; less than 0.01 points of Dice lost (0.5 allowed)")
    strict = wanted(run=run, max_dice_drop=0.001)
    assert answer.headline(strict).endswith("; 0 points of Dice lost (0.001 allowed)")
    further = wanted("throughput", "setup<10s", run=run, max_dice_drop=0.5, min_agreement=0.9)
    assert "; keeps setup<10s; " in answer.headline(further)
    assert answer.headline(further).endswith(" 0.99996 of the pixels keeps its class (at least 0.9 asked for)")
    every = [replace(part, accuracy=worse) for part in STAGES[1:3]]
    every[0] = replace(every[0], accuracy=made_up.accuracy(dice=[0.98, 0.93]))
    none = wanted(run=made_up.run(stages=[STAGES[0], *every]), max_dice_drop=0.5)
    assert answer.headline(none).startswith("No stage keeps max_dice_drop=0.5: the nearest is torch.compile, its wor")
    back = rejudged(found.run, AccuracyLimits(max_dice_drop=1.0))
    assert (back.stages[2].status, back.stages[2].reason) == ("ok", "")
    untimed = replace(found.run, stages=[replace(record, pairs=[])])
    still = rejudged(untimed, AccuracyLimits(max_dice_drop=1.0)).stages[0]
    assert still.status == "inaccurate"
    assert "run it again" in still.reason


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"min_dice": 0.95}, "a Dice of 0.94, 0.95 asked for"),
        ({"min_agreement": 0.99999}, "0.99996 of the pixels keep their class"),
    ],
)
def test_each_limit_is_on_its_own_figure(limits: dict[str, Any], said: str) -> None:
    assert said in AccuracyLimits(**limits).missed(made_up.accuracy())
    assert AccuracyLimits(max_dice_drop=0.0, min_dice=0.94, min_agreement=0.9999).missed(made_up.accuracy()) == ""
    assert AccuracyLimits(min_agreement=0.93).missed(made_up.accuracy(flipped_share=0.07)) == ""
    assert "no labels" in AccuracyLimits(min_dice=0.5).missed(made_up.accuracy(dice=None))


def test_runs_with_other_limits_are_told_apart() -> None:
    """A stage that only the limit refuses is broken in the comparison, with its reason; the difference is named."""
    run = made_up.run(stages=[replace(STAGES[2], accuracy=made_up.accuracy(dice=[0.98, 0.932]))])
    strict = rejudged(run, AccuracyLimits(max_dice_drop=0.5))
    assert ("accuracy.max_dice_drop", None, 0.5) in [(one.what, one.old, one.new) for one in differences(run, strict)]
    (change,) = compare(run, strict)
    assert (change.outcome, "0.5 allowed" in change.note) == ("broken", True)


def test_it_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def write(summary: RunSummary, folder: Path) -> Path:
        (folder / "report.md").write_text(markdown.markdown(summary))
        return folder

    monkeypatch.setattr(redraw, "write_report", write)
    run = replace(made_up.run(stages=STAGES[:2]), aa_pairs=[])
    path = codec.save(run, tmp_path)
    before = path.read_bytes()
    words = ["objective=memory", 'subject_to=["p50<20ms", "memory<8GiB"]', "accuracy.max_dice_drop=0.5"]
    assert redraw.main([str(tmp_path), *words]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "Use half precision for the least memory" in text
    assert "points of Dice lost (0.5 allowed)" in text
    assert f"{tmp_path}: Use half precision for the least memory" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_sweeper_that_searches_is_given_what_is_to_be_least() -> None:
    """The winner's figure by the objective; where nobody wins that of the fastest, and no figure is infinitely bad."""
    by_speed = wanted()
    assert by_speed.winner.images_per_second
    assert to_be_least(by_speed) == pytest.approx(1 / by_speed.winner.images_per_second)
    by_latency = wanted("latency")
    assert to_be_least(by_latency) == by_latency.winner.latency.p50
    none_wins = wanted("throughput", "memory<1B")
    assert none_wins.winner is None
    assert 0 < to_be_least(none_wins) < math.inf
    assert to_be_least(summarize(replace(made_up.run(), stages=[]))) == math.inf


SIDE = 40


def labels(images: int = 30, seed: int = 0) -> np.ndarray:
    """Draw labels [images, side, side]: half background, then two large classes and a small one."""
    random = np.random.default_rng(seed)
    return random.choice(4, (images, SIDE, SIDE), p=[0.5, 0.25, 0.23, 0.02]).astype(np.uint8)


def worsened(right: np.ndarray, share: float, seed: int, only: int | None = None) -> np.ndarray:
    """Return masks in which a share of the pixels, or of one class's, is background."""
    hit = np.random.default_rng(seed).random(right.shape) < share
    return np.where(hit if only is None else hit & (right == only), 0, right).astype(np.uint8)


def verdict(full: np.ndarray, slim: np.ndarray, right: np.ndarray, limit: float = 1.0, **given: object) -> Verdict:
    pictures = [f"picture {at}" for at in range(len(right))]
    known = {"pictures": pictures, "limit": limit, "seed": 0, "against": "labels", **given}
    return judge(overlap(full, right, 4), overlap(slim, right, 4), **known)  # type: ignore[arg-type]


def test_an_equal_student_passes_unless_images_are_few() -> None:
    right = labels()
    found = verdict(worsened(right, 0.1, 1), worsened(right, 0.101, 1), right)
    assert found.passed
    assert found.loss.low <= found.loss.points <= found.loss.high < 1
    assert found.told.startswith("passed: Dice 0.9")
    assert "points gained (loss, 95 %: -" in verdict(worsened(right, 0.4, 1), worsened(right, 0.1, 1), right).told
    right = labels(images=4)
    assert verdict(right, right, right).reason == "4 held-out images can't tell; give 10 or more"


def test_a_student_that_is_wrong_on_one_class_fails() -> None:
    """Its mean Dice alone would pass."""
    right = labels()
    found = verdict(worsened(right, 0.1, 1), worsened(worsened(right, 0.1, 1), 0.25, 2, only=3), right, limit=6.0)
    assert found.loss.high < 6.0
    assert not found.passed
    assert found.worst_class == 3
    assert found.reason.startswith("class 3 may lose")
    assert found.told.startswith("not passed: class 3 may lose")


def test_a_loss_that_the_images_can_not_tell_from_a_large_one_fails() -> None:
    """One image in twelve is lost: the mean is within the limit, and its upper bound isn't."""
    right = labels(images=12)
    slim = right.copy()
    slim[0] = worsened(right[0], 0.3, 1)
    found = verdict(right, slim, right, limit=2.0)
    assert found.loss.points < 2.0 < found.loss.high
    assert not found.passed
    assert found.reason.startswith("its Dice may lose")
    assert found.worst_images[0] == 0
    assert found.worst_decile > found.loss.points


@pytest.mark.parametrize(
    ("share", "against", "note"),
    [
        (0.6, "labels", "the full network itself is bad here"),
        (0.1, "the full network's masks", "agreement with the full network"),
    ],
)
def test_a_doubt_about_what_is_compared_is_told(share: float, against: str, note: str) -> None:
    right = labels()
    masks = worsened(right, share, 1)
    found = verdict(masks, masks, right, against=against)
    assert found.passed
    assert [text for text in found.notes if note in text]
    assert ("Dice against" in found.told) == (against != "labels")


def test_windows_of_a_picture_are_one_image_and_those_of_few_pictures_are_told() -> None:
    right = labels()
    slim = np.concatenate([worsened(right[:1], 0.3, 1), right[1:]])
    one = verdict(right[:3], slim[:3], right[:3])
    assert verdict(right, slim, right, pictures=[str(at // 3) for at in range(30)]).worst_decile == one.loss.points
    found = verdict(right, right, right, pictures=["one picture"] * len(right))
    assert found.notes == ["the images come from 1 picture: others may lose more"]
