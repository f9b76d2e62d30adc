"""Cases on their way from disk: workers read them, and a GPU decodes JPEG files in batches."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipeline.predict.cases import GROUP, GROUP_ENCODED, Case, Read, Reader
from pipeline.predict.jpeg_header import Jpeg
from pipeline.predict.workers import WorkerDiedError, Workers

if TYPE_CHECKING:
    from pipeline.predict.gpu_decode import JpegDecoder


class Reading:
    """Reads groups of cases side by side.

    Args:
        workers: that read.
        reader: what they do.
        decoder: of JPEG files; None: workers decode all files.

    Attributes:
        group: most cases of a group.
    """

    def __init__(self, workers: Workers, reader: Reader, decoder: "JpegDecoder | None") -> None:
        self.workers = workers
        self.reader = reader
        self.decoder = decoder
        self.decoding = ThreadPoolExecutor(1)
        self.group = 1 if workers.in_threads else GROUP if decoder is None else GROUP_ENCODED

    def submit(self, group: list[Case]) -> Future[list[Read]]:
        """Have a group read, and decoded."""
        if self.decoder is None:
            return self.workers.submit(self.reader.read, group)
        read = self.workers.submit(replace(self.reader, encoded=True).read, group)
        return self.decoding.submit(self.decoded, self.decoder, group, read.result)

    def decoded(self, decoder: "JpegDecoder", group: list[Case], result: Callable[[], list[Read]]) -> list[Read]:
        """Return a group as it was read, with its JPEG files decoded; if the GPU can't, the workers do it."""
        from pipeline.predict.gpu_decode import DecodeError  # loads nvJPEG

        found = result()
        files = {number: read.image for number, read in enumerate(found) if isinstance(read.image, Jpeg)}
        if files:
            try:
                for number, image in zip(files, decoder.decode([*files.values()]), strict=True):
                    found[number] = replace(found[number], image=image)
            except DecodeError:
                again = self.workers.submit(self.reader.read, [group[number] for number in files]).result()
                for number, read in zip(files, again, strict=True):
                    found[number] = read
        return found

    def found(self, group: list[Case], future: Future[list[Read]]) -> list[Read]:
        """Return the cases of a group as they were read; if a process ends meanwhile, read each one on its own."""
        try:
            return future.result()
        except WorkerDiedError as error:
            if len(group) == 1:
                return [Read(problem=f"{group[0].files[0]}: {error}")]
            return [read for case in group for read in self.found([case], self.submit([case]))]

    def __enter__(self) -> Self:
        """Return the reading."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Drop what nobody waits for."""
        self.decoding.shutdown(cancel_futures=True)
