"""Widespread claims, judged by this device's rows; each claim stands beside its rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.lessons.contents import CONTENTS
from pipeline.lessons.experiments import overhead
from pipeline.lessons.lesson_records import LessonsRecord
from pipeline.lessons.rows import Rows, amount, value
from pipeline.report import formatting
from pipeline.stats.intervals import Ratio

ClaimOutcome = Literal["right", "wrong", "depends", "unknown"]
FACTOR = 2.3  # by which a whole network is said to be faster for torch.compile
NEAR = 1.25  # times by which a repeated factor may be missed
GB = 1e9
HELD = 4096 // (4 * 8)  # tensors whose four addresses of 8 bytes fit into 4 KB, were there nothing else to pass

Lessons = Mapping[str, Rows]


@dataclass(frozen=True)
class Judged:
    """The finding on this device, and the verdict on the claim."""

    here: str
    outcome: ClaimOutcome


def together(held: list[bool | None]) -> ClaimOutcome:
    """Return right where all hold, wrong where none does, else that it depends; None is one hidden by noise.

    A hidden one could only turn right or wrong into depends, so depends stays, and the others become unknown.
    """
    if True in held and False in held:
        return "depends"
    return "unknown" if None in held else "right" if True in held else "wrong"


def is_near(ratio: Ratio, factor: float) -> bool | None:
    """Return whether the interval lies within a quarter of the factor, up or down; None where it crosses that limit."""
    low, high = factor / NEAR, factor * NEAR
    if low <= ratio.low and ratio.high <= high:
        return True
    return False if ratio.high < low or ratio.low > high else None


def half_precision(lessons: Lessons) -> Judged:
    """Compare the matmul in fp16 with fp32, and with TF32 where there is one."""
    rows = lessons.get("precisions", Rows([]))
    found = {name: ratio for name in ("fp32", "tf32") if (ratio := rows.times(name, "fp16"))}
    if "fp32" not in found:
        return Judged("the matmul in fp16 was not measured here", "unknown")
    said = [f"{amount(ratio)} the speed of {name.upper() if name == 'tf32' else name}" for name, ratio in found.items()]
    return Judged(formatting.listed(said), together([is_near(ratio, 16) for ratio in found.values()]))


def context_memory(lessons: Lessons) -> Judged:
    """Return the context alone, and with the libraries that a network loads."""
    held = [found.value for row in lessons.get("context", Rows([])) if (found := value(row, "memory"))]
    if not held:
        return Judged("no CUDA context was measured here", "unknown")
    ends = [held[0], held[-1]]
    said = f"{ends[0] / GB:.2f} GB alone, {ends[1] / GB:.2f} GB with its libraries at work"
    return Judged(said, together([1 <= size / GB <= 2 for size in ends]))


def contiguous_pays(lessons: Lessons) -> Judged:
    """Return every use of the lesson, the copy included."""
    rows = lessons.get("contiguous", Rows([]))
    compared = [row for row in rows.measured() if row.against]
    found = {row.name.split(",")[0]: rows.outcome(row.against, row.name) for row in compared}
    told = {use: outcome for use, outcome in found.items() if outcome}
    if not told:
        return Judged("no use was measured both ways here", "unknown")
    said = "; ".join(f"{use}: {outcome}" for use, outcome in told.items())
    return Judged(
        said, together([None if outcome == "not resolved" else outcome == "faster" for outcome in told.values()])
    )


def argument_limit(lessons: Lessons) -> Judged:
    """Return the tensors that a kernel of the fused step takes, beside what 4 KB hold of their addresses."""
    row = lessons.get("optimizers", Rows([])).row(overhead.FUSED)
    found = int(row.note.split()[0]) / row.kernels if row and row.kernels else None
    if found is None:
        return Judged("no fused step was counted on a GPU here", "unknown")
    return Judged(f"{found:.3g} tensors a kernel in a fused step", "right" if found <= HELD else "wrong")


COMPILED_PAIRS = {
    "chain": ("eager", "compiled"),
    "gelu": ("spelt out, eager", "spelt out, compiled"),
    "many-tensors": ("one by one", "compiled"),
}


def compile_factor(lessons: Lessons) -> Judged:
    """Return the pieces that the lessons compile, which can't tell of the whole network that the claim is about."""
    found = {name: lessons.get(name, Rows([])).times(*pair) for name, pair in COMPILED_PAIRS.items()}
    told = {name: ratio for name, ratio in found.items() if ratio}
    if not told:
        return Judged("nothing was compiled here", "unknown")
    said = formatting.listed([f"{amount(ratio)} in {name}" for name, ratio in told.items()])
    around = min(ratio.high for ratio in told.values()) < FACTOR < max(ratio.low for ratio in told.values())
    return Judged(f"no network was compiled; of its pieces, {said}", "depends" if around else "unknown")


JUDGES: dict[str, Callable[[Lessons], Judged]] = {  # by the lesson that the claim stands beside
    "context": context_memory,
    "precisions": half_precision,
    "contiguous": contiguous_pays,
    "chain": compile_factor,
    "optimizers": argument_limit,
}


def judged_all(record: LessonsRecord) -> dict[str, tuple[dict[str, Any], Judged]]:
    """Return every claim, as the contents have it, with its outcome on this record, by the lesson beside it."""
    lessons = {part.name: Rows(part.rows) for part in record.lessons}
    return {name: (CONTENTS[name]["claim"], judge(lessons)) for name, judge in JUDGES.items()}
