"""Who is sampled when, when that ends, and what else worked on the processors meanwhile."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.interleave import interleave
from pipeline.orchestrate.processes import TICKS, Use, between, more_threads, now, taken_share
from pipeline.orchestrate.worker_process import WorkerProcess
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample
from tests.orchestrate.fake_worker import ENVIRONMENT, FakeWorker, Watcher, blank, config, stage


class Stub:
    def __init__(self, name: str, asked: list[str], seconds: Callable[[], float] = lambda: 1.0) -> None:
        self.name = name
        self._asked = asked
        self._seconds = seconds

    def sample(self) -> Sample:
        self._asked.append(self.name)
        return Sample(1, self._seconds(), None)


def noisy(seed: int, noise: float = 0.5, seconds: float = 1.0) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: seconds * (1.0 + noise * rng.random())


def test_blocks_are_abba_or_baab_and_both_come_and_each_is_told_of() -> None:
    asked: list[str] = []
    told: list[int] = []
    sides, plan = (Stub("A", asked), Stub("B", asked)), Plan(interim_analyses=(12,))
    pair = interleave(*sides, plan, random.Random(0), lambda: 0.0, told.append)
    assert told == [*range(1, 13)]
    orders = ["".join(asked[at : at + 4]) for at in range(0, 48, 4)]
    assert orders == [block.order for block in pair.blocks]
    assert set(orders) == {"ABBA", "BAAB"}


def test_the_seed_gives_the_order() -> None:
    drawn = []
    for seed in (1, 1, 2):
        pair = interleave(Stub("A", []), Stub("B", []), Plan(interim_analyses=(30,)), random.Random(seed), lambda: 0.0)
        drawn.append([block.order for block in pair.blocks])
    assert drawn[0] == drawn[1] != drawn[2]


def test_slices_lie_with_their_side_in_the_order_they_were_taken() -> None:
    numbers = count(1)
    asked: list[str] = []
    first, second = (Stub(name, asked, lambda: float(next(numbers))) for name in "AB")
    [block] = interleave(first, second, Plan(interim_analyses=(1,)), random.Random(0), lambda: 0.0).blocks
    taken = {"A": [part.seconds for part in block.baseline], "B": [part.seconds for part in block.stage]}
    expected = [index + 1 for index, side in enumerate(block.order) if side == "A"]
    assert taken == {"A": expected, "B": sorted({1, 2, 3, 4} - set(expected))}


@pytest.mark.parametrize(
    ("noise", "faster", "blocks"),
    [(0.0, 1.0, 30), (0.5, 1.0, 240), (0.5, 10.0, 30)],
    ids=["narrow", "wide", "wide and clear"],
)
def test_it_ends_where_the_interval_is_narrow_or_the_difference_clear(noise: float, faster: float, blocks: int) -> None:
    first, second = Stub("A", [], noisy(0, noise)), Stub("B", [], noisy(1, noise, 1 / faster))
    plan = Plan(half_width=0.001, clear_share=0.1)
    assert len(interleave(first, second, plan, random.Random(0), lambda: 0.0).blocks) == blocks


def test_between_the_interim_analyses_nothing_is_analysed() -> None:
    """An interval that would do after 31 blocks ends nothing before the interim analysis at 60."""
    taken = count()
    first, second = (Stub(name, [], lambda: 1.0 + (next(taken) % 7 < 3) * (next(taken) < 240)) for name in "AB")
    found = interleave(first, second, Plan(interim_analyses=(30, 60, 120, 240)), random.Random(0), lambda: 0.0)
    assert len(found.blocks) in (60, 120, 240)


@pytest.mark.parametrize(("step", "blocks"), [(5, 12), (25, 6), (100, 3), (1000, 1)])
def test_no_block_begins_after_the_time(step: int, blocks: int) -> None:
    """What was taken is kept, whatever its width; the six that an interval needs may take five times as long."""
    moments = count(0, step)
    pair = interleave(Stub("A", []), Stub("B", []), Plan(sampling_seconds=60), random.Random(0), lambda: next(moments))
    assert len(pair.blocks) == blocks


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def counts(folder: Path, busy: int, own: int) -> Path:
    """A /proc in which one process, 7, and all together have used so many hundredths of a second."""
    (folder / "7").mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 9999 9999 0 0 0 0 0\ncpu0 1 2 3\n")
    (folder / "7" / "stat").write_text(f"7 (a (name) S 1 7 7 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0\n")
    return folder


def test_what_a_side_and_others_use_is_told_apart(tmp_path: Path) -> None:
    """Of a process that has ended meanwhile nothing is known; where there are no counts, nothing is said."""
    before = now(7, counts(tmp_path, 1000, 100))
    found = between(before, now(7, counts(tmp_path, 1000 + 3 * TICKS, 100 + TICKS)))
    assert found.own == pytest.approx(1.0)
    assert found.others == pytest.approx(2.0)
    assert now(7, tmp_path / "nowhere") is None
    assert between(None, before) == between(before, None) == Use()
    assert Use(1, 2, 3).further(Use(1, 1, 1)) == Use(2, 3, 4)


@pytest.mark.skipif(sys.platform != "linux", reason="the counts are Linux's")
def test_the_system_s_own_counts_are_read() -> None:
    with subprocess.Popen([sys.executable, "-SEc", "while True: pass"]) as child:
        before = now(child.pid)
        while between(before, now(child.pid)).wall < 0.3:
            pass
        used = between(before, now(child.pid))
        child.kill()
    assert used.own > 0
    assert used.others > 0


@pytest.mark.parametrize(
    ("used", "threads", "share"),
    [
        (Use(4.0, 8.0, 0.0), 2, 0.0),
        (Use(4.0, 4.0, 4.0), 2, 0.5),
        (Use(4.0, 4.0, 4.0), 1, 0.0),  # who leaves a processor idle loses nothing by another program there
        (Use(4.0, 2.0, 6.0), 1, 0.5),
        (Use(4.0, 0.4, 16.0), 2, 1.0),
        (Use(0.5, 0.5, 0.5), 2, None),  # too short to be counted in hundredths of a second
        (Use(), 2, None),
        (Use(4.0, 0.0, 0.0), 2, None),  # a system that keeps no counts
    ],
)
def test_what_others_leave_too_little_of_is_taken(used: Use, threads: int, share: float | None) -> None:
    assert taken_share(used, threads) == share


def test_a_side_that_takes_more_processors_than_it_is_given_is_told() -> None:
    greedy = Use(2.0, 3.8, 0.2)
    found = more_threads("mine", greedy, 1)
    assert (found.code, found.text) == ("unfair", "mine used 1.9 processors, and threads=1")
    assert more_threads("mine", greedy, None) is None
    assert more_threads("mine", greedy, 2) is None
    assert more_threads("mine", Use(2.0, 2.0, 0.2), 1) is None
    assert more_threads("mine", Use(0.5, 5.0, 0.5), 1) is None


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.5), ("cuda", None)])
def test_a_pair_keeps_what_others_took_while_it_was_sampled(
    device: str, share: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.orchestrate.interleave.counted_samples", lambda *_: ([Sample(1, 0.01, None)], Use(2.0, 2.0, 2.0))
    )
    record = blank(environment=replace(ENVIRONMENT, device=device, cpu_threads=2))
    asked = config("one", device=device)
    context = RunContext(asked, tmp_path, record, Watcher())
    sides = [
        cast("WorkerProcess", FakeWorker(asked.job(stage("one"), "companion", tmp_path), tmp_path / name, {}))
        for name in "ab"
    ]
    assert context.interleave(sides[0], sides[1], "mine").taken_share == share
