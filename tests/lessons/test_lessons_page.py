"""lessons.html and lessons.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.lessons.draw import best_of, draw, markdown, page
from pipeline.lessons.lesson_records import SCHEMA_VERSION, LessonRecord, Row, load, save
from pipeline.records.codec import RecordError
from tests.lessons.made_up_lessons import ENVIRONMENT, held, record, timed
from tests.report.made_up_run import HOSTILE
from tests.report.test_html import Reader

RECORD = record(
    context=[held("the context", 5e8), held("and a convolution", 8e8)],
    precisions=[timed("fp32", 1.5e-2, flops=1e12), timed("fp16", 1e-3, "fp32", flops=1e12)],
    strides=[timed(f"stride {n}", n * 1e-3, series="useful bytes", at=n, moved_bytes=1e9) for n in (1, 2, 16)],
    chain=[timed("eager", 1e-3, note=HOSTILE), Row("compiled", reason=f"failed: {HOSTILE}")],
)


def sly() -> str:
    """A page of a record that tries to be code."""
    lesson = LessonRecord(HOSTILE, "failed", HOSTILE, 1.0, [timed(HOSTILE, 1e-3)])
    machine = replace(ENVIRONMENT, device_name=HOSTILE, packages={"torch": HOSTILE})
    return page(replace(RECORD, environment=machine, lessons=[*RECORD.lessons, lesson], started_at=HOSTILE))


def test_the_page_has_no_address_outside_it() -> None:
    text = page(RECORD)
    assert "http" not in text.replace("http-equiv", "")
    for tag, attributes in Reader(text).tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), tag


def test_a_record_is_shown_and_never_run() -> None:
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


def test_the_best_is_marked_among_what_is_compared() -> None:
    values = [("sum", 2.0), ("sum", 1.0), ("matmul", 5.0), ("matmul", 6.0), ("alone", 0.1)]
    assert best_of(values, "time") == {"sum": 1.0, "matmul": 5.0}
    assert best_of(values, "GB/s") == {"sum": 2.0, "matmul": 6.0}


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


def test_drawn_again_it_is_the_same(tmp_path: Path) -> None:
    save(RECORD, tmp_path)
    first = draw(RECORD, tmp_path).read_text()
    assert load(tmp_path) == RECORD
    assert draw(load(tmp_path), tmp_path).read_text() == first


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 99}', f'{{"schema_version": {SCHEMA_VERSION}}}'])
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "lessons.json").write_text(text)
    with pytest.raises(RecordError) as caught:
        load(tmp_path)
    assert "lessons.json" in str(caught.value)
    assert "\n" not in str(caught.value)
