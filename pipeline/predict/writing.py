"""Masks on their way to disk: workers encode them, and one at a time names all that are written."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from pipeline.config.request_error import RequestError
from pipeline.errors import ImageError
from pipeline.predict import mask_files
from pipeline.predict.cases import Case
from pipeline.predict.mask_files import PNG, InputFile, Maker
from pipeline.predict.report import Outcome
from pipeline.predict.workers import WorkerDiedError, Workers

BYTES_WAITING = 2**28  # of masks that aren't written yet


@dataclass(frozen=True)
class Made:
    """A mask that isn't written yet.

    Attributes:
        case: whose mask.
        labels: as `mask_files.write` takes them.
        inputs: the files that were read.
        shown: [height, width, 3], uint8, for an overlay.
    """

    case: Case
    labels: np.ndarray
    inputs: list[InputFile]
    shown: np.ndarray | None = None


@dataclass(frozen=True)
class Writing:
    """Writes masks in a worker.

    Attributes:
        folder: of the masks.
        maker: of the masks.
    """

    folder: Path
    maker: Maker

    def write(self, masks: Sequence[Made]) -> dict[str, str]:
        """Write masks under provisional names; return why some could not be written.

        Raises:
            RequestError: the disk is full or read-only, or the folder is gone.
        """
        failed = {}
        for mask in masks:
            case, path = mask.case, self.folder / mask.case.mask
            try:
                mask_files.write(mask.labels, path, case.files[0], mask.inputs, self.maker, mask.shown)
            except (ImageError, MemoryError) as error:
                failed[case.name] = case.reason(error)
                mask_files.remove(path)
            except OSError as error:
                raise RequestError(f"{path}: {error.strerror or error}") from error
        return failed


class MaskWriter:
    """Has masks written by workers; leaving its context waits for the last.

    One sync serves all masks that were written since the one before it.

    Args:
        writing: what the workers do.
        workers: that do it.
        outcome: is told what was made, and what failed.
    """

    def __init__(self, writing: Writing, workers: Workers, outcome: Outcome) -> None:
        self.writing = writing
        self.workers = workers
        self.outcome = outcome
        self.room = threading.Condition()
        self.bytes_waiting = 0
        self.unnamed: list[Made] = []
        self.naming: list[Made] = []
        self.error: BaseException | None = None

    def take(self, masks: Sequence[Made]) -> None:
        """Have masks written, and wait while too many wait.

        Raises:
            RequestError, OSError: an earlier mask could not be written: the disk is full or read-only.
        """
        if not masks:
            return
        more = sum(mask.labels.nbytes for mask in masks)
        with self.room:
            self.room.wait_for(
                lambda: self.error or not self.bytes_waiting or self.bytes_waiting + more <= BYTES_WAITING
            )
            if self.error:
                raise self.error
            self.bytes_waiting += more
        self.workers.submit(self.writing.write, masks).add_done_callback(partial(self.written, masks))

    def written(self, masks: Sequence[Made], done: Future[dict[str, str]]) -> None:
        """Record what a worker has written, and have it named with what waits for that, by one worker at a time."""
        try:
            failed = done.result()
        except WorkerDiedError as error:
            failed = {mask.case.name: f"{mask.case.files[0]}: {error}" for mask in masks}
        except BaseException as error:  # noqa: BLE001 - raised by `take` or at the end in the calling thread
            self.fail(error, masks)
            return
        self.outcome.failed |= failed
        self.forget([mask for mask in masks if mask.case.name in failed])
        for mask in masks:
            if mask.case.mask.endswith(PNG) and self.writing.maker.look.is_dark:
                self.outcome.largest = max(self.outcome.largest, int(mask.labels.max()))
        with self.room:
            self.unnamed += [mask for mask in masks if mask.case.name not in failed]
        self.name()

    def name(self) -> None:
        """Have a worker name all masks that wait for it, unless one is at it."""
        with self.room:
            if self.naming or not self.unnamed:
                return
            self.naming, self.unnamed = self.unnamed, []
            paths = [self.writing.folder / mask.case.mask for mask in self.naming]
        named = self.workers.submit(mask_files.give_names, paths, self.writing.maker.process)
        named.add_done_callback(self.named)

    def named(self, done: Future[None]) -> None:
        """Record the masks that have their names now."""
        masks, self.naming = self.naming, []
        if error := done.exception():
            self.fail(error, masks)
        else:
            self.outcome.made += len(masks)
            self.outcome.each([mask.case.name for mask in masks])
            self.outcome.rate.made(len(masks))
            self.forget(masks)
        self.name()

    def fail(self, error: BaseException, masks: Sequence[Made]) -> None:
        """Keep an error for the calling thread."""
        self.error = self.error or error
        self.forget(masks)

    def forget(self, masks: Sequence[Made]) -> None:
        """Let `take` go on: these masks wait no longer."""
        with self.room:
            self.bytes_waiting -= sum(mask.labels.nbytes for mask in masks)
            self.room.notify_all()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until every mask that was taken has its name.

        Raises:
            RequestError, OSError: same as `take`.
        """
        with self.room:
            self.room.wait_for(lambda: not self.bytes_waiting)
        if self.error and error is None:
            raise self.error
