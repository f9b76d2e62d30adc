"""A session of lessons: fair, and no failure costs another; the lessons themselves, by hand, on this processor."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from pipeline.lessons.__main__ import main
from pipeline.lessons.bench import ROUNDS, Bench, Call, Variant, counted
from pipeline.lessons.claims import HELD, argument_limit
from pipeline.lessons.experiments import arithmetic, fusion, overhead
from pipeline.lessons.lesson import Lesson, run_lesson, run_lessons
from pipeline.lessons.lesson_records import Row, load
from pipeline.lessons.rows import Rows
from pipeline.profiling.operators import Dispatched, moved
from pipeline.records.plan import Plan
from tests.fake_machine import FakeClock
from tests.lessons.made_up_lessons import timed

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


broken = Mock(side_effect=ValueError("the kernel is\nout of order"))


def test_variants_are_interleaved_and_measured_right() -> None:
    worked = Worked()
    rows = worked.bench.sampling([(Row("a"), worked.call("a", 1e-3)), (Row("b"), worked.call("b", 3e-3))])
    assert [len(row.samples) for row in rows] == [ROUNDS, ROUNDS]
    assert [row.samples[0].per_call for row in rows] == pytest.approx([1e-3, 3e-3])
    changes = [name for name, after in zip(worked.order, worked.order[1:], strict=False) if name != after]
    assert len(changes) >= ROUNDS


def test_a_variant_that_raises_or_answers_otherwise_costs_no_other() -> None:
    worked, raises = Worked(), Mock(side_effect=RuntimeError("no compiler\nis here"))
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
        (["--out", "/dev/null/x", "--only", "chain"], "--out /dev/null/x: can't be written (Not a directory)"),
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
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("pipeline.lessons.lesson.save", Mock(side_effect=full))
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


class Calling(Bench):
    """Calls each variant once, and says that it took a millisecond."""

    def __init__(self, on_gpu: bool = False) -> None:
        super().__init__(torch.device("cpu"))
        self.on_gpu = on_gpu
        self.answers: dict[str, object] = {}

    def sampling(self, variants: list[Variant], agree: bool = False) -> list[Row]:
        rows = []
        for row, call in variants:
            if isinstance(call, str):
                rows.append(replace(row, reason=f"skipped: {call}"))
                continue
            self.answers[row.name] = call()
            rows.append(replace(row, samples=timed(row.name, 1e-3).samples))
        return rows


def test_the_three_optimizers_make_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "CPU_TENSORS", 3)
    monkeypatch.setattr(overhead, "NUMBERS", 256)  # many enough that some are so small that a step shows
    rows = overhead.run_optimizers(Calling())
    assert [row.against for row in rows] == ["", "one at a time", "one at a time"]
    assert [row.moved_bytes for row in rows] == [3 * 256 * 80, 3 * 256 * 80, 3 * 256 * 28]
    monkeypatch.setitem(overhead.HOW, "fused", {"maximize": True})
    with pytest.raises(AssertionError):
        overhead.run_optimizers(Calling())


def test_the_bytes_of_a_step_are_those_that_its_operators_move() -> None:
    """One tensor at a time, by torch's dispatcher; the steps' counters of 4 bytes are left aside."""
    step, (weight,) = overhead.stepping([torch.randn(512)], [torch.randn(512)], {"foreach": False})
    step()
    seen: list[int] = []
    with Dispatched(lambda operator: seen.append(moved(operator))):
        step()
    assert sum(size for size in seen if size > 64) == overhead.PASSES["one at a time"] * weight.numel() * 4


@pytest.mark.parametrize(("kernels", "outcome"), [(20, "right"), (2, "wrong"), (None, "unknown")])
def test_the_limit_of_arguments_is_told_by_the_launches(kernels: int | None, outcome: str) -> None:
    """512 tensors in 20 kernels are 25.6 a kernel; in 2 they are more than 4 KB can name."""
    row = replace(timed("fused", 1e-3), kernels=kernels, note="512 tensors")
    found = argument_limit({"optimizers": Rows([row])})
    assert found.outcome == outcome
    assert (found.here == "25.6 tensors a kernel in a fused step") == (kernels == 20)
    assert HELD == 128


def test_an_optimizer_s_launches_and_bytes_are_told() -> None:
    counts = {"one at a time": 4096, "foreach": 100, "fused": 20}
    sizes = {"one at a time": 2.0**24, "foreach": 2.0**24, "fused": 2.0**22}
    rows = [replace(timed(name, 1e-3), kernels=counts[name], moved_bytes=sizes[name]) for name in counts]
    text = " ".join(overhead.says_optimizers(Rows(rows)))
    assert "one at a time 4,096, foreach 100, fused 20" in text
    assert "moves 16.0 MiB, as one at a time does; fused moves 4.00 MiB" in text


def test_outliers_cost_int8_much_and_fp8_nothing() -> None:
    even = torch.randn(2**16)
    uneven = even.clone()
    uneven[:: arithmetic.RARE] *= arithmetic.LARGE
    errors = {
        name: [arithmetic.off_eight_bits(arithmetic.rounded(name, x), x) for x in (even, uneven)]
        for name in ("int8", "fp8")
    }
    assert errors["int8"][0] < 0.015 < 0.2 < errors["int8"][1]
    assert errors["fp8"] == pytest.approx([0.026, 0.026], abs=3e-3)


def test_int8_is_a_matmul_of_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into 32 bits; fp8 is skipped where there are no units for it, and its rounding is told all the same."""
    monkeypatch.setattr(arithmetic, "EIGHT_BITS_CPU_SIDE", 32)
    bench = Calling()
    rows = arithmetic.run_eight_bits(bench)
    answer = bench.answers["int8"]
    assert isinstance(answer, Tensor)
    assert answer.dtype == torch.int32
    assert [row.reason[:7] for row in rows] == ["", "", "skipped"]
    text = " ".join(arithmetic.says_eight_bits(Rows(rows)))
    assert "Rounded to int8, normal numbers are 1.1 % off, and" in text
    assert "Rounded to fp8, normal numbers are 2.6 % off, and 2." in text


def test_the_two_largest_of_four_stay() -> None:
    weights = torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.1, -0.2, 0.3]])
    assert torch.equal(arithmetic.pruned(weights), torch.tensor([[0, -3.0, 2.0, 0, 0, 0, -0.2, 0.3]]))


def test_a_sparse_product_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, values, packings = torch.randn(8, 16), torch.randn(16, 4), []

    def pack(kept: Tensor) -> Tensor:
        packings.append(kept)
        return kept

    monkeypatch.setattr(torch, "_cslt_compress", pack)
    monkeypatch.setattr(torch, "_cslt_sparse_mm_search", lambda *_, **__: 3)
    monkeypatch.setattr(torch, "_cslt_sparse_mm", lambda kept, values, **asked: kept @ values * (asked["alg_id"] == 3))
    call = arithmetic.sparse_matmul(weights, values)
    assert torch.equal(call(), call())
    assert len(packings) == 1
    monkeypatch.setattr(torch, "_cslt_compress", lambda kept: kept * 1.05)
    with pytest.raises(RuntimeError, match=r"the sparse product is off by 0\.05"):
        arithmetic.sparse_matmul(weights, values)()


def test_sparsity_is_timed_on_both_shapes_and_refused_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the FLOPs of the dense product; an older GPU says what it lacks, for fp8 and for all of it."""
    monkeypatch.setattr(torch, "_cslt_compress", lambda kept: kept)
    monkeypatch.setattr(torch, "_cslt_sparse_mm_search", lambda *_, **__: 0)
    monkeypatch.setattr(torch, "_cslt_sparse_mm", lambda kept, values, **_: kept.float() @ values.float())
    monkeypatch.setattr(arithmetic, "fp8_matmul", lambda left, right: lambda: left.float() @ right.float().t())
    monkeypatch.setattr(arithmetic, "SHAPES", {"8,192³": (8, 8, 8), "a convolution's": (4, 8, 16)})
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(arithmetic, "has_compute", lambda _, least: capability >= least)
    rows = arithmetic.run_sparsity(Calling(on_gpu=True))
    assert [row.name.removesuffix(", a convolution's") for row in rows[4:]] == [
        "fp16 dense", "fp16 2:4", "fp8 dense", "fp8 2:4"
    ]  # fmt: skip
    assert rows[5].flops == 2 * 4 * 8 * 16
    lead, promised, _ = arithmetic.says_sparsity(Rows(rows))
    assert "is just as fast as dense in fp16 and just as fast as dense in fp8;" in lead
    assert "reaches 1.00 times in fp16 and 1.00 times in fp8" in promised
    capability = (8, 0)
    assert ["8.9" in row.reason for row in arithmetic.run_sparsity(Calling(on_gpu=True))] == [False, False, True] * 2
    capability = (7, 5)
    assert all("compute capability 8.0" in row.reason for row in arithmetic.run_sparsity(Calling(on_gpu=True)))


def test_each_start_has_a_cache_of_its_own_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    seen: list[str] = []

    def starting(*_: object) -> None:
        seen.append(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))

    monkeypatch.setattr(overhead, "started_afresh", starting)
    rows = overhead.run_start_up(Calling())
    assert [len(row.samples) for row in rows] == [overhead.TIMES, overhead.TIMES]
    assert seen[0] == ""
    assert len(set(seen[1:])) == overhead.TIMES
    assert seen[1] == seen[2]
    assert not Path(seen[1]).parent.exists()
    assert (os.environ["TRITON_CACHE_DIR"], "TORCHINDUCTOR_CACHE_DIR" in os.environ) == ("mine", False)
    slow, fast = timed("empty cache", 4.0), timed("filled cache", 0.5)
    assert (
        overhead.says_start_up(Rows([slow, fast]))[0]
        == "A small network is compiled in 4.00 s, and from a filled cache in 500 ms."
    )


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
QUICK = Plan(cpu_sample_seconds=1e-4, warmup_min_calls=3, warmup_min_seconds=1e-3, warmup_window_seconds=1e-3)
BENCH = Bench(torch.device("cpu"), plan=QUICK)


@pytest.mark.parametrize("numbers", [1, 1023, 1024, 5000])
def test_the_kernel_by_hand_is_the_chain(numbers: int) -> None:
    from pipeline.lessons.chain_kernel import chain as by_hand

    x = 3 * torch.randn(numbers, generator=torch.Generator().manual_seed(numbers)).to(DEVICE)
    torch.testing.assert_close(by_hand(x), fusion.chain(x), rtol=1e-5, atol=1e-6)


def test_the_scripted_chain_is_the_chain(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(fusion.scripted()(x), fusion.chain(x))
    assert not [warning for warning in recwarn if "jit" in str(warning.message)]


def test_eager_s_kernels_are_one_an_operator_and_what_failed_has_none() -> None:
    x = torch.randn(64)
    assert counted(timed(fusion.EAGER, 1e-3), lambda: fusion.chain(x), BENCH).kernels == 9
    failed = Row("compiled", reason="failed: no compiler")
    assert counted(failed, lambda: pytest.fail("it was called"), BENCH) == failed


def test_gelu_spelt_out_is_the_library_s() -> None:
    x = torch.linspace(-5, 5, 101)
    torch.testing.assert_close(fusion.spelt_out(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_a_precision_that_a_cpu_lacks_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "PRECISIONS_CPU_SIDE", 16)
    rows = arithmetic.run_precisions(BENCH)
    assert [row.name for row in rows] == list(arithmetic.ORDER)
    assert {row.name for row in rows if row.reason} == {"tf32", "fp8"}
    assert all(row.reason.startswith("skipped: ") for row in rows if row.reason)
