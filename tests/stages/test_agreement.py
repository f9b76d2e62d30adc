"""A candidate must answer as the net does without our kernels, or be as near to fp32 as that is."""

import math

import pytest
import torch
from torch import Tensor

from pipeline.compiler.agreement import AGREES, WrongAnswerError, check_agreement

EXACT = torch.linspace(-1.0, 1.0, 4096).reshape(1, 1, 64, 64)


def off(share: float, seed: int) -> Tensor:
    """The exact answer with noise of that share of its norm."""
    noise: Tensor = torch.randn(EXACT.shape, generator=torch.Generator().manual_seed(seed))
    return EXACT + noise * (share * float(EXACT.norm()) / float(noise.norm()))


def never() -> Tensor:
    """For who needn't ask."""
    raise AssertionError("fp32 was computed for nothing")


def test_near_answers_need_no_third() -> None:
    check_agreement(off(0.01, 1), off(0.01, 2), never, "fp16", "Inductor")
    check_agreement(off(0.4, 1), EXACT, never, "fp8", "Inductor")


def test_in_a_net_that_multiplies_roundings_fp32_decides() -> None:
    check_agreement(off(0.3, 1), off(0.3, 2), lambda: EXACT, "fp16", "Inductor")
    told = r"^its logits are 0\.6\d* off .* by Inductor .*, and 0\.6 off those in fp32, from which Inductor's are 0\.3$"
    with pytest.raises(WrongAnswerError, match=told):
        check_agreement(off(0.6, 1), off(0.3, 2), lambda: EXACT, "fp16", "Inductor")


@pytest.mark.parametrize("precision", AGREES)
def test_what_computes_another_net_is_refused(precision: str | None) -> None:
    with pytest.raises(WrongAnswerError, match=r"and 1 off those in fp32"):
        check_agreement(2 * EXACT, off(1e-3, 1), lambda: EXACT, precision, "torch")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    spoilt = EXACT.clone()
    spoilt[0, 0, 0, 0] = value
    with pytest.raises(WrongAnswerError, match=r"^its logits are inf off those of the network by torch \(relative"):
        check_agreement(spoilt, EXACT, never, "fp16", "torch")


@pytest.mark.parametrize("answer", [0 * EXACT, -EXACT, 1000 * EXACT])
def test_nothing_is_near_where_the_plain_net_is_as_far_off_as_zeros(answer: Tensor) -> None:
    with pytest.raises(WrongAnswerError):
        check_agreement(answer, off(1.0, 1), lambda: EXACT, "fp16", "torch")
    plain, spoilt = EXACT.clone(), answer.clone()
    plain[0, 0, 0, 0] = spoilt[0, 0, 0, 0] = math.inf
    with pytest.raises(WrongAnswerError):
        check_agreement(spoilt, plain, lambda: EXACT, "fp16", "torch")
