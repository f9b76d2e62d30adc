"""Which limit a stage, or a layer of it, runs into: arithmetic, memory, or what is around the kernels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.analysis.layer_figures import Part, parts, summed
from pipeline.analysis.roofline import Roofs, roofs
from pipeline.analysis.summary import Row
from pipeline.records.diagnostics import BatchGrowth, ImageGrowth
from pipeline.records.run_record import RunRecord
from pipeline.report import formatting as words
from pipeline.report.sections.traffic_section import moved

Word = Literal["compute-bound", "memory-bound", "overhead-bound", "below both roofs", "unknown"]

IDLE_MOST = 0.5  # of the time without any kernel: then more than half of it is not the GPU's
# Twice the images take less than 1.23 times as long, or four times the pixels less than 1.52 times: at least 62 or 55 %
# of the time does not depend on the work. By pixels, models.regimes.ManyTinyLayers on two EPYC cores, fp32, batch 1:
# 0.18 at 8×8, 0.24 at 16×16, 0.42 at 32×32, 1.26 at 64×64; WidePointwise 1.56 and LargeChannels 0.72 at 256×256.
FLAT_SLOPE = 0.3
FAR_BELOW = 0.25  # of both roofs: less than a quarter says that neither is what holds it up
FEW_LAUNCHES = 3.0  # a kernel that lasts no longer than so many launches is mostly beginning and end

DEFINITION = (
    "Overhead-bound: the GPU idles for more than half of the time, the time hardly grows with the batch (slope under "
    f"{FLAT_SLOPE:g}), or a layer far below its roofs has kernels that last less than {FEW_LAUNCHES:g} launches; on a "
    f"CPU also what is far below both roofs and hardly grows with the images' pixels (slope under {FLAT_SLOPE:g}). "
    "Otherwise the nearer of the two measured roofs, arithmetic or memory, names the bound; what reaches less than "
    "a quarter of both is below both roofs."
)


@dataclass(frozen=True)
class Evidence:
    """What a regime is told by; None where it isn't known."""

    compute: float | None  # share of the measured FLOP/s
    memory: float | None  # share of the measured bandwidth
    idle: float | None  # share of the time in which no kernel runs
    slope: float | None  # 1: time grows with the batch; 0: it does not
    image_slope: float | None = None  # the same with the pixels of an image, on a CPU


@dataclass(frozen=True)
class Regime:
    """The word, why it is that one, and the figures."""

    word: Word
    reason: str
    evidence: Evidence
    figures: str

    @property
    def sentence(self) -> str:
        """All of it in a line."""
        return f"{self.word}: {self.figures}{f'; {self.reason}' if self.reason else ''}"


def decide(found: Evidence) -> tuple[Word, str]:
    """The regime of a whole stage, and what the figures alone don't show of why."""
    if found.idle is not None and found.idle > IDLE_MOST:
        return "overhead-bound", "most of the time no kernel runs"
    if found.slope is not None and found.slope < FLAT_SLOPE:
        return "overhead-bound", "more images would take hardly more time"
    if found.compute is None or found.memory is None:
        return "unknown", "a bound is told by both roofs"
    if max(found.compute, found.memory) < FAR_BELOW:
        if found.image_slope is not None and found.image_slope < FLAT_SLOPE:
            return "overhead-bound", "a quarter of every image would take hardly less time"
        return "below both roofs", "its kernels or operators are the limit, not the device"
    return ("compute-bound" if found.compute >= found.memory else "memory-bound"), ""


def of_stage(run: RunRecord, row: Row) -> Regime:
    """A stage's regime, by its time at full load, its profile and the run's ceilings."""
    if row.seconds is None:
        return Regime("unknown", "it was not measured", Evidence(None, None, None, None), "no figures")
    found = roofs(run, row.stage)
    compute, compute_words = _compute(run, row.pace or row.seconds.value, found)
    memory, memory_words = _memory(run, row, found)
    idle, idle_words = _idle(run, row)
    slope, slope_words = _growth(row)
    by_image, image_words = _image_growth(row)
    evidence = Evidence(compute, memory, idle, slope, by_image)
    word, reason = decide(evidence)
    said = (compute_words, memory_words, idle_words, slope_words, image_words)
    return Regime(word, reason, evidence, ", ".join(part for part in said if part))


def _compute(run: RunRecord, seconds: float, found: Roofs | str) -> tuple[float | None, str]:
    if isinstance(found, str):
        return None, f"shares of the roofs unknown ({words.clean(found)})"
    if run.reference is None or not run.reference.flops_per_image:
        return None, "share of the arithmetic unknown (no FLOPs on record)"
    share = run.reference.flops_per_image * run.batch_size / seconds / found.flops_per_s
    ceiling = f"{words.significant(found.flops_per_s / 1e12)} TFLOP/s measured here"
    return share, f"{words.share(share)} of the {found.precision} ceiling ({ceiling})"


def _memory(run: RunRecord, row: Row, found: Roofs | str) -> tuple[float | None, str]:
    assert row.seconds is not None
    if isinstance(found, str):
        return None, "bytes not held against a roof"
    through, source = traffic(run, row, found.element_bytes)
    if through is None:
        return None, f"share of the bandwidth unknown ({source})"
    share = through / (row.pace or row.seconds.value) / found.bytes_per_s
    return share, f"{words.share(share)} of the bandwidth ({source})"


def traffic(run: RunRecord, row: Row, element_bytes: int) -> tuple[float | None, str]:
    """Bytes of one call through device memory, at the least, and how they are known; None and why they aren't.

    By the GPU's counters; else those that were counted while the stage ran, as they hold what runs between layers too;
    else its layers', by work.
    """
    known, source = moved(row.stage)
    if known is not None:
        return float(known), source
    timed = [part for part in parts(run, row.stage, element_bytes) if part.has_work]
    if timed:
        return summed("", timed).moved_bytes, "at least: each layer's input and output once"
    layers = [layer for layer in (run.reference.layers if run.reference else []) if layer.flops]
    if not layers:
        return None, "no layers on record"
    images = run.batch_size * sum(layer.read_elements + layer.written_elements for layer in layers)
    weights = sum(layer.weight_elements for layer in layers)
    return float(element_bytes * (images + weights)), "at least: the layers with FLOPs, the rest fused"


def _idle(run: RunRecord, row: Row) -> tuple[float | None, str]:
    if run.environment is None or run.environment.device != "cuda":
        return None, "no GPU to idle"
    share = idle_share(row)
    return share, "GPU idle unknown (no profile)" if share is None else f"GPU idle {words.share(share)}"


def idle_share(row: Row) -> float | None:
    """1 less the kernels' time in the profile over the headline's; None without either. Of a GPU's stage."""
    if row.stage.profile is None or not row.stage.profile.kernels or row.seconds is None:
        return None
    busy = sum(kernel.seconds_per_call for kernel in row.stage.profile.kernels)
    return max(0.0, 1 - busy / row.seconds.value)


def _growth(row: Row) -> tuple[float | None, str]:
    slope = growth_slope(row.stage.diagnostics.growth if row.stage.diagnostics else None)
    if slope is None:
        return None, "growth with the batch unknown (it was timed at one batch only)"
    return slope, f"time {_grows(slope)} with the batch (slope {slope:.2f})"


def _image_growth(row: Row) -> tuple[float | None, str]:
    """The slope by pixels and its words; nothing is said where nothing was timed, as on a GPU."""
    found: ImageGrowth | None = row.stage.diagnostics.image_growth if row.stage.diagnostics else None
    slope = _slope(found.pixels, found.seconds) if found else None
    return slope, "" if slope is None else f"{_grows(slope)} with the images' pixels (slope {slope:.2f})"


def _grows(slope: float) -> str:
    return "hardly grows" if slope < FLAT_SLOPE else "grows"


def growth_slope(growth: BatchGrowth | None) -> float | None:
    """The slope of the two largest batches: 1 where time grows as they do, 0 where it stays."""
    return _slope(growth.images, growth.seconds) if growth else None


def _slope(amounts: Sequence[int], seconds: Sequence[float]) -> float | None:
    """log(t2 / t1) / log(n2 / n1) of the last two; None without two that differ."""
    if len(amounts) < 2 or min(seconds[-2:]) <= 0:
        return None
    (n1, n2), (t1, t2) = amounts[-2:], seconds[-2:]
    return math.log(t2 / t1) / math.log(n2 / n1) if n1 < n2 else None


def shares(part: Part, found: Roofs) -> tuple[float, float]:
    """Of the arithmetic and of the bandwidth; the larger is the share of its roof."""
    if part.seconds <= 0:
        return 0.0, 0.0
    return part.flops / part.seconds / found.flops_per_s, part.moved_bytes / part.seconds / found.bytes_per_s


def of_layer(part: Part, found: Roofs) -> Word:
    """A layer's regime: the roof over it where it is near, else whether its kernels are as short as a launch."""
    short = _is_short(part, found)
    if not part.has_work or part.seconds <= 0:
        return "overhead-bound" if short else "unknown"
    compute, memory = shares(part, found)
    if max(compute, memory) >= FAR_BELOW:
        return "compute-bound" if compute >= memory else "memory-bound"
    return "overhead-bound" if short else "below both roofs"


def _is_short(part: Part, found: Roofs) -> bool:
    if found.launch_seconds is None or not part.launches:
        return False
    return part.seconds / part.launches < FEW_LAUNCHES * found.launch_seconds
