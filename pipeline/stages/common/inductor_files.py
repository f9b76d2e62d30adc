"""Where Inductor's files lie; apart from `inductor`, whose imports take seconds that most stages need not spend."""

from pathlib import Path

KEPT = "generated"  # the folder of the stage that the files go to
CACHE = "inductor"  # the folder of the stage's caches that is Inductor's


def programs(cache: Path) -> list[Path]:
    """The programs that define and call the kernels."""
    files = (path for path in cache.rglob("*.py") if path.is_file())
    return sorted(path for path in files if b"async_compile" in path.read_bytes())


def graphs(cache: Path) -> list[Path]:
    """The graphs as text."""
    return sorted(cache.glob("graph_*.txt"))
