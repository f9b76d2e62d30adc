"""Known vulnerabilities of the pins: `python -m tests.house.audit constraints/python3.11.txt`, by `make audit`.

pip-audit calls a package that its index knows nothing of "skipped", and leaves with 0: where an index has no advisories
at all, everything would seem to be well.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

WELL, VULNERABLE, UNREACHED = 0, 1, 3
MOST_NAMED = 5


class Audited(NamedTuple):
    """What pip-audit found of some pins."""

    vulnerable: list[str]  # "name version: advisory, advisory"
    skipped: list[str]  # names that nothing is known of
    known: int  # how many something is known of


Ask = Callable[[list[str]], Audited]


def read(text: str) -> Audited:
    """Of what it wrote as JSON.

    Raises:
        ValueError: that is none.
    """
    parts = json.loads(text)["dependencies"]
    known = [part for part in parts if "skip_reason" not in part]
    wrong = [
        f"{part['name']} {part['version']}: {', '.join(each['id'] for each in part['vulns'])}"
        for part in known
        if part["vulns"]
    ]
    return Audited(wrong, [part["name"] for part in parts if "skip_reason" in part], len(known))


def asked(pins: list[str]) -> Audited:
    """What pip-audit says of the pins; errors as of `read`, and where it isn't there, or can't reach its data."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        done = subprocess.run(
            [*command, "--format", "json", "--requirement", file.name], capture_output=True, text=True, check=False
        )
    if not done.stdout.strip():
        said = done.stderr.strip().splitlines() or ["no word"]
        raise ValueError(said[-1])
    return read(done.stdout)


def audit_line(pins: list[str], ask: Ask = asked) -> tuple[int, str]:
    """The exit code and its line; the first pin is asked alone: an index without advisories is asked no more."""
    try:
        first = ask(pins[:1])
        found = ask(pins) if first.known else first
    except ValueError as error:
        return UNREACHED, f"nothing was audited: {error}"
    if not found.known:
        return UNREACHED, f"nothing was audited: the index knows no advisories, not even of {', '.join(found.skipped)}"
    more = (
        f"; nothing is known of {len(found.skipped)}: {', '.join(found.skipped[:MOST_NAMED])}" if found.skipped else ""
    )
    if found.vulnerable:
        return (
            VULNERABLE,
            f"{len(found.vulnerable)} of {found.known} are vulnerable: {'; '.join(found.vulnerable)}{more}",
        )
    return WELL, f"no known vulnerability in {found.known} packages{more}"


def pins_of(path: Path) -> list[str]:
    """The lines of a file of pins that name a package."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if "==" in line]


def main() -> int:
    """Audit the file of pins that is named."""
    code, line = audit_line(pins_of(Path(sys.argv[1])))
    sys.stdout.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
