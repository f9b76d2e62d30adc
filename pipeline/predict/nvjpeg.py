"""What a GPU's first mask waits for without torch: nvJPEG, 0.7 s, and the digest of Triton's files, 0.3 s (H200)."""

import ctypes
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes.util import find_library
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

HARDWARE, DEFAULT, PLANES = 3, 0, 1  # nvJPEG's backends and format of output
ASKED = 32  # windows in a message to a GPU: nvJPEG's rate grows up to here (H100)
THREADS = 2  # that decode: a call takes 7 ms beside a network that runs (32 files of 512×512, H100)


class DecodeError(Exception):
    """nvJPEG can't decode these files; the text has its status."""


class Nvjpeg:
    """torchvision's nvJPEG, or else the system's, with states for `THREADS` that decode `ASKED` files a call."""

    def __init__(self) -> None:
        places = [place for folder in sys.path for place in Path(folder).glob("torchvision.libs/libnvjpeg*")]
        found = str(places[0]) if places else find_library("nvjpeg")
        if not found:
            raise DecodeError("there is no nvJPEG, neither torchvision's nor the system's")
        self.library, self.handle = ctypes.CDLL(found), ctypes.c_void_p()
        if self.library.nvjpegCreateEx(HARDWARE, None, None, 0, ctypes.byref(self.handle)):
            self.call("CreateEx", DEFAULT, None, None, 0, ctypes.byref(self.handle))
        self.states = [ctypes.c_void_p() for _ in range(THREADS)]
        for state in self.states:
            self.call("JpegStateCreate", self.handle, ctypes.byref(state))
            self.call("DecodeBatchedInitialize", self.handle, state, ASKED, 1, PLANES)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of nvJPEG."""
        if status := getattr(self.library, f"nvjpeg{name}")(*arguments):
            raise DecodeError(f"nvJPEG's {name} failed with status {status}")


@cache
def begun() -> tuple[Future[Any], Future[Any]]:
    """Start nvJPEG and the digest of Triton's files in threads, beside the imports; later calls return the same."""
    threads = ThreadPoolExecutor()
    return threads.submit(Nvjpeg), threads.submit(lambda: import_module("triton.runtime.cache").triton_key())
