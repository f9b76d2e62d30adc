"""The path from files to masks: order, what waits, errors of its threads, windows of JPEG files that a GPU decodes."""

import io
import os
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from models.image_batches import table_of, to_batch
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import case_work, nvjpeg
from pipeline.predict import cases as cases_module
from pipeline.predict.case_work import Asked, CaseWork, Collected
from pipeline.predict.cases import Case, Jpeg, Read, Reader, groups, parse, read_case
from pipeline.predict.given import Given
from pipeline.predict.gpu_decode import Decoded, planes_of, windows_of
from pipeline.predict.gpu_kernels import choose, put_windows
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import Writer
from pipeline.predict.masks import class_tensor
from pipeline.predict.nvjpeg import DecodeError, Nvjpeg
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut, Span, cut_out
from pipeline.predict.workers import Memory, Workers
from tests.predict.made_up_runs import held, write_image

CPU = torch.device("cpu")


def a_prediction(out: Path, batch: int = 2, contract: InputContract | None = None) -> Prediction:
    predictor = Predictor("a test's", lambda batch: batch, (batch, 3, 8, 8), CPU, contract or InputContract(), None)
    return Prediction(predictor, out, "made by a test", Cut(overlap=2))


@dataclass(frozen=True)
class Dying(CaseWork):
    """Ends its process when it reads an image."""

    at: str = ""

    def run(self, line: Connection, memories: list[Memory], alone: int) -> None:
        read = Reader.one

        def one(reader: Reader, case: Case) -> Read:
            return os._exit(3) if case.name == self.at else read(reader, case)

        Reader.one = one  # type: ignore[assignment,method-assign]  # of a process that serves this alone
        super().run(line, memories, alone)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "masks").mkdir()
    folder = tmp_path / "images"
    for number, (height, width) in enumerate([(8, 8), (21, 9), (3, 5), (8, 8), (16, 30), (8, 8), (1, 1)] * 3):
        write_image(folder / f"{number:02d}.png", height, width, seed=number)
    return folder


def test_a_large_case_is_made_before_the_next(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    read, write = Reader.one, Writer.write

    def one(reader: Reader, case: Case) -> Read:
        told.append(("read", case.name))
        return read(reader, case)

    def written(writer: Writer, labels: np.ndarray, mask: str, *others: Any) -> dict[str, str]:
        told.append(("written", Path(mask).stem))
        return write(writer, labels, mask, *others)

    monkeypatch.setattr(Reader, "one", one)
    monkeypatch.setattr(Writer, "write", written)
    monkeypatch.setattr(case_work, "HELD", 0)
    cases = Given(images, volumes=False)
    a_prediction(tmp_path / "masks", batch=3).make(cases, print)
    assert told == [(what, case.name) for case in cases for what in ("read", "written")]


def test_large_files_are_read_alone(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = Given(images, volumes=False)
    assert [len(group) for group in groups(cases, 8)] == [8, 8, 5]
    monkeypatch.setattr(cases_module, "BYTES_OF_A_GROUP", 0)
    assert [len(group) for group in groups(cases, 8)] == [1] * 21


@pytest.mark.fresh_process
@pytest.mark.parametrize("batch", [1, 8])
def test_processes_make_equal_masks(images: Path, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, begin = Given(images, volumes=False), Workers.begin
    a_prediction(tmp_path / "masks", batch).make(cases, print)
    (tmp_path / "others").mkdir()
    monkeypatch.setattr(Workers, "begin", lambda workers, work, _: begin(workers, work, 2))
    prediction = a_prediction(tmp_path / "others", batch)
    monkeypatch.setattr(prediction, "new_workers", lambda: Workers(in_threads=False))
    found = prediction.make(cases, print)
    assert found.made == len(cases)
    for path in (tmp_path / "masks").glob("*.png"):
        assert path.read_bytes() == (tmp_path / "others" / path.name).read_bytes()


@pytest.mark.fresh_process
def test_an_image_whose_reader_dies_costs_itself(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = Given(images, volumes=False)
    prediction = a_prediction(tmp_path / "masks", batch=4)
    work = prediction.work
    monkeypatch.setattr(prediction, "work", lambda *args, **named: Dying(**vars(work(*args, **named)), at="03"))
    monkeypatch.setattr(prediction, "new_workers", lambda: Workers(in_threads=False))
    found = prediction.make(cases, print)
    assert list(found.failed) == ["03"]
    assert "03.png: the process that worked on it ended with code 3" in found.failed["03"]
    assert found.made + found.kept == len(cases) - 1
    assert len(list((tmp_path / "masks").glob("*.png"))) == len(cases) - 1


def test_files_that_the_gpu_cannot_decode_are_decoded_by_the_host(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(5):
        write_image(tmp_path / "images" / f"{number}.jpg", 16, 24, seed=number)
    cases = Given(tmp_path / "images", volumes=False)
    prediction = a_prediction(tmp_path / "masks")
    asked: list[int] = []

    class Decoder:
        def submit(self, asked_for: Asked, *_: object) -> Future[None]:
            asked.append(len(asked_for.files))
            (failed := Future[None]()).set_exception(DecodeError("a test's"))
            return failed

    prediction.decoder = lambda _: Decoder()  # type: ignore[assignment]
    assert prediction.make(cases, print).made == 5
    assert sum(asked) == 5
    for case in cases:
        image = read_case(case, InputContract(), None)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "masks" / case.mask)), image.argmax(-1))


SAMPLINGS = {0: (1, 1), 1: (2, 1), 2: (2, 2)}  # Pillow's numbers


def jpeg_of(image: Image.Image, **options: object) -> bytes:
    image.save(out := io.BytesIO(), "JPEG", **options)
    return out.getvalue()


def picture(height: int, width: int, cells: int = 16) -> Image.Image:
    rng = np.random.default_rng(height * width)
    coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8)).resize((width, height))
    noise = rng.integers(-30, 31, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse, np.int16) + noise, 0, 255).astype(np.uint8))


def blocks(height: int, width: int) -> Image.Image:
    """Colours that are the same within each unit of 16×16 pixels, so the stored chroma is the same within its block."""
    rng = np.random.default_rng(height + width)
    units = rng.integers(0, 256, (-(-height // 16), -(-width // 16), 3), np.uint8)
    return Image.fromarray(np.kron(units, np.ones((16, 16, 1), np.uint8))[:height, :width])


def stored_planes(content: bytes, jpeg: Jpeg) -> tuple[torch.Tensor, ...]:
    """The planes of `blocks`: luma as Pillow gives it, chroma from the middle of each unit, where no filter acts."""
    with Image.open(io.BytesIO(content)) as image:
        image.draft("YCbCr", image.size)
        full = np.asarray(image)
    _, sides, _ = planes_of(np.array([jpeg.shape[:2]]), jpeg.per_chroma)
    (height, width), (rows, columns), _ = sides[0].tolist()
    across, along = jpeg.per_chroma
    row = np.minimum(np.arange(rows) * along // 16 * 16 + 7, height - 1)
    column = np.minimum(np.arange(columns) * across // 16 * 16 + 7, width - 1)
    chroma = [np.ascontiguousarray(full[row[:, None], column[None], channel]) for channel in (1, 2)]
    return tuple(map(torch.from_numpy, (np.ascontiguousarray(full[..., 0]), *chroma)))


def window_of(decoded: Decoded, start: tuple[int, int], size: tuple[int, int], contract: InputContract) -> torch.Tensor:
    device = decoded.memory.device
    out = torch.empty(1, 3, *size, device=device)
    put_windows(
        with_window(decoded, start), 0, table_of(contract, device), out, reverses=contract.channel_order == "bgr"
    )
    return out[0].cpu()


def with_window(decoded: Decoded, *starts: tuple[int, int]) -> Decoded:
    """The decoded file with these windows instead of one in its corner."""
    file = decoded.windows[0, :5].tolist()
    return replace(decoded, windows=torch.tensor([[*file, *start] for start in starts], device=decoded.memory.device))


def of_planes(planes: tuple[torch.Tensor, ...], jpeg: Jpeg) -> Decoded:
    begins, sides, total = planes_of(np.array([jpeg.shape[:2]]), jpeg.per_chroma)
    assert [tuple(side) for side in sides[0]] == [tuple(plane.shape) for plane in planes]
    memory = torch.cat([plane.flatten() for plane in planes])
    assert len(memory) == total
    return Decoded(memory, torch.tensor([[*begins[0], *jpeg.shape[:2], 0, 0]]), jpeg.per_chroma)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_window_of_stored_planes_is_the_network_input_that_pillow_gives(sampling: int, order: str) -> None:
    contract = InputContract(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), channel_order=order)  # type: ignore[arg-type]
    content = jpeg_of(blocks(48, 64), quality=95, subsampling=sampling)
    jpeg = parse(content)
    assert jpeg.per_chroma == SAMPLINGS[sampling]
    decoded = of_planes(stored_planes(content, jpeg), jpeg)  # type: ignore[arg-type]
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image)
    for start, size in (((0, 0), (48, 64)), ((5, 11), (32, 40)), ((16, 32), (64, 64))):
        spans = [Span(at, 0, 0) for at in start]
        expected = to_batch(cut_out(pixels, spans, size)[None], contract)[0]
        assert torch.equal(window_of(decoded, start, size, contract), expected)


def test_bytes_of_a_window_are_the_pixels_themselves() -> None:
    content = jpeg_of(blocks(32, 32), quality=95)
    jpeg = parse(content)
    out = torch.empty(2, 32, 32, 3, dtype=torch.uint8)
    put_windows(with_window(of_planes(stored_planes(content, jpeg), jpeg), (5, 5), (0, 0)), 1, None, out[:1])  # type: ignore[arg-type]
    with Image.open(io.BytesIO(content)) as image:
        assert np.array_equal(out[0].numpy(), np.asarray(image))


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_classes_are_those_of_the_host(classes: int, layout: torch.memory_format, kind: torch.dtype) -> None:
    logits = torch.randint(-3, 4, (2, classes, 40, 33), generator=torch.Generator().manual_seed(classes)).to(kind)
    chosen, finite = choose(logits.contiguous(memory_format=layout))
    assert torch.equal(chosen, class_tensor(logits, 4))
    assert finite.all()
    logits[1, -1, 39, 32] = torch.nan
    logits[0, 0, 0, 0] = -torch.inf
    assert choose(logits)[1].all(1).tolist() == [False, False]


def asked_for(files: list[Jpeg], memory: Memory) -> Asked:
    """Whole files in a memory."""
    some = Collected(files[0].shape[:2], "classes", InputContract(), np.dtype(np.uint8), files[0].per_chroma)
    some.files, some.of_files = files, [(number, 0, 0) for number in range(len(files))]
    some.windows = [None for _ in files]  # type: ignore[misc]
    return some.put(0, memory)


def test_files_lie_in_the_memory_and_last_batches_are_filled_with_their_first_window() -> None:
    contents = [jpeg_of(picture(16, 8 * number)) for number in (1, 2, 3, 4)]
    memory = Memory(os.memfd_create("a test's"))
    asked = asked_for([file for content in contents if (file := parse(content))], memory)
    for content, (at, size, height, width) in zip(contents, asked.files, strict=True):
        assert bytes(memory.array(at, np.dtype(np.uint8), (size,))) == content
        assert parse(content).shape == (height, width, 3)
        assert at + size <= asked.room
    begins, _, total = planes_of(np.array(asked.files)[:, 2:], (2, 2))
    assert begins[0].tolist() == [0, 128, 160]
    assert total == 16 * 80 * 3 // 2
    assert windows_of(asked, begins, 3)[:, 4].tolist() == [8, 16, 24, 32, 32, 32]


@pytest.mark.parametrize(
    "content",
    [
        jpeg_of(picture(32, 32), progressive=True),
        jpeg_of(picture(32, 32).convert("L")),
        jpeg_of(picture(32, 32).convert("CMYK")),
        jpeg_of(picture(6, 32)),
        jpeg_of(picture(32, 32), keep_rgb=True),
        jpeg_of(picture(32, 32))[:-2],
        jpeg_of(picture(32, 32), exif=held(6)),
        jpeg_of(picture(32, 32), xmp=b'<x:xmpmeta tiff:Orientation="6"/>'),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8" + bytes(100) + b"\xff\xd9",
        b"",
    ],
    ids=["progressive", "grey", "cmyk", "low", "rgb", "cut", "turned", "xmp", "empty", "zeros", "none"],
)
def test_other_files_are_left_to_the_host(content: bytes) -> None:
    assert parse(content) is None


@pytest.mark.parametrize(
    ("numbers", "problem", "encoded"), [([0], "", True), ([0, 1, 2], "", False), ([0], "a channel is missing", False)]
)
def test_one_sound_file_alone_is_given_encoded(tmp_path: Path, numbers: list[int], problem: str, encoded: bool) -> None:
    files = [tmp_path / f"case_{number}.jpg" for number in numbers]
    for file in files:
        file.write_bytes(content := jpeg_of(picture(32, 32)))
        assert parse(content)
    reader = Reader(InputContract(), None, images_in=False, encoded=True)
    found = reader.jpeg(Case("case", tuple(files), problem))
    assert (found is not None) == encoded


def test_upright_files_of_cameras_are_decoded_by_the_gpu() -> None:
    assert parse(jpeg_of(picture(32, 40), exif=held(1))).shape == (32, 40, 3)


def test_a_missing_nvjpeg_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjpeg, "find_library", lambda name: None)
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(DecodeError, match="there is no nvJPEG, neither torchvision's nor the system's"):
        Nvjpeg()


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("sides", [(512, 512), (33, 47), (8, 8), (101, 256), (1080, 1919)])
def test_gpu_decodes_to_the_values_that_pillow_gives(sampling: int, sides: tuple[int, int]) -> None:
    from pipeline.predict.gpu_decode import JpegDecoder

    contents = [jpeg_of(picture(*sides, one), quality=it, subsampling=sampling) for one in (4, 32) for it in (50, 90)]
    files = [file for content in contents if (file := parse(content))]
    memory = Memory(os.memfd_create("a test's"))
    decoded = JpegDecoder(torch.device("cuda")).decode(asked_for(files, memory), memory, batch=3)
    assert decoded.windows.shape == (6, 7)
    assert decoded.ready is not None
    decoded.ready.synchronize()
    out = torch.empty(6, 3, *sides, device="cuda")
    put_windows(decoded, 0, table_of(InputContract(), out.device), out)
    for content, there in zip([*contents, *contents[-1:] * 2], out, strict=True):
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.asarray(ImageOps.exif_transpose(image))
        assert torch.equal(there.cpu(), to_batch(pixels[None])[0])
