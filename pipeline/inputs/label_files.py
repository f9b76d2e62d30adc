"""Reads labels as class indices, by stated rules; what a rule doesn't cover is refused with its values and its file."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from pipeline.errors import ImageError
from pipeline.inputs.formats import opened
from pipeline.inputs.image_files import read_values
from pipeline.inputs.input_contract import LabelRules
from pipeline.inputs.stain import UNLABELLED

SHOWN_VALUES = 5
MOST_COLOURS = 16  # of a file that shows classes; a photograph, or what JPEG made of classes, has more
NNUNET = "_0000"  # of the first channel's file of a case, whose labels are named by the case alone
LARGEST = np.iinfo(np.int64).max
JPEG = {"JPEG", "MPO"}
IN_COLOUR = (3, 4)  # channels


def label_file(image: Path, folder: Path, rules: LabelRules) -> Path:
    """The file with the labels of an image.

    Raises:
        ImageError: there is none.
    """
    path = folder / rules.pattern.replace("*", image.stem)
    if image.stem.endswith(NNUNET) and not path.is_file():
        path = folder / rules.pattern.replace("*", image.stem.removesuffix(NNUNET))
    if not path.is_file():
        beside = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        near = [name for name in beside if name.lower().startswith(image.stem.lower()) and name != path.name]
        named = f" (there is {near[0]})" if near else ""
        hint = "; data.label_pattern=*_mask.png names them otherwise" if rules.pattern == LabelRules.pattern else ""
        what = "no regular file" if path.exists() or path.is_symlink() else "no such file"
        raise ImageError(f"{path}: {what}{named}; data.labels holds one file of labels for each image{hint}")
    return path


def check_apart(images: Sequence[Path], labels: Sequence[Path], where: str) -> None:
    """That no two images have one file of labels.

    Raises:
        ImageError: two have; the line names them.
    """
    if twice := [file for file, number in Counter(labels).items() if number > 1]:
        names = ", ".join(image.name for image, file in zip(images, labels, strict=True) if file == twice[0])
        raise ImageError(f"{where}: {names} would share one file of labels; give each a name of its own")


def of_no_image(folder: Path, images: Path, used: Sequence[Path], known: Callable[[Path], object]) -> list[str]:
    """The labels that no image has taken, each with what it is; none where the images lie in the same folder.

    Args:
        folder: of the labels.
        images: the folder of the images.
        used: the files that were taken.
        known: whether a file is one of labels.
    """
    if folder.resolve() == images.resolve():
        return []
    others = set(folder.iterdir()) - set(used)
    spare = [path for path in others if not path.name.startswith(".") and known(path)]
    return [f"{folder.name}/{path.name}: labels of no image" for path in sorted(spare)]


def read_label(path: Path, rules: LabelRules) -> np.ndarray:
    """The values [height, width] of a file of labels, int64, before `as_classes` makes classes of them.

    Indices of a palette, and grey of few bits, are taken as they are; with `rules.colors` a colour is the class that it
    is listed as.

    Raises:
        ImageError: it can't be read, is a JPEG, has several channels that differ, colours that aren't listed, or a
            transparency that varies.
    """
    check_exact(path)
    values = read_values(path, "colours" if rules.colors else "classes")
    if rules.colors:
        return _of_colors(path, values, rules.colors)
    if values.shape[2] not in (1, *IN_COLOUR):
        raise ImageError(f"{path}: labels of shape {list(values.shape)}; [height, width] is read")
    if (values != values[..., :1]).any():
        raise ImageError(f"{path}: {_in_colour(values)}")
    values = values[..., 0]
    if values.dtype.kind not in "buif":
        raise ImageError(f"{path}: labels of type {values.dtype}; integers are read")
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        raise ImageError(f"{path}: labels are no integers")
    if values.size and values.max() > LARGEST:
        raise ImageError(f"{path}: labels {values.max():.6g}; classes from 0 to 254 are judged")
    return values.astype(np.int64)


def check_exact(path: Path) -> None:
    """Raise if values of labels were lost: drawn in the transparency, which is dropped, or changed by JPEG.

    Raises:
        ImageError: the transparency varies, or the file is compressed as JPEG.
    """
    lossy = varies = False
    with suppress(Exception), opened(path) as image:  # a file that can't be opened is refused by its reader
        lossy = image.format in JPEG or image.info.get("compression") == "jpeg"
        if "A" in image.getbands():
            least, most = image.getchannel("A").getextrema()
            varies = least != most
    if varies:
        raise ImageError(f"{path}: its transparency varies, and labels are read of the colours; save them without it")
    if lossy:
        raise ImageError(
            f"{path}: labels in a JPEG, which changes their values; save PNGs, of black and white as mask > 127"
        )


def _in_colour(values: np.ndarray) -> str:
    """What is said of labels [height, width, channels] that show classes by colours, with the option for these ones."""
    colors = np.unique(values.reshape(-1, values.shape[2])[:, :3], axis=0).astype(int).tolist()
    if len(colors) > MOST_COLOURS:
        return f"labels of {len(colors)} colours, too many for classes; a lossless file has one for each"
    listed = str(colors).replace(" ", "")
    return f"labels of {len(colors)} colours; data.colors={listed}, in the order of the classes, says which each is"


def _of_colors(path: Path, values: np.ndarray, colors: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """The index [height, width] of each pixel's colour in the list."""
    shown = np.repeat(values, 3, axis=2) if values.shape[2] == 1 else values[..., :3]
    classes = np.full(shown.shape[:2], -1, np.int64)
    for index, color in enumerate(colors):
        classes[(shown == np.array(color)).all(axis=2)] = index
    if (classes < 0).any():
        others = np.unique(shown[classes < 0], axis=0)[:SHOWN_VALUES].tolist()
        raise ImageError(f"{path}: colours that data.colors doesn't list: {', '.join(map(str, others))}")
    return classes


def as_classes(labels: Sequence[np.ndarray], files: Sequence[Path], rules: LabelRules) -> list[np.ndarray]:
    """Class indices [height, width], uint8, 255 where not labelled, of the values of all files together.

    Where no value but 0 and 255 occurs in any file, 255 is class 1: a mask in black and white. With `rules.positive`
    that value is class 1 and any other class 0. `rules.ignore` is what isn't labelled.

    Raises:
        ImageError: no file holds the positive value, no pixel is labelled, or a value is no class that can be kept.
    """
    found = set().union(*(np.unique(label).tolist() for label in labels))
    ignore = rules.ignore
    positive = rules.positive
    if positive is None and not rules.colors and found == {0, 255}:
        positive, ignore = 255, None
    if positive is not None and positive not in found:
        raise ImageError(f"data.positive={positive}: no label has this value; they have {_listed(found)}")
    if not found - {ignore}:
        raise ImageError(
            f"{files[0].parent}: every pixel of the labels is {ignore}, which data.ignore says is not labelled"
        )
    return [_classes(label, file, positive, ignore) for label, file in zip(labels, files, strict=True)]


def _classes(label: np.ndarray, file: Path, positive: int | None, ignore: int | None) -> np.ndarray:
    """One file's classes."""
    known = np.ones(label.shape, bool) if ignore is None else label != ignore
    classes = label if positive is None else (label == positive).astype(np.int64)
    beyond = known & ((classes < 0) | (classes >= UNLABELLED))
    if beyond.any():
        raise ImageError(
            f"{file}: labels {_listed(set(np.unique(label[beyond]).tolist()))}; classes from 0 to 254 are judged; "
            "data.positive and data.ignore say what other values mean"
        )
    return np.where(known, classes, UNLABELLED).astype(np.uint8)


def _listed(values: set[int]) -> str:
    """The smallest values, and that there are more."""
    first = ", ".join(map(str, sorted(values)[:SHOWN_VALUES]))
    return f"{first}, …" if len(values) > SHOWN_VALUES else first
