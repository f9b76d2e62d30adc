"""What the program is made of, as CycloneDX: `python -m tests.house.sbom constraints/python3.12.txt`.

Names and versions are those that `make run` and `make test` install; for licences and digests ask the packages' index.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)(\s*;.*)?")


def components(pins: str) -> list[dict[str, str]]:
    """One component for each pin `name==version`, with its package URL (https://github.com/package-url/purl-spec).

    Raises:
        ValueError: a line is no pin.
    """
    found = []
    for line in (line.strip() for line in pins.splitlines()):
        if not line or line.startswith("#"):
            continue
        pin = PIN.fullmatch(line)
        if pin is None:
            raise ValueError(f"{line!r}: not a pin, name==version")
        name = re.sub(r"[-_.]+", "-", pin[1]).lower()
        purl = f"pkg:pypi/{name}@{pin[2].replace('+', '%2B')}"
        found.append({"type": "library", "bom-ref": purl, "name": name, "version": pin[2], "purl": purl})
    return found


def bill(pins: str, project: dict[str, str]) -> dict[str, object]:
    """The whole bill (CycloneDX 1.6) of a project, as its table in pyproject.toml describes it."""
    described = {"type": "application", "name": project["name"], "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": described},
        "components": components(pins),
    }


def main(arguments: list[str]) -> int:
    """Write the bill of one file of pins to stdout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pins,) = arguments
    sys.stdout.write(json.dumps(bill(Path(pins).read_text(encoding="utf-8"), project), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
