"""What a CUDA context costs in memory, before a net has one weight."""

import json
import subprocess
import time
from itertools import pairwise

import torch

from conf import child
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, value
from pipeline.lessons.variant_bench import Bench
from pipeline.report import formatting

STEPS = ("the context", "and a matmul", "and a convolution")
PROCESSES, SECONDS = 3, 4.0  # no further process begins after so many seconds
LIMIT_SECONDS = 60.0


def run(bench: Bench) -> list[Row]:
    """Fresh processes, one after another; each says what the device held after every step."""
    uuid = str(torch.cuda.get_device_properties(bench.device).uuid)
    samples: list[dict[str, float]] = []
    opened = time.perf_counter()
    while len(samples) < PROCESSES and (not samples or time.perf_counter() - opened < SECONDS):
        samples.append(in_fresh_process(uuid))
    return [Row(step, held_bytes=[sample[step] for sample in samples]) for step in STEPS]


def in_fresh_process(uuid: str) -> dict[str, float]:
    """Bytes that the device holds more than before, beyond torch's own pool, by step.

    Raises:
        RuntimeError: the process failed; the text is its last line.
    """
    started = child("pipeline.lessons.context_child", uuid)
    done = subprocess.run(**started, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def lead(rows: Rows) -> str:
    """What each process holds."""
    held = [found.value for row in rows if (found := value(row, "memory"))]
    if not held:
        return ""
    return f"Every process that uses CUDA holds {formatting.size(held[0])} of the device before its net has one weight."


def says(rows: Rows) -> list[str]:
    """What the libraries add, and why a run's report may show less."""
    held = [(row.name, found.value) for row in rows if (found := value(row, "memory"))]
    steps = [f"{formatting.size(after - before)} more with {name.removeprefix('and ')}"
             for (_, before), (name, after) in pairwise(held)]  # fmt: skip
    if not steps:
        return []
    beside = "A run's report reads the context in a process that has loaded less, and may show a smaller one."
    return [f"It holds {formatting.listed(steps)}.", beside]


LESSON = Lesson(
    title="What does a CUDA context cost in memory?",
    how="A fresh process asks NVML before its first tensor, after it, after a matmul and after a convolution; what "
    "torch's own pool holds is taken off.",
    unit="memory",
    run=run,
    lead=lead,
    says=says,
    gpu_only="a CPU has no CUDA context",
)
