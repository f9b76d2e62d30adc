"""The path from files to masks: workers own the cases, and the calling process answers their windows.

On a GPU workers are processes, on the CPU a thread. What is under way is bounded: memory doesn't grow with the cases.
A GPU's windows come as the files' values from memory that workers share, and classes go back into it, each on a stream
of its own, so that the network waits for neither copy.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.image_batches import normaliser, table_of, to_batch
from pipeline.command_line import unbroken
from pipeline.config.request_error import RequestError
from pipeline.errors import typed_line
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict.case_work import ALIGNED, NAMED, Answered, Asked, CaseWork, Place, Settled
from pipeline.predict.cases import CHANNELS, Case, Reader, groups
from pipeline.predict.given import Given
from pipeline.predict.gpu_decode import Decoded, JpegDecoder
from pipeline.predict.mask_files import EIGHT_BITS, PARTS, PLAIN, SIDECARS, Look, Writer
from pipeline.predict.masks import class_tensor, scores_of
from pipeline.predict.nvjpeg import ASKED, DecodeError
from pipeline.predict.report import TIMER, Outcome, Progress
from pipeline.predict.shards import WHOLE
from pipeline.predict.sources import Predictor, product_of
from pipeline.predict.windows import Cut
from pipeline.predict.workers import STOP, Ended, Failed, Memory, Worker, Workers, beside_a_gpu
from pipeline.records.data_words import IMAGES, VOLUMES

PINNED_BY = 0  # cudaHostRegisterDefault
UNDER_WAY = 4  # batches on a GPU: one that runs and those behind it
ANSWER_BYTES = 4  # of a pixel's score of a class, which comes in fp32 and is written in fp16
NAMED_EVERY = 2.0  # seconds
GROUPS_AHEAD = 3  # groups of cases that a worker has: one is read, one is answered, one waits


@dataclass(frozen=True)
class Started:
    """A batch whose answers may still be on their way."""

    places: tuple[Place, Place]  # of its answers and of what tells whether they are numbers, in the worker's memory
    end: int  # first byte behind them
    wait: Callable[[], Any]  # returns once the answers are there
    seconds: Callable[[], float]  # gives those of the network's call then


class Network:
    """A predictor that is called with windows."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.on_gpu = predictor.device.type == "cuda"
        self.rule = cache(partial(normaliser, device=predictor.device))
        self.table = cache(partial(table_of, device=predictor.device))
        self.to_device, self.to_host = (torch.cuda.Stream() if self.on_gpu else None for _ in range(2))

    def calls(self, asked: Asked, memory: Memory, decoding: Future[Decoded] | None) -> Iterator[Started]:
        """Start the network with one batch of windows after the other; the last is filled up with its first window."""
        decoded, size, at = None, self.predictor.shape[0], asked.room
        if decoding is not None:
            with TIMER.within("wait for the decoder"):
                decoded = decoding.result()
            if decoded.ready is not None:
                torch.cuda.current_stream().wait_event(decoded.ready)
        for first in range(0, asked.number, size):
            number = min(size, asked.number - first)
            with TIMER.within("assemble"):
                if decoded is None:
                    values = memory.array(0, asked.kind, (asked.number, *asked.size, asked.contract.channels))
                    batch = self.batch_of(values[first : first + number], asked.contract)
                else:
                    batch = self.from_planes(decoded, first, asked)
            with TIMER.within("start" if self.on_gpu else "network"):
                started = self.start(batch, number, asked.takes, memory, at)
            del batch  # its memory isn't kept until the next one
            at = started.end
            yield started

    def start(self, batch: Tensor, number: int, takes: str, memory: Memory, at: int) -> Started:
        """Call the network with a batch, and begin to copy its answers into memory."""
        began = self.mark()
        answer = self.predictor.run(batch)
        seconds = partial(self.between, began, self.mark())
        sides = batch.shape[1:-1] if self.predictor.images_in else batch.shape[2:]
        if (len(answer), answer.shape[-len(sides) :]) != (len(batch), sides):
            taken, given = ("×".join(map(str, shape)) for shape in ((len(batch), *sides), answer.shape))
            predictor = self.predictor
            raise RequestError(
                f"{predictor.name} answers {given} to {predictor.words.samples} of {taken}; one size is wanted"
            )
        return self.sent_back(*self.taken(answer, batch.ndim, takes), number, memory, at, seconds)

    def taken(self, answer: Tensor, axes: int, takes: str) -> tuple[Tensor, Tensor]:
        """Return what is taken of an answer, and for each window 1 where it is sound."""
        if takes != "classes":
            values = scores_of(answer.float(), 1) if takes == "scores" else answer.to(torch.float32, copy=True)
            return values, sound(answer.isfinite())
        logits = self.predictor.gives == "logits"
        if self.on_gpu and logits and answer.shape[1] <= EIGHT_BITS:
            from pipeline.predict.gpu_kernels import choose  # imports Triton, which a CPU does without

            return choose(answer)
        chosen = class_tensor(answer, axes)
        chosen = chosen.clone() if chosen is answer else chosen  # the next call may write over it
        if logits:
            return chosen, sound(answer.isfinite())
        from pipeline.compiler.ends import has_class  # of the compiler, which bundles of logits do without

        return chosen, sound(has_class(answer))

    def mark(self) -> Any:
        """Return the time now, on a GPU an event behind what was queued."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, began: Any, ended: Any) -> float:
        """Return the seconds between two marks that are reached."""
        return began.elapsed_time(ended) / 1e3 if self.on_gpu else ended - began  # type: ignore[no-any-return]

    def sent_back(
        self, answers: Tensor, finite: Tensor, number: int, memory: Memory, at: int, seconds: Callable[[], float]
    ) -> Started:
        """Begin to copy the first `number` answers into memory."""
        if self.to_host is not None:
            self.to_host.wait_stream(torch.cuda.current_stream())
        places = []
        with torch.cuda.stream(self.to_host):
            for part in (answers, finite):
                shape, kind = (number, *part.shape[1:]), np.dtype(str(part.dtype).removeprefix("torch."))
                there = torch.from_numpy(memory.array(at, kind, shape))
                there.copy_(part[:number], non_blocking=True)
                places.append((at, kind, shape))
                at += -(-there.nbytes // ALIGNED) * ALIGNED
                if self.to_host is not None:
                    part.record_stream(self.to_host)
        wait = self.to_host.record_event().synchronize if self.to_host is not None else bool
        return Started((places[0], places[1]), at, wait, seconds)

    def batch_of(self, images: np.ndarray, contract: InputContract) -> Tensor:
        """Return windows [number, height, width, channels] as a batch, filled up with the first."""
        if self.predictor.images_in:
            return self.moved(images)
        if contract.normalize == "zscore" or not self.on_gpu:  # sums of another order differ in their last bits
            return filled(to_batch(images, contract), self.predictor.shape[0]).to(self.predictor.device)
        return self.rule(contract, images.dtype, images.ndim)(self.moved(images).float())

    def moved(self, images: np.ndarray) -> Tensor:
        """Return images on the device; the network's stream waits for the copy, the caller doesn't."""
        there = torch.from_numpy(images)
        if self.to_device is None:
            return filled(there.clone(), self.predictor.shape[0])
        with torch.cuda.stream(self.to_device):
            there = filled(there.to(self.predictor.device, non_blocking=True), self.predictor.shape[0])
        torch.cuda.current_stream().wait_stream(self.to_device)
        there.record_stream(torch.cuda.current_stream())
        return there

    def from_planes(self, decoded: Decoded, first: int, asked: Asked) -> Tensor:
        """Return windows of decoded files as the predictor takes them, every value as `to_batch` makes it."""
        from pipeline.predict.gpu_kernels import put_windows  # imports Triton, which a CPU does without

        size, contract = self.predictor.shape[0], asked.contract
        table = None if self.predictor.images_in else self.table(contract)
        if table is None:
            shape, kind = (size, *asked.size, contract.channels), torch.uint8
        else:
            shape, kind = (size, contract.channels, *asked.size), torch.float32
        batch = torch.empty(shape, dtype=kind, device=self.predictor.device)
        put_windows(decoded, first, table, batch, reverses=table is not None and contract.channel_order == "bgr")
        return batch

    def pin(self, memory: np.ndarray) -> None:
        """Have the GPU copy from this memory and to it without the host's help."""
        if self.on_gpu:
            torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, PINNED_BY)


def sound(of_each: Tensor) -> Tensor:
    """Return [batch, 1], 1 where all values of a window are sound, uint8."""
    return of_each.flatten(1).all(1, keepdim=True).to(torch.uint8)


def filled(batch: Tensor, size: int) -> Tensor:
    """Return a batch of `size`, filled up with the first."""
    return torch.cat([batch, batch[:1].expand(size - len(batch), *batch.shape[1:])]) if len(batch) < size else batch


@dataclass
class Answering:
    """Windows of a worker that are being answered."""

    worker: Worker  # that asked
    asked: Asked
    answered: Answered  # the answer so far
    calls: Iterator[Started]  # of the network, each of which starts its next batch
    left: int  # batches that aren't started


@dataclass
class Prediction:
    """Makes the masks of cases with one predictor."""

    predictor: Predictor
    folder: Path  # of the masks
    made_by: str  # digest of all that the answers depend on, for the sidecars
    cut: Cut
    look: Look = PLAIN
    workers: int | None = None  # processes that read and write beside a GPU; None: of cores
    share: str = WHOLE.name  # of the cases, which no other process makes meanwhile
    kept: Workers | None = None  # workers that outlive a call of `make`

    def __post_init__(self) -> None:
        """Begin without any mask."""
        predictor = self.predictor
        self.look = replace(self.look, volumes=predictor.words is VOLUMES, classes=predictor.classes)
        self.network = Network(predictor)
        self.decoder = cache(self.new_decoder)
        self.again(self.folder)

    def make(
        self, cases: Given | list[Case], say: Callable[[str], object], now: Callable[[], float] = time.monotonic
    ) -> Outcome:
        """Make the masks of all cases that have none of the same by the same."""
        progress = Progress(len(cases), say, now)
        with nullcontext(self.kept) if self.kept else closing(self.new_workers()) as workers:
            TIMER.turn("hand out")
            workers.pin = self.network.pin
            Making(self, workers, cases, progress).run()
        self.outcome.rate.of_feeder = TIMER.taken()
        return self.outcome

    def work(self, most: int, *, encoded: bool) -> CaseWork:
        """Return what the workers do; `most` is the number of windows in a message."""
        predictor = self.predictor
        reader = Reader(predictor.contract, predictor.kind, predictor.images_in, self.look.overlay, encoded)
        writer = Writer(self.folder, predictor.name, self.made_by, self.share, self.look)
        answer_bytes = 1 if predictor.makes == "classes" else ANSWER_BYTES * (predictor.classes or 1)
        return CaseWork(writer, reader, self.cut, predictor.shape, predictor.gives, predictor.makes, most, answer_bytes)

    def new_workers(self) -> Workers:
        """Return workers for `make`; those in `kept` serve several calls."""
        return Workers(in_threads=not self.network.on_gpu)

    def again(self, folder: Path, each: Callable[[list[str]], object] = len) -> None:
        """Begin anew with masks in a folder; `each` is told the names of cases whose masks are written."""
        self.folder = folder
        product = product_of(self.predictor.gives)
        self.outcome = Outcome(product, self.predictor.words.sample, each=each)

    def new_decoder(self, say: Callable[[str], object]) -> JpegDecoder | None:
        """Return what decodes JPEG files on the network's GPU to the values that the run reads; None: the host does."""
        contract, kind = self.predictor.contract, self.predictor.kind
        as_bytes = contract.scale is None or kind in (None, np.uint8)
        fits = contract.channels == CHANNELS and contract.normalize != "zscore" and as_bytes
        if not self.network.on_gpu or not fits or self.look.overlay or self.predictor.words is not IMAGES:
            return None
        try:
            return JpegDecoder(self.predictor.device)
        except DecodeError as error:
            say(f"note: JPEG files are decoded on the host: {error}")
            return None


class Making:
    """One call of `Prediction.make`."""

    def __init__(self, by: Prediction, workers: Workers, cases: Given | list[Case], progress: Progress) -> None:
        self.by = by
        self.network, self.outcome, self.cut = by.network, by.outcome, by.cut
        self.workers = workers
        self.decoder = by.decoder(progress.say)
        self.progress = progress
        batch = by.predictor.shape[0]
        most = -(-ASKED // batch) * batch if self.network.on_gpu else batch
        serving = beside_a_gpu(by.workers, len(cases)) if self.network.on_gpu else 1  # of a CPU all cores compute
        number = max(1, serving)
        self.work = by.work(most, encoded=self.decoder is not None)
        self.groups = groups(cases, max(1, min(most, -(-len(cases) // number))))
        self.again: deque[Case] = deque()  # of workers that ended
        self.careful: set[Worker] = set()  # have one of these cases alone
        self.given: dict[Worker, dict[str, Case]] = {worker: {} for worker in workers.begin(self.work, number)}
        rate = self.outcome.rate
        rate.workers, rate.on_gpu = number, self.network.on_gpu
        rate.volumes, rate.level = by.look.volumes, by.look.compression
        self.ahead = GROUPS_AHEAD * most
        self.asked: deque[Answering] = deque()
        self.under_way: deque[tuple[Answering, Started]] = deque()
        self.unnamed: dict[str, dict[str, str]] = {}  # names that files of cases are to get
        self.naming: tuple[Worker, dict[str, dict[str, str]]] | None = None
        self.began = self.named_at = time.perf_counter()

    def run(self) -> None:
        """Make the masks; on an error keep all that are finished."""
        try:
            for _ in range(GROUPS_AHEAD):  # in turns, so that all workers begin at once
                for worker in [*self.given]:
                    self.give(worker, most=1)
            while any(self.given.values()) or self.unnamed or self.naming:
                self.step()
        except BaseException:
            with suppress(Exception):
                self.stop()
                mask_files.give_names(self.by.folder, together(self.unnamed))
                self.count_named([*self.unnamed])
            raise
        self.stop()
        shutil.rmtree(self.by.folder / SIDECARS / f"{self.by.share}{PARTS}", ignore_errors=True)

    def step(self) -> None:
        """Take the messages that are there, start batches, and put answers back."""
        with TIMER.within("wait for workers"):
            found = self.workers.ready(0 if self.asked or self.under_way else NAMED_EVERY)
        with unbroken():
            for worker, message in [*self.workers.messages(found)]:
                self.take(worker, message)
            self.name()
        self.progress.tell(self.outcome)
        while self.asked and len(self.under_way) < (UNDER_WAY if self.network.on_gpu else 1):
            self.start()
        if self.under_way and (not found or not self.network.on_gpu or len(self.under_way) == UNDER_WAY):
            self.finish()

    def give(self, worker: Worker, most: int = GROUPS_AHEAD) -> None:
        """Give a worker groups of cases, up to `most`, as long as it has few."""
        given = self.given[worker]
        if given and worker in self.careful:
            return
        self.careful.discard(worker)
        for _ in range(most):
            if len(given) >= self.ahead or worker in self.careful:
                return
            if self.again and not given:
                group = [self.again.popleft()]
                self.careful.add(worker)
            elif not (group := next(self.groups, [])):
                return
            given |= {case.name: case for case in group}
            self.outcome.rate.kinds[group[0].files[0].suffix.lower()] += 1
            worker.send(group)

    def take(self, worker: Worker, message: object) -> None:
        """Do what a worker's message asks for."""
        if isinstance(message, Asked):
            batch, memory = self.by.predictor.shape[0], worker.memories[message.memory]
            decoding = self.decoder.submit(message, memory, batch) if message.files and self.decoder else None
            calls, number = self.network.calls(message, memory, decoding), -(-message.number // batch)
            self.asked.append(Answering(worker, message, Answered(message.memory), calls, number))
        elif isinstance(message, Settled):
            self.settle(worker, message)
            self.give(worker)
        elif message == NAMED:
            self.named()
        elif isinstance(message, Ended):
            self.replace(worker, message.how)
        else:
            assert isinstance(message, Failed)
            raise message.error

    def settle(self, worker: Worker, settled: Settled) -> None:
        """Record what has become of a worker's cases."""
        given = self.given[worker]
        self.unnamed |= settled.made
        for name in [*settled.made, *settled.kept, *settled.failed]:
            del given[name]
        self.outcome.kept += len(settled.kept)
        self.outcome.failed |= settled.failed
        self.outcome.largest = max(self.outcome.largest, settled.largest)
        self.outcome.rate.of_workers.update(settled.seconds)

    def replace(self, worker: Worker, how: str) -> None:
        """Have the cases of a worker that ended made again, each on its own; one that was alone has no mask."""
        given = self.given.pop(worker)
        self.asked = deque(answering for answering in self.asked if answering.worker is not worker)
        if len(given) == 1:
            [case] = given.values()
            self.outcome.failed[case.name] = f"{case.files[0]}: the process that worked on it ended with {how}"
            case.remove_mask(self.by.folder)
            given = {}
        if self.naming and self.naming[0] is worker:
            self.unnamed |= self.naming[1]
            self.naming = None
        self.again += given.values()
        new = self.workers.start()
        new.send(self.work)
        self.given[new] = {}
        self.give(new)

    def name(self) -> None:
        """Have a worker name all masks that wait for it: soon after the start, then every few seconds, and at the end.

        One sync serves them all, and the folder is changed by one process in a short time.
        """
        if not self.unnamed or self.naming:
            return
        now = time.perf_counter()
        due = min(NAMED_EVERY, (self.named_at - self.began) / 4)
        if now - self.named_at < due and any(self.given.values()):
            return
        worker = min(self.given, key=lambda each: len(self.given[each]))
        self.naming, self.unnamed, self.named_at = (worker, self.unnamed), {}, now
        worker.send(together(self.naming[1]))

    def named(self) -> None:
        """Record the masks that a worker has named."""
        assert self.naming is not None
        self.count_named([*self.naming[1]])
        self.naming = None

    def count_named(self, names: list[str]) -> None:
        """Record masks that have their names now."""
        self.outcome.made += len(names)
        self.outcome.each(names)
        self.outcome.rate.made(len(names))

    def start(self) -> None:
        """Start the network with the next batch."""
        answering = self.asked[0]
        try:
            with torch.inference_mode():
                started = next(answering.calls)
        except DecodeError:
            self.asked.popleft()
            answering.worker.send(replace(answering.answered, undecoded=True))
            return
        except Exception as error:  # a network, or a bundle's loader, may fail in any way
            said = f"{self.by.predictor.name}: it can't answer a batch: {typed_line(error)}"
            said = str(error) if isinstance(error, RequestError) else said
            if not self.cut.whole:
                raise RequestError(said) from error
            self.asked.popleft()
            answering.worker.send(replace(answering.answered, problem=said))
            return
        if answering.asked.told:
            self.progress.tell(self.outcome, answering.asked.told)
        self.under_way.append((answering, started))
        answering.left -= 1
        if not answering.left:
            next(answering.calls, None)  # to its end: where Python closes a generator, a Ctrl-C is lost
            self.asked.popleft()

    def finish(self) -> None:
        """Wait for the oldest batch, and send its worker the answers when it was the last of its windows."""
        answering, started = self.under_way.popleft()
        with TIMER.within("network"):
            started.wait()
        self.outcome.rate.answered(started.seconds())
        answering.answered.parts.append(started.places)
        if not answering.left and not (self.under_way and self.under_way[0][0] is answering):
            answering.worker.send(answering.answered)

    def stop(self) -> None:
        """End the workers' work, and record what they had settled."""
        while self.under_way:
            self.finish()
        for worker in self.given:
            worker.send(STOP)
        working = {*self.given}
        while working:
            for worker, message in self.workers.messages(self.workers.ready(None)):
                if isinstance(message, Settled):
                    self.settle(worker, message)
                elif message == NAMED:
                    self.named()
                elif message is STOP or isinstance(message, Ended | Failed):
                    working.discard(worker)


def together(names: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the names of the files of all cases."""
    return {part: name for files in names.values() for part, name in files.items()}
