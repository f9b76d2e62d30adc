"""What a reader must know about a measurement: each warning with its figures and its remedy, from raw samples."""

from collections.abc import Sequence
from statistics import median

from pipeline.devices.kinds import is_cuda
from pipeline.errors import per_cent
from pipeline.records.data_words import Words, words_for
from pipeline.records.machine import Environment
from pipeline.records.run_record import AUTOCAST, EAGER, Reference, RunRecord, RunWarning, StageRecord, WarningCode
from pipeline.records.samples import Pair, WarmUp
from pipeline.stats.drift import drifts_of, is_unfair
from pipeline.stats.intervals import Side, outliers, ratio, samples_of
from pipeline.stats.lasting_pace import slower_at_full_load, slower_in_a_loop

CLOCKS_SHARE, CLOCKS_SECONDS = 0.02, 20e-6  # by which wall and device may differ, whichever is more
CLOCK_SHARE = 0.02  # by which the SM clocks of A and B may differ
DRIFT_WARNS = 0.02
CLOCKS_DISAGREE: WarningCode = "clocks disagree"
POWER = "power"  # the reason for a lower clock that NVML's counter of power violations gives
ILL_SHARE = 0.10  # of an image's time in a smaller batch, or of the kernels' time in FFTs
DOUBTFUL = 1e-3  # relative L2 of the reference: a thousand times what fp32 rounds to, below what any stage is allowed
OUTLIER_SHARE = 0.05  # of the samples, beyond which a reader is told


def stage_warnings(stage: StageRecord, batch_size: int | None) -> list[RunWarning]:
    """What the stage's record holds, and what its figures show.

    Args:
        stage: its record.
        batch_size: images per call; None leaves out what is computed per call from counts of images.
    """
    found = [
        unsteady(stage.warm_up) if stage.warm_up else None,
        slower_at_full_load(stage, batch_size) if batch_size else None,
        slower_in_a_loop(stage, batch_size) if batch_size else None,
        alternated(stage.pairs),
    ]
    computed = [*sample_warnings(stage.pairs), *(part for part in found if part)]
    return [*something_else(stage), *stage.warnings, *computed]


def something_else(stage: StageRecord) -> list[RunWarning]:
    """A stage that ran something else than its name promises, by its own word."""
    if stage.execution is None or not stage.execution.instead:
        return []
    remedy = "take it for what ran: its figures are of that, not of what it is named after"
    return [RunWarning("something else ran", f"{stage.name} is {stage.execution.instead}", remedy)]


def run_warnings(run: RunRecord) -> list[RunWarning]:
    """What the run's record holds, and what its figures show of the run as a whole."""
    found = [
        reference_in_doubt(run.reference) if run.reference else None,
        drifted(run.drift) if run.drift is not None else None,
        shared_device(run.environment) if run.environment else None,
        *(ill_baseline(run, stage) for stage in run.stages if stage.name in (run.baseline, EAGER, AUTOCAST)),
    ]
    return [*run.warnings, *(part for part in found if part)]


def sample_warnings(pairs: Sequence[Pair]) -> list[RunWarning]:
    """All that the samples of one stage show."""
    if not any(pair.blocks for pair in pairs):
        return []
    found = [
        clocks_disagree(pairs),
        not_at_rest(pairs),
        throttled(pairs),
        clocks_differ(pairs),
        outlying(pairs),
        *(drifted(change) for change in drifts_of(pairs)),
    ]
    return [warning for warning in found if warning is not None]


def clocks_disagree(pairs: Sequence[Pair], side: Side = "stage") -> RunWarning | None:
    """The stage's wall time and its CUDA events differ by more than 2 % and 20 µs in the median sample.

    Work on another stream, or a call that returns before its work is queued, escapes the events but not the
    device-wide synchronisation.
    """
    timed = [(part.seconds, part.device_seconds) for part in samples_of(pairs, side) if part.device_seconds is not None]
    if not timed:
        return None
    wall, device = median(both[0] for both in timed), median(both[1] for both in timed)
    if abs(wall - device) <= max(CLOCKS_SHARE * wall, CLOCKS_SECONDS):
        return None
    return RunWarning(
        CLOCKS_DISAGREE,
        f"a sample took {wall * 1e3:.3g} ms of wall time and {device * 1e3:.3g} ms between the device's events",
        "look for work on another stream, or a call that returns too early; the stage is not ranked",
    )


def outlying(pairs: Sequence[Pair]) -> RunWarning | None:
    """More than 5 % of the stage's samples are outliers; they are marked, and kept in every statistic."""
    marked = outliers([part.per_call for part in samples_of(pairs, "stage")])
    if sum(marked) <= OUTLIER_SHARE * len(marked):
        return None
    text = f"{sum(marked)} of {len(marked)} samples lie far out (more than 14.8 median deviations from the median)"
    return RunWarning("outliers", text, "end other programs; the ratio's interval takes outliers into account")


def not_at_rest(pairs: Sequence[Pair]) -> RunWarning | None:
    """Samples were kept although something compiled or allocated in them."""
    taken = samples_of(pairs, "stage")
    kept = [part for part in taken if part.disturbed]
    if not kept:
        return None
    retries = max(part.retries for part in kept)
    return RunWarning(
        "not at rest",
        f"{len(kept)} of {len(taken)} samples still contained a compilation or an allocation after {retries} retries",
        "give the stage one input shape, or raise measure.warmup_min_seconds",
    )


def throttled(pairs: Sequence[Pair]) -> RunWarning | None:
    """The device lowered its own clocks; in what share of each side's samples."""
    sides: tuple[Side, Side] = ("baseline", "stage")
    baseline, stage = (samples_of(pairs, side) for side in sides)
    loaded = any(pair.sustained for pair in pairs)
    expected = {POWER} if loaded else set()  # full load is where the power cap holds
    reasons = sorted({reason for part in [*baseline, *stage] for reason in part.throttle_reasons} - expected)
    if not reasons:
        return None
    shares = [
        per_cent(sum(bool(set(part.throttle_reasons) - expected) for part in side) / len(side))
        for side in (baseline, stage)
    ]
    holds = "it is so at full load, on which the ratio is" if loaded else "the ratio holds, as samples were interleaved"
    return RunWarning(
        "throttled",
        f"{', '.join(reasons)}: in {shares[0]} of the baseline's samples and {shares[1]} of the stage's",
        f"cool the device or lock its clocks (nvidia-smi -lgc); {holds}",
    )


def clocks_differ(pairs: Sequence[Pair]) -> RunWarning | None:
    """The SM clocks of A and B differ by more than 2 %; the warning gives the ratio in cycles as well."""
    clocks = []
    sides: tuple[Side, Side] = ("baseline", "stage")
    for side in sides:
        seen = [part.clock_mhz for part in samples_of(pairs, side) if part.clock_mhz]
        if not seen:
            return None
        clocks.append(median(seen))
    if abs(clocks[0] / clocks[1] - 1) <= CLOCK_SHARE:
        return None
    cycles = ratio(pairs).value * clocks[0] / clocks[1]
    seen_text = f"the baseline ran at {clocks[0]:.0f} MHz and the stage at {clocks[1]:.0f} MHz"
    return RunWarning(
        "clocks differ",
        f"{seen_text}; in cycles the ratio is {cycles:.3f}",
        "one draws more power than the other; lock the clocks (nvidia-smi -lgc) to compare the code alone",
    )


def ill_baseline(run: RunRecord, stage: StageRecord) -> RunWarning | None:
    """A baseline on a GPU that takes longer for an image in a larger batch, or spends its time in FFTs.

    cuDNN's heuristics choose FFT algorithms for some fp32 convolutions; ratios to such a baseline flatter every stage.
    """
    if run.environment is None or not is_cuda(run.environment.device) or run.settings.data.batch_size is None:
        return None
    found = [part for part in (_grows(stage, run.settings.data.batch_size, run.words), _transforms(stage)) if part]
    if not found:
        return None
    remedy = "compare with autocast, or try torch.backends.cudnn.benchmark=True, which times the algorithms"
    return RunWarning("ill baseline", f"{stage.name}: {'; '.join(found)}", remedy)


def _grows(stage: StageRecord, batch_size: int, words: Words) -> str:
    """Where an image takes more than 10 % longer in the run's batch than in the smaller one where it takes least."""
    growth = stage.diagnostics.growth if stage.diagnostics else None
    each = {size: taken / size for size, taken in zip(growth.images, growth.seconds, strict=True)} if growth else {}
    least = min((size for size in each if size < batch_size), key=lambda size: each[size], default=None)
    if least is None or batch_size not in each or each[batch_size] <= (1 + ILL_SHARE) * each[least]:
        return ""
    return (
        f"{words.one} takes {each[batch_size] * 1e3:.3g} ms in a batch of {batch_size} "
        f"and {each[least] * 1e3:.3g} ms in one of {least}"
    )


def _transforms(stage: StageRecord) -> str:
    """Where kernels named fft take more than 10 % of the time of all."""
    kernels = stage.profile.kernels if stage.profile else []
    total = sum(row.seconds_per_call for row in kernels)
    taken = sum(row.seconds_per_call for row in kernels if "fft" in row.name.lower())
    return f"FFT kernels take {taken * 1e3:.3g} of {total * 1e3:.3g} ms" if taken > ILL_SHARE * total else ""


def alternated(pairs: Sequence[Pair]) -> RunWarning | None:
    """The stage and the baseline weren't interleaved, as they don't fit in memory together."""
    if not any(pair.alternated for pair in pairs):
        return None
    return RunWarning(
        "processes alternated",
        "the stage and the baseline don't fit in memory together: the baseline was measured before and after the stage",
        "choose a smaller data.batch_size, so that the two can be interleaved",
    )


def reference_in_doubt(reference: Reference) -> RunWarning | None:
    """The fp32 net's answer is far from the fp64 one, or depends on how many images are in a batch.

    Healthy nets stay near 1e-6. cuDNN has been seen to be off by 0.1 in fp32 with an algorithm that worked in more
    than 100 GiB (six 3×3 convolutions of 1024 channels on 64×64 maps, batch 8, NVIDIA H200).
    """
    seen = {
        "fp64": reference.fp64_relative_l2,
        f"each {words_for(reference.spatial_dims).sample} alone": reference.batch_relative_l2,
    }
    far = [f"{error:.2g} from {what}" for what, error in seen.items() if error is not None and error > DOUBTFUL]
    if not far:
        return None
    return RunWarning(
        "reference in doubt",
        f"the fp32 net's logits are {' and '.join(far)} (relative L2)",
        "no accuracy check is better than its reference: try another batch size, or torch.backends.cudnn.deterministic",
    )


def drifted(change: float) -> RunWarning | None:
    """The baseline drifted by at least 2 %; from 10 % on, absolute times taken at different moments mislead."""
    if abs(change) < DRIFT_WARNS:
        return None
    how = "slower" if change > 0 else "faster"
    text = f"the baseline was {per_cent(abs(change), 1)} {how} at the end than at the start"
    if is_unfair(change):
        return RunWarning(
            "unfair",
            text,
            "trust no time; a drift within a ratio's own samples widens its interval; run again on a quiet machine",
        )
    return RunWarning(
        "drift", text, "the ratios hold, as they come from interleaved samples; absolute times carry this error"
    )


def unsteady(warm_up: WarmUp) -> RunWarning | None:
    """The stage was measured although its times had not settled during warm-up."""
    if warm_up.steady:
        return None
    return RunWarning(
        "unsteady",
        f"its times had not settled after {warm_up.calls} warm-up calls in {warm_up.seconds:.0f} s",
        "look for another load on the machine, or raise measure.warmup_limit_seconds",
    )


def shared_device(environment: Environment) -> RunWarning | None:
    """Other processes used the device when the run started."""
    if not environment.others_on_device:
        return None
    return RunWarning("shared device", "; ".join(environment.others_on_device), "end them, or choose another device")


def busy_processor(load: float, processors: int) -> RunWarning | None:
    """The processor was busy before the run began: `load` is the system's one-minute average."""
    if load <= 0.5 * processors:
        return None
    return RunWarning(
        "busy processor", f"a load of {load:.1f} on {processors} processors before the run", "end other programs"
    )
