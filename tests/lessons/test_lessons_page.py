"""lessons.html and lessons.md, and that sentences and figures come from the rows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.lessons import contents
from pipeline.lessons.claims import Judged, judged_all
from pipeline.lessons.contents import CONTENTS, lesson_of
from pipeline.lessons.draw import markdown, page
from pipeline.lessons.experiments.overhead import EAGER, GRAPH
from pipeline.lessons.experiments.overhead import row_of_launches as launch
from pipeline.lessons.lesson_records import LessonRecord, Row, load
from pipeline.lessons.rows import Rows
from pipeline.records.codec import RecordError
from pipeline.records.run_record import SCHEMA_VERSION
from tests.lessons.made_up_lessons import ENVIRONMENT, held, record, shaken, timed
from tests.report.made_up_run import HOSTILE
from tests.report.test_html import Reader

RECORD = record(
    context=[held("the context", 5e8), held("and a convolution", 8e8)],
    precisions=[timed("fp32", 1.5e-2, flops=1e12), timed("fp16", 1e-3, "fp32", flops=1e12)],
    strides=[timed(f"stride {n}", n * 1e-3, series="useful bytes", at=n, moved_bytes=1e9) for n in (1, 2, 16)],
    chain=[timed("eager", 1e-3, note=HOSTILE), Row("compiled", reason=f"failed: {HOSTILE}")],
)


def sly() -> str:
    lesson = LessonRecord(HOSTILE, "failed", HOSTILE, 1.0, [timed(HOSTILE, 1e-3)])
    machine = replace(ENVIRONMENT, device_name=HOSTILE, packages={"torch": HOSTILE})
    return page(replace(RECORD, environment=machine, lessons=[*RECORD.lessons, lesson], started_at=HOSTILE))


def test_the_page_has_no_address_outside_it_and_a_record_is_never_run() -> None:
    text = page(RECORD)
    assert "http" not in text.replace("http-equiv", "")
    for tag, attributes in Reader(text).tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), tag
    reader = Reader(sly())
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in reader.tags]
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" in reader.text


def test_every_lesson_shows_its_chart_its_table_and_its_claim() -> None:
    reader = Reader(page(RECORD))
    assert sum("chart" in str(attributes.get("class")) for tag, attributes in reader.tags if tag == "div") == 4
    assert [tag for tag, _ in reader.tags].count("table") == 4
    assert reader.text.count("Every variant of “") == 4
    assert "fp16 does the most arithmetic here, 1,000 TFLOP/s: it is 15.0 × as fast as fp32." in reader.text
    assert "fp16 is 16 times faster" in reader.text
    assert "15.000 × [15.000, 15.000] the speed of fp32 right" in reader.text


def test_a_variant_that_failed_says_why_in_both_files() -> None:
    for text in (Reader(page(RECORD)).text, markdown(RECORD)):
        assert "failed: " in text
        assert "alert(1)" in text
    assert "<script>" not in markdown(RECORD)


def test_markdown_has_every_lesson_also_without_rows() -> None:
    skipped = LessonRecord("gelu", "skipped", "no reason but a test", 0.0, [])
    text = markdown(replace(RECORD, lessons=[*RECORD.lessons, skipped]))
    assert text.count("\n## ") == 5
    assert "**skipped**: no reason but a test" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 99}', f'{{"schema_version": {SCHEMA_VERSION}}}'])
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "lessons.json").write_text(text)
    with pytest.raises(RecordError) as caught:
        load(tmp_path)
    assert "lessons.json" in str(caught.value)
    assert "\n" not in str(caught.value)


DOCS = Path(__file__).parents[2] / "docs"
RECORDED = sorted(path.parent for path in DOCS.rglob("lessons.json"))


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: str(folder.relative_to(DOCS)))
def test_a_recorded_page_is_what_its_record_gives(folder: Path) -> None:
    record = load(folder)
    assert (folder / "lessons.md").read_text(encoding="utf-8") == markdown(record)
    drawn = folder / "lessons.html"
    assert not drawn.exists() or Reader(drawn.read_text(encoding="utf-8")).text == Reader(page(record)).text


def judge(lesson: str, **lessons: list[Row]) -> Judged:
    """What is found of the claim that stands beside that lesson."""
    return judged_all(record(**lessons))[lesson][1]


@pytest.mark.parametrize(
    ("alone", "with_libraries", "outcome"),
    [(1.2e9, 1.9e9, "right"), (0.5e9, 0.8e9, "wrong"), (0.5e9, 1.1e9, "depends"), (1.5e9, 2.4e9, "depends")],
)
def test_a_context_is_held_against_1_to_2_gb(alone: float, with_libraries: float, outcome: str) -> None:
    found = judge("context", context=[held("the context", alone), held("and a convolution", with_libraries)])
    assert found.outcome == outcome
    assert f"{alone / 1e9:.2f} GB" in found.here


@pytest.mark.parametrize(
    ("fp32", "tf32", "outcome"),
    [(15.0, None, "right"), (15.0, 14.0, "right"), (15.0, 2.0, "depends"), (8.0, 2.0, "wrong"), (0.01, None, "wrong")],
)
def test_half_precision_is_held_against_both_arithmetics(fp32: float, tf32: float | None, outcome: str) -> None:
    rows = [timed("fp32", 1e-3 * fp32), timed("fp16", 1e-3)]
    rows += [timed("tf32", 1e-3 * tf32)] if tf32 else []
    found = judge("precisions", precisions=rows)
    assert found.outcome == outcome
    assert ("TF32" in found.here) == (tf32 is not None)


@pytest.mark.parametrize(
    ("gains", "outcome"), [((2.0, 1.5), "right"), ((2.0, 0.9), "depends"), ((0.5, 0.9), "wrong"), ((1, 1), "wrong")]
)
def test_contiguous_must_win_in_every_use(gains: tuple[float, float], outcome: str) -> None:
    rows = []
    for use, gain in zip(("one sum", "one matmul"), gains, strict=True):
        rows += [timed(f"{use}, as it lies", 1e-3 * gain), timed(f"{use}, copied", 1e-3, f"{use}, as it lies")]
    assert judge("contiguous", contiguous=rows).outcome == outcome


@pytest.mark.parametrize(
    ("chain", "gelu", "outcome"),
    [(2.3, 2.0, "unknown"), (7.0, 1.5, "depends"), (7.0, 5.0, "unknown"), (1.1, 1.8, "unknown")],
)
def test_pieces_alone_show_a_claim_about_a_net_neither_right_nor_wrong(chain: float, gelu: float, outcome: str) -> None:
    found = judge(
        "chain",
        chain=[timed("eager", 1e-3 * chain), timed("compiled", 1e-3)],
        gelu=[timed("spelt out, eager", 1e-3 * gelu), timed("spelt out, compiled", 1e-3)],
    )
    assert found.outcome == outcome
    assert f"{chain:.3f} ×" in found.here


def test_what_was_not_measured_or_noise_hides_is_neither_right_nor_wrong() -> None:
    assert {found.outcome for _, found in judged_all(record()).values()} == {"unknown"}
    empty = judge("precisions", precisions=[timed("fp32", 1e-3), Row("fp16", reason="failed: out of memory")])
    assert empty.outcome == "unknown"
    hidden, fast = shaken("fp32", 18e-3, 0.5), timed("fp16", 1e-3)
    assert judge("precisions", precisions=[hidden, fast]).outcome == "unknown"
    assert judge("precisions", precisions=[hidden, timed("tf32", 2e-3), fast]).outcome == "unknown"
    assert judge("precisions", precisions=[timed("fp32", 16e-3), timed("tf32", 2e-3), fast]).outcome == "depends"


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
        ("in-place", [NEW, timed("in place", 1e-3)], "no time"), ("chain", chain(1e-3), "bound by memory"),
        ("chain", chain(4e-3), "bytes are not all"), ("context", CONTEXT, "500 MiB"),
        ("context", CONTEXT, "100 MiB more with a matmul"), ("sizes", sizes(3e-3), "costs 67 % of the rate"),
        ("sizes", sizes(1.001e-3), "no price"), ("strides", strides(1), "no price"),
        ("strides", strides(8), "takes 8.00 × as long"),
    ],
)  # fmt: skip
def test_what_is_said_follows_from_the_rows(name: str, rows: list[Row], sentence: str) -> None:
    assert sentence in said(name, rows)
