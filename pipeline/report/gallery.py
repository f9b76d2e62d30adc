"""The masks that a run left: the fp32 network's beside the winner's, and where they differ."""

import base64
import io
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import method

IMAGES = 8  # of the run, at most, among which the one that differs most is shown
LARGEST, SMALL = 512, 256  # pixels a side, of what is compared and of every stage's differences
CROP = 64  # pixels a side, of the place that differs most
DIFFERS = (255, 0, 110)  # magenta, which no class has
FADED = 0.3  # of a mask's own contrast, behind its differences


@dataclass(frozen=True)
class Picture:
    """An image for the page."""

    caption: str
    uri: str


@dataclass(frozen=True)
class Gallery:
    """The pictures of masks on the page."""

    overview: list[Picture] = field(default_factory=list)  # the image, the reference's mask, the winner's, differences
    crop: list[Picture] = field(default_factory=list)  # the same at full size, where they differ most
    stages: list[Picture] = field(default_factory=list)  # every stage's differences


def gallery(summary: RunSummary, folder: Path) -> Gallery:
    """Return the image on which the winner differs most from the fp32 network, with every stage's differences on it."""
    run, winner = summary.run, str(summary.ranking.winner)
    counts: list[int] = []
    for index in range(IMAGES):
        reference, mask = _read(folder / "reference" / f"mask_{index}.png"), mask_of(folder, winner, index)
        if reference is None:
            break
        alike = mask is not None and mask.size == reference.size
        counts.append(int(differences(mask, reference).sum()) if mask and alike else 0)
    return _of_image(run, winner, folder, counts.index(max(counts))) if counts else Gallery()


def _of_image(run: RunRecord, winner: str, folder: Path, index: int) -> Gallery:
    reference, image = (_read(folder / "reference" / f"{what}_{index}.png") for what in ("mask", "image"))
    assert reference is not None
    stages = []
    for stage in run.stages:
        if mask := mask_of(folder, stage.name, index):
            said, shown = "another size", _shrunk(mask, SMALL)
            if mask.size == reference.size:
                differs = differences(mask, reference)
                said, shown = _counted(differs), marked(reference, differs, SMALL)
            stages.append(Picture(f"{method(stage.name)}: {said}", _uri(shown, "PNG")))
    overview = [Picture(f"the {run.words.shown}", _uri(_shrunk(image.convert("RGB")), "JPEG"))] if image else []
    mask = mask_of(folder, winner, index)
    masks = {"fp32 reference": reference, method(winner): mask}
    overview += [Picture(caption, _uri(_shrunk(whole), "PNG")) for caption, whole in masks.items() if whole]
    if mask is None or mask.size != reference.size:
        return Gallery(overview, [], stages)
    differs = differences(mask, reference)
    overview.append(Picture(_counted(differs), _uri(marked(reference, differs, LARGEST), "PNG")))
    whole = {"fp32 reference": reference, "the winner": mask}
    if image and image.size == mask.size:
        whole = {f"the {run.words.shown}": image.convert("RGB"), **whole}
    return Gallery(overview, _crop(whole, mask, differs), stages)


def differences(mask: Image.Image, reference: Image.Image) -> np.ndarray:
    """Return where two masks of one size differ: [height, width], bool."""
    differs = np.asarray(mask.convert("RGB")) != np.asarray(reference.convert("RGB"))
    return np.asarray(differs.any(axis=-1))


def marked(reference: Image.Image, differs: np.ndarray, largest: int) -> Image.Image:
    """Draw the reference, faded and shrunk, with every pixel that holds a difference in magenta."""
    painted = faded(_shrunk(reference, largest))
    height, width = painted.shape[:2]
    rows, columns = (np.nonzero(differs)[axis] * (height, width)[axis] // differs.shape[axis] for axis in (0, 1))
    painted[rows, columns] = DIFFERS
    return Image.fromarray(painted)


def faded(mask: Image.Image) -> np.ndarray:
    """Return a mask as a pale ground for its differences: [height, width, 3], uint8."""
    return np.array(Image.blend(Image.new("RGB", mask.size, "white"), mask.convert("RGB"), FADED))


def _crop(shown: dict[str, Image.Image], mask: Image.Image, differs: np.ndarray) -> list[Picture]:
    """Return the window with the most differing pixels, of these pictures and of the mask with its differences."""
    if not differs.any():
        return []
    sums = np.pad(differs.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    height, width = (min(CROP, extent) for extent in differs.shape)
    within = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    top, left = map(int, np.unravel_index(int(within.argmax()), within.shape))
    box = (left, top, min(left + CROP, mask.width), min(top + CROP, mask.height))
    painted = faded(mask)
    painted[differs] = DIFFERS
    parts = {**shown, _counted(differs[top : top + CROP, left : left + CROP]): Image.fromarray(painted)}
    return [Picture(caption, _uri(whole.crop(box), "PNG")) for caption, whole in parts.items()]


def _counted(differs: np.ndarray) -> str:
    count = int(differs.sum())
    return f"{plural(count, 'pixel')} differ{'s' if count == 1 else ''}" if count else "no pixel differs"


def mask_of(folder: Path, stage: str, index: int) -> Image.Image | None:
    """Return a stage's mask; None for a name that is no folder's."""
    return _read(folder / stage / f"mask_{index}.png") if re.fullmatch(r"[A-Za-z0-9][\w.-]*", stage) else None


def _read(path: Path) -> Image.Image | None:
    """Read a picture of the run; None where there is none: a pipe in its place would hold up its reader."""
    try:
        if not path.is_file():
            return None
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=("PNG",)) as picture:
            picture.load()
            return picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _shrunk(picture: Image.Image, largest: int = LARGEST) -> Image.Image:
    small = picture.copy()
    how = Image.Resampling.BILINEAR if picture.mode == "RGB" else Image.Resampling.NEAREST
    small.thumbnail((largest, largest), how)
    return small


def _uri(picture: Image.Image, kind: str) -> str:
    out = io.BytesIO()
    picture.save(out, format=kind, **({"quality": 85} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"
