"""The work of a worker: it reads cases, has their windows answered, puts the answers together and writes the masks.

The calling process sees windows alone: it has no work for each image. A worker holds a bounded number of bytes: what
waits for answers is finished before more is read, and cases larger than that are made by few workers at a time.
"""

import fcntl
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import ImageError
from pipeline.inputs.folders import values_in_file
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict.cases import Case, Jpeg, Reader
from pipeline.predict.mask_files import PNG, InputFile, Writer
from pipeline.predict.report import TIMER
from pipeline.predict.windows import Cut, Span, cut_out
from pipeline.predict.workers import STOP, Memory
from pipeline.report.formatting import visible

if TYPE_CHECKING:
    from pipeline.predict.masks import Blended
    from pipeline.predict.sources import Gives, Makes

HELD = 2**25  # bytes of images and masks for which a worker reads ahead
BYTES_ASKED = 2**25  # of the classes of the windows in one message
PIXELS_ASKED = 2**24  # bytes of the pixels of such windows, where the host decodes them
OF_A_VOXEL = 16  # bytes of a volume's voxel: its value, and sums of logits
PERMITS = 2  # cases larger than `HELD` at a time, of all workers
HELD_ALONE = 2**28  # bytes of a case beside which no other one larger than `HELD` is made
ALIGNED = 64  # bytes
MOST_MULTIPLE = 64  # pixels
TOLD_AT = 32  # settled cases in a message
NAMED = "named"  # the message that masks have their names


@dataclass(frozen=True)
class Asked:
    """A message: windows of one size that are to be answered."""

    memory: int  # number of the memory that holds their pixels and will hold the answers
    size: tuple[int, ...]  # of the windows, in pixels
    number: int  # of the windows
    takes: str  # what is made of the answers: "classes", "scores", or "values", which are the network's own
    contract: InputContract  # how they are normalised
    kind: np.dtype  # of the pixels
    room: int  # first byte of the memory's free part
    told: str = ""  # how far a case of several windows is, for the user
    # Of JPEG files first byte in the memory, bytes, height, width; empty: it holds [number, *size, channels].
    files: list[tuple[int, int, int, int]] = field(default_factory=list)
    per_chroma: tuple[int, int] = (1, 1)  # of the files, as in `Jpeg`
    windows: list[tuple[int, int, int]] = field(default_factory=list)  # of the files: file, first row and column


@dataclass(frozen=True)
class Answered:
    """The answer to `Asked`."""

    memory: int  # as there
    parts: list[tuple["Place", "Place"]] = field(default_factory=list)  # answers, and not 0 where all are numbers
    problem: str = ""  # why there are none
    undecoded: bool = False  # the files can't be decoded by the GPU


Place = tuple[int, np.dtype, tuple[int, ...]]  # of an array in a memory: first byte, kind and shape


@dataclass
class Settled:
    """A message: what has become of cases."""

    made: dict[str, dict[str, str]] = field(default_factory=dict)  # by case the names that `Writer.write` gives
    kept: list[str] = field(default_factory=list)  # names of those whose masks were there
    failed: dict[str, str] = field(default_factory=dict)  # of each other case the reason
    largest: int = 0  # class of all grey PNGs
    seconds: dict[str, float] = field(default_factory=dict)  # of the worker, by what it did

    @property
    def number(self) -> int:
        """Number of the cases."""
        return len(self.made) + len(self.kept) + len(self.failed)


class Seamed:
    """A mask in which each pixel is from one window."""

    def __init__(self, sides: Sequence[int], takes: str) -> None:
        self.sides = tuple(sides)
        self.takes = takes
        self.mask = np.zeros(0, np.uint8)

    def add(self, place: Sequence[Span], answer: np.ndarray) -> None:
        """Take the pixels of a window's classes [(depth,) height, width], or of its values with channels before."""
        if self.takes != "classes":
            answer = np.moveaxis(answer, 0, -1) if len(answer) > 1 else answer[0]
        elif answer.dtype != np.uint8:
            answer = answer.astype(np.uint16)
        if all(span == Span(0, 0, side) for span, side in zip(place, self.sides, strict=True)):
            self.mask = answer[tuple(slice(side) for side in self.sides)]  # one window is the whole image
            return
        if not self.mask.size:
            self.mask = np.zeros((*self.sides, *answer.shape[len(self.sides) :]), answer.dtype)
        self.mask[tuple(span.place for span in place)] = answer[tuple(span.kept for span in place)]

    def finished(self) -> np.ndarray:
        """Return the mask [height, width], of a volume with a depth before, after the last window."""
        return self.mask


@dataclass(eq=False)
class Opened:
    """A case whose windows are being answered."""

    case: Case  # which
    inputs: list[InputFile]  # its files, as they were before they were read
    mask: "Seamed | Blended"  # what puts it together of its windows' answers
    left: int  # number of windows that aren't answered
    held: int  # bytes that it takes
    shown: np.ndarray | None  # its picture for an overlay, [height, width, 3], uint8
    image: Any  # [height, width, channels], a volume has a depth before, or a `Jpeg`; None once its windows are cut
    places: list[tuple[Span, ...]]  # of the windows
    size: tuple[int, ...]  # of a window, in pixels
    contract: InputContract  # how they are normalised
    failed: bool = False  # it gets no mask


@dataclass
class Collected:
    """Windows for one message: they have all but their pixels in common."""

    size: tuple[int, ...]
    takes: str
    contract: InputContract
    kind: np.dtype
    per_chroma: tuple[int, int] | None
    windows: list[tuple[Opened, tuple[Span, ...]]] = field(default_factory=list)
    pixels: list[np.ndarray] = field(default_factory=list)
    files: list[Jpeg] = field(default_factory=list)
    of_files: list[tuple[int, int, int]] = field(default_factory=list)
    told: str = ""

    def put(self, number: int, memory: Memory) -> Asked:
        """Put the pixels, or the files, into a memory, with room for classes behind them; return the message."""
        contents = [file.content for file in self.files] or self.pixels
        unit = ALIGNED if self.files else 1  # pixels of windows are one array
        ends = [*accumulate((-(-part.nbytes // unit) * unit for part in contents), initial=0)]
        room = -(-ends[-1] // ALIGNED) * ALIGNED
        mapped = memory.room(room + len(self.windows) * (math.prod(self.size) + ALIGNED))
        for part, at in zip(contents, ends, strict=False):
            mapped[at : at + part.nbytes].view(part.dtype).reshape(part.shape)[...] = part
        files = [(at, part.content.nbytes, *part.shape[:2]) for part, at in zip(self.files, ends, strict=False)]
        return Asked(
            number, self.size, len(self.windows), self.takes, self.contract, self.kind, room, self.told,
            files, self.per_chroma or (1, 1), self.of_files,
        )  # fmt: skip


@dataclass(frozen=True)
class CaseWork:
    """The work of a worker, as its caller describes it."""

    writer: Writer  # of the masks
    reader: Reader  # of the cases
    cut: Cut  # how images become windows
    shape: tuple[int, ...]  # batch, channels and sides that the network takes
    gives: "Gives"  # logits, classes or values
    makes: "Makes"  # classes, scores or values
    most: int  # windows in a message; whole batches
    answer_bytes: int = 1  # of what is written of a pixel

    def run(self, line: Connection, memories: list[Memory], alone: int) -> None:
        """Make the masks of all cases that messages bring."""
        CaseWorker(self, line, memories, alone).run()

    def window_size(self, sides: Sequence[int]) -> tuple[int, ...]:
        """Return the sides of the windows of an image of these sides."""
        if not self.cut.whole:
            return self.shape[2:]
        multiple = math.gcd(MOST_MULTIPLE, *self.shape[2:])  # which the network needs
        return tuple(-(-length // multiple) * multiple for length in sides)


class CaseWorker:
    """A worker at its work."""

    def __init__(self, work: CaseWork, line: Connection, memories: list[Memory], alone: int) -> None:
        self.work = work
        self.writer = replace(work.writer, lines=[])
        self.line = line
        self.memories = memories
        self.alone = alone
        self.free = [*range(len(memories))]
        self.cases: deque[Case] = deque()
        self.on_host: set[str] = set()  # names of files that the GPU can't decode
        self.collected: dict[tuple[object, ...], Collected] = {}
        self.asked: dict[int, Collected] = {}
        self.held = 0
        self.stopped = False
        self.settled = Settled()

    def run(self) -> None:
        """Make masks until `STOP` comes."""
        TIMER.taken()
        while not self.stopped:
            while self.line.poll():
                self.handle(self.line.recv())
            if self.stopped:
                break
            if self.cases:
                self.begin(self.cases.popleft())
            elif self.collected and not self.asked:  # fewer than a message holds, and nothing else to wait for
                self.ask_all()
            else:
                self.wait()
        self.tell()
        self.line.send(Settled(seconds=TIMER.taken()))
        self.line.send(STOP)

    def wait(self) -> None:
        """Wait for a message."""
        self.tell()
        self.handle(self.line.recv())

    def tell(self) -> None:
        """Tell what has become of cases, if anything has."""
        if self.settled.number:
            self.settled.seconds = TIMER.taken()
            self.writer.flush()
            self.line.send(self.settled)
            self.settled = Settled()

    def handle(self, message: object) -> None:
        """Do what a message asks for."""
        if message is STOP:
            self.stopped = True
        elif isinstance(message, Answered):
            with TIMER.within("put together"):
                self.take(message)
        elif isinstance(message, dict):
            with TIMER.within("sync"):
                mask_files.give_names(self.writer.folder, message)
            self.line.send(NAMED)
        else:
            assert isinstance(message, list)
            self.cases += message

    def begin(self, case: Case) -> None:
        """Read a case and collect its windows; wait until there is room for it."""
        while self.asked and self.held > HELD:
            self.wait()
        if self.stopped:
            return
        with ExitStack() as permits:
            with TIMER.within("decode"):
                opened = self.opened(case, permits)
            if opened is None:
                return
            self.held += opened.held
            for number, place in enumerate(opened.places, 1):
                if opened.failed or self.stopped:
                    break
                self.collect(opened, place, number)
            opened.image = None
            while opened.held > HELD and opened.left and not opened.failed and not self.stopped:
                self.ask_all()
                if self.asked:
                    self.wait()
        if self.settled.number >= TOLD_AT:
            self.tell()

    @contextmanager
    def permitted(self, held: int) -> Iterator[None]:
        """Wait for a permit, or for all of them, if a case is that large."""
        if held <= HELD:
            yield
            return
        parts = [(PERMITS, 0)] if held > HELD_ALONE else [(1, permit) for permit in range(PERMITS)]
        for part in parts:
            with suppress(OSError):
                fcntl.lockf(self.alone, fcntl.LOCK_EX | fcntl.LOCK_NB, *part)
                break
        else:
            part = parts[os.getpid() % len(parts)]
            fcntl.lockf(self.alone, fcntl.LOCK_EX, *part)
        try:
            yield
        finally:
            fcntl.lockf(self.alone, fcntl.LOCK_UN, *part)

    def opened(self, case: Case, permits: ExitStack) -> Opened | None:
        """Return a case that was read; None where its mask is there or it can't be read."""
        try:
            if case.sidecars and case.is_made(self.writer.folder, self.writer.made_by):
                self.settled.kept.append(case.name)
                return None
            read = None if case.name in self.on_host else self.work.reader.jpeg(case)
            if read is None:
                permits.enter_context(self.permitted(self.weight(case)))
                read = self.work.reader.one(case)
            *sides, _ = read.image.shape
            size = self.work.window_size(sides)
            along = self.work.cut.along(sides, size)
            places = [*product(*along)]
            if isinstance(read.image, Jpeg) and len(places) * math.prod(size) > BYTES_ASKED:
                self.on_host.add(case.name)
                return self.opened(case, permits)
            mask, contract = self.mask_of(case, read.image, size, along)
        except (ImageError, OSError, MemoryError) as error:
            self.fail(case, case.reason(error))
            return None
        held = (read.image.content if isinstance(read.image, Jpeg) else read.image).nbytes
        held += math.prod(sides) * self.work.answer_bytes
        return Opened(case, read.inputs, mask, len(places), held, read.shown, read.image, places, size, contract)

    def weight(self, case: Case) -> int:
        """Return about how many bytes a case takes; 0 where that can't be told before it is read."""
        values = sum(values_in_file(file, case.is_volume) for file in case.files)
        answers = values // self.work.reader.contract.channels * self.work.answer_bytes
        return values * OF_A_VOXEL if case.is_volume else values + answers

    def mask_of(
        self, case: Case, image: Any, size: tuple[int, ...], along: list[list[Span]]
    ) -> tuple["Seamed | Blended", InputContract]:
        """Return what puts a case's mask together, and how its windows are normalised: one window as in the run."""
        sides, makes, contract = image.shape[:-1], self.work.makes, self.work.reader.contract
        if not case.is_volume or math.prod(map(len, along)) == 1:
            return Seamed(sides, makes), contract
        from pipeline.predict.masks import Blended, by_whole  # import torch, which images do without

        contract = by_whole(image, contract)
        if self.work.gives == "classes":
            return Seamed(sides, makes), contract
        return Blended(sides, size, along, str(case.files[0]), makes), contract

    def collect(self, opened: Opened, place: tuple[Span, ...], number: int) -> None:
        """Add a window to those of its kind, and ask for them if they are many."""
        image, of = opened.image, len(opened.places)
        per_chroma = image.per_chroma if isinstance(image, Jpeg) else None
        key = (opened.size, opened.mask.takes, opened.contract, image.dtype, per_chroma)
        some = self.collected.setdefault(key, Collected(*key))
        some.windows.append((opened, place))
        if of > 1:
            some.told = f"; {visible(opened.case.name)}: window {number} of {of}"
        if isinstance(image, Jpeg):
            if not some.files or some.files[-1] is not image:
                some.files.append(image)
            top, left = (span.start for span in place)
            some.of_files.append((len(some.files) - 1, top, left))
            full = len(some.windows) >= self.work.most and number == of
        else:
            with TIMER.within("decode"):
                some.pixels.append(cut_out(image, place, opened.size))
            batch = self.work.shape[0]
            fit = max(1, PIXELS_ASKED // some.pixels[0].nbytes // batch) * batch
            full = len(some.windows) >= min(self.work.most, fit)
        if full:
            self.ask(key)

    def ask_all(self) -> None:
        """Ask for all windows that were collected."""
        for key in [*self.collected]:
            self.ask(key)

    def ask(self, key: tuple[object, ...]) -> None:
        """Ask for windows; wait for a memory that is free."""
        while not self.free and not self.stopped:
            self.wait()
        if self.stopped:
            return
        some = self.collected.pop(key)
        number = self.free.pop()
        asked = some.put(number, self.memories[number])
        some.pixels, some.files = [], []
        self.asked[number] = some
        self.tell()
        self.line.send(asked)

    def take(self, answered: Answered) -> None:
        """Put answers into their masks, and write those that are whole."""
        some = self.asked.pop(answered.memory)
        memory = self.memories[answered.memory]
        if answered.undecoded:
            again = {opened.case.name: opened for opened, _ in some.windows}
            self.on_host |= {*again}
            self.held -= sum(opened.held for opened in again.values())
            self.cases.extendleft(opened.case for opened in [*again.values()][::-1])
        elif answered.problem:
            for opened, _ in some.windows:
                self.give_up(opened, f"{opened.case.files[0]}: {answered.problem}")
        else:
            at = 0
            for answers, finite in answered.parts:
                found, sound = memory.array(*answers), np.all(memory.array(*finite), axis=1)
                for (opened, place), answer, fine in zip(some.windows[at:], found, sound, strict=False):
                    self.add(opened, place, answer, fine)
                at += len(sound)
        self.free.append(answered.memory)

    def add(self, opened: Opened, place: tuple[Span, ...], answer: np.ndarray, fine: bool) -> None:
        """Put a window's answer into its mask, and write the mask if that makes it whole."""
        if opened.failed:
            return
        if not fine:
            self.give_up(opened, "the network's answer holds NaN or infinite logits")
            return
        try:
            opened.mask.add(place, answer)
            opened.left -= 1
            if not opened.left:
                self.write(opened)
        except (ImageError, MemoryError) as error:
            self.give_up(opened, opened.case.reason(error))

    def write(self, opened: Opened) -> None:
        """Write a mask, still without its name."""
        case, labels = opened.case, opened.mask.finished()
        with TIMER.within("write"):
            names = self.writer.write(labels, case.mask, case.files[0], opened.inputs, opened.shown)
        if case.mask.endswith(PNG) and self.writer.look.is_dark:
            self.settled.largest = max(self.settled.largest, int(labels.max()))
        self.held -= opened.held
        self.settled.made[case.name] = names

    def give_up(self, opened: Opened, reason: str) -> None:
        """Record that a case whose windows were asked for has no mask."""
        if not opened.failed:
            opened.failed = True
            self.held -= opened.held
            self.fail(opened.case, reason)

    def fail(self, case: Case, reason: str) -> None:
        """Record that a case has no mask, and remove one that something else has made."""
        self.settled.failed[case.name] = reason
        case.remove_mask(self.writer.folder)
