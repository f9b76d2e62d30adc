"""JPEG files decoded by the GPU's own decoder, to the values that libjpeg gives on the host.

nvJPEG's inverse transform and colours agree with libjpeg-turbo's in every value (files of 4:4:4, H100), but its
chroma is not interpolated. So it gives planes of luma and chroma as they are stored, and `gpu_kernels` does the rest
as libjpeg does. torchvision's nvJPEG gives no planes, therefore its library is called directly.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.predict.jpeg_header import Jpeg

HARDWARE, DEFAULT, PLANES = 3, 0, 1  # nvJPEG's backends and format of output
COMPONENTS = 4  # nvJPEG's largest number of channels
MAPS = Path("/proc/self/maps")


class DecodeError(Exception):
    """nvJPEG can't decode these files; the text has its status."""


class Planes(ctypes.Structure):
    """nvjpegImage_t."""

    _fields_ = (("channel", ctypes.c_void_p * COMPONENTS), ("pitch", ctypes.c_size_t * COMPONENTS))


@dataclass(frozen=True)
class Decoded:
    """A decoded file on the GPU.

    Attributes:
        planes: luma [height, width] and two of chroma, uint8, with fewer pixels where the file has fewer.
        shape: height, width and channels.
        per_chroma: as in `Jpeg`.
    """

    planes: tuple[Tensor, Tensor, Tensor]
    shape: tuple[int, int, int]
    per_chroma: tuple[int, int]
    dtype = np.dtype(np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of its planes."""
        return sum(plane.numel() for plane in self.planes)


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
        self.handle, self.state = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            self.reading, self.stream = torch.cuda.current_stream(), torch.cuda.Stream()
            if self.library.nvjpegCreateEx(HARDWARE, None, None, 0, ctypes.byref(self.handle)):
                self.call("CreateEx", DEFAULT, None, None, 0, ctypes.byref(self.handle))
            self.call("JpegStateCreate", self.handle, ctypes.byref(self.state))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of nvJPEG.

        Raises:
            DecodeError: it fails.
        """
        if status := getattr(self.library, f"nvjpeg{name}")(*arguments):
            raise DecodeError(f"nvJPEG's {name} failed with status {status}")

    def decode(self, files: Sequence[Jpeg]) -> list[Decoded]:
        """Return files decoded; all their values are there.

        Raises:
            DecodeError: one of them can't be decoded.
        """
        number = len(files)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            decoded = self.room(files)
            images = (Planes * number)()
            for image, there in zip(images, decoded, strict=True):
                for channel, plane in enumerate(there.planes):
                    image.channel[channel], image.pitch[channel] = plane.data_ptr(), plane.shape[1]
            contents = (ctypes.c_void_p * number)(*[file.content.ctypes.data for file in files])
            sizes = (ctypes.c_size_t * number)(*[len(file.content) for file in files])
            self.call("DecodeBatchedInitialize", self.handle, self.state, number, 1, PLANES)
            stream = ctypes.c_void_p(self.stream.cuda_stream)
            self.call("DecodeBatched", self.handle, self.state, contents, sizes, images, stream)
            self.stream.synchronize()
        return decoded

    def room(self, files: Sequence[Jpeg]) -> list[Decoded]:
        """Return memory for the planes of files, which is freed at once when the reading stream is done with it."""
        sides = [side for file in files for side in file.planes]
        ends = [*accumulate(map(math.prod, sides), initial=0)]
        memory = torch.empty(ends[-1], dtype=torch.uint8, device=self.device)
        memory.record_stream(self.reading)
        planes = [memory[first:last].view(side) for (first, last), side in zip(pairwise(ends), sides, strict=True)]
        return [
            Decoded((planes[at], planes[at + 1], planes[at + 2]), file.shape, file.per_chroma)
            for at, file in zip(range(0, len(planes), 3), files, strict=True)
        ]


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
