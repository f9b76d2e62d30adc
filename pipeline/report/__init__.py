"""Reports of runs and sweeps: HTML, Markdown, CSV and the terminal, all from a summary."""

from pathlib import Path
from typing import Any

import yaml

PAGE, TEXT, TABLE = DRAWN = ("report.html", "report.md", "results.csv")
WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))  # by module and name
