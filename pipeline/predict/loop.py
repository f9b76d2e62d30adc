"""The path from files to masks: threads read cases, the network answers batches of windows, threads write masks.

On a GPU these are processes, each behind a thread that waits for it (`pipeline.predict.workers`).
The calling thread cuts windows, starts the network and puts its answers together. What waits between two parts is
bounded in number or in bytes, so memory does not grow with the number of cases.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pipeline.config.data_request import GIB
from pipeline.config.request_error import RequestError
from pipeline.errors import ImageError, typed_line
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict.batches import Cutting, DecodedWindow, Network, Started
from pipeline.predict.cases import Case, Cases, Read, Reader, groups
from pipeline.predict.jpeg_header import CHANNELS
from pipeline.predict.mask_files import PLAIN, InputFile, Look, Maker
from pipeline.predict.masks import Blended, Seamed
from pipeline.predict.reading import Reading
from pipeline.predict.report import Outcome, Progress
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut, Span, cut_out, padded, step
from pipeline.predict.workers import Workers
from pipeline.predict.writing import Made, MaskWriter, Writing
from pipeline.records.data_words import IMAGES, VOLUMES
from pipeline.report.formatting import visible

if TYPE_CHECKING:
    from pipeline.predict.gpu_decode import Decoded, JpegDecoder

UNDER_WAY = 2  # batches on a GPU: one that runs and one behind it
MOST_READ_AHEAD = 64  # groups of cases
BYTES_READ_AHEAD = GIB // 2
SWITCH_SECONDS = 2e-4  # for which a thread keeps Python's lock: the one that feeds the GPU waits for it in each batch
EMPTY = np.zeros(0, np.uint8)


@dataclass
class Opened:
    """A case whose windows are being answered.

    Attributes:
        case: which.
        image: [height, width, channels]; a volume has a depth before. Empty once every window is cut. Or a file that
            the GPU has decoded.
        contract: how its windows become the network's input.
        inputs: its files, as they were before they were read.
        size: of its windows, in pixels.
        places: of its windows, along each side.
        mask: what puts it together of its windows' answers.
        answered: number of windows that have been answered.
        shown: its picture for an overlay, [height, width, 3], uint8.
    """

    case: Case
    image: "np.ndarray | Decoded"
    contract: InputContract
    inputs: list[InputFile]
    size: tuple[int, ...]
    places: list[tuple[Span, ...]]
    mask: Seamed | Blended
    answered: int = 0
    shown: np.ndarray | None = None


@dataclass(frozen=True)
class Window:
    """A part of a case that one call answers."""

    of: Opened
    place: tuple[Span, ...]

    def cut(self) -> Cutting:
        """Return its pixels [*size, channels] and how they are treated."""
        opened = self.of
        if isinstance(opened.image, np.ndarray):
            values: np.ndarray | DecodedWindow = cut_out(opened.image, self.place, opened.size)
        else:
            values = DecodedWindow(opened.image, tuple(span.start for span in self.place), opened.size)
        cutting = Cutting(values, opened.contract, opened.mask.takes)
        if self.place is opened.places[-1]:
            opened.image = EMPTY
        return cutting


class Prediction:
    """Makes the masks of cases with one predictor.

    Attributes:
        predictor: the network.
        folder: of the masks.
        made_by: digest of all that the answers depend on, for the sidecars.
        cut: how images and volumes become windows.
        look: of the masks.
        workers: number of processes that read and write, if the network is on a GPU; None: of cores.
        process: number in the provisional names of masks.
        kept: workers that outlive a call of `make`.
        outcome: so far.
    """

    def __init__(
        self,
        predictor: Predictor,
        folder: Path,
        made_by: str,
        cut: Cut,
        look: Look = PLAIN,
        workers: int | None = None,
    ) -> None:
        self.predictor = predictor
        self.folder = folder
        self.made_by = made_by
        self.cut = cut
        self.look = replace(look, volumes=predictor.words is VOLUMES, classes=predictor.classes)
        self.workers = workers or len(os.sched_getaffinity(0))
        self.process = os.getpid()
        self.outcome = Outcome(predictor.product, predictor.words.sample)
        self.network = Network(predictor)
        self.kept: Workers | None = None
        self.decoder = cache(self.new_decoder)
        self.waiting: list[Window] = []
        self.under_way: deque[tuple[list[Window], Started]] = deque()

    def make(self, cases: Cases, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> Outcome:
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
        writing = Writing(self.folder, Maker(self.predictor.name, self.made_by, self.process, self.look))
        with (
            nullcontext(self.kept) if self.kept else self.new_workers() as workers,
            Reading(workers, self.reader(), self.decoder(say)) as reading,
            MaskWriter(writing, workers, self.outcome) as self.writer,
        ):
            for case, opened in self.opened_ahead(reading, cases):
                for number, place in enumerate(opened.places if opened else ()):
                    if opened is None or case.name in self.outcome.failed:
                        break
                    self.take(Window(opened, place))
                    if number:
                        told = f"window {number + 1} of {len(opened.places)}"
                        progress.tell(self.outcome, f"; {visible(case.name)}: {told}")
                progress.tell(self.outcome)
            self.start()
            self.finish(0)
        return self.outcome

    def reader(self) -> Reader:
        """Return what reads the cases."""
        predictor = self.predictor
        return Reader(
            self.folder, self.made_by, predictor.contract, predictor.kind, predictor.images_in, self.look.overlay
        )

    def new_workers(self) -> Workers:
        """Return a pool for `make`; one in `kept` serves several calls."""
        processes = self.workers if self.network.on_gpu else 1  # a network on the CPU uses all cores
        if self.network.on_gpu:
            sys.setswitchinterval(SWITCH_SECONDS)
        return Workers(processes, in_threads=not self.network.on_gpu, empty=self.network.empty)

    def again(self, folder: Path) -> "Prediction":
        """Begin anew with masks in another folder."""
        self.folder, self.outcome = folder, Outcome(self.predictor.product, self.predictor.words.sample)
        self.waiting, self.under_way = [], deque()
        return self

    def new_decoder(self, say: Callable[[str], None]) -> "JpegDecoder | None":
        """Return what decodes JPEG files on the network's GPU to the values that the run reads; None: the host does.

        Args:
            say: is told if the GPU can't.
        """
        contract, kind = self.predictor.contract, self.predictor.kind
        as_bytes = contract.scale is None or kind in (None, np.uint8)
        fits = contract.channels == CHANNELS and contract.normalize != "zscore" and as_bytes
        if not self.network.on_gpu or not fits or self.look.overlay or self.predictor.words is not IMAGES:
            return None
        from pipeline.predict.gpu_decode import DecodeError, JpegDecoder  # loads nvJPEG

        try:
            return JpegDecoder(self.predictor.device)
        except DecodeError as error:
            say(f"note: JPEG files are decoded on the host: {error}")
            return None

    def opened_ahead(self, reading: Reading, cases: Cases) -> Iterator[tuple[Case, Opened | None]]:
        """Yield cases in order, each as `opened` gives it, while workers read groups of those behind it.

        The number of groups grows from one, as far as their size allows.
        """
        ahead: deque[tuple[list[Case], Future[list[Read]]]] = deque()
        left, allowed, largest = groups(cases, reading.group), 1, 1
        while True:
            ahead.extend((group, reading.submit(group)) for group in islice(left, allowed - len(ahead)))
            if not ahead:
                return
            group, future = ahead.popleft()
            with self.outcome.rate.spent("reading"):
                found = reading.found(group, future)
            largest = max(largest, sum(read.image.nbytes for read in found if read.image is not None))
            for case, read in zip(group, found, strict=True):
                yield case, self.opened(case, read)
            allowed = max(1, min(allowed + 1, MOST_READ_AHEAD, BYTES_READ_AHEAD // largest))

    def opened(self, case: Case, read: Read) -> Opened | None:
        """Return the case ready for its windows; None where its mask is there or it can't be read."""
        if read.problem:
            self.fail(case, read.problem)
            return None
        if read.image is None:
            self.outcome.kept += 1
            return None
        try:
            size = self.window_size(read.image)
            along = self.cut.along(read.image.shape[:-1], size)
            mask, contract = self.mask_of(case, read.image, size, along)
        except MemoryError as error:
            self.fail(case, case.reason(error))
            return None
        return Opened(case, read.image, contract, read.inputs, size, [*product(*along)], mask, shown=read.shown)

    def mask_of(
        self, case: Case, image: np.ndarray, size: tuple[int, ...], along: list[list[Span]]
    ) -> tuple[Seamed | Blended, InputContract]:
        """Return what puts a case's mask together, and how its windows are normalised.

        The logits of a volume's windows are blended; classes can't be. A volume in one window is treated as the run
        treated it.
        """
        sides, makes = image.shape[:-1], self.predictor.makes
        if not case.is_volume or math.prod(map(len, along)) == 1:
            return Seamed(sides, makes), self.predictor.contract
        contract = by_whole(image, self.predictor.contract)
        if self.predictor.gives == "classes":
            return Seamed(sides, makes), contract
        return Blended(sides, size, along, str(case.files[0]), makes), contract

    def window_size(self, image: np.ndarray) -> tuple[int, ...]:
        """Return the sides of the windows of an image [height, width, channels]."""
        sides = self.predictor.shape[2:]
        if not self.cut.whole:
            return sides
        multiple = step(sides)
        return tuple(padded(length, multiple) for length in image.shape[:-1])

    def take(self, window: Window) -> None:
        """Put a window into the batch, and start the batch when it is full or the next window is of another size."""
        if self.waiting and self.waiting[0].of.size != window.of.size:
            self.start()
        self.waiting.append(window)
        if len(self.waiting) == self.predictor.shape[0]:
            self.start()

    def start(self) -> None:
        """Start the network with the windows of the batch."""
        windows, self.waiting = self.waiting, []
        if windows:
            try:
                with self.outcome.rate.spent("assembling"):
                    batch = self.network.batch_of([window.cut() for window in windows])
                with self.outcome.rate.spent("network"):
                    started = self.network.start(batch, [window.of.mask.takes for window in windows])
            except RequestError:
                raise
            except Exception as error:  # a network, or a bundle's loader, may fail in any way
                if not self.cut.whole:
                    line = f"{self.predictor.name}: it can't answer a batch: {typed_line(error)}"
                    raise RequestError(line) from error
                for window in windows:
                    self.fail(window.of.case, window.of.case.reason(error))
                return
            self.under_way.append((windows, started))
            self.finish(UNDER_WAY if self.network.on_gpu else 0)

    def finish(self, most: int) -> None:
        """Wait until at most `most` batches are under way, and put answers into their masks."""
        while len(self.under_way) > most:
            windows, started = self.under_way.popleft()
            with self.outcome.rate.spent("network"):
                started.wait()
            whole: list[Opened] = []
            for window, answer in zip(windows, started.each(), strict=True):
                if answer is None:
                    self.fail(window.of.case, "the network's answer holds NaN or infinite logits")
                elif window.of.case.name not in self.outcome.failed:
                    whole += self.add(window, answer)
            with self.outcome.rate.spent("writing"):
                self.writer.take(
                    [Made(opened.case, opened.mask.finished(), opened.inputs, opened.shown) for opened in whole]
                )

    def fail(self, case: Case, reason: str) -> None:
        """Record that a case has no mask, and remove one that something else has made."""
        self.outcome.failed[case.name] = reason
        mask_files.remove(self.folder / case.mask)

    def add(self, window: Window, answer: Tensor) -> list[Opened]:
        """Put a window's answer into its mask; return its case if that makes the mask whole."""
        opened = window.of
        try:
            with self.outcome.rate.spent("assembling"):
                opened.mask.add(window.place, answer)
        except (ImageError, MemoryError) as error:
            self.fail(opened.case, opened.case.reason(error))
            return []
        opened.answered += 1
        return [opened] if opened.answered == len(opened.places) else []


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
