"""Lessons as they are held: failures kept, requests refused, one lesson for real."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.lessons.__main__ import main
from pipeline.lessons.bench import ROUNDS, Bench, Call, Variant
from pipeline.lessons.lesson import Lesson, run_lesson, run_lessons
from pipeline.lessons.lesson_records import Row, load
from pipeline.records.plan import Plan
from tests.fake_machine import FakeClock

Capture = pytest.CaptureFixture[str]
PLAN = Plan(cpu_sample_seconds=0.01, min_calls=2, sample_warmup_calls=1, warmup_min_calls=3, warmup_min_seconds=0.01,
            warmup_window_seconds=0.01, warmup_limit_seconds=0.1)  # fmt: skip


class Worked:
    """A bench on a fake clock, and calls that take a known time."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bench = Bench(torch.device("cpu"), self.clock, PLAN)
        self.order: list[str] = []

    def call(self, name: str, seconds: float, answer: float = 1.0) -> Call:
        def work() -> torch.Tensor:
            self.order.append(name)
            self.clock.work(seconds)
            return torch.tensor(answer)

        return work


def lesson(name: str, run: Callable[[Bench], list[Row]]) -> Lesson:
    return Lesson(name, f"{name}?", "", "time", run, lambda rows: [])


def broken(bench: Bench) -> list[Row]:
    raise ValueError("the kernel is\nout of order")


def test_variants_are_interleaved_and_measured_right() -> None:
    worked = Worked()
    rows = worked.bench.sampling([(Row("a"), worked.call("a", 1e-3)), (Row("b"), worked.call("b", 3e-3))])
    assert [len(row.samples) for row in rows] == [ROUNDS, ROUNDS]
    assert [row.samples[0].per_call for row in rows] == pytest.approx([1e-3, 3e-3])
    changes = [name for name, after in zip(worked.order, worked.order[1:], strict=False) if name != after]
    assert len(changes) >= ROUNDS


def test_a_variant_that_raises_or_answers_otherwise_costs_no_other() -> None:
    worked = Worked()

    def raises() -> None:
        raise RuntimeError("no compiler\nis here")

    rows = worked.bench.sampling([(Row("compiled"), raises), (Row("eager"), worked.call("eager", 1e-3))])
    assert rows[0].reason == "failed: RuntimeError: no compiler"
    assert not rows[0].samples
    assert len(rows[1].samples) == ROUNDS
    worked = Worked()
    answers = {"right": 1.0, "wrong": 1.1}
    variants: list[Variant] = [(Row(name), worked.call(name, 1e-3, answer)) for name, answer in answers.items()]
    rows = worked.bench.sampling(variants, agree=True)
    assert rows[0].samples
    assert not rows[1].samples
    assert rows[1].reason.startswith("failed: AssertionError")


def test_a_lesson_that_fails_is_kept_with_its_reason(tmp_path: Path) -> None:
    worked = Worked()
    well = lesson("well", lambda bench: bench.sampling([(Row("a"), worked.call("a", 1e-3))]))
    seen: list[str] = []
    run_lessons([lesson("broken", broken), well], worked.bench, tmp_path, lambda name, title: seen.append(name))
    parts = load(tmp_path).lessons
    assert seen == ["broken", "well"]
    assert [part.outcome for part in parts] == ["failed", "ok"]
    assert parts[0].reason == "failed: ValueError: the kernel is"


def test_a_lesson_of_failed_variants_failed_and_a_gpu_s_is_skipped() -> None:
    worked = Worked()
    empty = lesson("empty", lambda bench: [Row("a", reason="failed: nothing")])
    assert run_lesson(empty, worked.bench).outcome == "failed"
    gpu = replace(lesson("gpu", broken), gpu_only="a CPU has none")
    found = run_lesson(gpu, Worked().bench)
    assert (found.outcome, found.reason) == ("skipped", "a CPU has none")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "chain,gellu"], "--only gellu: no such lesson; did you mean 'gelu'?"),
        (["--only", " , "], "--only ' , ': names no lesson; choose of: "),
        (["--draw", "lessons", "--only", "chain"], "--draw lessons: draws what is there; --only says nothing then"),
        (["--device", "cdua"], "--device cdua: this version runs CUDA GPUs and CPUs; choose one of: auto, cuda, cpu"),
    ],
)
def test_a_wrong_request_names_the_nearest_choice(words: list[str], said: str, capsys: Capture) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_failed_lesson_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("pipeline.lessons.__main__.lesson_of", lambda name: lesson(name, broken))
    assert main(["--device", "cpu", "--out", str(tmp_path), "--only", "chain"]) == 1
    shown = capsys.readouterr()
    assert "chain failed: ValueError" in shown.err
    assert shown.out.splitlines()[-1] == str(tmp_path / "lessons.html")


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pipeline.lessons.lesson.save", full)
    monkeypatch.setattr("pipeline.lessons.__main__.lesson_of", lambda name: lesson(name, broken))
    assert main(["--device", "cpu", "--out", str(tmp_path), "--only", "chain"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {tmp_path}: No space left on device"


def test_one_lesson_for_real(tmp_path: Path, capsys: Capture) -> None:
    assert main(["--device", "cpu", "--out", str(tmp_path), "--only", "in-place"]) == 0
    page = Path(capsys.readouterr().out.splitlines()[-1])
    (part,) = load(tmp_path).lessons
    assert [row.name for row in part.rows] == ["a new tensor", "into a kept buffer", "in place"]
    assert all(len(row.samples) == ROUNDS and row.samples[0].seconds > 0 for row in part.rows)
    drawn = page.read_text()
    assert "In place, or new?" in drawn
    assert (tmp_path / "lessons.md").exists()
    page.unlink()
    assert main(["--draw", str(tmp_path)]) == 0
    assert page.read_text() == drawn
