"""Lessons on memory: what a context holds, what copies cost, and what layouts do."""

import json
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from conf import child
from pipeline.lessons.bench import Bench, Variant
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, value
from pipeline.report import formatting

STEPS = ("the context", "and a matmul", "and a convolution")
PROCESSES, SECONDS = 3, 4.0  # no further process begins after `SECONDS`
LIMIT_SECONDS = 60.0


def run_context(bench: Bench) -> list[Row]:
    """Start fresh processes one after another; each reports the device's memory after every step."""
    uuid = str(torch.cuda.get_device_properties(bench.device).uuid)
    samples: list[dict[str, float]] = []
    opened = time.perf_counter()
    while len(samples) < PROCESSES and (not samples or time.perf_counter() - opened < SECONDS):
        started = child("pipeline.lessons.context_child", uuid)
        done = subprocess.run(**started, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        samples.append(json.loads(done.stdout))  # by step: beyond torch's own pool, the bytes held more than before
    return [Row(step, held_bytes=[sample[step] for sample in samples]) for step in STEPS]


def says_context(rows: Rows) -> list[str]:
    """Return the memory of each process, that which libraries add, and why a run's report may show less."""
    held = [(row.name, found.value) for row in rows if (found := value(row, "memory"))]
    if not held:
        return []
    context = formatting.size(held[0][1])
    lead = f"Every process that uses CUDA holds {context} of GPU memory before its network has one weight."
    steps = [f"{formatting.size(after - before)} more with {name.removeprefix('and ')}"
             for (_, before), (name, after) in pairwise(held)]  # fmt: skip
    if not steps:
        return [lead]
    beside = "A run's report reads the context in a process that has loaded less, and may show a smaller one."
    return [lead, f"It holds {formatting.listed(steps)}.", beside]


BYTES, PIECES = 2**26, 1024
MADE, MADE_AND_COPIED = "made on the device", "made on the host, then copied"
PAGEABLE, PINNED, PINNED_ANEW = "one copy, pageable", "one copy, pinned", "pinned anew, then copied"
IN_PIECES = f"{PIECES:,} copies of a piece"


def run_transfers(bench: Bench) -> list[Row]:
    """Copy 64 MiB each way; on a CPU within its own memory."""
    numbers = BYTES // 4
    source, target = torch.randn(numbers), torch.empty(numbers, device=bench.device)
    hosted = source.pin_memory() if bench.on_gpu else source
    pairs = list(zip(hosted.split(numbers // PIECES), target.split(numbers // PIECES), strict=True))

    def in_pieces() -> None:
        for piece, place in pairs:
            place.copy_(piece, non_blocking=True)

    whole = (Row(PINNED if bench.on_gpu else "one copy", moved_bytes=BYTES), lambda: target.copy_(hosted, True))
    both: list[Variant] = [whole, (Row(IN_PIECES, against=whole[0].name, moved_bytes=BYTES), in_pieces)]
    hosts: list[Variant] = [
        (Row(MADE), lambda: torch.full((numbers,), 0.5, device=bench.device)),
        (Row(MADE_AND_COPIED, against=MADE), lambda: torch.full((numbers,), 0.5).to(bench.device)),
        (Row(PAGEABLE, against=PINNED, moved_bytes=BYTES), lambda: target.copy_(source)),
        (Row(PINNED_ANEW, against=PINNED, moved_bytes=BYTES), lambda: target.copy_(source.pin_memory(), True)),
    ]
    if not bench.on_gpu:
        hosts = [(row, "host and device share one memory here") for row, _ in hosts]
    return bench.sampling([*hosts, *both])


def says_transfers(rows: Rows) -> list[str]:
    """Compare pinned with pageable memory; within one memory, one copy with many; and name needless copies."""
    kept, anew = rows.pace(PINNED, PAGEABLE), rows.pace(PINNED_ANEW, PAGEABLE)
    pieces = rows.pace("one copy", IN_PIECES)
    found = [f"One copy is {pieces} {IN_PIECES}." if pieces else ""]
    if kept and anew:
        found = [f"Pin a buffer once: a copy is then {kept} from pageable memory; pinned anew each time, {anew} that."]
    if rows.outcome(MADE_AND_COPIED, MADE) == "faster":
        found.append("What can be made on the device should not travel to it.")
    if pace := rows.pace(IN_PIECES, PINNED):
        found.append(f"{IN_PIECES} are {pace} one.")
    return found


IN_PLACE_GPU_NUMBERS, IN_PLACE_CPU_NUMBERS = 2**26, 2**22
NEW, KEPT, IN_PLACE = "a new tensor", "into a kept buffer", "in place"


def run_in_place(bench: Bench) -> list[Row]:
    """Apply ReLU; each way reads and writes every number once."""
    numbers = IN_PLACE_GPU_NUMBERS if bench.on_gpu else IN_PLACE_CPU_NUMBERS
    x = bench.random(numbers)
    own, buffer = x.clone(), torch.empty_like(x)
    size = 4 * numbers
    return bench.sampling([
        (Row(NEW, moved_bytes=2 * size, note=f"takes {size // 2**20} MiB more"), lambda: torch.clamp_min(x, 0)),
        (Row(KEPT, NEW, moved_bytes=2 * size, note="takes nothing more, once the buffer is there"),
         lambda: torch.clamp_min(x, 0, out=buffer)),
        (Row(IN_PLACE, NEW, moved_bytes=2 * size, note="takes nothing more"), lambda: own.clamp_min_(0)),
    ])  # fmt: skip


def says_in_place(rows: Rows) -> list[str]:
    """Return the gain by changing a tensor in place."""
    outcome = rows.outcome(NEW, IN_PLACE)
    if outcome == "faster":
        return [f"In place wins time as well as memory here: it is {rows.pace(IN_PLACE, NEW)} a new tensor."]
    if outcome in ("same", "slower"):
        return ["In place wins memory here, and no time: the same bytes move either way."]
    return ["In place wins memory; whether it wins time, this run can't tell."] if outcome else []


STRIDES_GPU_NUMBERS, STRIDES_CPU_NUMBERS = 2**24, 2**21
STRIDES = (1, 2, 4, 8, 16)


def run_strides(bench: Bench) -> list[Row]:
    """Copy fp32 numbers, a stride apart, into a dense buffer; only those bytes count as moved."""
    numbers = STRIDES_GPU_NUMBERS if bench.on_gpu else STRIDES_CPU_NUMBERS
    source, out = bench.random(numbers * STRIDES[-1]), torch.empty(numbers, device=bench.device)
    variants: list[Variant] = []
    for stride in STRIDES:
        against, moved = "stride 1" if stride > 1 else "", 2.0 * 4 * numbers
        row = Row(f"stride {stride}", against, series="useful bytes", at=stride, moved_bytes=moved)
        variants.append((row, partial(out.copy_, source[: numbers * stride : stride])))
    return bench.sampling(variants)


def says_strides(rows: Rows) -> list[str]:
    """Return the cost of the widest stride, by useful bytes per second, and why it costs that."""
    rates = {row.name: found.value for row in rows.measured() if (found := value(row, "GB/s"))}
    first, last = f"stride {STRIDES[0]}", f"stride {STRIDES[-1]}"
    if first not in rates or last not in rates:
        return []
    factor = rates[first] / rates[last]
    if factor < 1.1:
        return ["This device shows no price for a stride."]
    longer = formatting.significant(factor)
    lead = f"Read numbers side by side: {STRIDES[-1]} apart, the same count takes {longer} × as long."
    why = "Memory moves in whole lines: what isn't used of a line was fetched for nothing."
    if factor <= STRIDES[-1]:
        return [lead, why]
    most = f"That alone costs no more than the stride, {STRIDES[-1]} times"
    return [lead, f"{why} {most}; the rest, such as vector loads or a cache that is too small, isn't told apart here."]


GPU_SIDE, CPU_SIDE = 4096, 768
USES: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {  # of a matrix, another one and a buffer, [side, side]
    "one sum": lambda matrix, other, out: torch.add(matrix, other, out=out),
    "ten sums": lambda matrix, other, out: [torch.add(matrix, other, out=out) for _ in range(10)],
    "one matmul": lambda matrix, other, out: torch.matmul(matrix, other, out=out),
}
STRIDED, COPIED = "{}, as it lies", "{}, .contiguous() first"


def run_contiguous(bench: Bench) -> list[Row]:
    """Use a transposed fp32 matrix three times, as is or copied first; the copy is timed as well."""
    side = GPU_SIDE if bench.on_gpu else CPU_SIDE
    transposed, other = bench.random(side, side).t(), bench.random(side, side)
    out = torch.empty_like(other)
    variants: list[Variant] = []
    for use, work in USES.items():
        variants.append((Row(STRIDED.format(use)), partial(work, transposed, other, out)))
        copied = Row(COPIED.format(use), STRIDED.format(use))
        variants.append((copied, lambda work=work: work(transposed.contiguous(), other, out)))  # type: ignore[misc]
    return bench.sampling(variants)


def says_contiguous(rows: Rows) -> list[str]:
    """Return where the copy pays."""
    tried = [use for use in USES if rows.outcome(STRIDED.format(use), COPIED.format(use))]
    pays = [use for use in tried if rows.outcome(STRIDED.format(use), COPIED.format(use)) == "faster"]
    rest = [use for use in tried if use not in pays]
    if not tried:
        return []
    if not pays:
        return [f".contiguous() paid for its copy in none of these uses: {formatting.listed(rest)}."]
    beside = f", not in {formatting.listed(rest)}" if rest else ""
    return [f".contiguous() paid for its copy in {formatting.listed(pays)}{beside}."]
