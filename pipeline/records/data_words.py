"""The words for a network's data: images of pixels, or volumes of voxels, by the rank of the input."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.errors import plural

REPEATED = "tensors"  # the kind of data whose samples are repeated, not shifted, if there are too few


@dataclass(frozen=True)
class Words:
    """The words for a network's inputs, in sentences and headings."""

    sample: str  # one element of a batch
    point: str  # an element of a sample that has a class, or a value
    article: str  # of `sample`
    shown: str  # the part of a sample that a picture shows
    channels_first: str = "NCHW"  # the memory layouts of a batch
    channels_last: str = "NHWC"  # the memory layouts of a batch
    source: str = "picture"  # the origin of several samples
    made: str = "shifts or windows"  # how samples follow from it; `moved` is the same without windows
    moved: str = "shifts"

    @property
    def samples(self) -> str:
        """Plural of `sample`."""
        return f"{self.sample}s"

    @property
    def points(self) -> str:
        """Plural of `point`."""
        return f"{self.point}s"

    @property
    def one(self) -> str:
        """The sample with its article, such as "an image"."""
        return f"{self.article} {self.sample}"

    def counted(self, number: int) -> str:
        """Return a count with its noun, such as "1 image" or "5,000 volumes"."""
        return plural(number, self.sample)

    @property
    def named(self) -> dict[str, str]:
        """The words by name."""
        return {name: getattr(self, name) for name in ("sample", "samples", "one", "point", "points", "made")}

    def put_into(self, text: str) -> str:
        """Fill in {sample}, {samples}, {one}, {point}, {points} and {made}."""
        return text.format(**self.named)


IMAGES = Words("image", "pixel", "an", "image")
VOLUMES = Words("volume", "voxel", "a", "middle plane", "NCDHW", "NDHWC")
MIXED = Words("sample", "point", "a", "picture")  # of runs of both


def words_for(spatial_dims: int | None, kind: str = "") -> Words:
    """Return the words for data with this number of dimensions besides batch and channels."""
    words = VOLUMES if spatial_dims == 3 else IMAGES
    return replace(words, source="sample", made="repeats", moved="repeats") if kind == REPEATED else words


def words_for_all(found: Iterable[Words]) -> Words:
    """Return the words for several runs together; without runs, those for images."""
    kinds = set(found)
    return kinds.pop() if len(kinds) == 1 else MIXED if kinds else IMAGES
