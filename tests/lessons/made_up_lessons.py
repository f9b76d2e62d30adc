"""Records of lessons with known figures."""

from dataclasses import replace

from pipeline.lessons.lesson_records import LessonRecord, LessonsRecord, Row
from pipeline.records.run_record import SCHEMA_VERSION, Environment
from pipeline.records.samples import Sample

ENVIRONMENT = Environment(
    device="cuda", device_name="NVIDIA H200", driver="580.1", cuda="13.0", cudnn="91900", capability="9.0",
    multiprocessors=132, device_memory_bytes=150_000_000_000, l2_bytes=62_914_560, cpu_name="a CPU", cpu_threads=16,
    python="3.12.1", platform="Linux", packages={"torch": "2.11.0"}, commit=None, dirty=None, launcher="basic",
    others_on_device=[],
)  # fmt: skip
WOBBLE = (1.0, 1.002, 0.999, 1.001, 0.998, 1.0, 1.003, 0.997)


def timed(name: str, seconds: float, against: str = "", **known: object) -> Row:
    """A row whose samples of ten calls wobble around so many seconds a call."""
    samples = [Sample(calls=10, seconds=10 * seconds * factor, device_seconds=None) for factor in WOBBLE]
    return Row(name, against, samples=samples, **known)  # type: ignore[arg-type]


def shaken(name: str, seconds: float, by: float = 0.1) -> Row:
    """A row of which every second sample takes longer by that share."""
    row = timed(name, seconds)
    samples = [replace(part, seconds=part.seconds * (1 + by * (at % 2))) for at, part in enumerate(row.samples)]
    return replace(row, samples=samples)


def held(name: str, *samples: float) -> Row:
    return Row(name, held_bytes=list(samples))


def record(**lessons: list[Row]) -> LessonsRecord:
    """A record of these lessons, all well; an underscore stands for a hyphen."""
    parts = [LessonRecord(name.replace("_", "-"), "ok", "", 1.0, rows) for name, rows in lessons.items()]
    return LessonsRecord(SCHEMA_VERSION, "2026-11-21T05:00:00+00:00", 12.0, ENVIRONMENT, parts)
