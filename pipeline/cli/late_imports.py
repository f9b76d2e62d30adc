"""What only the end of a run needs: imported at its beginning, where the run waits for what its workers import."""

from contextlib import suppress
from importlib import import_module
from threading import Thread

# Of intervals between two stages, and of the report's charts; two to three seconds.
LATE = ("scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")


def begin(names: tuple[str, ...] = LATE) -> Thread:
    """Import these modules in a thread; one that can't be is told of by whoever uses it."""
    thread = Thread(target=_imported, args=(names,), daemon=True)
    thread.start()
    return thread


def _imported(names: tuple[str, ...]) -> None:
    with suppress(ImportError):
        for name in names:
            import_module(name)
