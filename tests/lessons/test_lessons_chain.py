"""The chain's ways agree, and its kernels are counted."""

import pytest
import torch

from pipeline.lessons.bench import Bench, counted
from pipeline.lessons.experiments import arithmetic, fusion
from pipeline.lessons.lesson_records import Row
from pipeline.records.plan import Plan
from tests.lessons.made_up_lessons import timed

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
QUICK = Plan(cpu_sample_seconds=1e-4, warmup_min_calls=3, warmup_min_seconds=1e-3, warmup_window_seconds=1e-3)
BENCH = Bench(torch.device("cpu"), plan=QUICK)


@pytest.mark.parametrize("numbers", [1, 1023, 1024, 5000])
def test_the_kernel_by_hand_is_the_chain(numbers: int) -> None:
    x = 3 * torch.randn(numbers, generator=torch.Generator().manual_seed(numbers)).to(DEVICE)
    torch.testing.assert_close(fusion.by_hand(x), fusion.chain(x), rtol=1e-5, atol=1e-6)


def test_the_scripted_chain_is_the_chain(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(fusion.scripted()(x), fusion.chain(x))
    assert not [warning for warning in recwarn if "jit" in str(warning.message)]


def test_eager_s_kernels_are_one_an_operator() -> None:
    x = torch.randn(64)
    row = fusion.weighed(counted(timed(fusion.EAGER, 1e-3), lambda: fusion.chain(x), BENCH), x)
    assert row.kernels == 9
    assert row.moved_bytes == 9 * 2 * 64 * 4


def test_a_row_without_samples_is_not_counted() -> None:
    row = Row("compiled", reason="failed: no compiler")
    assert counted(row, lambda: pytest.fail("it was called"), BENCH) == row


def test_gelu_spelt_out_is_the_library_s() -> None:
    x = torch.linspace(-5, 5, 101)
    torch.testing.assert_close(fusion.spelt_out(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_many_tensors_are_scaled_one_and_all() -> None:
    tensors = [torch.ones(3), torch.zeros(2)]
    torch.testing.assert_close(fusion.scaled(tensors), [torch.full((3,), 0.9), torch.zeros(2)])


def test_a_precision_that_a_cpu_lacks_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "PRECISIONS_CPU_SIDE", 16)
    rows = arithmetic.run_precisions(BENCH)
    assert [row.name for row in rows] == list(arithmetic.ORDER)
    assert {row.name for row in rows if row.reason} == {"tf32", "fp8"}
    assert all(row.reason.startswith("skipped: ") for row in rows if row.reason)
