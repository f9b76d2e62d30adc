"""Figures as a person reads them: in a fitting unit, with no more digits than the interval supports."""

import math

from pipeline.stats.intervals import Ratio, Unresolved

NOTHING = "–"
BINARY_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def clean(text: object) -> str:
    """One line without control characters: the text of a record may have come from anywhere."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())


def significant(value: float, digits: int = 3) -> str:
    """So many significant digits, with thousands separators, and no exponent from 0.001 up."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -3:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}" if size < digits else f"{round(value, digits - 1 - size):,.0f}"


def seconds(value: float | None) -> str:
    """A duration in µs, ms, s or minutes."""
    if value is None:
        return NOTHING
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (180, 1, "s")):
        if value < limit:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value / 60)} min"


def milliseconds(value: float | None) -> str:
    """Milliseconds without the unit, for a column that names it."""
    return NOTHING if value is None else significant(value * 1e3)


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return NOTHING
    for factor, unit in BINARY_UNITS:
        if count >= factor:
            return f"{significant(count / factor)} {unit}"
    return f"{count:.0f} B"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return NOTHING if value is None else f"{significant(100 * value, 2)} %"


def count(value: float | None) -> str:
    """How many, with thousands set apart, two digits."""
    return NOTHING if value is None else significant(value, 2)


def images(value: float) -> str:
    """A number of images: 100, 2.3 million."""
    return f"{significant(value / 1e6, 2)} million" if value >= 1e6 else significant(math.ceil(value), 2)


def decimals(found: Ratio) -> int:
    """Digits after the point that the interval supports."""
    if not found.bounded:
        return 1
    width = found.high - found.low
    return 1 if width > 0.5 else 2 if width > 0.01 else 3


def times(found: Ratio | None) -> str:
    """A ratio such as 1.84 ×."""
    return NOTHING if found is None else f"{found.value:.{decimals(found)}f} ×"


def interval(found: Ratio | None) -> str:
    """The interval of a ratio, such as [1.82, 1.86]; too few blocks have none."""
    if found is None or found.blocks == 0:
        return ""
    if not found.bounded:
        return "(no interval)"
    places = decimals(found)
    return f"[{found.low:.{places}f}, {found.high:.{places}f}]"


def plural(number: int, noun: str) -> str:
    """Such as 1 block, 2 blocks."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Such as a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def signed(change: float) -> str:
    """A change of time with its sign."""
    return f"{'−' if change < 0 else '+'}{seconds(abs(change))}"


def gigabytes(amount: float | None) -> str:
    """Bytes in decimal GB without the unit, for a column that names it."""
    return NOTHING if amount is None else significant(amount / 1e9)


def remedy(cause: Unresolved) -> str:
    """What would resolve a ratio that is not resolved; one sentence."""
    if cause.cause == "few blocks":
        knobs = "measure.sampling_seconds, or gpu_sampling_seconds on a GPU,"
        return f"{cause.blocks} blocks are too few for an interval: raise {knobs} to take at least 6."
    if cause.cause == "below the effect":
        return (
            f"The difference of {cause.difference:.1%} is below the minimum detectable effect of {cause.effect:.1%}: "
            "measure.trials=3 averages over trials."
        )
    return (
        f"The interval is ±{cause.half_width:.1%} wide: about {cause.needed_blocks} blocks (now {cause.blocks}) or a "
        "quieter machine would resolve it."
    )
