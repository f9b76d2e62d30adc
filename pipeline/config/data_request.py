"""The requested images: which they are, what their values mean, and whether they fit into memory."""

import difflib
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from pipeline.config.request_error import RequestError, shown
from pipeline.devices.host import memory_bytes
from pipeline.errors import ImageError
from pipeline.inputs import input_contract
from pipeline.inputs.folders import folder_samples, values_in
from pipeline.inputs.input_contract import NAMED, UNLABELLED, Axes, ChannelOrder, InputContract, LabelRules
from pipeline.records.data_words import Words, words_for
from pipeline.records.request import DataSpec, NonNegativeInt, PositiveInt

GENERATED = "generated"
OWN_IMAGES = ("samples", "stain", GENERATED)  # images of the program, with labels
FOLDER, VOLUME, TENSORS = "folder", input_contract.VOLUME, "tensors"
LABEL_KEYS = ("positive", "colors", "label_map", "label_pattern")
PATTERNS = ("*.png", "*")  # the defaults of data.label_pattern, of images and of volumes
# The data that keys go with, where they don't go with all.
GOES_WITH: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("path", "labels"), (FOLDER, VOLUME, TENSORS)),
    **dict.fromkeys(LABEL_KEYS, (FOLDER, VOLUME)),
    **dict.fromkeys(("axes", "depth"), (VOLUME,)),
    "inputs": (TENSORS,),
    "size": (FOLDER, VOLUME, *OWN_IMAGES),
    **dict.fromkeys(("images", "classes"), (GENERATED,)),
}
CT: Literal["ct"] = "ct"
COLOURS, WHITE = 3, 255
OWN = ("low", "high", "mean", "std")  # the knobs of a user's own normalisation
ALL_OWN = ", ".join(f"data.{key}" for key in OWN)
GIB = 2**30
FARTHEST = 1e12  # the largest mean, deviation or scale: beyond it fp32 cannot distinguish values
BYTES_OF_A_VOXEL = 8  # read as fp32, and in the rotation
BYTES_OF_A_LABELLED = 12  # value of a volume: read as fp32, its label as int64
BYTES_OF_A_VALUE = 5  # as read, at least uint8, and as fp32 in the rotation
LEAST_LABEL = -(2**31)  # of 32 bits; many datasets mark unlabelled pixels by −1
PERCENTILES = (0.5, 99.5)  # of nnU-Net's normalisation for CT
GIVEN = "give data.low, data.high, data.mean and data.std"
DIGITS = 6  # of a figure in a message
MOST_VALUES = 10**8  # of all volumes together, evenly spaced; nnU-Net samples at random

Figure = Annotated[float, Meta(ge=-FARTHEST, le=FARTHEST)]
Divisor = Annotated[float, Meta(ge=1 / FARTHEST, le=FARTHEST)]
Figures = Figure | Annotated[tuple[Figure, ...], Meta(min_length=1)]  # one for all channels, or one for each
Divisors = Divisor | Annotated[tuple[Divisor, ...], Meta(min_length=1)]

Byte = Annotated[int, Meta(ge=0, le=255)]
HexColor = Annotated[str, Meta(pattern="^#?[0-9a-fA-F]{6}$")]


class DataKnobs(Struct, frozen=True, kw_only=True):
    """The keys of conf/data; conf/data/folder.yaml documents them."""

    name: str
    path: str | int | None = None  # a folder called 2026 is a number to Hydra's parser
    labels: str | int | None = None
    size: PositiveInt | Annotated[tuple[PositiveInt, ...], Meta(min_length=2, max_length=3)] | None = None
    batch_size: PositiveInt
    batches: Annotated[int, Meta(ge=3)]
    channels: PositiveInt = 3
    normalize: Literal["centred", "unit", "imagenet", "zscore", "ct"] = "centred"
    mean: Figures | None = None
    std: Divisors | None = None
    low: Figures | None = None
    high: Figures | None = None
    scale: Divisor | None = None
    positive: NonNegativeInt | None = None
    ignore: Annotated[int, Meta(ge=LEAST_LABEL)] | None = 255
    colors: list[HexColor | tuple[Byte, Byte, Byte]] | None = None
    label_pattern: str = "*.png"
    label_map: str | None = None
    channel_order: ChannelOrder = "rgb"
    axes: Axes = "zyx"
    fill: Figure | None = None
    inputs: list[str] | None = None
    depth: PositiveInt | None = None
    images: PositiveInt | None = None
    classes: Literal[4] | None = None


def read_data(knobs: DataKnobs) -> DataSpec:
    """Return the requested images."""
    path, labels = (None if place in (None, "") else str(place) for place in (knobs.path, knobs.labels))
    knobs = msgspec.structs.replace(knobs, path=path, labels=labels)
    _check_whose(knobs)
    kinds = ("file", "folder") if knobs.name == TENSORS else ("folder",)
    for key, place in (("data.path", path), ("data.labels", None if knobs.name == TENSORS else labels)):
        if place:
            check_there(key, place, *kinds)
    spec = DataSpec(knobs.name, path, labels, batch_size=knobs.batch_size, batches=knobs.batches)
    spec = replace(spec, images=knobs.images, depth=knobs.depth)
    if isinstance(knobs.size, tuple):
        wanted = ["depth", "height", "width"] if knobs.name == VOLUME else ["height", "width"]
        if len(knobs.size) != len(wanted):
            raise RequestError(f"data.size={shown([*knobs.size])}: expected one number, or [{','.join(wanted)}]")
        if knobs.depth is not None:
            raise RequestError(f"data.depth={knobs.depth}: data.size={shown([*knobs.size])} has a depth; leave one out")
        *deep, height, width = knobs.size
        spec = replace(spec, size=width, height=height if height != width else None, depth=deep[0] if deep else None)
    else:
        spec = replace(spec, size=knobs.size)
    check_memory(replace(spec, contract=InputContract(knobs.channels)), memory_bytes())
    contract, rules = contract_of(knobs), label_rules_of(knobs)
    if contract.normalize == CT and not contract.low:
        contract = measured(contract, path, labels, rules)
    return replace(spec, contract=contract, label_rules=rules, inputs=tuple(knobs.inputs or ()))


def check_there(key: str, place: str, *kinds: str) -> None:
    """Raise RequestError if `place` is not one of `kinds`, "file" or "folder"; the line names a similar path."""
    path = Path(place)
    try:
        there = path.exists()
        fits = (path.is_dir() and "folder" in kinds) or (path.is_file() and "file" in kinds)
    except OSError as error:
        raise RequestError(f"{key}={shown(place)}: {error.strerror}") from None
    if fits:
        return
    beside = [part.name for part in path.parent.glob("*") if ("folder" if part.is_dir() else "file") in kinds]
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.7)
    meant = f"; did you mean {path.parent / close[0]}?" if close and close[0] != path.name else ""
    raise RequestError(f"{key}={place}: {'not a' if there else 'no such'} {' or '.join(kinds)}{meant}")


def words_for_kind(name: str) -> Words:
    """Return the words for data of a kind, such as "volumes" for `data=volume`."""
    return words_for(3 if name == VOLUME else 2)


def _check_whose(knobs: DataKnobs) -> None:
    """Raise RequestError if a knob is typed that the chosen images do not use, or the place of the user's is not."""
    typed = _typed(knobs)
    kind = knobs.name if knobs.name in (*OWN_IMAGES, VOLUME, TENSORS) else FOLDER  # of a user's own conf/data
    for key, names in GOES_WITH.items():
        if key in typed and kind not in names:
            remedy = f"leave it out, or add data={names[0]}"
            raise RequestError(f"data.{key}={shown(getattr(knobs, key))}: data={knobs.name} takes none; {remedy}")
    if knobs.name in OWN_IMAGES:
        if knobs.channels not in (1, COLOURS):
            raise RequestError(f"data.channels={knobs.channels}: data={knobs.name} has 3 channels, or 1 for grey")
        return
    if not knobs.path:
        what = "file of your tensors" if knobs.name == TENSORS else "folder of your images"
        example = "inputs.safetensors" if knobs.name == TENSORS else "images/"
        raise RequestError(f"data.path: name the {what}, such as data.path={example}")
    if knobs.depth is not None and knobs.size is None:
        raise RequestError(f"data.depth={knobs.depth}: it goes with data.size")
    if not knobs.labels and (key := next(filter(typed.__contains__, LABEL_KEYS), "")):
        raise RequestError(f"data.{key}: there are no labels for it; name them: data.labels=masks/")
    inputs = knobs.inputs or []
    if twice := next((name for name in inputs if inputs.count(name) > 1), ""):
        raise RequestError(f"data.inputs={shown(inputs)}: {twice} is given twice; a tensor is one input")


def _typed(knobs: DataKnobs) -> set[str]:
    """Return the optional keys that are not at their defaults."""
    keys = {part.name for part in msgspec.structs.fields(knobs) if getattr(knobs, part.name) != part.default}
    return keys - {"label_pattern"} if knobs.label_pattern in PATTERNS else keys


def contract_of(knobs: DataKnobs) -> InputContract:
    """Return the requested normalisation: that of `normalize`, or the user's own figures."""
    own = check_own(knobs)
    figures = own or dict(zip(("mean", "std"), NAMED[knobs.normalize], strict=True))
    name = "own" if own and knobs.normalize != CT else knobs.normalize
    if knobs.channel_order == "bgr" and knobs.channels != COLOURS:
        raise RequestError(f"data.channel_order=bgr: it is for data.channels={COLOURS}, and here are {knobs.channels}")
    order, axes, fill = knobs.channel_order, knobs.axes, knobs.fill
    try:
        contract = InputContract(
            knobs.channels, name, scale=knobs.scale, channel_order=order, axes=axes, fill=fill, **figures
        )
    except ValueError as error:
        if own:
            raise RequestError(str(error)) from None
        raise RequestError(
            f"data.normalize={knobs.normalize}: it is for channels of colour, not data.channels={knobs.channels}; give "
            "the figures of your training, such as data.mean=0.449 data.std=0.226"
        ) from None
    largest = max((*contract.mean, *contract.std), default=0.0)
    if contract.scale is not None or (largest <= 1 and min(contract.mean, default=0.0) >= -1):
        return contract
    given = {"mean": contract.mean, "std": contract.std}
    shares = as_typed({key: [each / WHITE for each in value] for key, value in given.items()})
    shares = shares if 1 < largest <= WHITE else "give figures of such values"
    raise RequestError(
        f"{as_typed(given)}: values are in 0 to 1 unless data.scale is set, so these can't be theirs; data.scale=1 "
        f"takes values as the files hold them, such as 0 to {WHITE}, or {shares}"
    )


def as_typed(values: Mapping[str, object]) -> str:
    """Return options of `data` as they are typed."""
    return " ".join(f"data.{key}={one_typed(value)}" for key, value in values.items())


def one_typed(value: object) -> str:
    """Return a value as it is typed; a list of one is that one."""
    if isinstance(value, list | tuple):
        parts = [one_typed(each) for each in value]
        return parts[0] if len(parts) == 1 else f"[{','.join(parts)}]"
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def check_own(knobs: DataKnobs) -> dict[str, tuple[float, ...]]:
    """Return the figures of the user's own normalisation that are set."""
    typed = {key: value for key in OWN if (value := getattr(knobs, key)) is not None}
    own = {key: (*map(float, value),) if isinstance(value, tuple) else (float(value),) for key, value in typed.items()}
    if knobs.normalize == CT:
        if own and (missing := [key for key in OWN if key not in own]):
            raise RequestError(f"data.{missing[0]}: data.normalize=ct takes {ALL_OWN} together")
        if not own and knobs.name != VOLUME:
            only = f"its figures are measured for data=volume only; for data={knobs.name} give {ALL_OWN}"
            raise RequestError(f"data.normalize=ct: {only}")
        if own and any(map(operator.ge, own["low"], own["high"])):
            raise RequestError(f"data.low={shown(knobs.low)}: expected less than data.high={shown(knobs.high)}")
        return own
    if clipped := [key for key in own if key in ("low", "high")]:
        raise RequestError(f"data.{clipped[0]}: it goes with data.normalize=ct, which clips values")
    if len(own) == 1:
        raise RequestError(f"data.{next(iter(own))}: set data.mean and data.std together")
    if own and knobs.normalize == "zscore":
        raise RequestError("data.mean: data.normalize=zscore takes each image's own mean and std; leave one out")
    return own


def label_rules_of(knobs: DataKnobs) -> LabelRules:
    """Return how labels are read."""
    image, pattern = LabelRules.image, knobs.label_pattern
    if knobs.label_map is not None:
        if pattern not in PATTERNS:
            raise RequestError("data.label_pattern: data.label_map names the labels already; leave one of them out")
        image, _, pattern = knobs.label_map.partition(":")
        if not pattern or not 0 < image.count("*") == pattern.count("*"):
            raise RequestError(
                f"data.label_map={knobs.label_map}: expected IMAGE:LABEL, two names with as many * each, such as "
                "image_*:mask_*.png"
            )
    elif pattern.count("*") != 1:
        raise RequestError(
            f"data.label_pattern={knobs.label_pattern}: expected a file name with one *, which stands for the image's "
            "name without its suffix, such as *_mask.png, or *_mask for any suffix"
        )
    if knobs.colors is not None and knobs.positive is not None:
        raise RequestError("data.positive: data.colors gives each class its colour already; leave one of them out")
    as_bytes = (bytes.fromhex(each.removeprefix("#")) if isinstance(each, str) else each for each in knobs.colors or ())
    colors = tuple((red, green, blue) for red, green, blue in as_bytes)
    if knobs.colors is not None and (len(colors) < 2 or len(set(colors)) < len(colors)):
        raise RequestError("data.colors: expected two or more different colours, that of class 0 first")
    if knobs.ignore == knobs.positive and knobs.ignore not in (None, LabelRules.ignore):
        raise RequestError(f"data.ignore={knobs.ignore}: data.positive makes that value class 1; leave one of them out")
    ignore = None if knobs.ignore == knobs.positive else knobs.ignore
    return LabelRules(pattern, knobs.positive, ignore, colors, image)


def check_memory(data: DataSpec, memory: int) -> None:
    """Raise RequestError if the rotation of inputs exceeds `memory` bytes; images of unknown size are checked later."""
    if not data.sides:
        return
    window = [*data.sides, data.contract.channels]
    each, kind = (BYTES_OF_A_VOXEL, "volumes") if data.name == VOLUME else (BYTES_OF_A_VALUE, "images")
    count, drawn = data.batches * data.batch_size, data.images or 0
    if (needed := each * max(count, drawn) * math.prod(window)) > memory:
        several = f"data.images={drawn}" if drawn > count else f"{data.batches} batches of {data.batch_size} {kind}"
        what = f"{several} of {'×'.join(map(str, window))}"
        raise RequestError(
            f"data.batch_size={data.batch_size}, data.size={data.size}: {what} take {needed / GIB:.4g} GiB and this "
            f"machine has {memory / GIB:.4g}; choose a smaller data.batch_size or data.size"
        )


def measured(contract: InputContract, path: str | None, labels: str | None, rules: LabelRules) -> InputContract:
    """Return the contract with low, high, mean and std of the foreground."""
    try:
        needed, memory = BYTES_OF_A_LABELLED * values_in(path, volumes=True), memory_bytes()
        if needed > memory:
            takes = f"{needed / GIB:.4g} GiB and this machine has {memory / GIB:.4g}"
            raise RequestError(f"data.path={path}: its volumes take {takes}; {GIVEN}")
        parts = list(foreground(path, labels, contract, rules))
    except ImageError as error:
        raise RequestError(str(error)) from None
    values = np.concatenate(parts).astype(np.float64) / (contract.scale or 1.0)
    low, high = np.percentile(values, PERCENTILES, axis=0)
    if not (low < high).all():
        raise RequestError(
            f"data.normalize=ct: the foreground of {labels or path} has one value only, {low.min():g}; {GIVEN}"
        )
    least, most, mean, std = (tuple(map(float, each)) for each in (low, high, values.mean(0), values.std(0)))
    return replace(contract, low=least, high=most, mean=mean, std=std)


def foreground(
    path: str | None, labels: str | None, contract: InputContract, rules: LabelRules
) -> Iterator[np.ndarray]:
    """Yield the foreground values [voxels, channels] of each volume; all values if no label is above 0."""
    named, _ = folder_samples(path, labels, contract, rules, volumes=True)
    masks = [None if each.label is None else (each.label > 0) & (each.label != UNLABELLED) for each in named]
    some = any(mask is not None and mask.any() for mask in masks)
    for each, mask in zip(named, masks, strict=True):
        chosen = each.image[mask] if some and mask is not None else each.image.reshape(-1, contract.channels)
        yield chosen[:: max(1, -(-len(chosen) * len(named) // MOST_VALUES))]
