"""Threads that encode masks, and one that gives their names to all masks that are on disk."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from pipeline.config.request_error import RequestError
from pipeline.errors import ImageError
from pipeline.predict import mask_files
from pipeline.predict.cases import Case
from pipeline.predict.mask_files import PLAIN, PNG, InputFile, Look
from pipeline.predict.report import Outcome

BYTES_WAITING = 2**28  # of masks that aren't written yet


class MaskWriter:
    """Writes masks in threads; `close` waits for the last.

    One sync serves all masks that were written since the one before it.

    Args:
        folder: of the masks.
        stage: that made them.
        made_by: digest of all that its answers depend on.
        threads: that encode.
        outcome: is told what was made, and what failed.
        look: of the masks.
    """

    def __init__(
        self, folder: Path, stage: str, made_by: str, threads: int, outcome: Outcome, look: Look = PLAIN
    ) -> None:
        self.folder = folder
        self.stage = stage
        self.made_by = made_by
        self.outcome = outcome
        self.look = look
        self.encoding = ThreadPoolExecutor(threads, "encoding")
        self.naming = ThreadPoolExecutor(1, "naming")
        self.room = threading.Condition()
        self.bytes_waiting = 0
        self.unnamed: list[tuple[Case, int]] = []
        self.error: BaseException | None = None

    def take(
        self, case: Case, labels: np.ndarray, inputs: Sequence[InputFile], shown: np.ndarray | None = None
    ) -> None:
        """Write a mask, and `shown` under it, in a thread, and wait while too much waits.

        Raises:
            OSError: an earlier mask could not be written: the disk is full or read-only.
        """
        with self.room:
            while self.bytes_waiting and self.bytes_waiting + labels.nbytes > BYTES_WAITING and not self.error:
                self.room.wait()
            self.bytes_waiting += labels.nbytes
        if self.error:
            raise self.error
        self.encoding.submit(self.encode, case, labels, inputs, shown)

    def encode(self, case: Case, labels: np.ndarray, inputs: Sequence[InputFile], shown: np.ndarray | None) -> None:
        """Write a mask and its sidecar under provisional names."""
        mask = self.folder / case.mask
        try:
            mask_files.write(labels, mask, case.files[0], self.stage, self.made_by, inputs, look=self.look, shown=shown)
            if mask.suffix == PNG and not self.look.palette:
                self.outcome.largest = max(self.outcome.largest, int(labels.max()))
        except (ImageError, MemoryError) as error:
            self.outcome.failed[case.name] = case.reason(error)
            mask_files.remove(mask)
            self.forget(labels.nbytes)
        except BaseException as error:  # noqa: BLE001 - raised by `take` or `close` in the calling thread
            self.error = self.error or error
            if isinstance(error, OSError) and error.filename is None:
                self.error = RequestError(f"{mask}: {error.strerror or error}")
            self.forget(labels.nbytes)
        else:
            self.unnamed.append((case, labels.nbytes))
            self.naming.submit(self.give_names)

    def forget(self, written: int) -> None:
        """Let `take` go on: these bytes wait no longer."""
        with self.room:
            self.bytes_waiting -= written
            self.room.notify_all()

    def give_names(self) -> None:
        """Sync all masks that have been written, and give them their names."""
        ready, self.unnamed = self.unnamed, []
        if not ready:
            return
        try:
            mask_files.give_names([self.folder / case.mask for case, _ in ready])
            self.outcome.made.extend(case.name for case, _ in ready)
            self.outcome.rate.made(len(ready))
        except BaseException as error:  # noqa: BLE001 - raised by `take` or `close` in the calling thread
            self.error = self.error or error
        self.forget(sum(size for _, size in ready))

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until every mask that was taken has its name.

        Raises:
            OSError: as `take`.
        """
        self.encoding.shutdown()
        self.naming.shutdown()
        if self.error and error is None:
            raise self.error
