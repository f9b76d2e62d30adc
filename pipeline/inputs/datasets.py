"""Images of a run: those in scikit-image's wheel, which need no download, or a folder of the user's."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import skimage.data

from pipeline.errors import ImageError
from pipeline.inputs.folders import folder_samples
from pipeline.inputs.generated import SIDE, Split, several
from pipeline.inputs.image_files import read_image
from pipeline.inputs.input_contract import UNLABELLED, VOLUME, InputContract, LabelRules
from pipeline.inputs.windows import Named, cut, rolled

# The stained tissue is first, so that every run has labelled pixels.
SAMPLES = [
    "ihc.png", "retina.jpg", "hubble_deep_field.jpg", "astronaut.png", "coffee.png", "motorcycle_left.png",
    "chelsea.png",
]  # fmt: skip
SAMPLE_FOLDER = Path(skimage.data.__file__).parent
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601
AS_TODAY, INDICES = InputContract(), LabelRules()
HELD_OUT = (slice(256, 512), slice(256, 512))  # the quarter at the lower right of 512×512 is never trained on
STAINED = (
    "stain mask of scikit-image's immunohistochemistry image by a classical threshold (DAB, Otsu), not by a pathologist"
)
# The origin of the labels of the program's own data.
LABELS_BY = {"samples": STAINED, "stain": STAINED, "generated": "drawn with the images, no photograph's"}
# Darkening of red, green and blue by haematoxylin, eosin and DAB: Ruifrok and Johnston, Anal Quant Cytol Histol 2001.
DARKENS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
LEAST_LIGHT = 1e-6  # of 1; black has no logarithm
BINS = 256
Tiles = Sequence[tuple[str, Named]]  # windows, each with the name of its picture


@dataclass(frozen=True)
class Dataset:
    """Images of one size, or volumes, which have a depth axis before the height."""

    images: np.ndarray  # [images, height, width, channels], uint8, uint16 or fp32, as their files hold them
    labels: np.ndarray | None  # [images, height, width], uint8, class indices, 255 where not labelled
    sources: list[str]  # the origin of each image, for messages
    distinct: int  # images, from the first, that are different windows; the rest are these, rolled
    pictures: list[str]  # the source picture of each image
    windows: int  # number of windows that the source pictures give
    left_out: list[str] = field(default_factory=list)  # other entries of the folders, and why each isn't read


def dataset_loader(
    name: str,  # in `DEMOS` or `DRAWN`, "folder" or "volume"
    path: str | None,  # of the folder
    labels: str | None,  # a folder with a file of labels for each image
    size: int | Sequence[int] | None,  # of all sides, or of each; None: that of the images, which is one for all
    contract: InputContract = AS_TODAY,
    rules: LabelRules = INDICES,
    most: int | None = None,  # of drawn images; None: as many as are asked for
) -> Callable[[int | None], Dataset]:
    """Read the files, and return a function that gives a number of windows of one size; for None each once.

    Fewer windows are repeated, rolled by a few pixels. Both raise ImageError if there are none, or of several sizes.
    """
    if name in DRAWN:
        draw = partial(drawn, name, size, contract.channels)
        return lambda count: dataset_of(draw(min(filter(None, (count, most)))), count, most, [])
    left_out: list[str] = []
    if name in DEMOS:
        named = [demo(image, contract.channels) for image in DEMOS[name]()]
    else:
        named, left_out = folder_samples(path, labels, contract, rules, volumes=name == VOLUME)
    tiles = [(image.source, tile) for image in named for tile in cut(image, size, whole=name not in DEMOS)]
    return lambda count: dataset_of(tiles, count, len(tiles), left_out, again=name in DEMOS)


def dataset_of(tiles: Tiles, count: int | None, windows: int | None, left: list[str], again: bool = False) -> Dataset:
    """Return `count` windows, or each once, with their pictures' names; repeated ones keep their labels if `again`."""
    shapes = Counter(tile.image.shape[:-1] for _, tile in tiles)
    if len(shapes) > 1:
        common = ", ".join("×".join(map(str, shape)) for shape, _ in shapes.most_common(3))
        differ = f"the images differ in size ({len(shapes)} sizes: {common})"
        least = [min(sides) for sides in zip(*shapes, strict=True)]
        depth, side = least[0], min(least[-2:])
        deep = f" data.depth={_power(depth)}" if len(least) == 3 and _power(depth) < _power(side) else ""
        raise ImageError(f"data.size is not set and {differ}; set data.size={_power(side)}{deep}")
    taken = tiles if count is None else list(islice(cycle(tiles), count))
    chosen = [rolled(tile, turn // len(tiles), again) for turn, (_, tile) in enumerate(taken)]
    unlabelled = np.full(chosen[0].image.shape[:-1], UNLABELLED, np.uint8)
    masks = [unlabelled if tile.label is None else tile.label for tile in chosen]
    return Dataset(
        images=np.stack([tile.image for tile in chosen]),
        labels=np.stack(masks) if any(tile.label is not None for tile in chosen) else None,
        sources=[tile.source for tile in chosen],
        distinct=min(len(taken), len(tiles)),
        pictures=[picture for picture, _ in taken],
        windows=windows or len(tiles),
        left_out=left,
    )


def _power(side: int) -> int:
    """Return the largest power of two up to `side`, at most 512: networks that halve their images take it."""
    return 1 << (min(side, 512).bit_length() - 1)


@cache
def sample_images() -> list[Named]:
    """Read scikit-image's images; the stain mask has labels in the held-out quarter only."""
    images = [(name, read_image(SAMPLE_FOLDER / name)) for name in SAMPLES]
    tissue = images[0][1]
    labels = np.full(tissue.shape[:2], UNLABELLED, np.uint8)
    labels[HELD_OUT] = stain_mask(tissue)[HELD_OUT]
    for part in (labels, *(image for _, image in images)):
        part.setflags(write=False)
    return [Named(f"scikit-image {name}", image, labels if image is tissue else None) for name, image in images]


def held_out_image() -> list[Named]:
    """Return the quarter of the stained tissue that training never sees, every pixel labelled."""
    tissue = read_image(SAMPLE_FOLDER / SAMPLES[0])
    return [Named(f"scikit-image {SAMPLES[0]}, held-out quarter", tissue[HELD_OUT], stain_mask(tissue)[HELD_OUT])]


def training_quarters() -> list[Named]:
    """Return the other three quarters of the tissue, without labels."""
    tissue, half = read_image(SAMPLE_FOLDER / SAMPLES[0]), HELD_OUT[0].start
    parts = {(top, left): tissue[top : top + half, left : left + half] for top in (0, half) for left in (0, half)}
    del parts[half, half]
    return [Named(f"scikit-image {SAMPLES[0]}, quarter at {y},{x}", part, None) for (y, x), part in parts.items()]


DEMOS: dict[str, Callable[[], list[Named]]] = {
    "samples": sample_images, "stain": held_out_image, "stain_training": training_quarters,
}  # fmt: skip
DRAWN: dict[str, Split] = {
    "generated": "held_out", "generated_calibration": "calibration", "generated_training": "train",
}  # fmt: skip
# Data with other pictures than the evaluation images.
CALIBRATED_ON = {"stain": "stain_training", "generated": "generated_calibration"}


def drawn(name: str, size: int | Sequence[int] | None, channels: int, count: int) -> Tiles:
    """Return the first `count` images of data in `DRAWN`, of one size or of [height, width]."""
    split = DRAWN[name]
    height, width = (size, size) if isinstance(size, int) else size or (SIDE, SIDE)
    images = enumerate(several(split, count, (height, width)))
    return [(name := f"generated, {split} {at}", demo(Named(name, *image), channels)) for at, image in images]


def demo(named: Named, channels: int) -> Named:
    """Return one of the program's own images; its luminance if `channels` is 1."""
    if channels == 3:
        return named
    grey = (named.image @ np.array(LUMINANCE)).round().astype(np.uint8)
    return named._replace(image=grey[..., None])


# Labels of the demo: where the tissue is stained brown. They come from a classical threshold (colour deconvolution by
# Ruifrok and Johnston, then Otsu), not from a pathologist: a network that reproduces them has learnt a stain, not a
# diagnosis. NumPy alone, as every worker computes them: scikit-image's own functions take a second to import.


def stain_mask(image: np.ndarray) -> np.ndarray:
    """Return 1 where the DAB channel of an image [height, width, 3], uint8, exceeds Otsu's threshold, else 0."""
    darkness = -np.log(np.maximum(image / 255, LEAST_LIGHT))
    brown = np.maximum(darkness @ np.linalg.inv(DARKENS)[:, 2], 0)
    # Otsu's threshold is the middle of the bin that separates two sides best. The variance between the sides is
    # (t·m − s)² / (m·(1 − m)), up to a factor: m is the share of the values up to the bin, s their part of the sum and
    # t the whole sum (Otsu, IEEE Trans Syst Man Cybern 9, 1979, eq. 18).
    counts, edges = np.histogram(brown, BINS)
    middles = (edges[:-1] + edges[1:]) / 2
    share = np.cumsum(counts)[:-1] / counts.sum()
    part = np.cumsum(counts * middles) / counts.sum()
    between = (part[-1] * share - part[:-1]) ** 2 / (share * (1 - share))
    return np.asarray(brown > middles[np.argmax(between)], np.uint8)
