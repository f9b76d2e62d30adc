"""Fixtures for every test here."""

from tests.report.charts_once import charts_once, fresh_charts

__all__ = ["charts_once", "fresh_charts"]
