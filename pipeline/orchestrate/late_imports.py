"""What only the end of a run needs: imported at its beginning, while the fork server imports what the workers need."""

from contextlib import suppress
from importlib import import_module

# Of intervals between two stages, and of the report's charts; two to three seconds.
LATE = ("scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")


def import_late(names: tuple[str, ...] = LATE) -> None:
    """Import these modules; of one that isn't there whoever needs it tells."""
    with suppress(ImportError):
        for name in names:
            import_module(name)
