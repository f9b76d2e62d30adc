"""What a cache of compiled code saves at start-up."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, seconds
from pipeline.lessons.variant_bench import Bench
from pipeline.records.samples import Sample
from pipeline.report import formatting

EMPTY, FILLED = "empty cache", "filled cache"
TIMES, SECONDS = 3, 5.0  # pairs, and no further one begins after so many seconds
FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def run(bench: Bench) -> list[Row]:
    """torch.compile and the first call of a small net, in a new cache and again in the same one."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 2, 1)).to(bench.device).eval()
    image = bench.random(1, 3, 32, 32)
    start(net, image)  # what only a process's first compilation pays
    taken: dict[str, list[Sample]] = {EMPTY: [], FILLED: []}
    opened = time.perf_counter()
    while len(taken[EMPTY]) < TIMES and (not taken[EMPTY] or time.perf_counter() - opened < SECONDS):
        with cache_of_its_own():
            for samples in taken.values():
                samples.append(timed(lambda: start(net, image)))
    return [Row(name, EMPTY if name == FILLED else "", samples=samples) for name, samples in taken.items()]


def start(net: nn.Module, image: Tensor) -> None:
    """As a new process would: compile a net and answer for one image [1, channels, height, width]."""
    from torch._inductor.utils import clear_caches

    torch._dynamo.reset()
    clear_caches()
    with torch.inference_mode():
        torch.compile(net)(image)
    if image.is_cuda:
        torch.cuda.synchronize(image.device)


def timed(call: Callable[[], None]) -> Sample:
    """One call, by the wall clock."""
    began = time.perf_counter()
    call()
    return Sample(1, time.perf_counter() - began, None)


@contextmanager
def cache_of_its_own() -> Iterator[None]:
    """Inductor's and Triton's caches in a new folder, which goes afterwards."""
    before = {name: os.environ.get(name) for name in FOLDERS}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder) / name) for name in FOLDERS})
        try:
            yield
        finally:
            for name, kept in before.items():
                os.environ.pop(name)
                if kept is not None:
                    os.environ[name] = kept


def lead(rows: Rows) -> str:
    """What the cache saves."""
    empty, filled = rows.row(EMPTY), rows.row(FILLED)
    if empty is None or filled is None:
        return ""
    first, again = (formatting.seconds(seconds(row).value) for row in (empty, filled))
    return f"A small net is compiled in {first}, and from a filled cache in {again}."


def says(rows: Rows) -> list[str]:
    """What a cache is good for, and what keeps one."""
    if rows.row(FILLED) is None:
        return []
    rest = "What is left is tracing, which a cache of kernels doesn't save; a package of AOTInductor's does."
    return [rest, "Keep the folder beside the service: for another torch or another device it holds nothing."]


LESSON = Lesson(
    title="What does a cache of compiled code save at start-up?",
    how="torch.compile of two convolutions and a GELU with the first call, in a new cache and again in the same one; "
    "the compiler's memory is cleared before each, and imports are not counted.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
)
