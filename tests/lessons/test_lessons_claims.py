"""Claims are judged by their rule, on rows made up so that each is right, wrong and neither."""

from dataclasses import replace

import pytest

from pipeline.lessons.claims import CLAIMS, Judged, judged_all
from pipeline.lessons.lesson_records import Row
from tests.lessons.made_up_lessons import held, record, timed


def judge(lesson: str, **lessons: list[Row]) -> Judged:
    """What is found of the claim that stands beside that lesson."""
    return next(found for claim, found in judged_all(record(**lessons)) if claim.lesson == lesson)


@pytest.mark.parametrize(
    ("alone", "with_libraries", "outcome"),
    [(1.2e9, 1.9e9, "right"), (0.5e9, 0.8e9, "wrong"), (0.5e9, 1.1e9, "depends"), (1.5e9, 2.4e9, "depends")],
)
def test_a_context_is_held_against_1_to_2_gb(alone: float, with_libraries: float, outcome: str) -> None:
    found = judge("context", context=[held("the context", alone), held("and a convolution", with_libraries)])
    assert found.outcome == outcome
    assert f"{alone / 1e9:.2f} GB" in found.here


@pytest.mark.parametrize(
    ("fp32", "tf32", "outcome"),
    [(15.0, None, "right"), (15.0, 14.0, "right"), (15.0, 2.0, "depends"), (8.0, 2.0, "wrong"), (0.01, None, "wrong")],
)
def test_half_precision_is_held_against_both_arithmetics(fp32: float, tf32: float | None, outcome: str) -> None:
    rows = [timed("fp32", 1e-3 * fp32), timed("fp16", 1e-3)]
    rows += [timed("tf32", 1e-3 * tf32)] if tf32 else []
    found = judge("precisions", precisions=rows)
    assert found.outcome == outcome
    assert ("TF32" in found.here) == (tf32 is not None)


@pytest.mark.parametrize(
    ("gains", "outcome"), [((2.0, 1.5), "right"), ((2.0, 0.9), "depends"), ((0.5, 0.9), "wrong"), ((1, 1), "wrong")]
)
def test_contiguous_must_win_in_every_use(gains: tuple[float, float], outcome: str) -> None:
    rows = []
    for use, gain in zip(("one sum", "one matmul"), gains, strict=True):
        rows += [timed(f"{use}, as it lies", 1e-3 * gain), timed(f"{use}, copied", 1e-3, f"{use}, as it lies")]
    assert judge("contiguous", contiguous=rows).outcome == outcome


@pytest.mark.parametrize(
    ("chain", "gelu", "outcome"),
    [(2.3, 2.0, "unknown"), (7.0, 1.5, "depends"), (7.0, 5.0, "unknown"), (1.1, 1.8, "unknown")],
)
def test_pieces_alone_show_a_claim_about_a_net_neither_right_nor_wrong(chain: float, gelu: float, outcome: str) -> None:
    found = judge(
        "chain",
        chain=[timed("eager", 1e-3 * chain), timed("compiled", 1e-3)],
        gelu=[timed("spelt out, eager", 1e-3 * gelu), timed("spelt out, compiled", 1e-3)],
    )
    assert found.outcome == outcome
    assert f"{chain:.3f} ×" in found.here


def test_what_was_not_measured_is_unknown() -> None:
    assert {found.outcome for _, found in judged_all(record())} == {"unknown"}
    empty = judge("precisions", precisions=[timed("fp32", 1e-3), Row("fp16", reason="failed: out of memory")])
    assert empty.outcome == "unknown"


def test_what_noise_hides_is_neither_right_nor_wrong() -> None:
    shaky = timed("fp32", 18e-3)
    samples = [replace(part, seconds=part.seconds * (1 + 0.5 * (at % 2))) for at, part in enumerate(shaky.samples)]
    hidden, fast = replace(shaky, samples=samples), timed("fp16", 1e-3)
    assert judge("precisions", precisions=[hidden, fast]).outcome == "unknown"
    assert judge("precisions", precisions=[hidden, timed("tf32", 2e-3), fast]).outcome == "unknown"
    assert judge("precisions", precisions=[timed("fp32", 16e-3), timed("tf32", 2e-3), fast]).outcome == "depends"


def test_every_claim_has_a_rule() -> None:
    for claim in CLAIMS:
        assert "depends where" in claim.rule.lower()
        assert "right" in claim.rule.lower()
