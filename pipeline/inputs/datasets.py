"""Real images: those in scikit-image's wheel, which need no download, or a folder of the user's."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import skimage.data

from pipeline.errors import ImageError
from pipeline.inputs.formats import IMAGES, VOLUMES, suffix_in, suffixes_of
from pipeline.inputs.image_files import alike, each, pixels, read_image
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.inputs.label_files import as_classes, check_apart, label_file, of_no_image, read_label
from pipeline.inputs.stain import HELD_OUT, UNLABELLED, stain_mask
from pipeline.inputs.volume_files import folder_volumes
from pipeline.inputs.windows import Named, cut, rolled

# The stained tissue comes first, so that every run has pixels with labels.
SAMPLES = [
    "ihc.png",
    "retina.jpg",
    "hubble_deep_field.jpg",
    "astronaut.png",
    "coffee.png",
    "motorcycle_left.png",
    "chelsea.png",
]
SAMPLE_FOLDER = Path(skimage.data.__file__).parent
VOLUME = "volume"  # the data that are volumes
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601
AS_TODAY, INDICES = InputContract(), LabelRules()


@dataclass(frozen=True)
class Dataset:
    """Images of one size, or volumes, which have a depth before the height.

    Attributes:
        images: [images, height, width, channels], uint8, uint16 or fp32, as their files hold them.
        labels: [images, height, width], uint8, class indices, 255 where not labelled; None without labels.
        sources: where each image comes from.
        distinct: how many of them, from the first, are windows of their own; the others are such windows rolled.
        pictures: of each image the picture that it is a window of, whether rolled or mirrored.
        windows: how many there are in all, whether asked for or not.
        left_out: what else lies in the folders, and why it isn't read.
    """

    images: np.ndarray
    labels: np.ndarray | None
    sources: list[str]
    distinct: int
    pictures: list[str]
    windows: int
    left_out: list[str] = field(default_factory=list)


def viewable(image: np.ndarray) -> np.ndarray:
    """An image [height, width, channels] to be looked at: [height, width, 3], uint8; of a volume its middle plane.

    Of other channels than 3 the first is shown, in grey; values beyond 8 bits go from the least to the largest.
    """
    image = middle_plane(image, axes=3)
    planes = image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)
    if planes.dtype == np.uint8:
        return planes
    values = planes.astype(np.float64)
    low, high = values.min(), values.max()
    shown: np.ndarray = (255 * (values - low) / max(high - low, np.finfo(np.float64).tiny)).round().astype(np.uint8)
    return shown


def middle_plane(values: np.ndarray, axes: int) -> np.ndarray:
    """The plane in the middle of a volume's depth, where there are more than so many axes; anything else as it is."""
    return values[len(values) // 2] if values.ndim > axes else values


def load_dataset(
    name: str,
    path: str | None,
    labels: str | None,
    size: int | Sequence[int] | None,
    count: int,
    contract: InputContract = AS_TODAY,
    rules: LabelRules = INDICES,
) -> Dataset:
    """`count` images, or volumes, of one size.

    Args:
        name: "samples", "stain", "folder" or "volume".
        path: the folder of a "folder" or of a "volume".
        labels: a folder with a file of labels for each image; None without labels.
        size: height and width, or of volumes depth, height and width; None keeps the size of the images, which must
            then be the same for all.
        count: how many; where the images give fewer windows, they come again, rolled by a few pixels each time.
        contract: how many channels they are to have, and by what values are divided.
        rules: how labels are read.

    Raises:
        ImageError: files that are no images, a folder that holds none, or sizes that differ; one line.
    """
    named, left_out = named_images(name, path, labels, contract, rules)
    tiles = [(image.source, tile) for image in named for tile in cut(image, size, whole=name not in DEMOS)]
    check_one_size([tile for _, tile in tiles])
    taken = list(islice(cycle(tiles), count))
    chosen = [rolled(tile, turn // len(tiles)) for turn, (_, tile) in enumerate(taken)]
    has_labels = any(tile.label is not None for tile in chosen)
    return Dataset(
        images=np.stack([tile.image for tile in chosen]),
        labels=np.stack([_or_unlabelled(tile) for tile in chosen]) if has_labels else None,
        sources=[tile.source for tile in chosen],
        distinct=min(count, len(tiles)),
        pictures=[picture for picture, _ in taken],
        windows=len(tiles),
        left_out=left_out,
    )


def window(name: str, size: int | None, depth: int | None) -> int | tuple[int, int, int] | None:
    """The size of a window: height and width, or of volumes depth, height and width; None keeps that of the files."""
    return size if name != VOLUME or size is None else (depth or size, size, size)


def named_images(
    name: str, path: str | None, labels: str | None, contract: InputContract, rules: LabelRules
) -> tuple[list[Named], list[str]]:
    """The images before they are cut, and what else lies in their folder; arguments and errors as of `load_dataset`."""
    if name in DEMOS:
        return [demo(image, contract.channels) for image in DEMOS[name]()], []
    if name == VOLUME:
        return folder_volumes(path, labels, contract, rules)
    return folder_images(path, labels, contract, rules)


def check_one_size(tiles: list[Named]) -> None:
    """That all are of one height and width.

    Raises:
        ImageError: they aren't; the line gives the commonest.
    """
    shapes = Counter(tile.image.shape[:-1] for tile in tiles)
    if len(shapes) > 1:
        common = ", ".join("×".join(map(str, shape)) for shape, _ in shapes.most_common(3))
        differ = f"the images differ in size ({len(shapes)} sizes: {common})"
        least = [min(sides) for sides in zip(*shapes, strict=True)]
        deep = (
            f" data.depth={_power(least[0])}" if len(least) == 3 and _power(least[0]) < _power(min(least[1:])) else ""
        )
        raise ImageError(f"data.size is not set and {differ}; set data.size={_power(min(least[-2:]))}{deep}")


def _power(side: int) -> int:
    """The largest power of two that a side holds, at most 512: what nets that halve their images take."""
    return 1 << (min(side, 512).bit_length() - 1)


@cache
def sample_images() -> list[Named]:
    """The images of scikit-image's wheel, read once; the stain mask is labelled in the held-out quarter alone."""
    images = [(name, read_image(SAMPLE_FOLDER / name)) for name in SAMPLES]
    tissue = images[0][1]
    labels = np.full(tissue.shape[:2], UNLABELLED, np.uint8)
    labels[HELD_OUT] = stain_mask(tissue)[HELD_OUT]
    for part in (labels, *(image for _, image in images)):
        part.setflags(write=False)
    return [Named(f"scikit-image {name}", image, labels if image is tissue else None) for name, image in images]


def held_out_image() -> list[Named]:
    """The quarter of the stained tissue that no training has seen, every pixel labelled."""
    tissue = read_image(SAMPLE_FOLDER / SAMPLES[0])
    return [Named(f"scikit-image {SAMPLES[0]}, held-out quarter", tissue[HELD_OUT], stain_mask(tissue)[HELD_OUT])]


def training_quarters() -> list[Named]:
    """The other three quarters of that tissue, without labels."""
    tissue, half = read_image(SAMPLE_FOLDER / SAMPLES[0]), HELD_OUT[0].start
    corners = [(0, 0), (0, half), (half, 0)]
    return [
        Named(f"scikit-image {SAMPLES[0]}, quarter at {top},{left}", tissue[top : top + half, left : left + half], None)
        for top, left in corners
    ]


DEMOS: dict[str, Callable[[], list[Named]]] = {
    "samples": sample_images,
    "stain": held_out_image,
    "stain_training": training_quarters,
}
CALIBRATED_ON = {"stain": "stain_training"}  # what holds other pictures than that of the evaluation images


def demo(named: Named, channels: int) -> Named:
    """One of the program's own images; of one channel its luminance."""
    if channels == 3:
        return named
    grey = (named.image @ np.array(LUMINANCE)).round().astype(np.uint8)
    return named._replace(image=grey[..., None])


def image_files(path: str | None) -> tuple[list[Path], list[str]]:
    """The images of a folder in the order of names, and what else lies there, which is no file.

    Raises:
        ImageError: the folder is missing or holds no image, or a file that is none.
    """
    folder = Path(path or "")
    if not path or not folder.is_dir():
        raise ImageError(f"data.path={path}: no such folder of images")
    seen = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    files = [file for file in seen if file.is_file()]
    images = [file for file in files if suffix_in(IMAGES, file)]
    if not images:
        inner = [entry.name for entry in seen if entry.is_dir()]
        within = f", and none is looked for in its folders, such as {inner[0]}" if inner else ""
        as_volumes = "; data=volume reads those" if any(suffix_in(VOLUMES, entry) for entry in seen) else ""
        raise ImageError(
            f"data.path={path}: no image in it among {len(files)} files{within}; "
            f"{', '.join(suffixes_of(IMAGES))} are read{as_volumes}"
        )
    if strangers := [str(file) for file in files if file not in images]:
        more = f" and {len(strangers) - 5} more" if len(strangers) > 5 else ""
        names = ", ".join(strangers[:5]) + more
        raise ImageError(f"{names}: not an image; a folder of images holds {', '.join(suffixes_of(IMAGES))} alone")
    return images, [f"{file.name}: no regular file" for file in seen if file not in files]


def values_in(path: str | None) -> int:
    """How many values the images of a folder have, by their headers; errors as of `image_files`."""
    return sum(map(pixels, image_files(path)[0]))


def folder_images(
    path: str | None, labels: str | None, contract: InputContract, rules: LabelRules
) -> tuple[list[Named], list[str]]:
    """Every image of a folder, in the order of names, and what is left out: what is no file, and labels of no image.

    Raises:
        ImageError: as `image_files`, files that can't be read, two of one label, or labels that no rule covers.
    """
    files, left_out = image_files(path)
    found: list[np.ndarray | None] = [None] * len(files)
    if labels:
        label_files = each(files, lambda file: label_file(file, Path(labels), rules))
        check_apart(files, label_files, f"data.path={path}")
        found = [*as_classes(each(label_files, lambda file: read_label(file, rules)), label_files, rules)]
        left_out += of_no_image(Path(labels), Path(path or ""), label_files, lambda file: file.match(rules.pattern))
    images = each(files, lambda file: read_image(file, contract.channels))
    images = alike(images, [str(file) for file in files], contract.scale)
    return [Named(*part) for part in zip((file.name for file in files), images, found, strict=True)], left_out


def _or_unlabelled(tile: Named) -> np.ndarray:
    """The labels [h, w] of an image [h, w, channels], or 255 in every pixel."""
    return np.full(tile.image.shape[:-1], UNLABELLED, np.uint8) if tile.label is None else tile.label
