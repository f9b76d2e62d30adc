"""Batches of windows on their way through the network.

On a GPU, windows come as the files' own values from memory that workers share, and classes go back into it. Both copies
have a stream of their own, so the network waits for neither. Normalisation and the choice of classes run on the device.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from models.image_batches import normaliser, table_of, to_batch
from pipeline.config.request_error import RequestError
from pipeline.inputs.input_contract import InputContract
from pipeline.predict.case_work import ALIGNED, Asked, Place
from pipeline.predict.masks import EIGHT_BITS, class_tensor, scores_of
from pipeline.predict.sources import Predictor
from pipeline.predict.workers import Memory

if TYPE_CHECKING:
    from pipeline.predict.gpu_decode import Decoded

PINNED_BY = 0  # cudaHostRegisterDefault


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

    @torch.inference_mode()
    def batches(self, asked: Asked, memory: Memory, decoded: "Decoded | None") -> Iterator[tuple[Tensor, int]]:
        """Yield batches on the device, filled up with their first window, each with its number of windows."""
        size = self.predictor.shape[0]
        channels = asked.contract.channels
        if decoded is not None and decoded.ready is not None:
            torch.cuda.current_stream().wait_event(decoded.ready)
        for first in range(0, asked.number, size):
            number = min(size, asked.number - first)
            if decoded is None:
                values = memory.array(0, asked.kind, (asked.number, *asked.size, channels))
                yield self.batch_of(values[first : first + number], asked.contract), number
            else:
                yield self.from_planes(decoded, first, asked), number

    @torch.inference_mode()
    def start(self, batch: Tensor, number: int, takes: str, memory: Memory, at: int) -> Started:
        """Call the network with a batch, and begin to copy its answers into memory."""
        began = self.mark()
        answer = self.predictor.run(batch)
        seconds = partial(self.between, began, self.mark())
        self.check_size(batch, answer)
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
        return chosen, sound(answer.isfinite() if logits else known(answer))

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

    def from_planes(self, decoded: "Decoded", first: int, asked: Asked) -> Tensor:
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

    def check_size(self, batch: Tensor, answer: Tensor) -> None:
        """Raise if values [batch, channels, depth, height, width] are not of the volumes' size."""
        if self.predictor.gives == "values" and answer.shape[2:] != batch.shape[2:]:
            taken, given = ("×".join(map(str, tensor.shape[2:])) for tensor in (batch, answer))
            raise RequestError(
                f"{self.predictor.name} answers {given} to volumes of {taken}; values of one size are written"
            )


def known(classes: Tensor) -> Tensor:
    """Return which pixels have a class: no logit of theirs was NaN or infinite."""
    from pipeline.compiler.ends import has_class  # of the compiler, which bundles of logits do without

    return has_class(classes)


def sound(of_each: Tensor) -> Tensor:
    """Return [batch, 1], 1 where all values of a window are sound, uint8."""
    return of_each.flatten(1).all(1, keepdim=True).to(torch.uint8)


def filled(batch: Tensor, size: int) -> Tensor:
    """Return a batch of `size`, filled up with the first."""
    return torch.cat([batch, batch[:1].expand(size - len(batch), *batch.shape[1:])]) if len(batch) < size else batch
