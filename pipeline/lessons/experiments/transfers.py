"""Making data on the device or copying it there, pinned or pageable, at once or in pieces."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench, Call, skipped

BYTES, PIECES = 2**26, 1024
MADE, MADE_AND_COPIED = "made on the device", "made on the host, then copied"
PAGEABLE, PINNED, PINNED_ANEW = "one copy, pageable", "one copy, pinned", "pinned anew, then copied"
IN_PIECES = f"{PIECES:,} copies of a piece"


def run(bench: Bench) -> list[Row]:
    """64 MiB each way; on a CPU the copies are within its own memory."""
    numbers = BYTES // 4
    source, target = torch.randn(numbers), torch.empty(numbers, device=bench.device)
    hosted = source.pin_memory() if bench.on_gpu else source
    pairs = list(zip(hosted.split(numbers // PIECES), target.split(numbers // PIECES), strict=True))

    def in_pieces() -> None:
        for piece, place in pairs:
            place.copy_(piece, non_blocking=True)

    whole = (Row(PINNED if bench.on_gpu else "one copy", moved_bytes=BYTES), lambda: target.copy_(hosted, True))
    both: list[tuple[Row, Call]] = [whole, (Row(IN_PIECES, against=whole[0].name, moved_bytes=BYTES), in_pieces)]
    hosts: list[tuple[Row, Call]] = [
        (Row(MADE), lambda: torch.full((numbers,), 0.5, device=bench.device)),
        (Row(MADE_AND_COPIED, against=MADE), lambda: torch.full((numbers,), 0.5).to(bench.device)),
        (Row(PAGEABLE, against=PINNED, moved_bytes=BYTES), lambda: target.copy_(source)),
        (Row(PINNED_ANEW, against=PINNED, moved_bytes=BYTES), lambda: target.copy_(source.pin_memory(), True)),
    ]
    if bench.on_gpu:
        return bench.sampling([*hosts, *both])
    return [*(skipped(row, "host and device share one memory here") for row, _ in hosts), *bench.sampling(both)]


def lead(rows: Rows) -> str:
    """Pinned memory against pageable; within one memory, one copy against many."""
    kept, anew = rows.pace(PINNED, PAGEABLE), rows.pace(PINNED_ANEW, PAGEABLE)
    if kept and anew:
        return f"Pin a buffer once: a copy is then {kept} from pageable memory; pinned anew each time, {anew} that."
    pieces = rows.pace("one copy", IN_PIECES)
    return f"One copy is {pieces} {IN_PIECES}." if pieces else ""


def says(rows: Rows) -> list[str]:
    """What need not travel, and what many small copies cost."""
    found = []
    if rows.outcome(MADE_AND_COPIED, MADE) == "faster":
        found.append("What can be made on the device should not travel to it.")
    if pace := rows.pace(IN_PIECES, PINNED):
        found.append(f"{IN_PIECES} are {pace} one.")
    return found


LESSON = Lesson(
    title="What does it cost to bring data to the device?",
    how="64 MiB of fp32 numbers, made in place or copied from the host's memory; where the host is the device, from "
    "one buffer to another.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
)
