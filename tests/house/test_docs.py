"""The documentation is short, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DRAWN = {"report.md", "lessons.md"}  # by the program, in folders of records
LONGEST = {"README.md": 150, "CHANGELOG.md": 80}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Of the repository; other sites are not asked."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    """At most 250 lines, the README 150."""
    if not (page.name in DRAWN and page.parent.parent.name in ("docs", "h200", "cpu")):
        assert len(page.read_text(encoding="utf-8").splitlines()) <= LONGEST.get(page.name, 250)


def test_the_documentation_is_small() -> None:
    """4 MB with its records."""
    assert sum(path.stat().st_size for path in (ROOT / "docs").rglob("*") if path.is_file()) < 4e6
