"""Batches of windows on their way through the network.

On a GPU, windows travel as the files' own values in pinned memory, and classes come back. Both copies have a stream of
their own, so the network waits for neither. Normalisation and the choice of classes run on the device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from models.image_batches import normaliser, table_of, to_batch
from pipeline.compiler.ends import has_class
from pipeline.config.request_error import RequestError
from pipeline.inputs.input_contract import InputContract
from pipeline.predict.masks import EIGHT_BITS, class_tensor
from pipeline.predict.sources import Predictor

if TYPE_CHECKING:
    from pipeline.predict.gpu_decode import Decoded


@dataclass(frozen=True)
class Cutting:
    """A window that has been cut out of an image.

    Attributes:
        values: [height, width, channels], as the file holds them; a volume has a depth before. Or a window of a file
            that the GPU has decoded.
        contract: how it is normalised.
        takes: what is made of its answer: "classes", or "values", which are the network's own.
    """

    values: "np.ndarray | DecodedWindow"
    contract: InputContract
    takes: str


@dataclass(frozen=True)
class DecodedWindow:
    """A window of a decoded file.

    Attributes:
        image: the file.
        start: first row and column.
        size: height and width.
    """

    image: "Decoded"
    start: tuple[int, ...]
    size: tuple[int, ...]
    dtype = np.dtype(np.uint8)


@dataclass(frozen=True)
class Started:
    """A batch whose answers may still be on their way.

    Attributes:
        takes: of each window.
        answers: in the host's memory: "classes" [batch, height, width], "values" [batch, channels, height, width], and
            "finite" [batch, parts], not 0 where all logits are numbers.
        wait: returns once the answers are there.
    """

    takes: list[str]
    answers: dict[str, Tensor]
    wait: Callable[[], Any]

    def each(self) -> Iterator[Tensor | None]:
        """Yield the answer of each window, [height, width] or [channels, height, width]; None where it has NaN.

        Call `wait` before.
        """
        all_finite = self.answers["finite"].all(1).tolist()
        for number, (takes, finite) in enumerate(zip(self.takes, all_finite, strict=False)):
            yield self.answers[takes][number] if finite else None


class Network:
    """A predictor that is called with windows.

    Args:
        predictor: the network.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.on_gpu = predictor.device.type == "cuda"
        self.rule = cache(partial(normaliser, device=predictor.device))
        self.table = cache(partial(table_of, device=predictor.device))
        self.to_device, self.to_host = (torch.cuda.Stream() if self.on_gpu else None for _ in range(2))

    @torch.inference_mode()
    def start(self, batch: Tensor, takes: list[str]) -> Started:
        """Call the network with a batch.

        Args:
            batch: of `batch_of`.
            takes: of each of its windows.

        Raises:
            RequestError: the network gives values of another size than its input's.
        """
        answer = self.predictor.run(batch)
        self.check_size(batch, answer)
        if (
            self.on_gpu
            and self.predictor.gives == "logits"
            and set(takes) == {"classes"}
            and answer.shape[1] <= EIGHT_BITS
        ):
            from pipeline.predict.gpu_kernels import choose  # imports Triton, which a CPU does without

            classes, finite = choose(answer)
            return Started(takes, *self.sent_back({"classes": classes, "finite": finite}))
        sound = has_class(answer) if self.predictor.gives == "classes" else answer.isfinite()
        answers = {"finite": sound.flatten(1).all(1, keepdim=True)}
        if "classes" in takes:
            chosen = class_tensor(answer, batch.ndim)
            answers["classes"] = chosen.clone() if chosen is answer else chosen  # the next call may write over it
        if "values" in takes:
            answers["values"] = answer.to(torch.float32, copy=True)
        if not self.on_gpu:
            return Started(takes, answers, lambda: None)
        return Started(takes, *self.sent_back(answers))

    def sent_back(self, answers: dict[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[], Any]]:
        """Begin to copy tensors into the host's memory; return them and what waits for them."""
        assert self.to_host is not None
        self.to_host.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.to_host):
            for name, answer in answers.items():
                answer.record_stream(self.to_host)
                pinned = torch.empty(answer.shape, dtype=answer.dtype, pin_memory=True)
                answers[name] = pinned.copy_(answer, non_blocking=True)
        return answers, self.to_host.record_event().synchronize

    @torch.inference_mode()
    def batch_of(self, windows: Sequence[Cutting]) -> Tensor:
        """Return windows of one size as the predictor's batch on its device, filled up with the first."""
        filled = [*windows, *[windows[0]] * (self.predictor.shape[0] - len(windows))]
        parts = []
        for (kind, _, contract), group in groupby(filled, key=rule_of):
            images: list[Any] = [window.values for window in group]
            if kind is DecodedWindow:
                parts.append(self.from_planes(images, contract))
            elif self.predictor.images_in:
                parts.append(self.moved(images))
            elif contract.normalize == "zscore" or not self.on_gpu:  # sums of another order differ in their last bits
                parts.append(to_batch(np.stack(images), contract).to(self.predictor.device))
            else:
                parts.append(self.rule(contract, images[0].dtype, images[0].ndim + 1)(self.moved(images).float()))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def from_planes(self, windows: Sequence[DecodedWindow], contract: InputContract) -> Tensor:
        """Return windows of decoded files as the predictor takes them, every value as `to_batch` makes it."""
        from pipeline.predict.gpu_kernels import put_window  # imports Triton, which a CPU does without

        shape, kind = (len(windows), contract.channels, *windows[0].size), torch.float32
        table = None if self.predictor.images_in else self.table(contract)
        if table is None:
            shape, kind = (len(windows), *windows[0].size, contract.channels), torch.uint8
        batch = torch.empty(shape, dtype=kind, device=self.predictor.device)
        reverses = table is not None and contract.channel_order == "bgr"
        for place, window in zip(batch, windows, strict=True):
            put_window(window.image, window.start, table, place, reverses=reverses)
        return batch

    def empty(self, size: int) -> np.ndarray:
        """Return memory for the values of images, which a GPU copies from without the host's help."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=self.on_gpu).numpy()

    def moved(self, images: Sequence[np.ndarray]) -> Tensor:
        """Return images in one tensor on the device; the network's stream waits for the copies, the caller doesn't."""
        tensors = [torch.from_numpy(image) for image in images]
        if self.to_device is None:
            return torch.stack(tensors)
        with torch.cuda.stream(self.to_device):
            there = torch.empty((len(tensors), *tensors[0].shape), dtype=tensors[0].dtype, device=self.predictor.device)
            for place, tensor in zip(there, tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.to_device)
        there.record_stream(torch.cuda.current_stream())
        return there

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


def rule_of(window: Cutting) -> tuple[type, np.dtype, InputContract]:
    """Return what windows have in common that become input together."""
    return type(window.values), window.values.dtype, window.contract
