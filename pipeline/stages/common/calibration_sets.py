"""The images that a stage with few bits looks at: some give its scales, others say which layers it must not touch."""

from pipeline.compiler.batch import Batch
from pipeline.records.samples import Calibration
from pipeline.stages.api import CalibrationImages, Workload

JUDGED_BATCHES = 3  # on which a layer's sensitivity is measured: each layer costs a call of the whole net on each


def images_given(workload: Workload, for_scales: int) -> CalibrationImages:
    """So many images for the scales, or a few more, and some for the choice of layers behind them.

    Raises:
        ValueError: fewer than none are asked for.
    """
    if for_scales < 0:
        raise ValueError(f"calibration_images={for_scales}: expected an integer ≥ 0")
    return workload.calibration(for_scales + JUDGED_BATCHES * workload.shape[0])


def apart(batches: list[Batch]) -> tuple[list[Batch], list[Batch]]:
    """The batches for the scales, and the last ones for the choice of layers.

    A single one serves both.
    """
    chosen = min(JUDGED_BATCHES, len(batches) // 2)
    return (batches[:-chosen], batches[-chosen:]) if chosen else (batches, batches)


def calibration(given: CalibrationImages, for_scales: int, chose: bool, kept: list[str] | None = None) -> Calibration:
    """What the record keeps: the images of the scales, the first batches, those of the choice, and the layers kept."""
    count = len(given.batches)
    alone = for_scales < count
    choice, end = (given.image_set(for_scales if alone else 0, count), kept) if chose else (None, None)
    scales = given.image_set(0, for_scales)
    return Calibration(scales, choice, choice_apart=alone or not chose, apart=given.independent, kept=end)
