"""The course of a prediction: cases to windows, windows to batches, batches to masks that are kept once whole."""

import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.errors import ImageError
from models.nifti import NiftiError
from models.samples import to_batch
from pipeline.deploy import mask_files
from pipeline.deploy.image_cases import Case, read_case
from pipeline.deploy.image_windows import Span, cut_out, padded, spans, step
from pipeline.deploy.predictor import Predictor
from pipeline.records.error_line import first_line

TOLD_EVERY = 5.0  # seconds


@dataclass
class Outcome:
    """What has become of every case.

    Attributes:
        made: masks that were written.
        kept: masks that an earlier start had written.
        failed: of each case without a mask the reason, in one line.
    """

    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """How many cases are settled."""
        return len(self.made) + len(self.kept) + len(self.failed)


@dataclass
class Opened:
    """A case on its way.

    Attributes:
        case: which.
        image: [height, width, channels]; a volume has a depth before.
        stamp: what its mask will say of itself.
        mask: of the image's sides, class indices, filled window by window; None before the first.
        left: windows without an answer.
    """

    case: Case
    image: np.ndarray
    stamp: str
    mask: np.ndarray | None = None
    left: int = 0


@dataclass(frozen=True)
class Window:
    """A part of a case that one call answers."""

    of: Opened
    place: tuple[Span, ...]  # along each side
    size: tuple[int, ...]  # of its sides, in pixels

    def values(self) -> np.ndarray:
        """Its pixels [*size, channels]."""
        return cut_out(self.of.image, self.place, self.size)


class Prediction:
    """Makes the masks of cases by one predictor.

    Attributes:
        predictor: the net.
        folder: of the masks.
        stamp: what its masks say of what made them.
        overlap: of neighbouring windows at least, in pixels.
        whole: whether an image goes in one window of its own size.
        outcome: so far.
    """

    def __init__(self, predictor: Predictor, folder: Path, stamp: str, overlap: int, whole: bool) -> None:
        self.predictor = predictor
        self.folder = folder
        self.stamp = stamp
        self.overlap = overlap
        self.whole = whole
        self.outcome = Outcome()
        self.waiting: list[Window] = []

    def make(
        self, cases: Sequence[Case], say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> Outcome:
        """The masks of all cases; those that are there already, made of the same by the same, stay.

        Args:
            cases: whose masks.
            say: is told how far it is, every few seconds.
            now: gives seconds.

        Raises:
            RequestError: a file that is none of ours lies where a mask is to be.
            OSError: the disk is full or read-only.
        """
        began = told = now()
        for case in cases:
            for window in self.windows(case):
                if self.waiting and self.waiting[0].size != window.size:
                    self.answer()
                self.waiting.append(window)
                if len(self.waiting) == self.predictor.shape[0]:
                    self.answer()
            if now() - told >= TOLD_EVERY:
                told = now()
                pace = len(self.outcome.made) / (told - began)
                say(f"{self.outcome.done} of {len(cases)} images, {pace:.3g} masks a second")
        if self.waiting:
            self.answer()
        return self.outcome

    def windows(self, case: Case) -> Iterator[Window]:
        """The windows of a case; none where its mask is there, or it can't be read."""
        try:
            stamp = f"{self.stamp} {case.digest}"
            if mask_files.stamp_of(self.folder / case.mask) == stamp:
                self.outcome.kept.append(case.name)
                return
            image = read_case(case, self.predictor.contract, self.predictor.kind)
            if self.predictor.images_in and image.dtype != np.uint8:
                raise ImageError(f"{case.files[0]}: {image.dtype}, and this bundle takes uint8 alone")
            self.check_volume(case, image)
        except (ImageError, OSError) as error:
            self.fail(case, first_line(error))
            return
        opened, size = Opened(case, image, stamp), self.window_size(image)
        along = [
            spans(length, window, min(self.overlap, window - 1))
            for length, window in zip(image.shape, size, strict=False)
        ]
        opened.left = math.prod(map(len, along))
        yield from (Window(opened, place, size) for place in product(*along))

    def check_volume(self, case: Case, image: np.ndarray) -> None:
        """That the net takes a volume at once: no windows are cut of it.

        Raises:
            ImageError: it is larger on a side; the line says what it is.
        """
        sides, taken = image.shape[:-1], self.predictor.shape[2:]
        if case.is_volume and not self.whole and any(map(operator.gt, sides, taken)):
            shown, most = ("×".join(map(str, part)) for part in (sides, taken))
            way = "--whole takes it" if self.predictor.any_size else "eager and its like take it by --whole"
            raise ImageError(
                f"{case.files[0]}: {shown}, and the net takes {most}; no windows are cut of a volume: {way}"
            )

    def window_size(self, image: np.ndarray) -> tuple[int, ...]:
        """The sides of the windows of an image [height, width, channels]."""
        sides = self.predictor.shape[2:]
        if not self.whole:
            return sides
        multiple = step(sides)
        return tuple(padded(length, multiple) for length in image.shape[:-1])

    def answer(self) -> None:
        """Answer the windows that wait, in one call, and keep the masks that have become whole.

        A batch that isn't full is filled up with its first window: a stage is built for one number of images.
        """
        windows, self.waiting = self.waiting, []
        batch = batch_of([window.values() for window in windows], self.predictor)
        with torch.inference_mode():
            logits = self.predictor.run(batch.to(self.predictor.device))
            chosen = mask_files.class_indices(logits, len(self.predictor.shape))
            finite = logits.isfinite().flatten(1).all(1).tolist()
        for window, part, right in zip(windows, chosen, finite, strict=False):
            if right:
                self.paste(window, part)
            else:
                self.fail(window.of.case, "the net's answer holds NaN or infinite logits")

    def fail(self, case: Case, reason: str) -> None:
        """The case has no mask, nor keeps one that something else has made."""
        self.outcome.failed[case.name] = reason
        (self.folder / case.mask).unlink(missing_ok=True)

    def paste(self, window: Window, part: np.ndarray) -> None:
        """Put a window's classes [*size] into its mask, and save that once it is whole."""
        opened = window.of
        if opened.mask is None:
            opened.mask = np.zeros(opened.image.shape[:-1], part.dtype)
        opened.mask[tuple(span.place for span in window.place)] = part[tuple(span.kept for span in window.place)]
        opened.left -= 1
        if not opened.left:
            self.keep(opened, opened.mask)

    def keep(self, opened: Opened, mask: np.ndarray) -> None:
        """Save a mask that has become whole."""
        case = opened.case
        try:
            mask_files.save(mask, self.folder / case.mask, opened.stamp, case.files[0])
        except (NiftiError, EOFError) as error:
            self.fail(case, f"{case.files[0]}: it was changed meanwhile: {first_line(error)}")
        else:
            self.outcome.made.append(case.name)


def batch_of(windows: Sequence[np.ndarray], predictor: Predictor) -> Tensor:
    """Windows, each [height, width, channels], of volumes with a depth before, as the predictor takes a batch.

    It is filled up with the first.
    """
    filled = [*windows, *[windows[0]] * (predictor.shape[0] - len(windows))]
    if predictor.images_in:
        return torch.from_numpy(np.stack(filled))
    alike = [np.stack(list(part)) for _, part in groupby(filled, key=lambda window: window.dtype)]
    return torch.cat([to_batch(part, predictor.contract) for part in alike])
