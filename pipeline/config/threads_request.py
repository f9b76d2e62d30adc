"""How many threads a run on a CPU may have."""

from pipeline.config.request_error import RequestError
from pipeline.devices.host import processors


def check_threads(threads: int | None) -> None:
    """That each thread has a processor: more of them wait for each other, a thousand on two processors for minutes.

    Raises:
        RequestError: there are fewer processors.
    """
    if threads is not None and threads > (most := processors()):
        found = f"{most} processor{'' if most == 1 else 's'}"
        raise RequestError(
            f"threads={threads}: this program may use {found}; expected at most {most}, or null for torch's own choice"
        )
