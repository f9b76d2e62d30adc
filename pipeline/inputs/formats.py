"""The file formats of images and volumes: a table of each, with every format's readers and writer.

A new format is its functions here and its entry in `IMAGES` or `VOLUMES`; docs/inputs.md states what is refused.
"""

import gzip
import importlib
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import tifffile
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from pipeline.errors import ImageError
from pipeline.inputs.input_contract import Axes

# How an image's values are meant: colours as they are seen, channels as they are stored, or indices of classes.
Meaning = Literal["colours", "raw", "classes"]

IN_COLOUR = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}  # Pillow's modes, of 8 bits a channel
IN_GREY = {"1", "L", "LA"}
ONE_CHANNEL = {"I;16", "I;16B", "I;16L", "I", "F"}  # Pillow's modes of more than 8 bits
FEW_BITS = re.compile(r"L;([24])")  # Pillow's name of grey in 2 or 4 bits, which it spreads over 0 to 255
PNG_DEPTH = 24  # the byte that holds the bits of a channel (https://www.w3.org/TR/png-3/#11IHDR)
# The begin of a WebP's lossless values, which Pillow doesn't tell (RFC 9649): tag, length and signature.
LOSSLESS = re.compile(rb"VP8L.{4}\x2f", re.DOTALL)
PNG_TEXTS = b"eXIf", b"tEXt", b"zTXt", b"iTXt"  # chunks in which an orientation may be

ORIENTATION = 274  # the tag
PHOTOMETRIC = tifffile.PHOTOMETRIC
SHOWN = {PHOTOMETRIC.MINISWHITE, PHOTOMETRIC.MINISBLACK, PHOTOMETRIC.RGB}
CLASSES = {*SHOWN, PHOTOMETRIC.PALETTE, PHOTOMETRIC.MASK}
BITS = {1, 2, 4, 8, 16, 32, 64}  # of a TIFF's channel: of others the largest value isn't white
MOST_PIXELS = 178_956_970  # of an image by tifffile; Pillow has the same limit
AXES = 3  # of a volume without its channels
FARTHEST = 0.5  # of a voxel's shortest side: nearer corners are the same, as headers are rounded
MOST_OF_A_REASON = 160  # characters
MISSING = "reading it needs {0}; python -m pip install {0}"
CODECS = "imagecodecs"  # the package by which tifffile reads most compressions, and which has libpng
# The tags of scale, tie points, transformation and keys (GeoTIFF 1.1, OGC 19-008r4).
GEOGRAPHIC = {33550, 33922, 34264, 34735, 34736, 34737}
GIT_LFS = b"version https://git-lfs"  # first bytes of a Git LFS pointer, which replaces a file
GDAL_NODATA = 42113  # the tag (https://gdal.org/drivers/raster/gtiff.html)
# Of a TIFF: compressions that change values, or may: the header doesn't say which of both.
LOSSY = {
    tifffile.COMPRESSION[name]
    for name in (
        *("OJPEG", "JPEG", "ALT_JPEG", "JPEG_LOSSY", "JPEG_2000_LOSSY", "JPEG2000", "JPEGXR_NDPI", "JPEGXR", "JPEGXL"),
        *("APERIO_JP2000_YCBC", "APERIO_JP2000_RGB", "WEBP", "WEBP_DEPRECATED", "LERC"),
    )
}

# Bytes that Pillow reads and packs at once: a JPEG of 512×512 takes 1.47 ms, down from 1.55 ms with its own 64 KiB.
ImageFile.MAXBLOCK = 2**20
logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)  # the error that it raises says the same


@dataclass(frozen=True)
class Format:
    """A format of images or of volumes."""

    # Of an image [height, width] or [height, width, channels], of a volume with a depth first.
    read: Callable[[Path, Meaning], np.ndarray]
    shape: Callable[[Path], Sequence[int]]  # of those values, by the file's header alone
    # The bytes of a file with a volume's mask, or its values, several of a voxel last; the path is the volume's. None:
    # masks are written as .npy.
    write: Callable[[np.ndarray, Path], bytes] | None = None
    folder: bool = False  # the format is a folder of files


class Formats(dict[str, Format]):
    """Formats by the suffixes of file names, in lower case."""

    def suffix(self, path: Path | str) -> str:
        """Return the longest suffix that the file's name ends in, or an empty text."""
        return max(filter(str(path).lower().endswith, self), key=len, default="")

    def of(self, path: Path) -> Format:
        """Return the format of a file's suffix."""
        if suffix := self.suffix(path):
            return self[suffix]
        raise ImageError(f"{path}: its suffix is none of {', '.join(sorted(self))}")


def formats_of(volumes: bool) -> Formats:
    """Return the formats of volumes, or of images."""
    return VOLUMES if volumes else IMAGES


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a library raises while it reads a file, `kind`, into an ImageError of one line."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of a torn header, before the error about it
            yield
    except ImageError:
        raise
    except Exception as error:  # noqa: BLE001 - on bytes that are no image the libraries raise any of two dozen types
        if path.is_file() and not path.stat().st_size:
            raise ImageError(f"{path}: an empty file") from None
        if path.is_file() and first_bytes(path, len(GIT_LFS)) == GIT_LFS:
            raise ImageError(f"{path}: a pointer of Git LFS instead of the file; git lfs pull fetches it") from None
        if isinstance(error, ImportError) or CODECS in str(error):
            package = CODECS if TIFF.suffix(path) else getattr(error, "name", None)
            raise ImageError(f"{path}: {MISSING.format(package)}") from None
        said = " ".join(str(error).replace(str(path), "the file").split())
        why = f": {said[:MOST_OF_A_REASON]}" if said and not isinstance(error, UnidentifiedImageError) else ""
        raise ImageError(f"{path}: not {kind} that can be read ({type(error).__name__}{why})") from None


def first_bytes(path: Path, count: int) -> bytes:
    """Read the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(count)


def needed(package: str, path: Path) -> ModuleType:
    """Import a package that reads a format; raise ImageError if it isn't installed."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ImageError(f"{path}: {MISSING.format(package)}") from None


# Pillow


def opened(path: Path) -> Image.Image:
    """Open the file with Pillow, as a TIFF by its suffix alone, else as one of `PICTURES`."""
    return Image.open(path, formats=["TIFF"] if TIFF.suffix(path) else [*PICTURES])


def is_lossy(path: Path) -> bool:
    """Return whether a file's compression changes values, or may, by its contents; False where they can't be read."""
    with suppress(Exception):
        if TIFF.suffix(path):
            return bool(first_page(path).compression in LOSSY)
        with opened(path) as image:
            lossless_webp = image.format == "WEBP" and LOSSLESS.search(path.read_bytes())
            return image.format in ("JPEG", "MPO", "WEBP") and not lossless_webp
    return False


def conversion_of(path: Path, channels: int) -> str:
    """Return how an image is changed, or how a NIfTI volume lies, in a clause; an empty text for any other."""
    changes: list[str] = []
    with suppress(Exception):  # the reader tells
        if NIFTI.suffix(path):
            volume = nifti(path)
            codes = needed("nibabel", path).aff2axcodes(volume.affine)
            return f"stored with axes to {''.join(codes)}" if is_placed(volume) else ""
        with opened(path) as image:
            if image.getexif().get(ORIENTATION, 1) != 1:
                changes.append("turned upright, as its header says")
            if image.mode == "CMYK":
                changes.append("CMYK, converted to RGB without a colour profile")
            elif image.has_transparency_data and channels in (1, 3):
                changes.append("transparency, which is dropped")
    return " and ".join(changes)


def read_picture(path: Path, meaning: Meaning) -> np.ndarray:
    """Read an image with Pillow, upright: grey as [height, width], else RGB."""
    with opened(path) as image:
        pages = getattr(image, "n_frames", 1)
        if pages > 1 and image.format != "MPO":  # a phone's JPEG with a preview
            raise ImageError(f"{path}: {pages} pages or frames; save each as an image of its own")
        if image.format == "PNG" and image.mode not in ONE_CHANNEL and first_bytes(path, PNG_DEPTH + 1)[PNG_DEPTH] > 8:
            raise ImageError(f"{path}: a PNG of several channels of 16 bits, which would lose half; save TIFF or .npy")
        if (values := by_libpng(path, image)) is not None:
            return values
        step = spread_by(image) if meaning == "classes" else 1
        if isinstance(image, ImageFile.ImageFile) and image.getexif().get(ORIENTATION, 1) > 4:
            image.filename = ""  # Pillow 13 maps a named file of plain grey TIFF, with its sides swapped
        seen: Image.Image = image
        ImageOps.exif_transpose(seen, in_place=True)
        colours = np.array(image.getpalette() or [], np.uint8).reshape(-1, 3)
        if image.format == "GIF" and meaning == "classes" and (colours == colours[:, :1]).all():
            return np.array(seen.convert("L"))  # its writer may have left out unused greys, which moves the indices
        if meaning == "classes" and (image.mode == "P" or step > 1):
            return np.array(seen) // step
        if meaning == "raw" and seen.mode in ("LA", "RGBA"):
            return np.array(seen)
        if seen.mode in IN_GREY or seen.mode in ONE_CHANNEL:
            return np.array(seen.getchannel(0) if seen.mode == "LA" else seen)
        if seen.mode not in IN_COLOUR:
            raise ImageError(f"{path}: an image of mode {seen.mode}; grey, RGB, RGBA, CMYK and palettes are read")
        return np.array(seen if seen.mode == "RGB" else seen.convert("RGB"))


def by_libpng(path: Path, image: Image.Image) -> np.ndarray | None:
    """Return a plain PNG's values in about half of Pillow's time, if imagecodecs is installed; None of other files."""
    if image.format != "PNG" or image.mode not in ("L", "RGB") or spread_by(image) > 1 or "transparency" in image.info:
        return None
    content = path.read_bytes()
    if any(chunk in content for chunk in PNG_TEXTS):
        return None
    with suppress(Exception):  # it isn't installed, or has an error of its own
        values: np.ndarray = importlib.import_module(CODECS).png_decode(content)
        return values
    return None


def spread_by(image: Image.Image) -> int:
    """Return by how much Pillow multiplies grey of 2 or 4 bits, so that the largest value is 255; 1 of all others."""
    if image.mode != "L" or not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return 1
    layout = image.tile[0].args  # a name such as "L;4", or that and how it is packed
    few = FEW_BITS.match(layout if isinstance(layout, str) else str((layout or [""])[0]))
    return 255 // (2 ** int(few[1]) - 1) if few else 1


def picture_shape(path: Path) -> tuple[int, ...]:
    """Return height, width and channels by the header."""
    with opened(path) as image:
        return image.height, image.width, len(image.getbands())


# tifffile


def read_tiff(path: Path, meaning: Meaning) -> np.ndarray:
    """Read a TIFF of one page, with tifffile where Pillow would change its values."""
    with tifffile.TiffFile(path, is_ome=False, is_mmstack=False) as file:  # whose series span other files, too
        page, series = file.pages.first, file.series[0]
        pages = max(len(file.pages), math.prod(series.shape) // math.prod(series.keyframe.shape))
        if pages > 1:
            raise ImageError(f"{path}: {pages} pages or planes; save each as an image of its own")
        if (bits := page.bitspersample) not in BITS:
            cure = f"save them in 16 bits and set data.scale={2**bits - 1}, or in 8"
            raise ImageError(f"{path}: values of {bits} bits; {cure}")
        check_strips(path, series)
        if meaning != "raw" and pillow_reads(page):
            with suppress(UnidentifiedImageError):  # a compression that tifffile may know
                return read_picture(path, meaning)
        if page.imagewidth * page.imagelength > MOST_PIXELS:
            raise ImageError(f"{path}: {page.imagewidth * page.imagelength:,} pixels; at most {MOST_PIXELS:,} are read")
        if meaning != "raw" and page.photometric not in (CLASSES if meaning == "classes" else SHOWN):
            named = getattr(page.photometric, "name", f"PhotometricInterpretation {page.photometric}")
            raise ImageError(f"{path}: a TIFF whose values mean {named}; save it as grey or RGB")
        values = black_is_zero(path, page, series.asarray())
        values = np.moveaxis(values, series.axes.index("S"), -1) if "S" in series.axes else values
        return upright(values, page.tags.valueof(ORIENTATION, 1))


def upright(values: np.ndarray, orientation: int) -> np.ndarray:
    """Return an array [height, width, …] as it is seen, by its file's orientation of 1 to 8 (TIFF 6.0)."""
    turned = values.swapaxes(0, 1) if orientation > 4 else values
    return turned[:: -1 if orientation in (3, 4, 7, 8) else 1, :: -1 if orientation in (2, 3, 6, 7) else 1]


def pillow_reads(page: Any) -> bool:
    """Return whether Pillow opens a TIFF page and keeps its values."""
    if tifffile.EXTRASAMPLE.UNSPECIFIED in page.extrasamples or page.sampleformat == tifffile.SAMPLEFORMAT.INT:
        return False
    if page.bitspersample <= 8:
        return bool(page.samplesperpixel <= 4 and page.photometric not in {PHOTOMETRIC.MASK, PHOTOMETRIC.CFA})
    swapped = page.sampleformat == tifffile.SAMPLEFORMAT.IEEEFP and page.parent.byteorder == ">"  # by Pillow once more
    return bool(page.samplesperpixel == 1 and page.photometric == PHOTOMETRIC.MINISBLACK and not swapped)


def check_strips(path: Path, series: Any) -> None:
    """Raise ImageError if a TIFF has fewer strips or tiles than its header announces, which readers fill with zeros."""
    if len(series.keyframe.dataoffsets) < math.prod(series.keyframe.chunked):
        raise ImageError(f"{path}: ends before its last value")


def black_is_zero(path: Path, page: Any, values: np.ndarray) -> np.ndarray:
    """Return the values inverted if the header says that 0 is white."""
    if page.photometric != PHOTOMETRIC.MINISWHITE:
        return values
    if values.dtype.kind != "u":
        raise ImageError(f"{path}: its header says that 0 is white, which {values.dtype} has no black for")
    return np.asarray(np.iinfo(values.dtype).max - values)


def first_page(path: Path) -> Any:
    """Return a TIFF's first page, whose tags stay readable after the file is closed."""
    with tifffile.TiffFile(path, is_ome=False, is_mmstack=False) as file:
        return file.pages.first


def place_of(path: Path) -> list[tuple[int, int, int, Any, bool]]:
    """Return the tags that place a GeoTIFF on the earth, as `tifffile.imwrite` takes them; none of another file."""
    if not TIFF.suffix(path):
        return []
    with suppress(ImageError), reading(path, "an image"):
        tags = first_page(path).tags
        return [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags if tag.code in GEOGRAPHIC]
    return []


def nodata_of(path: Path) -> float | None:
    """Return the value that a TIFF's header says means no data; None without one, or of another file."""
    if not TIFF.suffix(path):
        return None
    with reading(path, "an image"):
        said = first_page(path).tags.valueof(GDAL_NODATA)
    return None if said is None else float(str(said).strip("\0 "))


def tiff_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of the first series by the header."""
    with tifffile.TiffFile(path) as file:
        return tuple(file.series[0].shape)


def read_pages(path: Path, _: Meaning) -> np.ndarray:
    """Read the pages of a TIFF as planes, upright; channels last, also where ImageJ wrote a page for each."""
    with tifffile.TiffFile(path) as file:
        if len(file.series) > 1:
            shapes = ", ".join("×".join(map(str, each.shape)) for each in file.series[:3])
            raise ImageError(f"{path}: {len(file.series)} series of pages ({shapes}); save each as a volume of its own")
        series, axes, page = file.series[0], file.series[0].axes, file.pages.first
        check_strips(path, series)
        values = black_is_zero(path, page, np.asarray(series.asarray()))
    channels = [at for at, axis in enumerate(axes) if axis in "CS"]
    if values.ndim > AXES and "T" in axes:
        raise ImageError(f"{path}: volumes at several times (axes {axes}); save each as one of its own")
    if len(channels) > 1:
        raise ImageError(f"{path}: several channels in colours (axes {axes}); save each channel as grey")
    values = np.moveaxis(values, channels[0], -1) if channels else values
    volume = values[None] if channels and values.ndim == AXES else values  # one plane of several channels
    return np.moveaxis(upright(np.moveaxis(volume, 0, -1), page.tags.valueof(ORIENTATION, 1)), -1, 0)


def write_pages(values: np.ndarray, _: Path) -> bytes:
    """Return a TIFF with a page for each plane."""
    order = "contig" if values.ndim > AXES else None
    tifffile.imwrite(out := io.BytesIO(), values, photometric="minisblack", planarconfig=order, metadata=None)
    return out.getvalue()


# numpy


def mapped(path: Path) -> np.ndarray:
    """Map an array's file, so that no header asks for memory."""
    return np.lib.format.open_memmap(path, mode="r")


def write_array(values: np.ndarray, _: Path) -> bytes:
    """Return an .npy file."""
    np.save(out := io.BytesIO(), values)
    return out.getvalue()


# nibabel


def nifti(path: Path) -> Any:
    """Open a NIfTI file with nibabel, which reads the header."""
    nibabel = needed("nibabel", path)
    image = nibabel.load(path)
    if not isinstance(image, nibabel.Nifti1Image):
        raise ImageError(f"{path}: {type(image).__name__}; NIfTI with header and values in one file is read")
    further = [length for length in image.shape[AXES:] if length > 1]
    if len(image.shape) < AXES or len(further) > 1:
        raise ImageError(f"{path}: axes {list(image.shape)}; a volume has three, and a fourth with channels")
    return image


def read_nifti(path: Path, _: Meaning) -> np.ndarray:
    """Read a NIfTI volume as [z, y, x] as stored, slope and intercept applied; channels last."""
    image = nifti(path)
    if path.name.lower().endswith(".gz"):
        with gzip.open(path) as file:
            stored = image.dataobj
            content = file.read(int(stored.offset) + stored.dtype.itemsize * math.prod(image.shape))
            file.read(1)  # compares the checksum, which stands at the end
        image = type(image).from_bytes(content)
    return np.moveaxis(np.asanyarray(image.dataobj).reshape(nifti_axes(image)), (0, 1, 2), (2, 1, 0))


def nifti_axes(image: Any) -> tuple[int, ...]:
    """Return x, y and z, and the channels where there are several."""
    return (*image.shape[:AXES], *(length for length in image.shape[AXES:] if length > 1))


def write_nifti(values: np.ndarray, source: Path) -> bytes:
    """Return a NIfTI file with the affine, the spacing and the units of the volume at `source`."""
    image = nifti(source)
    header = image.header.copy()
    header.set_data_dtype(values.dtype)
    header.set_slope_inter(1, 0)
    header["cal_min"] = header["cal_max"] = 0
    header.extensions.clear()
    content: bytes = type(image)(np.moveaxis(values, (0, 1, 2), (2, 1, 0)), image.affine, header).to_bytes()
    return gzip.compress(content, mtime=0) if source.name.lower().endswith(".gz") else content


def spacing_of(path: Path) -> tuple[float, ...] | None:
    """Return the lengths of a NIfTI file's voxel along z, y and x; None where the header can't be read."""
    with suppress(ImageError), reading(path, "a volume"):
        return tuple(map(float, nifti(path).header.get_zooms()[:AXES][::-1]))
    return None


def is_placed(image: Any) -> bool:
    """Return whether a NIfTI file's header says where the volume lies."""
    return bool(image.header["sform_code"] > 0 or image.header["qform_code"] > 0)


def turned(values: np.ndarray, path: Path, axes: Axes) -> np.ndarray:
    """Return the values of a NIfTI file [z, y, x, …] as [x, y, z, …] if `axes` says so, and back."""
    return np.moveaxis(values, (0, 1, 2), (2, 1, 0)) if axes == "xyz" and NIFTI.suffix(path) else values


def check_place(volume: Path, labels: Path) -> None:
    """Raise ImageError if the headers of two NIfTI files place the same voxel at different positions.

    Labels belong to voxels by index: if the headers differ by a mirrored axis or a spacing, the indices don't match.
    """
    if not all(NIFTI.suffix(path) for path in (volume, labels)):
        return
    with reading(volume, "a volume"):
        headers = [nifti(path) for path in (volume, labels)]
        affines = [image.affine for image in headers if is_placed(image)]
    if len(affines) < len(headers) or not np.isfinite(affines).all():
        return
    corners = np.array([[*corner, 1] for corner in product(*((0, side - 1) for side in headers[0].shape[:AXES]))])
    distance = float(np.linalg.norm(corners @ (affines[0] - affines[1])[:3].T, axis=1).max())
    if distance > FARTHEST * float(np.linalg.norm(affines[0][:3, :3], axis=0).min()):
        raise ImageError(
            f"{labels}: its header places a corner {distance:.3g} from that of {volume.name}, in its unit: mirrored or "
            "of another spacing; give it the volume's header if voxel belongs to voxel"
        )


# zarr


def zarr_array(path: Path) -> Any:
    """Open a zarr array, whose values are not read yet."""
    array = needed("zarr", path).open(str(path), mode="r")
    if not hasattr(array, "shape"):
        raise ImageError(f"{path}: a group of arrays; name the folder of one")
    return array


PICTURES = ("PNG", "JPEG", "BMP", "GIF", "WEBP")  # by their names in Pillow, which tells them apart by their contents
NIFTI_1 = Format(read_nifti, lambda path: nifti_axes(nifti(path)), write_nifti)
NIFTI = Formats(dict.fromkeys((".nii", ".nii.gz"), NIFTI_1))
TIFF = Formats(dict.fromkeys((".tif", ".tiff"), Format(read_tiff, tiff_shape)))
ARRAY = Format(lambda path, _: np.array(mapped(path)), lambda path: mapped(path).shape, write_array)
ZARR = Format(lambda path, _: np.asarray(zarr_array(path)), lambda path: zarr_array(path).shape, folder=True)
PICTURE = Format(read_picture, picture_shape)
IMAGES = Formats(dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"), PICTURE) | TIFF | {".npy": ARRAY})
PAGES = Format(read_pages, tiff_shape, write_pages)
VOLUMES = Formats(NIFTI | dict.fromkeys(TIFF, PAGES) | {".npy": ARRAY, ".zarr": ZARR})
