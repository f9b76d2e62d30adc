"""The recorded lessons' pages are those that their records give today."""

from pathlib import Path

import pytest

from pipeline.lessons.draw import markdown, page
from pipeline.lessons.lesson_records import load
from tests.report.test_html import Reader

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = sorted(path.parent for path in DOCS.rglob("lessons.json"))


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: str(folder.relative_to(DOCS)))
def test_a_recorded_page_is_what_its_record_gives(folder: Path) -> None:
    """`python -m pipeline.lessons --draw FOLDER` draws it anew."""
    record = load(folder)
    assert (folder / "lessons.md").read_text(encoding="utf-8") == markdown(record)
    drawn = folder / "lessons.html"
    assert not drawn.exists() or Reader(drawn.read_text(encoding="utf-8")).text == Reader(page(record)).text
