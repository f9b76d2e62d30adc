"""The figures that a report shows: every number a reader sees, with its unit, wherever it stands.

- A figure is a number in the text of report.html, in the labels of its charts, in report.md or in results.csv, with the
  unit, `%` or `×` beside it: `1,340`, `−142 ms`, `73.9 ×`, `0.054 %`. `512×512` is one figure.
- No figures are names that hold digits (`fp16`, `encoder.2.3`, `ResNet-34`, `mask_0.png`), versions, hashes, dates,
  clock times, colours, addresses, the numbers at the points of a list. Nor is what a reader doesn't see: attributes
  (coordinates, paths, sizes), styles and scripts.
- A figure in a table belongs to its row, named by the words of the first cell.
"""

import csv
import html
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path

UNITS = (
    *("%", "×", "x", "pp", "°C", "$", "€", "million", "billion"),
    *("ns", "µs", "us", "ms", "s", "min", "h", "images/s", "J/image", "volumes/s", "J/volume", "calls/s", "requests/s"),
    *("B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "B/s", "MB/s", "GB/s", "TB/s", "GiB/s", "TiB/s"),
    *("FLOP", "MFLOP", "GFLOP", "TFLOP", "FLOP/s", "GFLOP/s", "TFLOP/s", "TFLOPS", "FLOP/B", "FLOP/byte"),
    *("mJ", "J", "kJ", "mW", "W", "kW", "Wh", "kWh", "Hz", "kHz", "MHz", "GHz"),
)
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_NO_FIGURE = (
    r"https?://\S+",
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?)?",  # dates
    r"\d{1,2}:\d\d(?::\d\d)?",  # clock times
    r"\#[0-9a-fA-F]{3,8}\b",  # colours
    r"\b(?=[0-9]*[a-f])[0-9a-f]{7,40}\b",  # hashes
    r"[^\W\d]\w*(?:[./:-]\w+)*",  # names
    r"\d+(?:\.\d+){2,}[\w.+-]*",  # versions
    r"\d+(?:-\d+){2,}",  # folders named by time
)
_FIGURE = re.compile(
    rf"""(?:{"|".join(_NO_FIGURE)})
    |(?P<size>\d+(?:[ ]?×[ ]?\d+)+)(?![\w.])
    |(?P<before>[×$€][ ]?)?(?P<number>(?:(?<![\w)\]])[-−+±])?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)
     (?:[ ]?(?P<unit>{_UNIT}))?(?!\.?\w)
    |\d[\w.]*""",
    re.VERBOSE,
)
_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "μ": "µ"})
INLINE = frozenset({"a", "abbr", "b", "code", "em", "i", "mark", "small", "span", "strong", "tspan", "u"})
UNSEEN = frozenset({"script", "style", "template", "metadata"})
LIST_NUMBER = re.compile(r"^\s*\d+\. ", re.MULTILINE)
LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
ROW_START, ROW_END = "\x1e", "\x1f"  # stand around a table's row, whose cells are lines
ROWS = re.compile(f"{ROW_START}(.*?){ROW_END}", re.DOTALL)
CELL_EDGE = re.compile(r"(?<!\\)\|")
ESCAPED = re.compile(r"\\([\\`*_{}\[\]<>|#~&])")


@dataclass(frozen=True)
class Figure:
    """A number as it was written."""

    number: str  # without signs that set thousands apart, minus as -
    unit: str = ""
    row: str = ""  # of a table
    around: str = ""  # the words that it stands between

    def __str__(self) -> str:
        return f"{self.number} {self.unit}".rstrip() + (f" in row {self.row}" if self.row else "")


def figures(text: str, row: str = "") -> Iterator[Figure]:
    """The figures of a text, in its order."""
    text = text.translate(_SPACES)
    for found in _FIGURE.finditer(text):
        written = found["size"] or found["number"]
        if written is None:
            continue
        number = written.replace("−", "-").replace(",", "").replace(" ", "")
        before, after = text[max(0, found.start() - 50) : found.start()], text[found.end() : found.end() + 50]
        around = " ".join(f"{before}⟨{found[0]}⟩{after}".split())
        yield Figure(number, found["unit"] or (found["before"] or "").strip(), row, around)


def figures_by_row(text: str) -> list[Figure]:
    """The figures of a text whose tables' rows are marked, each with the name of its row."""
    found: list[Figure] = []
    for at, part in enumerate(ROWS.split(text)):  # a row at every other place
        name = row_name(next((line for line in part.splitlines() if line.strip()), "")) if at % 2 else ""
        found += figures(part, name)
    return found


def row_name(cell: str) -> str:
    """The words of a row's first cell, without marks such as ▸."""
    return " ".join(re.findall(r"[\w.]+", cell))


class _Seen(HTMLParser):
    """What a reader sees of a page: its text, and that of its charts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.charts: list[str] = []
        self.within: list[str] = []  # the svg or unseen elements that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is open; a new block starts a new line."""
        if tag == "svg" or tag in UNSEEN:
            self.within.append(tag)
        self._part(tag, ROW_START if tag == "tr" else "\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content, as SVG writes it."""
        self._part(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note what is closed."""
        if self.within and self.within[-1] == tag:
            self.within.pop()
        self._part(tag, ROW_END if tag == "tr" else "\n")

    def handle_data(self, data: str) -> None:
        """Keep what is seen."""
        if not UNSEEN.intersection(self.within):
            (self.charts if self.within else self.text).append(" ".join(f"<{data}>".split())[1:-1])

    def _part(self, tag: str, mark: str = "\n") -> None:
        if tag not in INLINE:
            (self.charts if self.within else self.text).append(mark)


def of_page(text: str) -> dict[str, list[Figure]]:
    """The figures of an HTML page: those of its text, and those of its inline charts."""
    seen = _Seen()
    seen.feed(text)
    seen.close()
    return {"text": figures_by_row("".join(seen.text)), "charts": list(figures("".join(seen.charts)))}


def of_markdown(text: str) -> list[Figure]:
    """The figures of a Markdown text."""
    shown = LIST_NUMBER.sub("", LINK_TARGET.sub("]", text))
    lines = [
        ROW_START + CELL_EDGE.sub("\n", line) + ROW_END if line.startswith("|") else line for line in shown.splitlines()
    ]
    return figures_by_row(html.unescape(ESCAPED.sub(r"\1", "\n".join(lines))))


def of_table(text: str) -> list[Figure]:
    """The figures of a CSV table with a line of titles, each with its row; a title stands before it as its words."""
    lines = list(csv.reader(io.StringIO(text)))
    titles = lines[0] if lines else []
    return [
        Figure(found.number, found.unit, row_name(line[0]), f"{title}: {cell}")
        for line in lines[1:]
        for title, cell in zip_longest(titles, line, fillvalue="")
        for found in figures(cell)
    ]


def of_file(path: Path) -> dict[str, list[Figure]]:
    """The figures of a report's file, by its parts; a file other than a page has one part."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        return of_page(text)
    return {"": of_table(text) if path.suffix == ".csv" else of_markdown(text)}
