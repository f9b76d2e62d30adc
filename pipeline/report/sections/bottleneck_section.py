"""What bounds every stage, side by side."""

from pipeline.analysis.bottleneck import Regime, of_stage
from pipeline.analysis.roofline import Roofs, roofs
from pipeline.analysis.summary import Digest, Row
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table, filled

TITLES = [
    ("stage", ""),
    ("regime", ""),
    ("ceiling", "TFLOP/s measured here, of the precision that ran"),
    ("of the ceiling", "the net's FLOPs over the time of a call; above 100 %: fewer multiplications than counted"),
    ("of the bandwidth", "the bytes of a call over its time, of the copy measured here"),
    ("GPU idle", "1 less the kernels' time over that of a call"),
    ("growth", "slope of the time with the batch: 1 grows with it, 0 does not"),
    ("by pixels", "the same with the images' pixels; on a CPU"),
]


def table(found: Digest) -> Table:
    """One line for every ranked stage; the columns that none fills are left out."""
    return filled(Table(TITLES, [_cells(found, row, of_stage(found.run, row)) for row in found.rows if row.ranked]))


def _cells(found: Digest, row: Row, regime: Regime) -> list[Cell]:
    limits, evidence = roofs(found.run, row.stage), regime.evidence
    ceiling = f"{limits.precision} {words.significant(limits.flops_per_s / 1e12)}" if isinstance(limits, Roofs) else ""
    return [
        Cell(words.clean(row.name)),
        Cell(regime.word),
        Cell(ceiling or words.NOTHING, limits.flops_per_s if isinstance(limits, Roofs) else None),
        *(Cell(words.share(share), share) for share in (evidence.compute, evidence.memory, evidence.idle)),
        *(
            Cell(words.NOTHING if slope is None else f"{slope:.2f}", slope)
            for slope in (evidence.slope, evidence.image_slope)
        ),
    ]
