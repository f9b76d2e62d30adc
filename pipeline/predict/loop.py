"""The loop of a prediction: cases become windows, windows batches, and answers masks, each saved once it is whole."""

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
from pipeline.errors import ImageError, first_line
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict.cases import Case, read_case
from pipeline.predict.mask_files import InputFile
from pipeline.predict.masks import Blended, Seamed
from pipeline.predict.report import Outcome, Progress
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut, Span, cut_out, padded, step
from pipeline.report.formatting import visible


@dataclass
class Opened:
    """A case whose windows are being answered.

    Attributes:
        case: which.
        image: [height, width, channels]; a volume has a depth before.
        contract: how its windows become the network's input.
        inputs: its files, as they were before they were read.
        mask: what puts it together of its windows' answers.
        windows: how many there are of it.
        answered: how many of them have been answered.
    """

    case: Case
    image: np.ndarray
    contract: InputContract
    inputs: list[InputFile]
    mask: Seamed | Blended
    windows: int
    answered: int = 0


@dataclass(frozen=True)
class Window:
    """A part of a case that one call answers.

    Attributes:
        of: the case.
        place: along each side.
        size: of its sides, in pixels.
    """

    of: Opened
    place: tuple[Span, ...]
    size: tuple[int, ...]

    def values(self) -> np.ndarray:
        """Return its pixels [*size, channels]."""
        return cut_out(self.of.image, self.place, self.size)


class Prediction:
    """Makes the masks of cases with one predictor.

    Attributes:
        predictor: the network.
        folder: of the masks.
        made_by: digest of all that the answers depend on, for the sidecars.
        cut: how images and volumes become windows.
        outcome: so far.
    """

    def __init__(self, predictor: Predictor, folder: Path, made_by: str, cut: Cut) -> None:
        self.predictor = predictor
        self.folder = folder
        self.made_by = made_by
        self.cut = cut
        self.outcome = Outcome(predictor.product, predictor.words.sample)
        self.waiting: list[Window] = []

    def make(
        self, cases: Sequence[Case], say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> Outcome:
        """Make the masks of all cases that have none of the same by the same.

        Args:
            cases: whose masks.
            say: is told the progress, every few seconds.
            now: gives seconds.

        Raises:
            RequestError: a file of the user's lies where a mask is to be, or the answers can't be written.
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
        """Yield the windows of a case: none where its mask is there or it can't be read, no more once it has failed."""
        try:
            if mask_files.is_made(self.folder / case.mask, case.files, self.made_by):
                self.outcome.kept.append(case.name)
                return
            inputs = [mask_files.described(file) for file in case.files]
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
        opened = self.opened(case, image, inputs, size, along)
        for place in product(*along):
            if case.name in self.outcome.failed:
                return
            yield Window(opened, place, size)

    def opened(
        self, case: Case, image: np.ndarray, inputs: list[InputFile], size: tuple[int, ...], along: list[list[Span]]
    ) -> Opened:
        """Return the case with what its windows share.

        The logits of a volume's windows are blended; classes can't be. A volume in one window is treated as the run
        treated it.
        """
        sides, windows = image.shape[:-1], math.prod(map(len, along))
        as_values = self.predictor.gives == "values"
        mask: Seamed | Blended = Seamed(sides, as_values)
        contract = self.predictor.contract
        if case.is_volume and windows > 1:
            contract = by_whole(image, contract)
            if self.predictor.gives != "classes":
                mask = Blended(sides, size, along, str(case.files[0]), as_values)
        return Opened(case, image, contract, inputs, mask, windows)

    def window_size(self, image: np.ndarray) -> tuple[int, ...]:
        """Return the sides of the windows of an image [height, width, channels]."""
        sides = self.predictor.shape[2:]
        if not self.cut.whole:
            return sides
        multiple = step(sides)
        return tuple(padded(length, multiple) for length in image.shape[:-1])

    def answer(self) -> None:
        """Answer the waiting windows in one call, and save the masks that have become whole.

        Raises:
            RequestError: the network gives values of another size than its input's.
        """
        windows, self.waiting = self.waiting, []
        batch = batch_of([(window.values(), window.of.contract) for window in windows], self.predictor)
        with torch.inference_mode():
            answer = self.predictor.run(batch.to(self.predictor.device))
            self.check_size(batch, answer)
            finite = answer.isfinite().flatten(1).all(1).tolist()
            for number, (window, right) in enumerate(zip(windows, finite, strict=False)):
                if right:
                    self.add(window, answer[number : number + 1])
                else:
                    self.fail(window.of.case, "the network's answer holds NaN or infinite logits")

    def check_size(self, batch: Tensor, answer: Tensor) -> None:
        """Raise if values [batch, channels, depth, height, width] are not of the volumes' size.

        Raises:
            RequestError: they aren't.
        """
        if self.predictor.gives == "values" and answer.shape[2:] != batch.shape[2:]:
            taken, given = ("×".join(map(str, tensor.shape[2:])) for tensor in (batch, answer))
            raise RequestError(
                f"{self.predictor.name} answers {given} to volumes of {taken}; values of one size are written"
            )

    def fail(self, case: Case, reason: str) -> None:
        """Record that a case has no mask, and remove one that something else has made."""
        self.outcome.failed[case.name] = reason
        mask_files.remove(self.folder / case.mask)

    def add(self, window: Window, answer: Tensor) -> None:
        """Put a window's answer [1, …] into its mask, and save the mask once it is whole."""
        opened = window.of
        if opened.case.name in self.outcome.failed:
            return
        try:
            opened.mask.add(window.place, answer)
            opened.answered += 1
            if opened.answered == opened.windows:
                self.save(opened)
        except ImageError as error:
            self.fail(opened.case, first_line(error))

    def save(self, opened: Opened) -> None:
        """Save a mask that has become whole."""
        case = opened.case
        mask_files.save(
            opened.mask.finished(), self.folder / case.mask, case.files[0], self.predictor.name, self.made_by,
            opened.inputs,
        )  # fmt: skip
        self.outcome.made.append(case.name)


def batch_of(windows: Sequence[tuple[np.ndarray, InputContract]], predictor: Predictor) -> Tensor:
    """Return windows as a batch that the predictor takes, filled up with the first.

    Args:
        windows: each [height, width, channels], of volumes with a depth before, and how it is normalised.
        predictor: it is built for one number of images.
    """
    filled = [*windows, *[windows[0]] * (predictor.shape[0] - len(windows))]
    if predictor.images_in:
        return torch.from_numpy(np.stack([values for values, _ in filled]))
    alike = groupby(filled, key=lambda window: (window[0].dtype, window[1]))
    return torch.cat([to_batch(np.stack([values for values, _ in group]), rule) for (_, rule), group in alike])


def by_whole(volume: np.ndarray, contract: InputContract) -> InputContract:
    """Return the contract that normalises a window as the same region of the whole normalised volume.

    "zscore" takes the mean and the standard deviation of the whole volume, as nnU-Net does before it cuts windows
    (Isensee et al., Nature Methods 18, 203-211, 2021); the other rules are the same for any part.

    Args:
        volume: [depth, height, width, channels], fp32.
        contract: of the network's input.
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
