"""A stage that lays nothing out and can't be built, for tests."""

from pipeline.stages.api import Runner, StageError, Workload


def build(_: Workload) -> Runner:
    """Fail, whatever the net is.

    Raises:
        StageError: always.
    """
    raise StageError("a server is busy")
