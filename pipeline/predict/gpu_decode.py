"""JPEG files decoded by the GPU's own decoder, to the values that libjpeg gives on the host.

nvJPEG's inverse transform and colours agree with libjpeg-turbo's in every value (files of 4:4:4, H100), but its
chroma is not interpolated. So it gives planes of luma and chroma as they are stored, and `gpu_kernels` does the rest
as libjpeg does. torchvision's nvJPEG gives no planes, therefore its library is called directly.
"""

import ctypes
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.predict.case_work import Asked
from pipeline.predict.jpeg_header import CHANNELS
from pipeline.predict.workers import Memory

HARDWARE, DEFAULT, PLANES = 3, 0, 1  # nvJPEG's backends and format of output
STATES = 2  # calls under way
COMPONENTS = 4  # nvJPEG's largest number of channels
MAPS = Path("/proc/self/maps")


class DecodeError(Exception):
    """nvJPEG can't decode these files; the text has its status."""


class Planes(ctypes.Structure):
    """nvjpegImage_t."""

    _fields_ = (("channel", ctypes.c_void_p * COMPONENTS), ("pitch", ctypes.c_size_t * COMPONENTS))


@dataclass(frozen=True)
class Decoded:
    """Decoded files on the GPU, and windows of them.

    Attributes:
        memory: of all planes, uint8.
        windows: [number, 7], int64: where luma and both chromas begin, height and width of the file, and the window's
            first row and column. A last batch is filled up with its first window.
        per_chroma: as in `Jpeg`.
    """

    memory: Tensor
    windows: Tensor
    per_chroma: tuple[int, int]


@dataclass
class State:
    """What nvJPEG keeps for a call, and the event behind the call."""

    state: ctypes.c_void_p
    done: torch.cuda.Event


class JpegDecoder:
    """Decodes batches of files by nvJPEG on a stream of its own, for the stream that is current when it is made.

    Args:
        device: the GPU.

    Raises:
        DecodeError: nvJPEG is missing, or has no decoder for this GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.library = library()
        self.handle = ctypes.c_void_p()
        with torch.cuda.device(device):
            self.reading, self.stream = torch.cuda.current_stream(), torch.cuda.Stream()
            if self.library.nvjpegCreateEx(HARDWARE, None, None, 0, ctypes.byref(self.handle)):
                self.call("CreateEx", DEFAULT, None, None, 0, ctypes.byref(self.handle))
            self.states = deque(self.new_state() for _ in range(STATES))

    def new_state(self) -> "State":
        """Return memory for one call of nvJPEG."""
        state = State(ctypes.c_void_p(), self.stream.record_event())
        self.call("JpegStateCreate", self.handle, ctypes.byref(state.state))
        return state

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of nvJPEG.

        Raises:
            DecodeError: it fails.
        """
        if status := getattr(self.library, f"nvjpeg{name}")(*arguments):
            raise DecodeError(f"nvJPEG's {name} failed with status {status}")

    def decode(self, asked: Asked, memory: Memory, batch: int) -> Decoded:
        """Begin to decode files, for the reading stream.

        Args:
            asked: the files and their windows.
            memory: that holds the files; they must stay there until the stream is done with them.
            batch: windows in a batch.

        Raises:
            DecodeError: one of them can't be decoded.
        """
        number, files = len(asked.files), np.array(asked.files)
        begins, sides, total = planes_of(files[:, 2:], asked.per_chroma)
        state = self.states[0]
        self.states.rotate()
        state.done.synchronize()
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            planes = torch.empty(total, dtype=torch.uint8, device=self.device)
            images = (Planes * number)()
            as_array = np.frombuffer(images, np.uint64).reshape(number, 2, COMPONENTS)
            as_array[:, 0, :CHANNELS] = begins + planes.data_ptr()
            as_array[:, 1, :CHANNELS] = sides[..., 1]
            contents = files[:, 0] + memory.room(0).ctypes.data
            self.call("DecodeBatchedInitialize", self.handle, state.state, number, 1, PLANES)
            stream = ctypes.c_void_p(self.stream.cuda_stream)
            addresses = (contents.astype(np.uint64), files[:, 1].astype(np.uint64))
            pointers = [ctypes.c_void_p(part.ctypes.data) for part in addresses]
            self.call("DecodeBatched", self.handle, state.state, *pointers, images, stream)
            state.done = self.stream.record_event()
            windows = torch.from_numpy(windows_of(asked, begins, batch)).pin_memory().to(self.device, non_blocking=True)
            self.reading.wait_stream(self.stream)
        for tensor in (planes, windows):
            tensor.record_stream(self.reading)
        return Decoded(planes, windows, asked.per_chroma)


def planes_of(sides: np.ndarray, per_chroma: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return where the planes of files begin [files, 3], their height and width [files, 3, 2], and bytes of all.

    Args:
        sides: height and width of the files [files, 2].
        per_chroma: as in `Jpeg`.
    """
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


def library() -> ctypes.CDLL:
    """Return the nvJPEG that torchvision has brought along.

    Raises:
        DecodeError: it has none.
    """
    import torchvision.io  # noqa: F401 - loads the library  # takes a second, which a CPU need not wait for

    for line in MAPS.read_text().splitlines():
        if "libnvjpeg" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    raise DecodeError("this build of torchvision has no nvJPEG")
