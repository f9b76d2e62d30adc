"""Sentences and figures come from the rows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.lessons import contents
from pipeline.lessons.contents import CONTENTS, lesson_of
from pipeline.lessons.draw import markdown
from pipeline.lessons.experiments.overhead import EAGER, GRAPH
from pipeline.lessons.experiments.overhead import row_of_launches as launch
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from tests.lessons.made_up_lessons import held, record, shaken, timed

DOCS = Path(__file__).parents[2] / "docs"
LESSONS = {name: lesson_of(name) for name in CONTENTS}


def said(name: str, rows: list[Row]) -> str:
    """All sentences of a lesson about these rows, the first one first."""
    return " ".join(LESSONS[name].says(Rows(rows)))


def test_the_contents_hold_every_lesson_once() -> None:
    files = {path.stem for path in Path(contents.__file__).with_name("experiments").glob("[a-z]*.py")}
    assert {words["module"] for words in CONTENTS.values()} == files
    assert [lesson.name for lesson in LESSONS.values()] == list(CONTENTS)


def test_the_docs_name_every_lesson_and_link_to_what_an_h200_showed() -> None:
    page = (DOCS / "lessons.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\| `([a-z-]+)` \|", page)) == set(LESSONS)
    titles = {lesson.title: lesson.name for lesson in LESSONS.values()}
    recorded = set()
    for told in (DOCS / "h200").rglob("lessons.md"):
        for heading in re.findall(r"^## (.*)$", told.read_text(encoding="utf-8"), re.MULTILINE):
            anchor = re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
            recorded.add((titles[heading], told.relative_to(DOCS).as_posix(), anchor))
    links = set(re.findall(r"`([a-z-]+)` \| \[yes\]\((h200/[a-z_/]*lessons\.md)#([a-z0-9-]+)\)", page))
    assert links == recorded
    assert {name for name, _, _ in links} == set(LESSONS)


@pytest.mark.parametrize("name", sorted(LESSONS))
def test_nothing_is_said_of_rows_without_samples(name: str) -> None:
    assert said(name, []).strip() == ""


@pytest.mark.parametrize(
    ("own", "words"),
    [(5e-4, "2.00 × as fast as"), (2e-3, "2.00 × as slow as"), (1e-3, "just as fast as"), (992e-6, "just as fast as")],
)
def test_a_pace_says_how_much_and_which_way(own: float, words: str) -> None:
    assert Rows([timed("eager", 1e-3), timed("other", own)]).pace("other", "eager") == words


def test_what_is_not_resolved_bears_no_figure() -> None:
    """The interval holds 1."""
    rows = Rows([timed("eager", 1e-3), shaken("other", 0.97e-3)])
    assert rows.pace("other", "eager") == "not shown to be faster or slower than"
    few = [replace(row, samples=row.samples[:3]) for row in (timed("eager", 9e-3), timed("compiled", 1e-3, "eager"))]
    moved = [replace(row, moved_bytes=amount, kernels=1) for row, amount in zip(few, (9e8, 1e8), strict=True)]
    text = said("chain", moved)
    assert "Compiled, the chain is not shown to be faster or slower than eager." in text
    assert "times the speed" not in text
    assert "bound by memory" not in text
    page = markdown(record(chain=moved))
    assert page.count("| (no interval) |") == 2
    assert "no interval" not in markdown(record(chain=[timed("eager", 9e-3)]))


def launches(times: dict[int, float], series: str = EAGER) -> list[Row]:
    """Rows of a lesson's sizes with what an operator takes of each, 20 of which are a call."""
    return [timed(launch(series, n).name, 20 * t, series=series, at=n, repeats=20) for n, t in times.items()]


def test_on_a_processor_operators_are_called_and_no_kernel_launched() -> None:
    """The least of all sizes is the floor, also where the smallest was disturbed; the size that hides it stays so."""
    assert said("launches", launches({1: 9e-6, 4: 5e-6, 64: 2e-5, 256: 6e-6, 1024: 4e-5})) == (
        "However small, an operator called from Python takes 5.00 µs or more here. Only from 1,024 Ki numbers on does "
        "the work take twice as long as that."
    )


def test_a_launch_s_floor_and_the_size_that_hides_it() -> None:
    rows = launches({1: 5e-6, 64: 6e-6, 1024: 2e-5})
    text = said("launches", rows + launches({1: 1.25e-6, 64: 1.5e-6, 1024: 5e-6}, GRAPH))
    assert "5.00 µs" in text
    assert "from 1,024 Ki" in text
    assert "1.25 µs in a CUDA graph" in text


def chain(seconds: float) -> list[Row]:
    eager = timed("eager", 9e-3, moved_bytes=9e8, kernels=9)
    return [eager, timed("compiled", seconds, moved_bytes=1e8, kernels=1)]


def sizes(odd: float) -> list[Row]:
    return [timed("4,096", 1e-3, flops=1e12), timed("4,095", odd, "4,096", flops=1e12, note="odd")]


def strides(cost: float) -> list[Row]:
    return [timed("stride 1", 1e-3, moved_bytes=1e9), timed("stride 16", 1e-3 * cost, moved_bytes=1e9)]


NEW, CONTEXT = timed("a new tensor", 1e-3), [held("the context", 500 * 2**20), held("and a matmul", 600 * 2**20)]


@pytest.mark.parametrize(
    ("name", "rows", "sentence"),
    [
        ("in-place", [NEW, timed("in place", 0.5e-3)], "wins time as well"),
        ("in-place", [NEW, shaken("in place", 0.97e-3)], "can't tell"),
        ("in-place", [NEW, timed("in place", 1e-3)], "no time"),
        ("chain", chain(1e-3), "bound by memory"),
        ("chain", chain(4e-3), "bytes are not all"),
        ("context", CONTEXT, "500 MiB"),
        ("context", CONTEXT, "100 MiB more with a matmul"),
        ("sizes", sizes(3e-3), "costs 67 % of the rate"),
        ("sizes", sizes(1.001e-3), "no price"),
        ("strides", strides(1), "no price"),
        ("strides", strides(8), "takes 8.00 × as long"),
    ],
)
def test_what_is_said_follows_from_the_rows(name: str, rows: list[Row], sentence: str) -> None:
    assert sentence in said(name, rows)
