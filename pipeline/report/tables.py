"""Tables as lists of columns: one list serves the terminal, HTML, Markdown, CSV and a sweep.

A column knows its title, its unit, what it means, and how to make its cell of an item, so that adding one is one line:

    Column("J/image", cell=figure(lambda stage: stage.joules_per_image, significant), csv="joules_per_image")
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from pipeline.report.formatting import NOTHING

Item = TypeVar("Item")
Kind = Literal["text", "number"]  # text is read and set to the left, numbers are compared and set to the right
View = Literal["report", "terminal", "sweep"]
IN_REPORT: frozenset[View] = frozenset({"report"})


@dataclass(frozen=True)
class Cell:
    """A value as it is shown, and as it sorts."""

    text: str
    value: float | str | bool | None = None  # in SI units; None sorts last
    tone: str = ""  # "good", "bad", "quiet" or none


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One column of a table of items.

    Attributes:
        title: what stands above it.
        unit: of the numbers shown, after the title.
        help: what it means, for who hovers over the title.
        cell: makes the cell of an item.
        kind: whether it is read or compared.
        views: where it is shown; CSV shows it where `csv` names it.
        short: the title on a terminal, where the title itself is too wide.
        csv: the name in results.csv, with the SI unit; CSV writes the cell's value, not its text.
    """

    title: str
    unit: str = ""
    help: str = ""
    cell: Callable[[Item], Cell] = lambda _: Cell(NOTHING)
    kind: Kind = "number"
    views: frozenset[View] = IN_REPORT
    short: str | None = None
    csv: str = ""

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title} {self.unit}".strip()


@dataclass(frozen=True)
class Heading:
    """What a renderer needs of a column once its cells are made."""

    title: str
    help: str = ""
    kind: Kind = "number"


@dataclass(frozen=True)
class Table:
    """Headings, and rows of as many cells."""

    headings: list[Heading]
    rows: list[list[Cell]]

    @property
    def titles(self) -> list[str]:
        """The text of every heading."""
        return [heading.title for heading in self.headings]

    @property
    def without_empty_columns(self) -> "Table":
        """The table without the columns that no row fills; headings and cells go together."""
        kept = [at for at in range(len(self.headings)) if any(row[at].text not in ("", NOTHING) for row in self.rows)]
        return Table([self.headings[at] for at in kept], [[row[at] for at in kept] for row in self.rows])


def heading_of(column: Column[Item]) -> Heading:
    """What a renderer needs of the column."""
    return Heading(column.heading, column.help, column.kind)


def table_of(columns: Sequence[Column[Item]], items: Iterable[Item]) -> Table:
    """The items as rows."""
    return Table(
        [heading_of(column) for column in columns], [[column.cell(item) for column in columns] for item in items]
    )


def figure(read: Callable[[Item], float | None], show: Callable[[float], str]) -> Callable[[Item], Cell]:
    """Cells of a number that may be unknown: shown by `show`, sorted by itself."""

    def cell(item: Item) -> Cell:
        value = read(item)
        return Cell(NOTHING) if value is None else Cell(show(value), value)

    return cell


def text(read: Callable[[Item], str]) -> Callable[[Item], Cell]:
    """Cells of text that sorts by itself."""

    def cell(item: Item) -> Cell:
        value = read(item)
        return Cell(value, None if value == NOTHING else value)

    return cell


def names(
    title: str,
    read: Callable[[Item], str],
    help: str = "",  # noqa: A002 - as the attribute
    csv: str = "",
) -> Column[Item]:
    """A column of text."""
    return Column(title, help=help, cell=text(read), kind="text", csv=csv)


def unsorted(cells: list[Cell]) -> list[Cell]:
    """The cells of a row that is not ranked: its numbers sort last."""
    return [cell if isinstance(cell.value, str) else replace(cell, value=None) for cell in cells]
