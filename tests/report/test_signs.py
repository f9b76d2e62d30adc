"""Signs that a terminal would obey or that turn a text's direction, in every text of a record: none is ever shown."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline import compare as comparison
from pipeline.analysis import run_comparison
from pipeline.analysis.sweeps import Job
from pipeline.cli.progress import Progress, print_error
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from pipeline.report import write as redraw
from pipeline.report.csv_table import csv_text
from pipeline.report.formatting import clean, readable, visible
from pipeline.report.html import environment, page
from pipeline.report.markdown import markdown
from pipeline.report.sweep import sweep_csv, sweep_texts
from pipeline.report.terminal import first_screen
from tests.report import made_up_run as made_up

CONTROL = "".join(map(chr, [*range(9), 11, 12, *range(14, 32), *range(127, 160)]))  # C0 and C1 without ends of line
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # UAX 9
HIDING = "\u200b\u2028\u2029\ufeff\U000e0041"
LINK = "\x1b]8;;http://elsewhere/\x1b\\click\x1b]8;;\x1b\\"  # OSC 8
MARKUP = "<script><img>"
HOSTILE = f"x\r\n```\n# y {MARKUP} {CONTROL}{TURNING}{HIDING}{LINK}"
SHOWN = re.compile(f"[{re.escape(CONTROL + TURNING + HIDING)}]")


@cache
def hostile_run() -> RunRecord:
    """The made-up run with `HOSTILE` at the end of every text that may be any."""
    run = made_up.run()
    plain = codec.to_json(replace(run, stages=[run.stages[at] for at in (0, 7, -1, -2)]))
    fixed: set[str] = {"started_at", "baseline", "first", "second"}
    for _ in range(30):
        try:
            return codec.from_json(RunRecord, spoilt(plain, fixed))
        except ValueError as error:
            fixed.add(re.findall(r"\.(\w+)", str(error))[-1])  # a fixed word is wanted there, as the path says
    raise AssertionError(f"no record can be made; fixed are {sorted(fixed)}")


def spoilt(value: Any, fixed: set[str], key: str = "") -> Any:
    """Plain JSON values with more at the end of their texts, but for those under a key of `fixed`."""
    if isinstance(value, dict):
        return {name: spoilt(part, fixed, name) for name, part in value.items()}
    if isinstance(value, list):
        return [spoilt(part, fixed, key) for part in value]
    return value + HOSTILE if isinstance(value, str) and key not in fixed else value


def job(run: RunRecord) -> Job:
    return Job(Path("0"), made_up.summary(run), HOSTILE)


def compared(run: RunRecord, form: Any) -> str:
    return form(run_comparison.compare(run, made_up.run()), run_comparison.differences(run, made_up.run()))


RENDERED = {
    "page": lambda run: page(made_up.summary(run)),
    "Markdown": lambda run: markdown(made_up.summary(run)),
    "CSV": lambda run: csv_text(made_up.summary(run)),
    "terminal": lambda run: made_up.printed(first_screen(made_up.summary(run))),
    "sweep's page": lambda run: sweep_texts([job(run)])[0],
    "sweep's Markdown": lambda run: sweep_texts([job(run)])[1],
    "sweep's CSV": lambda run: sweep_csv([job(run)]),
    "comparison": lambda run: compared(run, comparison.text),
    "comparison's Markdown": lambda run: compared(run, comparison.markdown),
}


@pytest.mark.parametrize("form", RENDERED)
def test_no_form_of_a_report_shows_them(form: str) -> None:
    found = SHOWN.search(text := RENDERED[form](hostile_run()))
    assert not found, text[max(0, found.start() - 80) : found.end() + 20].encode("unicode_escape")


@pytest.mark.parametrize("form", ["page", "Markdown", "sweep's page", "sweep's Markdown", "comparison's Markdown"])
def test_no_text_of_a_record_is_markup(form: str) -> None:
    text = RENDERED[form](hostile_run())
    text = text if "page" in form else re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)  # code is text
    assert text.count("<script>") == ("page" in form), "a page has its own"
    assert "<img>" not in text


def test_no_text_ends_a_block_of_code_in_markdown() -> None:
    assert "\n# y" not in RENDERED["Markdown"](hostile_run())


@pytest.mark.parametrize("there", [True, False])
def test_no_path_on_a_page_shows_them(there: bool) -> None:
    shown = environment().from_string("{{ path | file }}").render(path=HOSTILE, present=lambda _: there)
    assert not SHOWN.search(shown)


def test_every_sign_has_its_answer() -> None:
    for sign in CONTROL + TURNING + HIDING + "\r":
        assert visible(f"a{sign}b") == "a b"
        assert clean(f"a{sign}b") == "a b"
        assert readable(f"a{sign}b") == "a\ufffdb"


def test_progress_and_error_lines_hold_none(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1) as progress:
        progress.stage_started(HOSTILE, HOSTILE)
        progress.phase_entered(HOSTILE, HOSTILE, HOSTILE)
    print_error(HOSTILE)
    assert not SHOWN.search(capsys.readouterr().err)


def test_a_bad_record_is_told_of_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / f"run{LINK.replace('/', '')}"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"schema_version": 5, HOSTILE: HOSTILE}))
    assert redraw.main([str(folder)]) == 2
    assert comparison.main([str(folder), str(folder)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 2
    assert not SHOWN.search(said.err + said.out)
