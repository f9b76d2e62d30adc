"""Figures as a person reads them: in a fitting unit, with no more digits than the interval supports."""

import math
import re
from unicodedata import category

from pipeline.errors import plural
from pipeline.stats.intervals import Ratio
from pipeline.stats.outcomes import Unresolved

NOTHING = "–"
SPOKEN = {"amp": "autocast"}  # stages that have another name among people
ALMOST = 0.9995  # of a unit: three digits would round up to the next unit's 1
LEAST_PER_CENT = 1e-4  # that is written out
WIDE = 1.25  # upper end of an interval over its lower end, from which its middle alone would mislead
BINARY_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def clean(text: object) -> str:
    """One line without control characters, its words one space apart: a record's text may have come from anywhere."""
    return " ".join(visible(text).split())


def visible(text: object) -> str:
    """Text without signs that end a line, that a terminal would obey, or that can't be seen; its spaces stay."""
    return "".join(sign if sign.isprintable() else " " for sign in str(text))


def readable(text: str) -> str:
    """Text whose every sign can be seen: no control sign but an end of line, none that turns the text's direction."""
    if text.isprintable():  # which leaves out all of them, and a few that are only wide
        return text
    return "".join(sign if sign in "\n\t" or not hides(sign) else "\ufffd" for sign in text)


def hides(sign: str) -> bool:
    """Whether a sign is a control, turns the direction, has no form, or ends a line or a paragraph."""
    found = category(sign)
    return found[0] == "C" or found in ("Zl", "Zp")


def prose(text: object) -> str:
    """A sentence of a record with its per cents written as everywhere else: 7 %, not 7%."""
    return re.sub(r"(?<=\d)%", " %", clean(text))


def spoken(stage: str | None) -> str:
    """A stage's name as a person would say it."""
    return SPOKEN.get(str(stage), clean(stage))


def elapsed(seconds: float) -> str:
    """Minutes and seconds, as 1:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def significant(value: float, digits: int = 3) -> str:
    """So many significant digits, with thousands separators, and no exponent from 0.001 up."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 0.9996 has that of 1.00
    if size < -3:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}" if size < digits else f"{round(value, digits - 1 - size):,.0f}"


def seconds(value: float | None) -> str:
    """A duration in µs, ms, s or minutes."""
    if value is None:
        return NOTHING
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (180, 1, "s")):
        if value < limit * ALMOST:
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
    """A share as a percentage, never with an exponent."""
    if value is None:
        return NOTHING
    percent = 100 * value
    if 0 < abs(percent) < 10 * LEAST_PER_CENT:
        return f"{percent:.4f} %" if abs(percent) >= LEAST_PER_CENT else f"under {LEAST_PER_CENT:.4f} %"
    return f"{significant(percent, 2)} %"


def gibibytes(amount: float | None) -> str:
    """Bytes in GiB without the unit, for a column that names it."""
    return NOTHING if amount is None else significant(amount / 2**30)


def mebibytes(amount: float | None) -> str:
    """Bytes in MiB without the unit, for a column that names it."""
    return NOTHING if amount is None else significant(amount / 2**20)


def whole(value: float) -> str:
    """A mean count: 96 where it is whole, 4.5 where it isn't."""
    return significant(value).removesuffix(".0") if value >= 10 else f"{value:.2g}"


def count(value: float | None) -> str:
    """How many, with thousands set apart, two digits."""
    return NOTHING if value is None else significant(value, 2)


def samples(value: float) -> str:
    """A number of images or volumes: 100, 2.3 million."""
    return f"{significant(value / 1e6, 2)} million" if value >= 1e6 else significant(math.ceil(value), 2)


def decimals(found: Ratio) -> int:
    """Digits after the point that the interval supports."""
    if not found.bounded:
        return 1
    width = found.high - found.low
    return 1 if width > 0.5 else 2 if width > 0.01 else 3


def times(found: Ratio | None) -> str:
    """A ratio such as 1.84 ×; three digits of one that comes from two long stretches of calls and has no blocks."""
    if found is None:
        return NOTHING
    return f"{found.value:.{decimals(found)}f} ×" if found.blocks else f"{significant(found.value)} ×"


def interval(found: Ratio | None) -> str:
    """The interval of a ratio, such as [1.82, 1.86]; too few blocks have none."""
    if found is None or found.blocks == 0:
        return ""
    if not found.bounded:
        return "(no interval)"
    places = decimals(found)
    return f"[{found.low:.{places}f}, {found.high:.{places}f}]"


def times_as_fast(found: Ratio, digits: int) -> str:
    """A ratio with so many digits, such as 5.4 ×; one whose interval is wide is from 3.4 to 10 ×."""
    if found.bounded and found.high > WIDE * found.low > 0:
        return f"{significant(found.low, 2)} to {significant(found.high, 2)} ×"
    return f"{significant(found.value, digits)} ×"


def listed(names: list[str]) -> str:
    """Such as a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def signed(change: float) -> str:
    """A change of time with its sign."""
    return f"{'−' if change < 0 else '+'}{seconds(abs(change))}"


def gigabytes(amount: float | None) -> str:
    """Bytes in decimal GB without the unit, for a column that names it."""
    return NOTHING if amount is None else significant(amount / 1e9)


def way_to_resolve(cause: Unresolved) -> str:
    """What to do about a ratio that is not resolved, as `remedy` says it at length."""
    idle = cause.cause in ("busy machine", "baseline not itself", "baseline drifted")
    return "Measure on an idle machine" if idle else "Measure longer"


def remedy(cause: Unresolved) -> str:
    """What would resolve a ratio that is not resolved; one sentence."""
    if cause.cause == "busy machine":
        taken = f"Other programs took {100 * cause.taken:.0f} % of the processors while it was measured"
        return f"{taken}, which two stages needn't bear alike: run again on an idle machine."
    if cause.cause == "few blocks":
        few = f"{plural(cause.blocks, 'block')} {'is' if cause.blocks == 1 else 'are'} too few"
        asked = "preset=smoke asks for fewer, measure=quick for enough"
        return f"{few} for an interval, which takes 6: {asked}; a slow machine needs a larger measure.sampling_seconds."
    if cause.cause == "baseline not itself":
        low, high = (significant(end, 2) for end in cause.itself)
        itself = f"The baseline against itself came to {low} to {high} ×"
        return f"{itself}, and a ratio within that tells nothing: use an idle machine."
    if cause.cause == "below the effect":
        least = f"the minimum detectable effect of {100 * cause.effect:.1f} %"
        return (
            f"The difference of {100 * cause.difference:.1f} % is below {least}: measure.trials=3 averages over trials."
        )
    if cause.cause == "baseline drifted":
        return (
            f"The baseline drifted by {100 * cause.drift:.0f} % while it was measured, so the interval is "
            f"±{100 * cause.half_width:.0f} % wide: run again on an idle machine."
        )
    return (
        f"The interval is ±{100 * cause.half_width:.1f} % wide: about {cause.needed_blocks} blocks "
        f"(now {cause.blocks}) or a quieter machine would resolve it."
    )
