"""A step of an optimizer over many tensors: one at a time, with foreach, and fused."""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor

from pipeline.lessons.launch_counter import counted
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import ABSOLUTE, RELATIVE, Bench
from pipeline.report import formatting

GPU_TENSORS, CPU_TENSORS, NUMBERS = 512, 64, 4096
SINGLY, FOREACH, FUSED = "one at a time", "foreach", "fused"


class Way(TypedDict, total=False):
    """How torch's optimizers go over their tensors."""

    foreach: bool
    fused: bool


HOW: dict[str, Way] = {SINGLY: {"foreach": False}, FOREACH: {"foreach": True}, FUSED: {"fused": True}}
# Tensors that a step reads and writes for each parameter, by the operators of torch/optim/adam.py (torch 2.12): decay
# 2, first average 3, second average 2 + 3, its root, its correction and ε 2 each, the update 4. A fused step reads the
# parameter, its gradient and both averages, and writes all but the gradient.
PASSES = {SINGLY: 20, FOREACH: 20, FUSED: 7}


def run(bench: Bench) -> list[Row]:
    """AdamW over tensors of 4,096 numbers; each variant steps its own copies, which agree after the first step."""
    count = GPU_TENSORS if bench.on_gpu else CPU_TENSORS
    start, slopes = ([bench.random(NUMBERS) for _ in range(count)] for _ in range(2))
    steps, after = {}, {}
    for name, how in HOW.items():
        steps[name], weights = stepping(start, slopes, how)
        steps[name]()
        after[name] = [weight.clone() for weight in weights]
    for name in (FOREACH, FUSED):
        torch.testing.assert_close(after[name], after[SINGLY], rtol=RELATIVE, atol=ABSOLUTE)
    moved = {name: 4.0 * passes * NUMBERS * count for name, passes in PASSES.items()}
    rows = [Row(name, SINGLY if name != SINGLY else "", moved_bytes=moved[name], note=noted(count)) for name in HOW]
    timed = bench.sampling([(row, steps[row.name]) for row in rows])
    # A CPU's operators are no launches: what is one kernel on a GPU is a loop there.
    return [counted(row, steps[row.name], bench) for row in timed] if bench.on_gpu else timed


def noted(count: int) -> str:
    """How many tensors a step takes."""
    return f"{count} tensors"


def stepping(start: list[Tensor], slopes: list[Tensor], how: Way) -> tuple[Callable[[], None], list[Tensor]]:
    """A call that makes one step, and the weights that it changes, of any shape; gradients alike."""
    weights = [part.clone().requires_grad_() for part in start]
    for weight, slope in zip(weights, slopes, strict=True):
        weight.grad = slope.clone()
    optimizer = torch.optim.AdamW(weights, lr=1e-4, **how)

    def step() -> None:
        with torch.inference_mode(False), torch.no_grad():
            optimizer.step()

    return step, weights


def per_kernel(row: Row) -> float | None:
    """Tensors that a kernel of a step takes on average; None where kernels weren't counted."""
    return int(row.note.split()[0]) / row.kernels if row.kernels else None


def lead(rows: Rows) -> str:
    """Each against the loop."""
    paces = {name: rows.pace(name, SINGLY) for name in (FOREACH, FUSED)}
    told = [f"{name} is {pace} {SINGLY}" for name, pace in paces.items() if pace]
    return f"{'; '.join(told)}." if told else ""


def says(rows: Rows) -> list[str]:
    """The launches and the bytes of each way."""
    found = {row.name: row for row in rows.measured()}
    counts = {name: row.kernels for name, row in found.items() if row.kernels is not None}
    said = []
    if len(counts) > 1:
        said.append("Kernels a step: " + ", ".join(f"{name} {count:,.0f}" for name, count in counts.items()) + ".")
    if {FOREACH, FUSED} <= set(found):
        many, few = (formatting.size(found[name].moved_bytes) for name in (FOREACH, FUSED))
        said.append(f"foreach saves launches alone and moves {many}, as one at a time does; fused moves {few}.")
    return said


LESSON = Lesson(
    title="An optimizer's step: one tensor at a time, foreach, or fused?",
    how="AdamW over 512 tensors of 4,096 fp32 numbers on a GPU, 64 on a CPU, with gradients that stay.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
)
