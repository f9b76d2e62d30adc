"""What a net's data are called: images of pixels, or volumes of voxels. The input's rank decides, and only here."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.errors import plural

REPEATED = "tensors"  # the kind of data whose samples come again as they are where they are too few


@dataclass(frozen=True)
class Words:
    """The words for what a net is given, in sentences and above columns.

    Attributes:
        sample: one of a batch.
        point: one place of it that has a class, or a value.
        article: of `sample`.
        shown: what a picture shows of one.
        channels_first, channels_last: the two orders in which a batch may lie.
        source: what several samples are made of.
        made: what they are of it; `moved` is the same where no windows are cut.
    """

    sample: str
    point: str
    article: str
    shown: str
    channels_first: str = "NCHW"
    channels_last: str = "NHWC"
    source: str = "picture"
    made: str = "shifts or windows"
    moved: str = "shifts"

    @property
    def samples(self) -> str:
        """More than one sample."""
        return f"{self.sample}s"

    @property
    def points(self) -> str:
        """More than one point."""
        return f"{self.point}s"

    @property
    def one(self) -> str:
        """Such as "an image"."""
        return f"{self.article} {self.sample}"

    def counted(self, number: int) -> str:
        """Such as "1 image", or "5,000 volumes"."""
        return plural(number, self.sample)

    @property
    def named(self) -> dict[str, str]:
        """Each by its name."""
        return {name: getattr(self, name) for name in ("sample", "samples", "one", "point", "points")}

    def put_into(self, text: str) -> str:
        """A text with the words in place of {sample}, {samples}, {one}, {point} and {points}."""
        return text.format(**self.named)


IMAGES = Words("image", "pixel", "an", "image")
VOLUMES = Words("volume", "voxel", "a", "middle plane", "NCDHW", "NDHWC")
MIXED = Words("sample", "point", "a", "picture")  # of runs of both


def words_for(spatial_dims: int | None, kind: str = "") -> Words:
    """The words for data of so many dimensions besides batch and channels; None is not known.

    Args:
        spatial_dims: of the net's first input.
        kind: `data.name`.
    """
    words = VOLUMES if spatial_dims == 3 else IMAGES
    return replace(words, source="sample", made="repeats", moved="repeats") if kind == REPEATED else words


def words_for_all(found: Iterable[Words]) -> Words:
    """The words for several runs at once; for none of them those for images."""
    kinds = set(found)
    return kinds.pop() if len(kinds) == 1 else MIXED if kinds else IMAGES
