"""The report in a real browser, without a window: read, sorted, filtered, followed and photographed.

`make browser` runs it; it needs chromium (Debian: apt-get install chromium) and fails without one. The file's name
keeps it out of `make test`, which must pass on a machine that has no browser.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.report.write import write_report
from tests.report import made_up_run as planted

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CONFINED = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000"]
ANSWER = re.compile(r'<pre id="answer">(.*?)</pre>', re.DOTALL)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted run's report on disk."""
    return write_report(planted.summary(planted.run()), tmp_path_factory.mktemp("run"))


def browse(address: str, *options: str) -> str:
    """What chromium prints about a page."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    assert found, f"no browser: install one of {', '.join(BROWSERS)}"
    command = [found, *CONFINED, *options, address]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "LANG": "C"}
    )
    return done.stdout


def ask(report: Path, script: str, *options: str, mark: str = "") -> list[str]:
    """The strings that `script`, an expression run in the page as a person's hands would act, comes to."""
    page = report.read_text(encoding="utf-8")
    act = f"""<script>addEventListener("load", () => {{
      const found = (() => {{ {script} }})(), answer = document.createElement("pre");
      answer.id = "answer"; answer.textContent = JSON.stringify(found); document.body.append(answer);
    }});</script>"""
    copy = report.with_name("asked.html")
    copy.write_text(page.replace("</body>", f"{act}</body>"), encoding="utf-8")
    said = ANSWER.search(browse(f"file://{copy}{mark}", "--dump-dom", *options))
    assert said, "the page's script did not come to its end"
    return [str(part) for part in json.loads(said[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))]


NAMES = (
    '[...document.querySelectorAll("#ladder-table tbody tr")].filter(r => !r.hidden).map(r => r.cells[0].dataset.key)'
)
CLICK = 'const sort = () => document.querySelectorAll("#ladder-table th button")[2].click();'


def test_a_click_sorts_the_ladder_and_a_third_brings_its_order_back(report: Path) -> None:
    """Ascending, descending, the ladder's; those without a ratio stay last."""
    ladder = [stage.name for stage in planted.run().stages]
    assert ask(report, f"{CLICK} sort(); return {NAMES}")[:3] == ["eager", "tf32", "channels_last"]
    down = ask(report, f"{CLICK} sort(); sort(); return {NAMES}")
    assert down[:2] == ["compile", "onnxruntime"]
    assert set(down[-4:]) == {"crashed", "hung", "absent", "black"}
    assert ask(report, f"{CLICK} sort(); sort(); sort(); return {NAMES}") == ladder


def test_typing_filters_the_ladder(report: Path) -> None:
    """Any text of a line counts."""
    script = f"""const input = document.querySelector("input[data-filters=ladder-table]");
      input.value = "GRAPH"; input.dispatchEvent(new Event("input")); return {NAMES}"""
    assert ask(report, script) == ["cuda_graph"]


def test_every_link_is_followed_to_something_seen(report: Path) -> None:
    """The targets exist and take up room."""
    script = """return [...document.querySelectorAll("a[href^='#']")].filter(link => {
      const target = document.querySelector(link.hash); return !target || !target.getBoundingClientRect().height;
    }).map(link => link.hash)"""
    assert ask(report, script) == []


def test_the_keyboard_reaches_whatever_a_mouse_does(report: Path) -> None:
    """Titles that sort are buttons, scrolling regions take the focus, and so does every link."""
    script = """const shown = [...document.querySelectorAll("th button, .scroll, .chart, a, summary, input")]
      .filter(part => part.checkVisibility());
      const deaf = part => { part.focus(); return document.activeElement !== part; };
      return shown.filter(deaf).map(part => part.outerHTML)"""
    assert ask(report, script) == []


def test_a_narrow_page_scrolls_its_tables_and_never_itself(report: Path) -> None:
    """Nothing sticks out of a phone's width."""
    script = "return [document.documentElement.scrollWidth <= innerWidth, innerWidth < 600]"
    assert ask(report, script, "--window-size=500,900") == ["True", "True"]


def test_nothing_planted_in_a_record_ran(report: Path) -> None:
    """An alert would have held the page up; an onerror would have left its element."""
    assert ask(report, 'return [...document.querySelectorAll("[onerror], img")].map(part => part.outerHTML)') == []


def test_it_is_light_by_day_and_dark_by_night(report: Path, tmp_path: Path) -> None:
    """Screenshots in light, dark and narrow."""
    views = {"light": (), "dark": ("--force-dark-mode",), "narrow": ("--window-size=500,900",)}
    brightness = {}
    for name, options in views.items():
        picture = tmp_path / f"{name}.png"
        browse(f"file://{report}", f"--screenshot={picture}", "--window-size=1200,2000", *options)
        brightness[name] = float(np.asarray(Image.open(picture).convert("L")).mean())
    assert brightness["light"] > 200
    assert brightness["narrow"] > 200
    assert brightness["dark"] < 60
