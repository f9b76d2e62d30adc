"""report.html: one file that needs no network. A summary in, a string out; everything from a record is escaped."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.codec import to_json
from pipeline.report import formatting
from pipeline.report.formatting import templates
from pipeline.report.gallery import Gallery
from pipeline.report.markdown import SHOWN, explaining
from pipeline.report.sections import fusion, host, layout, memory, roofline, stage

TEMPLATES = Path(__file__).parent / "templates"
UNIT = re.compile(r"(?<=\d) (?=(?:[%×]|[µm]?s|min|[GMK]iB|TFLOP/s|TB/s|GB/s)(?!\w))")  # no line ends here


@cache
def environment() -> Environment:
    """Return the templates of pages, with what they need."""
    found = templates(of_pages=True)
    script = Markup((TEMPLATES / "page.js").read_text(encoding="utf-8").strip())  # noqa: S704 - our own file
    digest = b64encode(sha256(script.encode()).digest()).decode()
    found.globals |= {"format": formatting, "plural": plural, "script": script, "script_hash": f"sha256-{digest}"}
    found.filters |= {"file": linked, "exactly": exactly, "tied": tied}
    return found


def tied(text: str) -> str:
    """Keep each number beside its unit: no line ends between them."""
    return UNIT.sub("\u00a0", text)


def exactly(text: str) -> Markup:
    """Return text to be copied: no character of it is changed, but for those that hide."""
    return escape(formatting.readable(text))


@pass_context
def linked(context: Context, path: str) -> Markup:
    """Return a link to a file of the run's folder that is `present`; any other path stays text."""
    if context["present"](path) and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", path):
        return Markup('<a href="{0}">{0}</a>').format(path)
    return exactly(path)


def page(
    summary: RunSummary, masks: Gallery | None = None, present: Callable[[str], bool] = lambda path: path != "check.py"
) -> str:
    """Return the report of one run; a file is a link if it is `present`, by its path within the folder."""
    template = environment().get_template("report.html.j2")
    return template.render(
        SHOWN,
        **{module.__name__.rpartition(".")[2]: module for module in (fusion, host, layout, memory, roofline, stage)},
        summary=summary,
        masks=masks or Gallery(),
        present=present,
        explanations=explaining(summary),
        config=json.dumps(to_json(summary.run.config), indent=1, ensure_ascii=False),
    )
