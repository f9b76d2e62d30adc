"""lessons.html and lessons.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.lessons.claims import Judged, judged_all
from pipeline.lessons.draw import markdown, page
from pipeline.lessons.lesson_records import LessonRecord, Row, load
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
