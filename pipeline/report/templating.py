"""The templates of this package: those of pages escape what they are given, the others are plain text."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report.formatting import clean, readable


@cache
def templates(*, of_pages: bool) -> Environment:
    """Return the templates; those of pages escape all but our own charts, and make every character visible."""
    loader = PackageLoader("pipeline.report")  # what is no page is Markdown or code, which escape otherwise
    found = Environment(loader=loader, autoescape=of_pages, undefined=StrictUndefined, finalize=seen)  # noqa: S701
    found.filters["clean"] = clean
    found.trim_blocks = found.lstrip_blocks = True
    found.keep_trailing_newline = not of_pages
    return found


def seen(value: object) -> object:
    """Return a string without characters that hide or turn its direction; our own markup as it is."""
    return readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
