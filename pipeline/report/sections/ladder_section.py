"""The ladder as a table: the columns that Markdown and HTML share."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.analysis.summary import Digest, Row
from pipeline.records.run_record import RunRecord
from pipeline.report import formatting as words


@dataclass(frozen=True)
class Cell:
    """A figure as it is read, and as it sorts."""

    text: str
    key: float | str | None = None  # None sorts last
    tone: str = ""  # "good", "bad", "quiet" or none


@dataclass(frozen=True)
class Table:
    """Titles with what they mean, and rows of cells."""

    titles: list[tuple[str, str]]
    rows: list[list[Cell]]


TONES = {"faster": "good", "slower": "bad", "failed": "bad", "inaccurate": "bad", "timeout": "bad", "skipped": "quiet"}


def ladder(found: Digest) -> Table:
    """Every stage in the ladder's order; the columns that no stage fills are left out."""
    titles = _titles(found)
    return filled(Table(titles, [_cells(found, row) for row in found.rows]))


def filled(shown: Table) -> Table:
    """The table without the columns that no row fills."""
    count = range(len(shown.titles))
    kept = [index for index in count if any(row[index].text not in ("", words.NOTHING) for row in shown.rows)]
    return Table([shown.titles[index] for index in kept], [[row[index] for index in kept] for row in shown.rows])


def _titles(found: Digest) -> list[tuple[str, str]]:
    run, device = found.run, _device(found)
    baseline, second = words.clean(run.baseline), words.clean(run.second_baseline)
    return [
        ("stage", "▸ the winner, = a tie with it"),
        ("adds", "what this rung adds to the one before"),
        (f"× {baseline}", f"the time of {baseline} over this stage's: above 1 is faster"),
        ("95 % interval", "of that ratio, by order statistics of the blocks"),
        ("verdict", "faster, slower, same within 1 % or not resolved; else why it isn't ranked"),
        (f"× {second}", f"the same against {second}, what people run today"),
        (f"ms a call, {device}", f"median of the samples, {_batch(run)} images a call"),
        ("alone", f"ms a call at full load: {baseline} rests, calls back to back for some seconds"),
        ("images/s", "throughput at full load"),
        ("p50 ms", "latency of single calls, device to device"),
        ("p99 ms", "the slowest of a hundred single calls"),
        ("memory", "peak of one call: the allocator's on a GPU, resident on a CPU"),
        ("J/image", "by the device's energy counter, idle power included"),
        ("set-up", "build and first call"),
        ("flipped", "pixels whose class differs from the fp32 net's"),
    ]


def _batch(run: RunRecord) -> str:
    """As it was asked for: in what a refused job leaves it may be no number."""
    return words.clean((run.config.get("data") or {}).get("batch_size", "?"))


def _device(found: Digest) -> str:
    machine = found.run.environment
    if machine is None:
        return "unknown device"
    return words.clean(machine.device_name if machine.device == "cuda" else "this CPU")


def _cells(found: Digest, row: Row) -> list[Cell]:
    stage, shown, second = row.stage, row.ratio if row.ranked else None, row.second if row.ranked else None
    rate, each, quick = row.images_per_second, row.seconds, row.latency
    mark = {"winner": "▸\u00a0", "tie": "=\u00a0"}.get(row.place, "")
    word = row.word or row.status
    own = row.name == found.run.second_baseline and row.ranked
    cells = [
        Cell(f"{mark}{words.clean(row.name)}{' (legacy)' if stage.legacy else ''}", words.clean(row.name)),
        Cell(words.clean(stage.adds or stage.summary)),
        Cell(words.times(shown), shown.value if shown else None),
        Cell(words.interval(shown), shown.low if shown else None),
        Cell(word, word, TONES.get(word, "")),
        Cell("1" if own else words.times(second), 1.0 if own else second.value if second else None),
        _figure(each.value if each else None, words.milliseconds),
        _figure(row.sustained_seconds, words.milliseconds),
        _figure(rate, words.significant),
        _figure(quick.p50 if quick else None, words.milliseconds),
        _figure(quick.p99 if quick else None, words.milliseconds),
        _figure(peak_bytes(row), words.size),
        _figure(row.joules_per_image, words.significant),
        _figure(row.setup_seconds, words.seconds),
        _figure(stage.accuracy.flipped_share if stage.accuracy else None, words.share),
    ]
    return cells if row.ranked else [replace(cell, key=None) if isinstance(cell.key, float) else cell for cell in cells]


def peak_bytes(row: Row) -> int | None:
    """The allocator's peak on a GPU, the resident peak on a CPU."""
    memory = row.stage.memory
    return (memory.allocated_peak_bytes or memory.host_peak_bytes) if memory else None


def _figure(value: float | None, shown: Callable[[float], str]) -> Cell:
    return Cell(words.NOTHING) if value is None else Cell(shown(value), float(value))
