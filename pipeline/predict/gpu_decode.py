"""JPEG files decoded by the GPU's own decoder, to the values that libjpeg gives on the host.

nvJPEG's inverse transform and colours agree with libjpeg-turbo's in every value (files of 4:4:4, H100), but its
chroma is not interpolated. So it gives planes of luma and chroma as they are stored, and `gpu_kernels` does the rest
as libjpeg does. torchvision's nvJPEG gives no planes, therefore its library is called directly.
"""

import ctypes
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.predict.case_work import Asked
from pipeline.predict.cases import CHANNELS
from pipeline.predict.nvjpeg import ASKED, PLANES, THREADS, Nvjpeg, begun
from pipeline.predict.workers import Memory

COMPONENTS = 4  # nvJPEG's largest number of channels


@dataclass(frozen=True)
class Decoded:
    """Decoded files on the GPU, and windows of them."""

    memory: Tensor  # of all planes, uint8
    windows: Tensor  # [number, 7], int64: begins of luma and chromas, height, width, the window's row and column
    per_chroma: tuple[int, int]  # as in `Jpeg`
    ready: torch.cuda.Event | None = None  # is reached when all that is there


class JpegDecoder:
    """Decodes batches of files by nvJPEG, in threads that each have a stream: a call keeps its thread waiting."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.nvjpeg: Nvjpeg = begun()[0].result()
        begun.cache_clear()  # its states are this decoder's
        self.own = threading.local()
        self.threads = ThreadPoolExecutor(THREADS)
        self.reading = torch.cuda.current_stream(device)

    def submit(self, asked: Asked, memory: Memory, batch: int) -> "Future[Decoded]":
        """Have files decoded; the future raises `DecodeError` if one of them can't be."""
        return self.threads.submit(self.decode, asked, memory, batch)

    def decode(self, asked: Asked, memory: Memory, batch: int) -> Decoded:
        """Begin to decode files; arguments and errors as those of `submit`."""
        number, files = len(asked.files), np.array(asked.files)
        begins, sides, total = planes_of(files[:, 2:], asked.per_chroma)
        with torch.cuda.device(self.device):
            stream = self.prepared(number)
            with torch.cuda.stream(stream):
                planes = torch.empty(total, dtype=torch.uint8, device=self.device)
                as_array = np.zeros((number, 2, COMPONENTS), np.uint64)  # of nvjpegImage_t: addresses and pitches
                as_array[:, 0, :CHANNELS] = begins + planes.data_ptr()
                as_array[:, 1, :CHANNELS] = sides[..., 1]
                contents = files[:, 0] + memory.room(0).ctypes.data
                arrays = contents.astype(np.uint64), files[:, 1].astype(np.uint64), as_array
                pointers = [ctypes.c_void_p(at) for at in (*(each.ctypes.data for each in arrays), stream.cuda_stream)]
                self.nvjpeg.call("DecodeBatched", self.nvjpeg.handle, self.own.state, *pointers)
                windows = torch.from_numpy(windows_of(asked, begins, batch)).pin_memory()
                windows = windows.to(self.device, non_blocking=True)
                self.own.ready = stream.record_event()
        for tensor in (planes, windows):
            tensor.record_stream(self.reading)
        return Decoded(planes, windows, asked.per_chroma, self.own.ready)

    def prepared(self, number: int) -> torch.cuda.Stream:
        """Return this thread's stream, with its state ready for a number of files; the call before has ended then."""
        if not hasattr(self.own, "stream"):
            self.own.state, self.own.number = self.nvjpeg.states.pop(), ASKED
            self.own.stream = torch.cuda.Stream(priority=-1)
            self.own.ready = self.own.stream.record_event()
        self.own.ready.synchronize()
        if self.own.number != number:
            self.nvjpeg.call("DecodeBatchedInitialize", self.nvjpeg.handle, self.own.state, number, 1, PLANES)
            self.own.number = number
        stream: torch.cuda.Stream = self.own.stream
        return stream


def planes_of(sides: np.ndarray, per_chroma: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return where the planes of files begin [files, 3], their height and width [files, 3, 2], and bytes of all."""
    chroma = -(-sides // np.array(per_chroma[::-1]))
    each = np.stack([sides, chroma, chroma], 1)
    ends = each.prod(-1).cumsum()
    return np.concatenate([[0], ends[:-1]]).reshape(-1, CHANNELS), each, int(ends[-1])


def windows_of(asked: Asked, begins: np.ndarray, batch: int) -> np.ndarray:
    """Return `Decoded.windows` of files whose planes begin there, filled up to whole batches."""
    file, top, left = np.array(asked.windows).T
    table = np.column_stack([begins[file], np.array(asked.files)[file, 2:], top, left])
    missing = -len(table) % batch
    return np.concatenate([table, table[[len(table) - (batch - missing)] * missing]]) if missing else table
