"""A stage that takes longer called without a pause than its headline says."""

from pipeline.errors import per_cent
from pipeline.records.run_record import RunWarning, StageRecord, WarningCode
from pipeline.stats.intervals import seconds_per_call

SLOWER_AT_FULL_LOAD: WarningCode = "slower at full load"
FULL_LOAD_SHARE = 0.03  # by which a stage may be slower at full load than in interleaved samples
LOOP_SHARE = 0.02  # by which it may be slower in a loop than in samples at full load: what its headline promises


def loop_seconds_per_call(stage: StageRecord, batch_size: int) -> float | None:
    """Seconds per call of the stretch at full load in which the energy was measured; None if it wasn't."""
    energy = stage.energy
    return energy.seconds / energy.images * batch_size if energy and energy.images else None


def slower_at_full_load(stage: StageRecord, batch_size: int) -> RunWarning | None:
    """Called back to back the stage takes more than 3 % longer per call than in interleaved samples.

    Interleaved, the device cools a little while the slower baseline runs. A stage that draws all the power that the
    device allows is then faster than it can be for long.
    """
    sustained = loop_seconds_per_call(stage, batch_size)
    if sustained is None or not any(pair.blocks and not pair.sustained for pair in stage.pairs):
        return None
    interleaved = seconds_per_call(stage.pairs).value
    more = sustained / interleaved - 1
    if more <= FULL_LOAD_SHARE:
        return None
    return RunWarning(
        SLOWER_AT_FULL_LOAD,
        f"at sustained full load a call takes {sustained * 1e3:.3g} ms, {per_cent(more)} more than interleaved",
        "plan a service at full load with the longer time; throughput and cost in this report do",
    )


def slower_in_a_loop(stage: StageRecord, batch_size: int) -> RunWarning | None:
    """In the loop in which its energy is measured the stage takes over 2 % longer than in its samples at full load.

    The GPU's clock hadn't settled in their run-in, or a sample saw a part of a swing of its pace: an H100's stages were
    1.1 to 2.3 % faster in samples of half a second than in such a loop (docs/h100). Or the host, which the stage waits
    for, was busier then.
    """
    loop = loop_seconds_per_call(stage, batch_size)
    loaded = [pair for pair in stage.pairs if pair.blocks and pair.sustained]
    if loop is None or stage.energy is None or not loaded:
        return None
    more = loop / seconds_per_call(loaded).value - 1
    if more <= LOOP_SHARE:
        return None
    took = f"in a loop of {stage.energy.seconds:.2g} s a call takes {loop * 1e3:.3g} ms"
    return RunWarning(
        SLOWER_AT_FULL_LOAD,
        f"{took}, {per_cent(more, 1)} more than in its samples",
        "count on the longer time; raise measure.gpu_sample_seconds or measure.gpu_rested_run_in_seconds, or end what "
        "else keeps the host busy",
    )
