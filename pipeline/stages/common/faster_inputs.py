"""Whether a captured net is faster where it reads its inputs where they lie.

It saves a copy, but telling kernels an address takes the driver a while, and the GPU is sent what has changed. At the
power limit of an H200 the classic net at batch 8 gains nothing by it (docs/kernels.md); so each net is asked.
"""

import statistics
from collections.abc import Callable, Sequence

from torch import Tensor

from pipeline.measure.clock import Clock
from pipeline.measure.timers import time_calls
from pipeline.stages.common.graph_inputs import GraphInput

ROUNDS = 3  # of both ways, twice each
LOOP_SECONDS, FIRST_CALLS, SINGLE_CALLS = 0.02, 5, 5
MOST_SECONDS = 0.01  # of a call: of more the copy of its images is no half a per cent, which isn't worth the time
LEAST_GAIN = 0.005  # of a call in a loop, about what such loops differ by
MOST_LOSS = 0.01  # of a call that is waited for


def choose_in_place(
    call: Callable[..., Tensor], proven: Sequence[GraphInput], batches: Sequence[list[Tensor]], clock: Clock
) -> None:
    """Have inputs that can be read where they lie read so if calls are faster then, or else say why they are copied.

    Args:
        call: the captured net.
        proven: the inputs of it that can.
        batches: some to call it with in rotation, each with all its inputs, of any shape.
        clock: of the device.
    """

    def run(number: int) -> Tensor:
        return call(*batches[number % len(batches)])

    def loop(calls: int) -> float:
        clock.synchronize()
        return time_calls(run, range(calls), clock)[0] / calls

    first = loop(FIRST_CALLS)
    calls = max(FIRST_CALLS, int(LOOP_SECONDS / max(first, 1e-6)))
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for in_place in [False, True, True, False] * (ROUNDS if first < MOST_SECONDS else 0):
        for known in proven:
            known.in_place = in_place
        alone = [time_calls(run, [number], clock)[0] for number in range(SINGLE_CALLS)]
        found[in_place].append((loop(calls), statistics.median(alone)))
    why = compared(found[False], found[True]) if found[True] else f"a call takes {1e3 * first:.3g} ms, a copy far less"
    for known in proven:
        known.in_place, known.copied = not why, why


def compared(copied: Sequence[tuple[float, float]], read: Sequence[tuple[float, float]]) -> str:
    """Why an input is copied, by seconds of calls in a loop and of calls alone; "" where it is faster read in place."""
    loop, alone = (1e3 * statistics.median(part) for part in zip(*copied, strict=True))
    other_loop, other_alone = (1e3 * statistics.median(part) for part in zip(*read, strict=True))
    if other_loop <= (1 - LEAST_GAIN) * loop and other_alone <= (1 + MOST_LOSS) * alone:
        return ""
    return (
        f"copied, a call takes {loop:.4g} ms in a loop and {alone:.4g} alone, "
        f"read where it lies {other_loop:.4g} and {other_alone:.4g}"
    )
