"""Count the GPUs, cores, bytes and money for a number of images a day, from a measured rate and prices.

    python -m tests.benchmarks.fleet --rate 3586 --cores 16 --bytes-in 63000

docs/a-billion-images.md says where each figure comes from. A price, and the share of a day that GPUs work, are
assumptions: give your own.
"""

import argparse
import math
import sys
from dataclasses import dataclass, fields

DAY = 24 * 60 * 60  # seconds
GB = 1e9


@dataclass(frozen=True)
class Inputs:
    """The figures that the table follows from.

    Attributes:
        images: a day.
        rate: images a second on one GPU, from the first mask to the last, measured.
        cores: of the host for each GPU at this rate, measured.
        bytes_in: of an image on average, measured.
        bytes_out: of a mask on average, assumed.
        bytes_sidecar: of a sidecar, measured.
        reads: requests an image that read: its state, its content, and the sidecar and the mask that aren't there yet.
        writes: requests an image that write: its sidecar and its mask.
        working: share of a day in which GPUs make masks, assumed; starts, lost machines and waiting are the rest.
        gpu_hour: price of a GPU with its share of the host for an hour, assumed.
        gb_month: price of a GB that is kept for a month, assumed.
        million_reads: price of a million requests that read, assumed.
        million_writes: price of a million requests that write, assumed.
    """

    images: float = 1e9
    rate: float = 3586
    cores: float = 16
    bytes_in: float = 63_000
    bytes_out: float = 4_000
    bytes_sidecar: float = 400
    reads: float = 4
    writes: float = 2
    working: float = 0.8
    gpu_hour: float = 3.0
    gb_month: float = 0.02
    million_reads: float = 0.4
    million_writes: float = 5.0


def table(given: Inputs) -> list[tuple[str, str, str]]:
    """Return a row for each figure: its name, its formula, its value."""
    a_second = given.images / DAY
    gpus = math.ceil(a_second / (given.rate * given.working))
    kept = given.images * (given.bytes_out + given.bytes_sidecar) / GB
    hours = gpus * 24 * given.gpu_hour
    asked = given.images / 1e6 * (given.reads * given.million_reads + given.writes * given.million_writes)
    return [
        ("images a second", "images / 86,400", f"{a_second:,.0f}"),
        ("GPUs", "⌈images a second / (rate · working)⌉", f"{gpus:,}"),
        ("cores", "GPUs · cores", f"{gpus * given.cores:,.0f}"),
        ("network in, Gbit/s", "images a second · bytes_in · 8 / 10⁹", f"{a_second * given.bytes_in * 8 / GB:,.1f}"),
        ("the same for each GPU", "network in / GPUs", f"{a_second * given.bytes_in * 8 / GB / gpus:,.2f}"),
        ("network out, Gbit/s", "the same of bytes_out + bytes_sidecar", f"{kept * 8 / DAY:,.2f}"),
        ("masks of a day, GB", "images · (bytes_out + bytes_sidecar) / 10⁹", f"{kept:,.0f}"),
        ("requests a second", "images a second · (reads + writes)", f"{a_second * (given.reads + given.writes):,.0f}"),
        ("GPU hours, price a day", "GPUs · 24 · gpu_hour", f"{hours:,.0f}"),
        ("requests, price a day", "images / 10⁶ · (reads · million_reads + writes · million_writes)", f"{asked:,.0f}"),
        ("a day's masks, price a month", "masks of a day · gb_month", f"{kept * given.gb_month:,.0f}"),
        (
            "price of a million images",
            "prices a day / images · 10⁶",
            f"{(hours + asked) / given.images * 1e6:,.2f}",
        ),
    ]


def drawn(given: Inputs) -> str:
    """Return the table in Markdown."""
    lines = ["| figure | formula | value |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {formula} | {value} |" for name, formula, value in table(given))])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for each in fields(Inputs):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default)
    sys.stdout.write(drawn(Inputs(**vars(parser.parse_args()))) + "\n")


if __name__ == "__main__":
    main()
