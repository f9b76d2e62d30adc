"""Fixtures for every test here."""

from tests.quick_interpreter import quick_interpreter

__all__ = ["quick_interpreter"]
