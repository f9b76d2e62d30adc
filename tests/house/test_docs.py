"""The documentation's links, sizes and figures."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.records.disk import sources_digest
from tests.house import doc_tables, network_table
from tests.house.network_table import PAGES as DRAWN_PAGES
from tests.house.network_table import SOURCES, drawn, refuse_mixed
from tests.house.recompute import LEFT, statements

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REPORTS = sorted((ROOT / "docs").rglob("report.md"))
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
    if page.name not in DRAWN:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= LONGEST.get(page.name, 250)


def test_the_documentation_is_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "docs").rglob("*") if path.is_file()) < 4e6


@pytest.mark.parametrize("page", DRAWN_PAGES)
def test_a_page_has_the_tables_that_its_records_make(page: str) -> None:
    assert drawn(page) == (ROOT / page).read_text(encoding="utf-8")


def test_records_of_two_commits_or_a_row_of_two_cards_are_refused() -> None:
    on = {
        card: {"code_sha256": "a", "environment": {"device_name": f"NVIDIA {card} 80GB", "commit": "c"}}
        for card in ("H100", "H200")
    }
    refuse_mixed({"net/smp/1": on["H100"], "net/fpn/1": on["H200"]}, {"c": "a"}.__getitem__)
    with pytest.raises(ValueError, match="one card: smp on H100 and H200"):
        refuse_mixed({"net/smp/1": on["H100"], "net/smp/2": on["H200"]}, {"c": "a"}.__getitem__)
    with pytest.raises(ValueError, match=r"2 commits or sources.*net/smp/1.*net/smp/2"):
        refuse_mixed({"net/smp/1": on["H100"], "net/smp/2": on["H100"] | {"code_sha256": "b"}})
    with pytest.raises(ValueError, match="not those of commit c"):
        refuse_mixed({"net/smp/1": on["H100"]}, {"c": "b"}.__getitem__)


def test_a_commit_has_the_digest_of_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SOURCES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(name)
    for words in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-m", "a"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)
    monkeypatch.setattr(network_table, "ROOT", tmp_path)
    assert network_table.digest_of("HEAD") == sources_digest(tmp_path / name for name in SOURCES)


def test_the_tables_of_docs_agree_with_their_raw_samples() -> None:
    found = list(doc_tables.statements())
    assert len(found) >= 140  # of the tables that record_all does not make
    assert [statement for statement in found if not statement.agrees] == []


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_a_recorded_report_agrees_with_its_raw_samples(page: Path) -> None:
    """Every figure that it prints: one that nothing recomputes doesn't agree."""
    found = list(statements(page.parent))
    assert len(found) >= 200
    assert [statement for statement in found if not statement.agrees] == []


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_a_figure_of_any_sentence_or_column_that_was_altered_is_seen(page: Path, tmp_path: Path) -> None:
    """Each has another first digit."""
    for record in page.parent.glob("results.json*"):
        shutil.copy(record, tmp_path)
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    figure = re.compile(f"(?<!class ){LEFT.pattern}")
    altered = [text if text.startswith("| method") else figure.sub(another, text) for text in lines]
    (tmp_path / "report.md").write_text("".join(altered), encoding="utf-8")
    found = list(statements(tmp_path))
    assert len(found) >= 200
    assert [statement for statement in found if statement.agrees and statement.printed != "none"] == []


def another(figure: re.Match[str]) -> str:
    return re.sub(r"\d", lambda digit: str(int(digit[0]) % 9 + 1), figure[0], count=1)
