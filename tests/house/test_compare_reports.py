"""Two drawings of a record are compared number by number, and nothing but numbers."""

from pathlib import Path

import pytest

from tests.house.compare_reports import compare, main
from tests.house.report_figures import Figure, figures, of_markdown, of_page, of_table

PAGE = """<!doctype html><html><head><title>fp8: 73.9 × eager</title><style>td{width:12px;color:#123456}</style></head>
<body data-order="77"><h1 style="margin:3px">unet, batch 8</h1>
<p title="99 s">It takes <b>2.24</b>
   ms and <strong>345</strong> MiB.</p><script>const limit = 55;</script>
<table><tr><th>stage</th><th>p50 ms</th></tr><tr><td>▸ fp8</td><td>2.25</td><td>3,170</td></tr></table>
<svg width="547.2pt" viewBox="0 0 547.2 351.36"><title>Memory of half</title><style>*{stroke-width: 4}</style>
<path d="M 67.5 322.8 L 1 2"/><g/><text x="67.5" y="333.1">10</text><text x="1">20</text><text>1.50 GiB</text></svg>
<p>after 12 blocks</p></body></html>"""
MARKDOWN = """# unet, batch 8

**How much?** 73.9 × as fast \\[73.5, 74.0\\], −142 ms; see [the log](outputs/log-7.txt).

| stage | p50 ms | × eager |
| --- | --- | --- |
| eager | 165 | 1.001 × |
| channels\\_last | 18.2 | 9.14 × |

1. Copy from pinned memory: 769 µs of 3.02 ms.
"""
TABLE = "stage,adds,p50_s,device\neager,nothing,0.165,NVIDIA H200\nfp8,half the bytes,0.00224,NVIDIA H200\n"


def written(text: str) -> list[str]:
    return [str(found) for found in figures(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("takes 2.24 ms a call", ["2.24 ms"]),
        ("7% of 24 %", ["7 %", "24 %"]),
        ("1.84 × eager, ×1.84, 1.84×", ["1.84 ×"] * 3),
        ("1,340 images/s of 12,345,678", ["1340 images/s", "12345678"]),
        ("−142 ms, +0.25 %, -3", ["-142 ms", "+0.25 %", "-3"]),
        ("3–5 blocks, 3-5 blocks", ["3", "5", "3", "5"]),
        ("4.3e-04 % and 6.5e-05", ["4.3e-04 %", "6.5e-05"]),
        ("images at 512×512, 512 × 512", ["512×512", "512×512"]),
        ("[73.5, 74.0]", ["73.5", "74.0"]),
        ("from 62 to 1 in 21.7 µs.", ["62", "1", "21.7 µs"]),
        ("$1.20 an hour", ["1.20 $"]),
        ("2.3 million, 10.9 min, 55.5 GB/s, 757 TFLOP/s", ["2.3 million", "10.9 min", "55.5 GB/s", "757 TFLOP/s"]),
        ("rows=16, 'measure.looks=[30]'", ["16", "30"]),
        ("3 stages", ["3"]),
        ("96\u202fkernels in 165\u00a0ms", ["96", "165 ms"]),
    ],
)
def test_a_number_is_a_figure_with_the_unit_beside_it(text: str, expected: list[str]) -> None:
    assert written(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "fp16, tf32, conv2d, p99, H200, sm_90a",
        "encoder.2.3 and batch-8 and ResNet-34",
        "batch8/mask_0.png",
        "torch 2.11.0+cu130, driver 580.159.04",
        "commit a9772af, 30b1ab7e",
        "2026-11-21T05:23:04+00:00, 2026-11-21, 10:33",
        "outputs/2026-11-21/10-33-12",
        "#0b6e99",
        "https://example.org/a/12?b=3",
        "the 2nd of 4u",
    ],
)
def test_names_dates_versions_and_colours_are_no_figures(text: str) -> None:
    assert written(text) == []


def test_a_figure_tells_the_words_around_it() -> None:
    assert [found.around for found in figures("It\n takes 2.24 ms a call.")] == ["It takes ⟨2.24 ms⟩ a call."]


def test_a_page_shows_its_text_and_its_charts_labels_and_no_attribute() -> None:
    found = of_page(PAGE)
    assert [str(part) for part in found["text"]] == [
        "73.9 ×",
        "8",
        "2.24 ms",
        "345 MiB",
        "2.25 in row fp8",
        "3170 in row fp8",
        "12",
    ]
    assert [str(part) for part in found["charts"]] == ["10", "20", "1.50 GiB"]


def test_markdown_shows_sentences_and_cells_and_no_list_numbers_or_link_targets() -> None:
    assert [str(part) for part in of_markdown(MARKDOWN)] == [
        "8",
        "73.9 ×",
        "73.5",
        "74.0",
        "-142 ms",
        "165 in row eager",
        "1.001 × in row eager",
        "18.2 in row channels_last",
        "9.14 × in row channels_last",
        "769 µs",
        "3.02 ms",
    ]


def test_a_tables_numbers_belong_to_their_row_and_column() -> None:
    assert of_table(TABLE) == [
        Figure("0.165", row="eager", around="p50_s: 0.165"),
        Figure("0.00224", row="fp8", around="p50_s: 0.00224"),
    ]
    assert of_table("") == []


def differences(before: str, after: str, *, units_may_move: bool = False) -> dict[str, list[str]]:
    found = compare("report.md", of_markdown(before), of_markdown(after), units_may_move=units_may_move)
    return {kind: [str(part) for part in some] for kind, some in found.differences.items() if some}


def test_other_words_and_another_order_make_no_difference() -> None:
    after = """769 µs of 3.02 ms go to copies.

| stage | ratio | median |
| --- | --- | --- |
| channels\\_last | 9.14 × | 18.2 |
| eager | 1.001 × | 165 |

At batch 8 the gain is 73.9 × (73.5 to 74.0), −142 ms.
"""
    assert differences(MARKDOWN, after) == {}


def test_a_changed_a_lost_and_a_doubled_number_are_told() -> None:
    assert differences(MARKDOWN, MARKDOWN.replace("73.9", "73.8")) == {"missing": ["73.9 ×"], "extra": ["73.8 ×"]}
    assert differences(MARKDOWN, MARKDOWN.replace("769 µs of ", "")) == {"missing": ["769 µs"]}
    assert differences("8 and 8", "8, 8 and 8") == {"extra": ["8"]}
    assert differences("9.10 ms", "9.1 ms") == {"missing": ["9.10 ms"], "extra": ["9.1 ms"]}


def test_another_unit_is_a_difference_and_a_unit_elsewhere_may_be_allowed() -> None:
    assert differences("165 ms", "165 s", units_may_move=True) == {"missing": ["165 ms"], "extra": ["165 s"]}
    assert differences("165 ms", "165") == {"missing": ["165 ms"], "extra": ["165"]}
    assert differences("165 ms", "165", units_may_move=True) == {}
    assert compare("", [Figure("165", "ms")], [Figure("165")], units_may_move=True).unit_moved == 1


def test_numbers_that_changed_rows_have_moved() -> None:
    swapped = MARKDOWN.replace("| 165 |", "| x |").replace("| 18.2 |", "| 165 |").replace("| x |", "| 18.2 |")
    assert differences(MARKDOWN, swapped) == {"moved": ["165 in row eager", "18.2 in row channels_last"]}


def test_a_row_of_another_name_has_not_moved() -> None:
    assert differences(MARKDOWN, MARKDOWN.replace("| eager |", "| the baseline |")) == {}


def drawn(folder: Path, markdown: str = MARKDOWN) -> Path:
    """A run's reports in a folder of that name."""
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "report.html").write_text(PAGE, encoding="utf-8")
    (folder / "run" / "report.md").write_text(markdown, encoding="utf-8")
    (folder / "run" / "results.csv").write_text(TABLE, encoding="utf-8")
    return folder


def test_two_equal_drawings_exit_with_0_and_say_how_many_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(drawn(tmp_path / "a")), str(drawn(tmp_path / "b"))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "run/report.html, text: 7 numbers before, 7 after: all the same",
        "run/report.html, charts: 3 numbers before, 3 after: all the same",
        "run/report.md: 11 numbers before, 11 after: all the same",
        "run/results.csv: 2 numbers before, 2 after: all the same",
        "3 files, 23 numbers before and 23 after: 0 missing, 0 extra, 0 moved",
    ]


def test_a_difference_exits_with_1_and_is_shown_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = drawn(tmp_path / "b", MARKDOWN.replace("769", "770").replace("3.02", "3.03"))
    assert main([str(drawn(tmp_path / "a")), str(after), "--show", "1"]) == 1
    out = capsys.readouterr().out
    assert "run/report.md: 11 numbers before, 11 after: 2 missing, 2 extra\n" in out
    assert "  missing 769 µs: " in out
    assert "Copy from pinned memory: ⟨769 µs⟩ of 3.02 ms." in out
    assert "  missing: 1 more\n" in out
    assert "3 files, 23 numbers before and 23 after: 2 missing, 2 extra, 0 moved\n" in out


def test_a_report_without_a_pair_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = drawn(tmp_path / "a"), drawn(tmp_path / "b")
    (after / "run" / "results.csv").rename(after / "run" / "lessons.md")
    assert main([str(before), str(after)]) == 1
    assert "only before: run/results.csv\nonly after: run/lessons.md\n" in capsys.readouterr().out


def test_nothing_to_compare_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(drawn(tmp_path / "a")), str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: no numbers to compare below ")
