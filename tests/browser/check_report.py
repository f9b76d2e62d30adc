"""The report in a real browser, without a window: read, sorted, filtered, followed and photographed.

`make browser` runs it; it needs chromium (Debian: apt-get install chromium) and fails without one. The file's name
keeps it out of `make test`, which must pass on a machine that has no browser.
"""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.analysis.summary import summarize
from pipeline.records import codec
from pipeline.report.gallery import gallery
from pipeline.report.html import page
from pipeline.report.sections.ladder import by_time
from pipeline.report.write import write_report
from tests.report import made_up_run as made_up

DOCS = Path(__file__).parents[2] / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CONFINED = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000"]
FULL = sorted(path.parent for path in DOCS.glob("*/net/*/1/report.html"))
RECORDED = (*FULL, DOCS / "cpu" / "everything")
ANSWER = re.compile(r'<pre id="answer">(.*?)</pre>', re.DOTALL)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up run's report on disk."""
    return write_report(made_up.summary(made_up.run()), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module", params=["made-up", *RECORDED])
def any_report(request: pytest.FixtureRequest, report: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up run's report, and those of recorded runs as they are drawn today."""
    if request.param == "made-up":
        return report
    folder, packed = request.param, request.param / "results.json.xz"
    summary = summarize(made_up.recorded(packed) if packed.exists() else codec.load(folder))
    drawn = tmp_path_factory.mktemp("recorded") / "report.html"
    drawn.write_text(page(summary, gallery(summary, folder)), encoding="utf-8")
    return drawn


def browse(address: str, *options: str) -> str:
    """What chromium prints about a page."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    assert found, f"no browser: install one of {', '.join(BROWSERS)}"
    command = [found, *CONFINED, *options, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LANG": "C"})
    return done.stdout


def ask(report: Path, script: str, width: int = 1400) -> list[str]:
    """The strings that `script`, the body of a function that acts in the page as a person's hands would, comes to.

    The page lets no script run but its own, so it is shown in a frame of that width, and the script acts from outside.
    """
    page = json.dumps(report.read_text(encoding="utf-8")).replace("<", "\\u003c")
    outside = f"""<!doctype html><body><script>
      const frame = document.createElement("iframe"), answer = document.createElement("pre");
      frame.style = "width:{width}px;height:900px;border:0";
      frame.addEventListener("load", () => {{
        const act = (document, innerWidth) => {{ {script} }};
        answer.id = "answer";
        answer.textContent = JSON.stringify(act(frame.contentDocument, {width}));
        document.body.append(answer);
      }});
      frame.srcdoc = {page};
      document.body.append(frame);
    </script></body>"""
    copy = report.with_name("asked.html")
    copy.write_text(outside, encoding="utf-8")
    said = ANSWER.search(browse(f"file://{copy}", "--dump-dom", "--window-size=1500,1000"))
    assert said, "the page's script did not come to its end"
    return [str(part) for part in json.loads(html.unescape(said[1]))]


NAMES = (
    '[...document.querySelectorAll("#ladder-table tbody tr")].filter(r => !r.hidden).map(r => r.cells[0].dataset.key)'
)
CLICK = 'const sort = () => document.querySelectorAll("#ladder-table th button")[1].click();'
OPEN_ALL = 'document.querySelectorAll("details").forEach(part => part.open = true);'
WIDTHS = (1400, 390)  # a desk and a phone
MOST_SCREENS, SCREEN = 10, 900  # unfolded at 1400 px
TALLEST = 3000  # pixels of any one element within the page, with all parts opened
# A stage on a phone may take five screens: its facts, how to use it and up to six folded parts, of which each table or
# list has a box of a third of a screen. Shorter, it would leave out what was measured, or show a row or two at a time.
TALLEST_STAGE_ON_A_PHONE = 4500


def test_a_click_sorts_the_ladder_and_a_third_brings_its_order_back(report: Path) -> None:
    ladder = [stage.name for stage in by_time(made_up.summary(made_up.run()))]
    assert ask(report, f"{CLICK} sort(); return {NAMES}")[:3] == ["eager", "tf32", "channels_last"]
    down = ask(report, f"{CLICK} sort(); sort(); return {NAMES}")
    assert down[:2] == ["compile", "onnxruntime"]
    assert set(down[-3:]) == {"crashed", "hung", "black"}
    assert ask(report, f"{CLICK} sort(); sort(); sort(); return {NAMES}") == ladder


def test_typing_filters_the_ladder(report: Path) -> None:
    script = f"""const input = document.querySelector("input[data-filters=ladder-table]");
      input.value = "GRAPH"; input.dispatchEvent(new Event("input")); return {NAMES}"""
    assert ask(report, script) == ["cuda_graph"]


def test_every_link_is_followed_to_something_seen(report: Path) -> None:
    script = f"""{OPEN_ALL} return [...document.querySelectorAll("a[href^='#']")].filter(link => {{
      const target = document.getElementById(link.hash.slice(1));
      return !target || !target.getBoundingClientRect().height;
    }}).map(link => link.hash)"""
    assert ask(report, script) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_keyboard_reaches_whatever_a_mouse_does_and_stops_nowhere_else(any_report: Path, width: int) -> None:
    script = f"""{OPEN_ALL} document.defaultView.dispatchEvent(new Event("resize"));
      const seen = selector => [...document.querySelectorAll(selector)].filter(part => part.checkVisibility());
      const deaf = part => {{ part.focus(); return document.activeElement !== part; }};
      const scrolls = part => part.scrollWidth > part.clientWidth + 1 || part.scrollHeight > part.clientHeight + 1;
      return [...seen("th button, a, summary, input").filter(deaf),
        ...seen(".scroll, .long, .chart, pre").filter(part => scrolls(part) !== (part.tabIndex === 0))]
          .map(part => part.outerHTML)"""
    assert ask(any_report, script, width) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_and_nothing_is_endless_with_all_opened(any_report: Path, width: int) -> None:
    """Tables and code scroll in boxes of at most a screen; nothing else that the page holds is longer than three.

    What lies in such a box may be longer, as a table of all kernels is; on a phone a stage may, see above.
    """
    script = f"""{OPEN_ALL}
      const boxes = ".scroll, .long, pre", height = part => part.getBoundingClientRect().height;
      const most = part => part.matches(boxes) ? {SCREEN}
        : part.matches(".stage") && innerWidth < 500 ? {TALLEST_STAGE_ON_A_PHONE} : {TALLEST};
      const long = [...document.querySelectorAll("main *")].filter(part =>
        !part.parentElement.closest(boxes) && height(part) > most(part));
      const wide = document.documentElement.scrollWidth > innerWidth ? [document.documentElement.scrollWidth] : [];
      return [...wide, ...long.map(part => `${{part.tagName}}.${{part.className}} ${{height(part)}}`)]"""
    assert ask(any_report, script, width) == []


def test_a_stage_with_its_parts_folded_is_no_longer_than_anything_else_on_a_phone(any_report: Path) -> None:
    script = f"""document.querySelectorAll("main > .part").forEach(part => part.open = true);
      return [...document.querySelectorAll(".stage")].map(part => part.getBoundingClientRect().height)
        .filter(height => height > {TALLEST})"""
    assert ask(any_report, script, 390) == []


def test_the_page_is_ten_screens_long_at_most(report: Path) -> None:
    (height,) = ask(report, "return [document.documentElement.scrollHeight]")
    assert int(height) <= MOST_SCREENS * SCREEN


def test_the_ladder_shows_all_its_rows_and_columns_at_a_desk(any_report: Path) -> None:
    script = """const box = document.getElementById("ladder-table").parentElement;
      frame.style.height = "300px";
      return [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight]"""
    assert ask(any_report, script) == ["0", "0"]


def test_the_answer_the_choices_and_how_to_use_the_winner_are_on_the_first_screen(report: Path) -> None:
    below = """return ["%s"].flatMap(names => names.split(" ")).filter(id =>
      document.querySelector(id).getBoundingClientRect().bottom > 900)"""
    assert ask(report, below % "h1 .numbers #choices-table #use") == []
    assert ask(report, below % "h1 .numbers", 390) == []


def test_marks_of_charts_can_be_told_from_the_paper(report: Path) -> None:
    """A contrast of 3 : 1 at least, of every colour that bars and dots take, by the style sheet's own variables."""
    script = """const style = getComputedStyle(document.documentElement), probe = document.createElement("i");
      document.body.append(probe);
      const light = name => { probe.style.color = `var(${name})`;
        const parts = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number).map(part => part / 255)
          .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };
      const names = ["--accent", "--tied", "--bar", "--bad", ..."01234567".split("").map(n => `--k${n}`)];
      const low = name => { const [a, b] = [light(name), light("--card")].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05) < 3; };
      return names.filter(low)"""
    assert ask(report, script) == []


def test_nothing_hidden_in_a_record_ran(report: Path) -> None:
    assert ask(report, 'return [...document.querySelectorAll("[onerror], img")].map(part => part.outerHTML)') == []


def test_it_is_light_by_day_and_dark_by_night(report: Path, tmp_path: Path) -> None:
    views = {"light": (), "dark": ("--force-dark-mode",), "narrow": ("--window-size=500,900",)}
    brightness = {}
    for name, options in views.items():
        picture = tmp_path / f"{name}.png"
        browse(f"file://{report}", f"--screenshot={picture}", "--window-size=1200,2000", *options)
        brightness[name] = float(np.asarray(Image.open(picture).convert("L")).mean())
    assert brightness["light"] > 200
    assert brightness["narrow"] > 200
    assert brightness["dark"] < 60
