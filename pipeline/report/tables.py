"""Tables, charts and sections as data: every renderer shows the same.

A column knows its title, its unit, its meaning, and how to make its cell of an item, so that adding one is one line:

    number("J/image", lambda stage: stage.joules_per_image, significant, csv="joules_per_image")

A section of the report is its sentences, charts and tables under one title. HTML folds it, Markdown lists it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from markupsafe import Markup

from pipeline.records.data_words import IMAGES, Words
from pipeline.report import WORDS
from pipeline.report.formatting import MEMORY, NOTHING, clean, method

Item = TypeVar("Item")
Value = float | str | bool | None
Kind = Literal["text", "number"]  # text is read and set to the left, numbers are compared and set to the right
View = Literal["report", "terminal", "sweep"]
REPORT: frozenset[View] = frozenset({"report"})


@dataclass(frozen=True)
class Cell:
    """A value as it is shown, and as it sorts."""

    text: str
    value: Value = None  # in SI units; None sorts last
    tone: str = ""  # "good", "bad", "quiet" or none
    key: str = ""  # shown in grey beside the text


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One column of a table of items."""

    title: str  # what stands above it, with the unit of the numbers shown
    cell: Callable[[Item], Cell]  # makes the cell of an item
    help: str = ""  # its meaning, for a reader who hovers over the title
    kind: Kind = "number"  # whether it is read or compared
    csv: str = ""  # the name in results.csv, with the SI unit; CSV writes the cell's value, not its text
    views: frozenset[View] = REPORT  # where it is shown; CSV shows it where `csv` names it
    short: str | None = None  # the title on a terminal, where the title itself is too wide


@dataclass(frozen=True)
class Table:
    """Columns, and rows of as many cells."""

    columns: Sequence[Column[Any]] = ()
    rows: list[list[Cell]] = field(default_factory=list)

    @property
    def titles(self) -> list[str]:
        """The title of every column."""
        return [column.title for column in self.columns]

    @property
    def without_empty_columns(self) -> "Table":
        """The table without the columns that no row fills."""
        filled = {at for row in self.rows for at, cell in enumerate(row) if cell.text not in ("", NOTHING)}
        return self.only(sorted(filled))

    def without(self, titles: Sequence[str]) -> "Table":
        """Return the table without the columns of those titles."""
        return self.only([at for at, title in enumerate(self.titles) if title not in titles])

    def only(self, places: Sequence[int]) -> "Table":
        """Return the table with the columns at these places."""
        return Table([self.columns[at] for at in places], [[row[at] for at in places] for row in self.rows])


def table_of(columns: Sequence[Column[Item]], items: Iterable[Item]) -> Table:
    """Return the items as rows."""
    return Table(columns, [[column.cell(item) for column in columns] for item in items])


def explained(
    section: str, columns: Sequence[Column[Item]], words: Words = IMAGES, **figures: object
) -> list[Column[Item]]:
    """Return the columns with their meaning by words.yaml, where their name in results.csv, or their title, has one."""
    known: dict[str, str] = WORDS[section]["columns"]
    texts = [known.get(column.csv or column.title, column.help) for column in columns]
    named = {"memory": MEMORY, **words.named, **figures}
    return [replace(column, help=text.format(**named)) for column, text in zip(columns, texts, strict=True)]


def number(
    title: str,
    read: Callable[[Item], float | None],
    show: Callable[[float], str],
    csv: str = "",
    views: frozenset[View] = REPORT,
    help: str = "",  # noqa: A002 - as the attribute
) -> Column[Item]:
    """Return a column of numbers that may be unknown: each is shown by `show` and sorted by itself."""

    def cell(item: Item) -> Cell:
        value = read(item)
        return Cell(NOTHING) if value is None else Cell(show(value), value)

    return Column(title, cell, help, "number", csv, views)


def names(title: str, read: Callable[[Item], str], csv: str = "") -> Column[Item]:
    """Return a column of text that sorts by itself."""

    def cell(item: Item) -> Cell:
        value = read(item)
        return Cell(value, None if value == NOTHING else value)

    return Column(title, cell, kind="text", csv=csv)


def methods(read: Callable[[Item], str]) -> Column[Item]:
    """Return the first column of a table of stages: the method's name, with the stage's key."""
    return Column("method", lambda item: stage_cell(read(item)), kind="text")


def stage_cell(stage: str, mark: str = "", note: str = "") -> Cell:
    """Return a cell with mark, method's name and note; the stage's key is added if it differs from the name."""
    own, name = clean(stage), method(stage)
    return Cell(f"{mark}{name}{note}", own, key="" if name == own else own)


@dataclass(frozen=True)
class Figure:
    """A chart of the report with the table that says the same."""

    title: str
    draw: Callable[[], str]  # one of `pipeline.report.charts`, whose text is escaped; Markdown shows none of them
    note: str = ""
    table: Table | None = None

    @property
    def svg(self) -> Markup:
        """The chart, drawn anew."""
        return Markup(self.draw())  # noqa: S704 - escaped by the chart


@dataclass(frozen=True)
class Section:
    """A folded part of the report; its fields are shown in their order."""

    anchor: str
    title: str
    gist: str = ""  # in a sentence, beside the title while the part is folded
    note: str = ""  # what the figures are
    sentences: list[str] = field(default_factory=list)
    charts: list[Figure] = field(default_factory=list)
    table: Table = field(default_factory=Table)
    pairs: list[Figure] = field(default_factory=list)  # of half the page's width, side by side
    others: list[Figure] = field(default_factory=list)  # the same, of less weight: in a box that scrolls
    table_in_markdown: bool = False
    gist_in_markdown: bool = False  # where it isn't one of the sentences

    @property
    def empty(self) -> bool:
        """True if the record holds nothing of it."""
        figures = [*self.charts, *self.pairs, *self.others]
        return not (self.sentences or figures or self.table.rows)
