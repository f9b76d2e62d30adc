"""Warnings about a measurement, each with its figures and its remedy, from raw samples."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import get_args

import numpy as np
import yaml

from pipeline.errors import per_cent, plural
from pipeline.records.data_words import Words, words_for
from pipeline.records.run_record import AUTOCAST, EAGER, Reference, RunRecord, RunWarning, StageRecord, WarningCode
from pipeline.records.samples import Pair
from pipeline.stats.dice import LEAST_IMAGES
from pipeline.stats.intervals import Side, drifts_of, is_unfair, samples_of, seconds_per_call

SIDES: tuple[Side, Side] = ("baseline", "stage")
CLOCKS_SHARE, CLOCKS_SECONDS = 0.02, 20e-6  # by which wall and device may differ, whichever is more
DRIFT_WARNS = 0.02
CLOCKS_DISAGREE: WarningCode = "clocks disagree"
SLOWER_AT_FULL_LOAD: WarningCode = "slower at steady state"
POWER = "power"  # the reason for a lower clock that NVML's counter of power violations gives
ILL_SHARE = 0.10  # of an image's time in a smaller batch, or of the kernels' time in FFTs
DOUBTFUL = 1e-3  # relative L2 of the reference: a thousand times what fp32 rounds to, below what any stage is allowed
OUTLIER_MADS, OUTLIER_SHARE = 14.8, 0.05  # ten standard deviations of normal noise; of the samples, to tell a reader
LEAST_DICE, DICE_APART = 0.01, 0.02  # of the fp32 network's worst class, and as a share of its best
FULL_LOAD_SHARE = 0.03  # by which a stage may be slower at steady state than in interleaved samples
GRAVITY = get_args(WarningCode)
WORDS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
LOOP_SHARE = 0.02  # by which it may be slower in a loop than in samples at steady state: what its headline promises


def warned(code: WarningCode, words: str = "", **figures: object) -> RunWarning:
    """Return a warning in its words, those under its code where no others are named."""
    text = WORDS[words or code]
    return RunWarning(code, text["text"].format_map(figures), text["remedy"].format_map(figures))


def stage_warnings(
    stage: StageRecord, batch_size: int | None, words: Words | None = None, few: str = "few pictures"
) -> list[RunWarning]:
    """Return the warnings on a stage's record, and those that its figures give, the gravest first.

    Without a batch size none is of a call; `words` are for the images whose masks were judged, `few` says of too few.
    """
    ran, warm_up, found, chosen = stage.execution, stage.warm_up, stage.accuracy, stage.calibration
    every = [
        warned("something else ran", stage=stage.name, instead=ran.instead) if ran and ran.instead else None,
        *stage.warnings,
        *sample_warnings(stage.pairs),
        warned("unsteady", calls=warm_up.calls, seconds=warm_up.seconds) if warm_up and not warm_up.steady else None,
        slower_at_steady_state(stage, batch_size) if batch_size else None,
        warned("calibrated on judged images") if chosen and not chosen.apart else None,
        warned("processes alternated") if any(pair.alternated for pair in stage.pairs) else None,
    ]
    if words and found and found.pictures is not None and found.pictures < LEAST_IMAGES:
        whole, of = words.counted(found.images), f"{words.made} of {plural(found.pictures, words.source)}"
        judged = whole if found.images == found.pictures else of
        every.append(warned("few pictures", few, judged=judged, least=LEAST_IMAGES, **words.named))
    return sorted(filter(None, every), key=lambda warning: GRAVITY.index(warning.code))


def run_warnings(run: RunRecord) -> list[RunWarning]:
    """Return the warnings on the run's record, and those that its figures give of the run as a whole."""
    others = run.environment.others_on_device if run.environment else []
    classes = run.reference.mask_classes if run.reference and run.unjudged == "one class" else []
    computed = [
        reference_in_doubt(run.reference) if run.reference else None,
        warned("net in doubt", "one class", number=classes[0], **run.words.named) if classes else None,
        drifted(run.drift) if run.drift is not None else None,
        warned("shared device", others="; ".join(others)) if others else None,
        *(ill_baseline(run, stage) for stage in run.stages if stage.name in (run.baseline, EAGER, AUTOCAST)),
    ]
    return [*run.warnings, *(warning for warning in computed if warning)]


def sample_warnings(pairs: Sequence[Pair]) -> list[RunWarning]:
    """Return all warnings that the samples of one stage give."""
    if not any(pair.blocks for pair in pairs):
        return []
    checks = (clocks_disagree, not_at_rest, throttled, outlying)
    found = [*(check(pairs) for check in checks), *(drifted(change) for change in drifts_of(pairs))]
    return [warning for warning in found if warning is not None]


def clocks_disagree(pairs: Sequence[Pair], side: Side = "stage") -> RunWarning | None:
    """Warn if wall time and CUDA events differ by more than 2 % and 20 µs in the median sample.

    Work on another stream, or a call that returns too early, escapes the events but not the synchronisation.
    """
    timed = [(part.seconds, part.device_seconds) for part in samples_of(pairs, side) if part.device_seconds is not None]
    if not timed:
        return None
    wall, device = median(both[0] for both in timed), median(both[1] for both in timed)
    apart = abs(wall - device) > max(CLOCKS_SHARE * wall, CLOCKS_SECONDS)
    return warned(CLOCKS_DISAGREE, wall=1e3 * wall, device=1e3 * device) if apart else None


def outlying(pairs: Sequence[Pair]) -> RunWarning | None:
    """Warn if more than 5 % of the stage's samples are outliers; they are marked, and kept in every statistic."""
    times = np.array([sample.per_call for sample in samples_of(pairs, "stage")])
    distances = np.abs(times - np.median(times))
    marked = int((distances > OUTLIER_MADS * np.median(distances)).sum())
    return warned("outliers", marked=marked, samples=len(times)) if marked > OUTLIER_SHARE * len(times) else None


def not_at_rest(pairs: Sequence[Pair]) -> RunWarning | None:
    """Warn if samples were kept although something compiled or allocated in them."""
    samples = samples_of(pairs, "stage")
    disturbed = [sample for sample in samples if sample.disturbed]
    if not disturbed:
        return None
    retries = max(sample.retries for sample in disturbed)
    return warned("not at rest", disturbed=len(disturbed), samples=len(samples), retries=retries)


def throttled(pairs: Sequence[Pair]) -> RunWarning | None:
    """Warn if the device lowered its own clocks, with the share of each side's samples."""
    sides = [samples_of(pairs, side) for side in SIDES]
    loaded = any(pair.sustained for pair in pairs)
    expected = {POWER} if loaded else set()  # the power cap holds at steady state
    reasons = sorted({reason for side in sides for sample in side for reason in sample.throttle_reasons} - expected)
    if not reasons:
        return None
    shares = [per_cent(sum(bool({*each.throttle_reasons} - expected) for each in side) / len(side)) for side in sides]
    holds = "is at steady state too" if loaded else "holds, as samples were interleaved"
    return warned("throttled", reasons=", ".join(reasons), shares=shares, holds=holds)


def ill_baseline(run: RunRecord, stage: StageRecord) -> RunWarning | None:
    """Warn if a GPU's baseline takes longer per image in a larger batch, or spends its time in cuDNN's FFTs."""
    if run.environment is None or run.environment.device != "cuda":
        return None
    kernels = stage.profile.kernels if stage.profile else []
    total = sum(row.seconds_per_call for row in kernels)
    taken = sum(row.seconds_per_call for row in kernels if "fft" in row.name.lower() or "sum_complex" in row.name)
    grows = _grows(stage, run.batch_size, run.words)
    found = [grows] if grows else []
    if taken > ILL_SHARE * total:
        found.append(f"FFT kernels take {taken * 1e3:.3g} of {total * 1e3:.3g} ms")
    return warned("ill baseline", stage=stage.name, found="; ".join(found)) if found else None


def _grows(stage: StageRecord, batch_size: int, words: Words) -> str:
    """Say that an image takes over 10 % longer in the run's batch than in the smaller one where it takes least."""
    growth = stage.explained.growth
    each = {size: taken / size for size, taken in zip(growth.images, growth.seconds, strict=True)} if growth else {}
    least = min((size for size in each if size < batch_size), key=lambda size: each[size], default=None)
    if least is None or batch_size not in each or each[batch_size] <= (1 + ILL_SHARE) * each[least]:
        return ""
    return (
        f"{words.one} takes {each[batch_size] * 1e3:.3g} ms in a batch of {batch_size} "
        f"and {each[least] * 1e3:.3g} ms in one of {least}"
    )


def reference_in_doubt(reference: Reference) -> RunWarning | None:
    """Warn if the fp32 network's answer is far from the fp64 one, or depends on the size of the batch.

    Healthy networks have a relative L2 near 1e-6; one cuDNN algorithm with a workspace above 100 GiB had 0.1 (H200).
    """
    seen = {
        "fp64": reference.fp64_relative_l2,
        f"each {words_for(reference.spatial_dims).sample} alone": reference.batch_relative_l2,
    }
    far = [f"{error:.2g} from {what}" for what, error in seen.items() if error is not None and error > DOUBTFUL]
    return warned("reference in doubt", far=" and ".join(far)) if far else None


def useless_reference(run: RunRecord) -> RunWarning | None:
    """Warn if a trained network's own Dice is next to nothing for a class, or far below that of another class."""
    found = next((stage.accuracy for stage in run.stages if stage.accuracy and stage.accuracy.reference_dice), None)
    if found is None or not run.config.model.is_trained:
        return None
    dice = {number: value for number, value in enumerate(found.reference_dice or []) if found.has_class(number)}
    if not dice:
        return None
    worst, best = min(dice, key=dice.__getitem__), max(dice, key=dice.__getitem__)
    if dice[worst] > max(LEAST_DICE, DICE_APART * dice[best]):
        return None
    return warned("net in doubt", "low dice", least=dice[worst], worst=worst, most=dice[best], best=best)


def drifted(change: float) -> RunWarning | None:
    """Warn of a baseline that drifted by at least 2 %; from 10 % on, times taken at different moments mislead."""
    if abs(change) < DRIFT_WARNS:
        return None
    unfair, more = is_unfair(change), max(change, 1 / (1 + change) - 1)  # half the time is 100 % faster
    text = f"{per_cent(more, 0 if unfair else 1)} {'slower' if change > 0 else 'faster'}"
    return warned("unfair" if unfair else "drift", change=text)


def loop_seconds_per_call(stage: StageRecord, batch_size: int) -> float | None:
    """Return seconds per call of the loop in which the energy was measured; None if it wasn't."""
    energy = stage.energy
    return energy.seconds / energy.images * batch_size if energy and energy.images else None


def slower_at_steady_state(stage: StageRecord, batch_size: int) -> RunWarning | None:
    """Warn if a call in the energy loop takes over 3 % longer than interleaved, or over 2 % than at steady state.

    A stage at the power limit of the device cools while the baseline runs, and is then faster than it can stay. Samples
    at steady state are shorter where the clock had not settled (1.1 to 2.3 % on an H100), or the host was busy.
    """
    loop, measured = loop_seconds_per_call(stage, batch_size), [pair for pair in stage.pairs if pair.blocks]
    if loop is None or stage.energy is None or not measured:
        return None
    loaded = [pair for pair in measured if pair.sustained]
    more = loop / seconds_per_call(loaded or measured).value - 1
    if more <= (LOOP_SHARE if loaded else FULL_LOAD_SHARE):
        return None
    figures = {"seconds": stage.energy.seconds, "loop": 1e3 * loop, "more": per_cent(more, 1 if loaded else 0)}
    return warned(SLOWER_AT_FULL_LOAD, "slower in a loop" if loaded else "", **figures)


def busy_processor(load: float, processors: int) -> RunWarning | None:
    """Warn if the processor was busy before the run began: `load` is the system's one-minute average."""
    return warned("busy processor", load=load, processors=processors) if load > 0.5 * processors else None
