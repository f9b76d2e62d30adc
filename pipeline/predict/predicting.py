"""The course of a prediction: cases to windows, windows to batches, batches to masks that are kept once whole."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.image_batches import to_batch
from pipeline.config.request_error import RequestError
from pipeline.errors import ImageError, plural
from pipeline.inputs.input_contract import InputContract
from pipeline.inputs.nifti import NiftiError
from pipeline.predict import mask_files
from pipeline.predict.assembled_masks import Blended, Seamed
from pipeline.predict.image_cases import Case, Outcome, read_case
from pipeline.predict.image_windows import Cut, Span, cut_out, padded, step
from pipeline.predict.predictor import Predictor
from pipeline.records.error_line import first_line
from pipeline.report.formatting import visible

TOLD_EVERY = 5.0  # seconds


class Progress:
    """Tells every few seconds how far it is.

    Args:
        cases: how many there are.
        say: is told, in a line.
        now: gives seconds.
    """

    def __init__(self, cases: int, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self.cases = cases
        self.say = say
        self.now = now
        self.began = self.told = now()

    def tell(self, outcome: Outcome, within: str = "") -> None:
        """The cases that are settled, and how far one is that has many windows, if a line is due."""
        now = self.now()
        if now - self.told < TOLD_EVERY:
            return
        self.told, pace = now, len(outcome.made) / (now - self.began)
        self.say(f"{outcome.done} of {plural(self.cases, outcome.of)}, {pace:.3g} {outcome.what}s a second{within}")


@dataclass
class Opened:
    """A case on its way.

    Attributes:
        case: which.
        image: [height, width, channels]; a volume has a depth before.
        contract: how its windows become the net's input.
        stamp: what its mask will say of itself.
        mask: what puts it together of its windows' answers.
        windows: how many there are of it.
        answered: how many of them have been answered.
    """

    case: Case
    image: np.ndarray
    contract: InputContract
    stamp: str
    mask: Seamed | Blended
    windows: int
    answered: int = 0


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
        cut: how images and volumes become windows.
        outcome: so far.
    """

    def __init__(self, predictor: Predictor, folder: Path, stamp: str, cut: Cut) -> None:
        self.predictor = predictor
        self.folder = folder
        self.stamp = stamp
        self.cut = cut
        self.outcome = Outcome("answer" if predictor.gives_values else "mask", predictor.words.sample)
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
            RequestError: a file that is none of ours lies where a mask is to be, or the net's answers can't be written.
            OSError: the disk is full or read-only.
        """
        progress = Progress(len(cases), say, now)
        for case in cases:
            for number, window in enumerate(self.windows(case)):
                if self.waiting and self.waiting[0].size != window.size:
                    self.answer()
                self.waiting.append(window)
                if len(self.waiting) == self.predictor.shape[0]:
                    self.answer()
                if number:
                    progress.tell(self.outcome, f"; {visible(case.name)}: window {number + 1} of {window.of.windows}")
            progress.tell(self.outcome)
        if self.waiting:
            self.answer()
        return self.outcome

    def windows(self, case: Case) -> Iterator[Window]:
        """The windows of a case; none where its mask is there, or it can't be read, and no more once it has failed."""
        try:
            stamp = case.stamp(self.stamp)
            if mask_files.stamp_of(self.folder / case.mask) == stamp:
                self.outcome.kept.append(case.name)
                return
            image = read_case(case, self.predictor.contract, self.predictor.kind)
            if self.predictor.images_in and image.dtype != np.uint8:
                raise ImageError(f"{case.files[0]}: {image.dtype}, and this bundle takes uint8 alone")
        except ImageError as error:
            self.fail(case, first_line(error))
            return
        except OSError as error:
            self.fail(case, f"{error.filename}: {error.strerror}" if error.strerror else first_line(error))
            return
        size = self.window_size(image)
        along = self.cut.along(image.shape[:-1], size)
        opened = self.opened(case, image, stamp, size, along)
        for place in product(*along):
            if case.name in self.outcome.failed:
                return
            yield Window(opened, place, size)

    def opened(
        self, case: Case, image: np.ndarray, stamp: str, size: tuple[int, ...], along: list[list[Span]]
    ) -> Opened:
        """The case with what its windows need to know of all of it.

        Of a volume in one window all is as the run had it; logits of several are blended, classes can't be.
        """
        sides, windows, values = image.shape[:-1], math.prod(map(len, along)), self.predictor.gives_values
        cut = case.is_volume and windows > 1
        contract = by_whole(image, self.predictor.contract) if cut else self.predictor.contract
        if cut and not self.predictor.classes_out:
            return Opened(
                case, image, contract, stamp, Blended(sides, size, along, str(case.files[0]), values), windows
            )
        return Opened(case, image, contract, stamp, Seamed(sides, values), windows)

    def window_size(self, image: np.ndarray) -> tuple[int, ...]:
        """The sides of the windows of an image [height, width, channels]."""
        sides = self.predictor.shape[2:]
        if not self.cut.whole:
            return sides
        multiple = step(sides)
        return tuple(padded(length, multiple) for length in image.shape[:-1])

    def answer(self) -> None:
        """Answer the windows that wait, in one call, and keep the masks that have become whole.

        A batch that isn't full is filled up with its first window: a stage is built for one number of images.

        Raises:
            RequestError: the net gives values of another size than its input's.
        """
        windows, self.waiting = self.waiting, []
        batch = batch_of([(window.values(), window.of.contract) for window in windows], self.predictor)
        with torch.inference_mode():
            logits = self.predictor.run(batch.to(self.predictor.device))
            self.check_size(batch, logits)
            finite = logits.isfinite().flatten(1).all(1).tolist()
            for number, (window, right) in enumerate(zip(windows, finite, strict=False)):
                if right:
                    self.add(window, logits[number : number + 1])
                else:
                    self.fail(window.of.case, "the net's answer holds NaN or infinite logits")

    def check_size(self, batch: Tensor, answer: Tensor) -> None:
        """That values [batch, channels, depth, height, width] are of the volumes' size, as logits always are.

        Raises:
            RequestError: they aren't.
        """
        if self.predictor.gives_values and answer.shape[2:] != batch.shape[2:]:
            given, found = ("×".join(map(str, part.shape[2:])) for part in (batch, answer))
            raise RequestError(
                f"{self.predictor.name} answers {found} to volumes of {given}; values of one size are written"
            )

    def fail(self, case: Case, reason: str) -> None:
        """The case has no mask, nor keeps one that something else has made."""
        self.outcome.failed[case.name] = reason
        (self.folder / case.mask).unlink(missing_ok=True)

    def add(self, window: Window, answer: Tensor) -> None:
        """Put a window's answer [1, …] into its mask, and save that once it is whole."""
        opened = window.of
        if opened.case.name in self.outcome.failed:
            return
        try:
            opened.mask.add(window.place, answer)
        except ImageError as error:
            self.fail(opened.case, first_line(error))
            return
        opened.answered += 1
        if opened.answered == opened.windows:
            self.keep(opened.case, opened.mask.finished(), opened.stamp)

    def keep(self, case: Case, mask: np.ndarray, stamp: str) -> None:
        """Save a mask that has become whole."""
        try:
            mask_files.save(mask, self.folder / case.mask, stamp, case.files[0])
        except (NiftiError, EOFError) as error:
            self.fail(case, f"{case.files[0]}: it was changed meanwhile: {first_line(error)}")
        else:
            self.outcome.made.append(case.name)


def batch_of(windows: Sequence[tuple[np.ndarray, InputContract]], predictor: Predictor) -> Tensor:
    """Windows, each [height, width, channels], of volumes with a depth before, as the predictor takes a batch.

    It is filled up with the first; each is normalised by the contract that comes with it.
    """
    filled = [*windows, *[windows[0]] * (predictor.shape[0] - len(windows))]
    if predictor.images_in:
        return torch.from_numpy(np.stack([values for values, _ in filled]))
    alike = groupby(filled, key=lambda window: (window[0].dtype, window[1]))
    return torch.cat([to_batch(np.stack([values for values, _ in parts]), rule) for (_, rule), parts in alike])


def by_whole(volume: np.ndarray, contract: InputContract) -> InputContract:
    """The contract by which windows of a volume [depth, height, width, channels], fp32, become what it becomes whole.

    "zscore" takes the mean and the standard deviation of all of it, as nnU-Net does before it cuts windows
    (Isensee et al., Nature Methods 18, 203-211, 2021); the other rules are the same of any part.
    """
    if contract.normalize != "zscore":
        return contract
    scale = contract.scale or 1.0
    means, stds = [], []
    for channel in range(volume.shape[-1]):
        plane = torch.from_numpy(volume[..., channel])
        std, mean = torch.std_mean(plane, correction=0)
        means.append(float(mean) / scale)
        stds.append(float(std) / scale if plane.amax() > plane.amin() else 1.0)  # one value alone becomes 0
    return replace(contract, normalize="own", mean=tuple(means), std=tuple(stds))
