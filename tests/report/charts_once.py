"""A fixture that draws each chart once for all tests: charts are pure functions, and a page takes a dozen of them."""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import FunctionType, ModuleType

import pytest

from pipeline.report import sections, sweep

CHARTS = "pipeline.report.charts."
DRAWN: dict[tuple[str, str], str] = {}


def once(draw: Callable[..., str]) -> Callable[..., str]:
    """The same chart for the same arguments, from the second time on without drawing it."""

    def drawn(*values: object, **named: object) -> str:
        key = f"{draw.__module__}.{draw.__name__}", repr((values, named))
        if key not in DRAWN:
            DRAWN[key] = draw(*values, **named)
        return DRAWN[key]

    return drawn


def users_of_charts() -> list[ModuleType]:
    """The modules that draw."""
    found = pkgutil.iter_modules(sections.__path__, f"{sections.__name__}.")
    return [sweep, *(import_module(module.name) for module in found)]


@pytest.fixture
def fresh_charts() -> None:
    """For a test that is about drawing itself."""


@pytest.fixture(autouse=True)
def charts_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of every chart function that a module has imported."""
    if "fresh_charts" in request.fixturenames:
        return
    for module in users_of_charts():
        for name, value in vars(module).copy().items():
            if isinstance(value, FunctionType) and value.__module__.startswith(CHARTS):
                monkeypatch.setattr(module, name, once(value))
