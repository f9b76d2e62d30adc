"""Fixtures for every test here."""

from tests.process_state import process_switches

__all__ = ["process_switches"]
