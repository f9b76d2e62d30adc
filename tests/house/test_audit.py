"""An audit that audited nothing is no audit that found nothing."""

import json

import pytest

from tests.house.audit import UNREACHED, VULNERABLE, WELL, Audited, audit_line, read

PINS = ["a==1", "b==2", "c==3"]


def told(wrong: list[str], skipped: list[str]) -> str:
    """What pip-audit writes."""
    parts = [{"name": name, "version": "1", "vulns": [{"id": "PYSEC-1"}] if name in wrong else []} for name in "abc"]
    return json.dumps({"dependencies": [*parts, *({"name": name, "skip_reason": "not found"} for name in skipped)]})


def test_what_pip_audit_writes_is_read() -> None:
    assert read(told(["b"], ["d"])) == Audited(["b 1: PYSEC-1"], ["d"], 3)


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (Audited([], ["a"], 0), UNREACHED, "nothing was audited: the index knows no advisories, not even of a"),
        (Audited([], [], 3), WELL, "no known vulnerability in 3 packages"),
        (Audited([], ["c"], 2), WELL, "no known vulnerability in 2 packages; nothing is known of 1: c"),
        (Audited(["b 2: PYSEC-1"], [], 3), VULNERABLE, "1 of 3 are vulnerable: b 2: PYSEC-1"),
    ],
)
def test_each_end_has_a_line_and_a_code(found: Audited, code: int, said: str) -> None:
    assert audit_line(PINS, lambda _: found) == (code, said)


def test_an_index_without_advisories_is_asked_once() -> None:
    """And one that can't be reached is said so."""
    asked: list[list[str]] = []

    def nothing(pins: list[str]) -> Audited:
        asked.append(pins)
        return Audited([], pins, 0)

    audit_line(PINS, nothing)
    assert asked == [["a==1"]]

    def unreached(_: list[str]) -> Audited:
        raise ValueError("no route to host")

    assert audit_line(PINS, unreached) == (UNREACHED, "nothing was audited: no route to host")
