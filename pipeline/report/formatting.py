"""Figures in a fitting unit, with no more digits than the interval supports, and text that can be shown."""

import math
import re
from collections.abc import Callable
from functools import cache
from unicodedata import category

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.errors import plural
from pipeline.report import WORDS
from pipeline.stats.intervals import Latency, Ratio
from pipeline.stats.outcomes import Unresolved

NOTHING = "–"
MEMORY = "GPU memory of the process (nvidia-smi)"
METHODS: dict[str, str] = WORDS["formatting"]["methods"]
ALMOST = 0.9995  # of a unit: three digits would round up to the next unit's 1
LEAST_PER_CENT = 1e-4  # that is written out
WIDE = 1.25  # upper end of an interval over its lower end, from which its middle alone would mislead
BINARY_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def clean(text: object) -> str:
    """Return one line without control characters, its words one space apart; for any text of a record."""
    return " ".join(visible(text).split())


def visible(text: object) -> str:
    """Return text without characters that end a line, control a terminal or are invisible; its spaces stay."""
    return "".join(sign if sign.isprintable() else " " for sign in str(text))


def readable(text: str) -> str:
    """Return text whose every character is visible: controls but line ends and tabs become U+FFFD."""
    if text.isprintable():  # the common case; it excludes all of them, and a few that are only wide
        return text
    hidden = {sign for sign in set(text) - {"\n", "\t"} if category(sign)[0] == "C" or category(sign) in ("Zl", "Zp")}
    return "".join("\ufffd" if sign in hidden else sign for sign in text)


@cache
def templates(*, of_pages: bool) -> Environment:
    """Return the templates; those of pages escape all but our own charts, and make every character visible."""
    loader = PackageLoader("pipeline.report")  # what is no page is Markdown or code, which escape otherwise
    found = Environment(loader=loader, autoescape=of_pages, undefined=StrictUndefined, finalize=seen)  # noqa: S701
    found.filters["clean"] = clean
    found.trim_blocks = found.lstrip_blocks = True
    found.keep_trailing_newline = not of_pages
    return found


def seen(value: object) -> object:
    """Return a string without characters that hide or turn its direction; our own markup as it is."""
    return readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def prose(text: object) -> str:
    """Return a sentence of a record with its per cents written as everywhere else: 7 %, not 7%."""
    return re.sub(r"(?<=\d)%", " %", clean(text))


def method(stage: str) -> str:
    """Return the name of a stage's method; the stage's own name where a user wrote it."""
    return METHODS.get(stage, clean(stage))


def elapsed(seconds: float) -> str:
    """Return minutes and seconds, as 1:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def significant(value: float, digits: int = 3) -> str:
    """Return `digits` significant digits, with thousands separators, and no exponent from 0.001 up."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 0.9996 has that of 1.00
    if size < -3:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}" if size < digits else f"{round(value, digits - 1 - size):,.0f}"


def pace(value: float) -> str:
    """Return a rate: a whole number with thousands separators from 100 on, three significant digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def two(value: float) -> str:
    """Return two significant digits."""
    return significant(value, 2)


def seconds(value: float | None) -> str:
    """Return a duration in µs, ms, s or minutes."""
    if value is None:
        return NOTHING
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (180, 1, "s")):
        if value < limit * ALMOST:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value / 60)} min"


def tail(found: Latency) -> str:
    """Return the p99; of too few calls for one the slowest, with their number."""
    return f"p99 {seconds(found.p99)}" if found.p99 else f"slowest of {found.calls} {seconds(found.slowest)}"


def scaled(factor: float) -> Callable[[float | None], str]:
    """Return a format in another unit, without the unit, for a column that names it."""
    return lambda value: NOTHING if value is None else significant(value * factor)


milliseconds, microseconds = scaled(1e3), scaled(1e6)
gibibytes, mebibytes, gigabytes = scaled(2**-30), scaled(2**-20), scaled(1e-9)


def held(count: float | None) -> str:
    """Return memory in GiB, the unit of the tables."""
    return NOTHING if count is None else f"{gibibytes(count)} GiB"


def size(count: float | None) -> str:
    """Return the bytes of a file in a fitting unit."""
    if count is None:
        return NOTHING
    for factor, unit in BINARY_UNITS:
        if count >= factor:
            return f"{significant(count / factor)} {unit}"
    return f"{count:.0f} B"


def share(value: float | None) -> str:
    """Return a share as a percentage, never with an exponent."""
    if value is None:
        return NOTHING
    percent = 100 * value
    if 0 < abs(percent) < 10 * LEAST_PER_CENT:
        return f"{percent:.4f} %" if abs(percent) >= LEAST_PER_CENT else f"under {LEAST_PER_CENT:.4f} %"
    return f"{significant(percent, 2)} %"


def whole(value: float) -> str:
    """Return a mean count: 96 where it is whole, 4.5 where it isn't."""
    return significant(value).removesuffix(".0") if value >= 10 else f"{value:.2g}"


def samples(value: float) -> str:
    """Return a number of images or volumes: 100, 2.3 million."""
    return f"{significant(value / 1e6, 2)} million" if value >= 1e6 else significant(math.ceil(value), 2)


def decimals(found: Ratio) -> int:
    """Return how many digits after the point the interval supports."""
    if not found.bounded:
        return 1
    width = found.high - found.low
    return 1 if width > 0.5 else 2 if width > 0.01 else 3


def times(found: Ratio | None) -> str:
    """Return a ratio such as 1.84 ×; the baseline's own, which has no blocks, has three digits."""
    if found is None:
        return NOTHING
    return f"{found.value:.{decimals(found)}f} ×" if found.blocks else f"{significant(found.value)} ×"


def interval(found: Ratio | None) -> str:
    """Return the interval of a ratio, such as [1.82, 1.86]; too few blocks have none."""
    if found is None or found.blocks == 0:
        return ""
    if not found.bounded:
        return "(no interval)"
    places = decimals(found)
    return f"[{found.low:.{places}f}, {found.high:.{places}f}]"


def times_as_fast(found: Ratio, digits: int) -> str:
    """Return a ratio with `digits` digits or those of the tables, such as 5.4 ×; of a wide interval 3.4 to 10 ×."""
    if found.bounded and found.high > WIDE * found.low > 0:
        return f"{two(found.low)} to {two(found.high)} ×"
    supported = f"{found.value:.{decimals(found)}f}"
    return f"{min(significant(found.value, digits), supported, key=len)} ×"  # the shorter has fewer digits


def listed(names: list[str]) -> str:
    """Return text such as a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def signed(change: float) -> str:
    """Return a change of time with its sign."""
    return f"{'−' if change < 0 else '+'}{seconds(abs(change))}"


def way_to_resolve(why: Unresolved) -> str:
    """Return what to do about a ratio that is not resolved, as `remedy` says it at length."""
    idle = why.cause in ("busy machine", "baseline not itself", "baseline drifted")
    return "Measure on an idle machine" if idle else "Measure longer"


def remedy(why: Unresolved) -> str:
    """Return what would resolve a ratio that is not resolved; one sentence."""
    low, high = (f"{end:.2f}" for end in why.itself)
    shares = {name: 100 * getattr(why, name) for name in ("taken", "difference", "effect", "drift", "half_width")}
    few = f"{plural(why.blocks, 'block')} {'is' if why.blocks == 1 else 'are'}"
    text: str = WORDS["formatting"]["remedies"][why.cause]
    return text.format(**shares, few=few, low=low, high=high, blocks=why.blocks, needed=why.needed_blocks)
