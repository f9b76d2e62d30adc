"""`python -m tests.house.size`: lines and files of each package, with its budget; exit code 1 above a limit."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGETS: dict[tuple[str, ...], int] = {
    ("models",): 2200,
    ("pipeline/cli", "pipeline/config"): 2000,
    ("pipeline/inputs",): 1500,
    ("pipeline/records",): 2000,
    ("pipeline/orchestrate",): 2400,
    ("pipeline/worker", "pipeline/measure", "pipeline/profiling", "pipeline/devices"): 6600,
    ("pipeline/stages",): 3000,
    ("pipeline/compiler", "pipeline/kernels"): 14000,
    ("pipeline/stats", "pipeline/analysis", "pipeline/report"): 8500,
    ("pipeline/export", "pipeline/predict", "pipeline/serve"): 6000,  # with all that predict and serve will do
    ("pipeline/slim",): 1500,
    ("pipeline/lessons", "pipeline/notebook"): 2600,
}
MOST_LINES, MOST_FILES = 52_000, 350  # with every planned feature
MOST_TEST_LINES = 45_000  # the goal; never more lines than the source has


def size(*folders: str) -> tuple[int, int]:
    """Return the lines and the number of Python files below the folders."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files), len(files)


def main() -> int:
    """Print the table, and return 1 where the whole is above a limit."""
    for folders, budget in BUDGETS.items():
        lines, files = size(*folders)
        over = "  over" if lines > budget else ""
        names = ", ".join(folder.removeprefix("pipeline/") for folder in folders)
        sys.stdout.write(f"{names:38} {lines:6,} of {budget:6,} lines {files:4} files{over}\n")
    lines, files = size("pipeline", "models")
    test_lines, test_files = size("tests")
    sys.stdout.write(f"{'source':38} {lines:6,} of {MOST_LINES:6,} lines {files:4} of {MOST_FILES} files\n")
    sys.stdout.write(f"{'tests':38} {test_lines:6,} of {MOST_TEST_LINES:6,} lines {test_files:4} files\n")
    return int(lines > MOST_LINES or files > MOST_FILES or test_lines > min(lines, MOST_TEST_LINES))


if __name__ == "__main__":
    sys.exit(main())
