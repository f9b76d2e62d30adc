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

ROUNDS = 5  # of both ways, in turn
LOOP_SECONDS, FIRST_CALLS, SINGLE_CALLS = 0.02, 5, 10
LEAST_GAIN = 0.005  # of a call in a loop, about what such loops differ by
MOST_LOSS = 0.01  # of a call that is waited for
BEING_TIMED = "its copy is being timed"


def why_copied(
    call: Callable[..., Tensor], told: Sequence[GraphInput], batches: list[list[Tensor]], clock: Clock
) -> str:
    """Why inputs that can be read where they lie are copied all the same, with the milliseconds; "" where they aren't.

    Args:
        call: the captured net.
        told: the inputs of it that can.
        batches: some to call it with in rotation, each with all its inputs, of any shape.
        clock: of the device.
    """

    def run(number: int) -> Tensor:
        return call(*batches[number % len(batches)])

    def loop(calls: int) -> float:
        clock.synchronize()
        return time_calls(run, range(calls), clock)[0] / calls

    calls = max(FIRST_CALLS, int(LOOP_SECONDS / max(loop(FIRST_CALLS), 1e-6)))
    found: dict[str, list[tuple[float, float]]] = {"": [], BEING_TIMED: []}
    for way in [BEING_TIMED, "", "", BEING_TIMED] * ROUNDS:
        for known in told:
            known.copied = way
        alone = [time_calls(run, [number], clock)[0] for number in range(SINGLE_CALLS)]
        found[way].append((loop(calls), statistics.median(alone)))
    (copied, copied_alone), (read, read_alone) = (
        [1e3 * statistics.median(part) for part in zip(*found[way], strict=True)] for way in (BEING_TIMED, "")
    )
    if read <= (1 - LEAST_GAIN) * copied and read_alone <= (1 + MOST_LOSS) * copied_alone:
        return ""
    return (
        f"copied, a call takes {copied:.4g} ms in a loop and {copied_alone:.4g} alone, "
        f"read where it lies {read:.4g} and {read_alone:.4g}"
    )
