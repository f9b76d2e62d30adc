"""Allow one run at a time on a GPU, by a lock on the GPU's UUID among this user's runs on this machine.

Other users' processes can't be locked out; the record names those that NVML sees on the GPU.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pipeline.config.request_error import RequestError
from pipeline.orchestrate.interruption import waiting
from pipeline.records.disk import open_lock, private_folder

WhenBusy = Literal["wait", "refuse", "share"]
MOST_HOLDER_BYTES = 4096


def lock_folder() -> Path:
    """Return the folder of this user's locks."""
    home = os.environ.get("XDG_RUNTIME_DIR")
    return Path(home, "unet-ladder") if home else Path(tempfile.gettempdir(), f"unet-ladder-{os.getuid()}")


@contextmanager
def held(
    uuid: str, run: Path, when_busy: WhenBusy, say: Callable[[str], None], place: Path | None = None
) -> Iterator[str]:
    """Hold the GPU inside the block; give a note for the record, empty if the GPU isn't shared."""
    try:
        descriptor = open_lock(private_folder(place or lock_folder()) / f"{uuid}.lock")
    except OSError as error:
        yield f"the GPU could not be locked ({error.strerror or error}): another run may use it, too"
        return
    try:
        note = _take(descriptor, when_busy, say)
        if not note:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}, {run}".encode(), 0)
        yield note
    finally:
        os.close(descriptor)


def _take(descriptor: int, when_busy: WhenBusy, say: Callable[[str], None]) -> str:
    """Take the lock as `when_busy` says; return a note if the GPU is shared."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, MOST_HOLDER_BYTES, 0).decode(errors="replace") or "an unknown process"
        if when_busy == "refuse":
            raise RequestError(
                f"another run holds the GPU: {holder}; gpu_busy=wait waits for it, gpu_busy=share measures beside it"
            ) from None
        if when_busy == "share":
            return f"another run holds the GPU: {holder}; both were measured side by side (gpu_busy=share)"
        say(f"waiting for another run on this GPU: {holder}")
        with waiting():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    return ""
