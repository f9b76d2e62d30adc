"""A folder of images or volumes: its samples, of one file or of a file for each channel, and their label files."""

import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from pipeline.errors import ImageError, plural
from pipeline.inputs.formats import check_place, conversion_of, formats_of, reading
from pipeline.inputs.image_files import SAID, alike, as_classes, each, read_image, read_label, together
from pipeline.inputs.input_contract import VOLUME, InputContract, LabelRules
from pipeline.inputs.windows import Named

CHANNEL = re.compile(r"(?P<case>.+)_(?P<number>\d{4})", re.DOTALL)  # in nnU-Net's file names, before the suffix
UNQUOTED = re.compile(r"[\w*.:+/=-]+")  # what a shell takes as it stands
FIRST = "_0000"  # ends the name of a case's first channel; its labels have the case's name alone
LEAST_SHARED = 2  # characters of the names of an image and its label, unless the label's begins with the image's
FAR_BEYOND = 4  # times the largest value: no mean of images of the same kind
LARGEST_SHARE = 4.0  # of values that are to lie in 0 to 1, as some float images go beyond
BITS_OF_A_SENSOR = (8, 10, 12, 14)  # whose values lie in files of 16


@dataclass(frozen=True)
class Sample:
    """The files of one image or volume."""

    name: str  # without the suffix, and without the number of a channel
    files: tuple[Path, ...]  # of its channels, in order
    problem: str = ""  # why they can't be read, if the names show it


def is_sample(path: Path, volumes: bool) -> bool:
    """Return whether an entry has a format's suffix and is a folder exactly if that format is one."""
    formats = formats_of(volumes)
    if not formats.suffix(path):
        return False
    if formats.of(path).folder:
        return path.is_dir()
    return path.is_file() or not path.exists()


def files_in(path: str | None, volumes: bool) -> tuple[list[Path], list[str]]:
    """Return the images or volumes of a folder in the order of names, and a line for each other folder in it."""
    formats, noun = formats_of(volumes), "volume" if volumes else "image"
    folder = Path(path or "")
    if not path or not folder.is_dir():
        raise ImageError(f"data.path={path}: no such folder of {noun}s")
    seen = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in seen if is_sample(entry, volumes)]
    others = [entry for entry in seen if entry not in files]
    if not files:
        inner = [entry.name for entry in others if entry.is_dir()]
        within = f", and none is looked for in its folders, such as {inner[0]}" if inner else ""
        by_other = f"; data={'folder' if volumes else VOLUME} reads those"
        by_other *= any(formats_of(not volumes).suffix(entry) for entry in seen)
        raise ImageError(
            f"data.path={path}: no {noun} in it among {plural(len(seen) - len(inner), 'file')}{within}; "
            f"{', '.join(sorted(formats))} are read{by_other}"
        )
    if strangers := [str(entry) for entry in others if entry.is_file()]:
        wanted = f"a folder of {noun}s holds {', '.join(sorted(formats))} alone"
        raise ImageError(together({f"not {'a' if volumes else 'an'} {noun}; {wanted}": strangers}))
    return files, [f"{entry.name}: no {'volume' if volumes else 'regular file'}" for entry in others]


def values_in_file(path: Path, volumes: bool) -> int:
    """Return how many values a file has by its header, or 0 where the header can't be read."""
    with suppress(ImageError), reading(path, "a file"):
        return math.prod(formats_of(volumes).of(path).shape(path))
    return 0


def values_in(path: str | None, volumes: bool) -> int:
    """Return the number of values in a folder's samples, by their headers."""
    return sum(values_in_file(file, volumes) for file in files_in(path, volumes)[0])


def stem(file: Path, volumes: bool) -> str:
    """Return a file's name without the suffix of its format, such as .nii.gz."""
    return file.name[: -len(formats_of(volumes).suffix(file))]


def by_channels(files: Sequence[Path], volumes: bool) -> list[Sample]:
    """Return nnU-Net's cases; names without a channel, or with a gap, are problems."""
    by_case: dict[str, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    samples = []
    for file in files:
        name = stem(file, volumes)
        if match := CHANNEL.fullmatch(name):
            by_case[match["case"]][int(match["number"])].append(file)
        else:
            wanted = f"{name}{FIRST}{file.name.removeprefix(name)}"
            samples.append(Sample(name, (file,), f"{file}: no channel in its name; rename it {wanted}"))
    for name, channels in by_case.items():
        parts = tuple(file for number in sorted(channels) for file in channels[number])
        names = ", ".join(file.name for file in parts[:SAID])
        problem = f"{parts[0].parent / name}: channels {names}; one file of each from {FIRST} on is wanted"
        whole = sorted(channels) == list(range(len(parts)))
        samples.append(Sample(name, parts, "" if whole else problem))
    return sorted(samples, key=lambda sample: sample.name)


def samples_of(files: Sequence[Path], channels: int, volumes: bool) -> list[Sample]:
    """Return a sample for each file, or for each of nnU-Net's cases if all have a file for each of the channels."""
    cases = by_channels(files, volumes)
    complete = channels > 1 and all(not case.problem and len(case.files) == channels for case in cases)
    if complete and (volumes or channels != 3 or len(cases) > 1):
        return cases
    return [Sample(stem(file, volumes), (file,)) for file in files]


def read_sample(sample: Sample, contract: InputContract, volumes: bool) -> np.ndarray:
    """Read a sample [height, width, channels], uint8, uint16 or fp32; volumes have a depth before the height."""
    if sample.problem:
        raise ImageError(sample.problem)
    first, count = sample.files[0], len(sample.files)
    channels, rest = divmod(contract.channels, count)
    if rest:
        raise ImageError(f"{first}: {count} files of channels, the network takes {contract.channels}")
    fill, axes = contract.fill, contract.axes
    parts = [read_image(file, channels, fill, volumes=volumes, axes=axes) for file in sample.files]
    if count == 1:
        return parts[0]  # in one type with the other samples later
    for file in sample.files[1:]:
        check_place(first, file)
    parts = alike(parts, [str(file) for file in sample.files], contract.scale)
    if len({part.shape for part in parts}) > 1:
        sizes = ", ".join("×".join(map(str, part.shape[:-1])) for part in parts)
        raise ImageError(f"{first}: the channels' files are of several sizes: {sizes}")
    return np.concatenate(parts, axis=-1)


def folder_samples(
    path: str | None, labels: str | None, contract: InputContract, rules: LabelRules, *, volumes: bool
) -> tuple[list[Named], list[str]]:
    """Read a folder's samples in the order of names; also return what is left out, such as labels of no image."""
    files, left_out = files_in(path, volumes)
    files = not_labels(files, labels, rules, volumes)
    samples = samples_of(files, contract.channels, volumes)
    masks: list[np.ndarray | None] = [None] * len(samples)
    if labels:
        found, label_files = masks_of(samples, Path(labels), contract, rules, volumes)
        masks = [*found]
        left_out += of_no_sample(Path(labels), files, label_files, rules, volumes)
    images = each(samples, lambda sample: read_sample(sample, contract, volumes))
    if labels:
        each(zip(label_files, masks, images, strict=True), check_size)
    if deep := [image for image in images if image.dtype == np.uint16]:
        check_range(deep, contract)  # before 8 bits are widened beside them
    images = alike(images, [str(sample.files[0]) for sample in samples], contract.scale)
    check_range(images, contract)
    by_kind = defaultdict(list)
    for file, kind in zip(files, each(files, lambda file: conversion_of(file, contract.channels)), strict=True):
        by_kind[kind].append(file.name)
    if len(by_kind) > volumes:  # one orientation of all volumes is no difference
        by_kind.pop("", None)
        left_out += [together(by_kind)] if by_kind else []
    names = (", ".join(file.name for file in sample.files) for sample in samples)
    return [Named(*part) for part in zip(names, images, masks, strict=True)], left_out


def check_range(images: Sequence[np.ndarray], contract: InputContract) -> None:
    """Raise ImageError if the largest value can't be that of the images that the normalisation is for."""
    kind, largest = images[0].dtype, max(float(image.max()) for image in images)
    if contract.normalize == "zscore" or largest <= 0:
        return
    bits = next((bits for bits in BITS_OF_A_SENSOR if largest < 2**bits), None)
    if contract.scale is None and kind == np.uint16 and bits:
        raise ImageError(
            f"data.scale: the largest of all values of 16 bits is {largest:.0f}, so that inputs would lie within 0 and "
            f"{largest / 65535:.2g}; set data.scale={2**bits - 1} for {bits} bits, or data.scale=65535 to keep them so"
        )
    own = contract.normalize == "own" and contract.scale is not None  # without a scale the request was checked
    if own and max(contract.mean) > FAR_BEYOND * largest / (contract.scale or 1.0):
        raise ImageError(
            f"data.mean={max(contract.mean):g}: the largest of all values is {largest:g}, divided by data.scale="
            f"{contract.scale:g}; give the mean of values so divided, or another data.scale, such as 1"
        )
    figures = (*contract.mean, *contract.std)
    as_they_are = contract.normalize == "unit" or (set(contract.mean), set(contract.std)) == ({0.0}, {1.0})
    of_shares = contract.scale is not None and not as_they_are and max(figures, default=2.0) <= 1
    if of_shares and largest / (contract.scale or 1.0) > LARGEST_SHARE:
        raise ImageError(
            f"data.scale={contract.scale:g}: the largest of all values is {largest:g}, and mean and standard deviation "
            f"are those of values in 0 to 1; leave data.scale out, or set data.scale={largest:g} at least"
        )


# Labels


def masks_of(
    samples: Sequence[Sample], folder: Path, contract: InputContract, rules: LabelRules, volumes: bool
) -> tuple[list[np.ndarray], list[Path]]:
    """Return the class indices of each sample, and the files that hold them."""
    files = each(samples, lambda sample: label_file(sample, folder, rules, volumes))
    if twice := [file for file, number in Counter(files).items() if number > 1]:
        named = [sample.files[0] for sample, file in zip(samples, files, strict=True) if file == twice[0]]
        names = ", ".join(file.name for file in named)
        raise ImageError(f"data.path={named[0].parent}: {names} would share one file of labels; give each its own")
    values = each(files, lambda file: read_label(file, rules, volumes=volumes, axes=contract.axes))
    if volumes:
        each(samples, lambda sample: check_place(sample.files[0], files[samples.index(sample)]))
    return as_classes(values, files, rules), files


def check_size(labelled: tuple[Path, np.ndarray, np.ndarray]) -> None:
    """Raise ImageError if a file's labels have another size than their image, the last of the three."""
    file, label, image = labelled
    if label.shape != image.shape[:-1]:
        shown, right = ("×".join(map(str, sides)) for sides in (label.shape, image.shape[:-1]))
        turned = "; turn one of them: images are read upright" if label.shape == image.shape[-2::-1] else ""
        raise ImageError(f"{file}: labels of {shown}, and their image has {right}{turned}")


def label_names(file: Path, name: str, rules: LabelRules, volumes: bool) -> list[str]:
    """Return the names that the label file of a sample may have; none if `rules.image` isn't the name of its file.

    Each * in `rules.pattern` stands for that in `rules.image`. Any suffix fits unless the pattern has one; it may be in
    capitals.
    """
    formats, star = formats_of(volumes), "(.*)".join(map(re.escape, rules.image.split("*")))
    at = len(rules.pattern) - len(formats.suffix(Path(rules.pattern)))
    before, *behind = rules.pattern[:at].split("*")
    suffixes = [rules.pattern[at:]] if rules.pattern[at:] else sorted(formats)
    spelt = dict.fromkeys(form for suffix in suffixes for form in (suffix, suffix.lower(), suffix.upper()))
    names = []
    for image in [file.name] if formats.suffix(Path(rules.image)) else dict.fromkeys((name, name.removesuffix(FIRST))):
        if match := re.fullmatch(star, image, re.DOTALL):
            stood_for = zip(match.groups(), behind, strict=True)
            label = before + "".join(f"{part}{further}" for part, further in stood_for)
            names += [f"{label}{suffix}" for suffix in spelt]
    return names


def not_labels(files: list[Path], labels: str | None, rules: LabelRules, volumes: bool) -> list[Path]:
    """Return the files that are no labels: if images and labels share a folder, those that aren't another's label."""
    if not labels or Path(labels).resolve() != files[0].parent.resolve():
        return files
    names = {file.name: label_names(file, stem(file, volumes), rules, volumes) for file in files}
    if all(name in found for name, found in names.items()):
        raise ImageError(
            f"data.labels={labels}: the same folder as the images, and each would be its own label; set "
            "data.label_pattern=*_mask.png , or for a_image.png and a_mask.png data.label_map=*_image:*_mask"
        )
    used = {label for name, found in names.items() for label in found if label != name}
    return [file for file in files if file.name not in used]


def label_file(sample: Sample, folder: Path, rules: LabelRules, volumes: bool) -> Path:
    """Return the label file of a sample."""
    tried = [folder / name for name in label_names(sample.files[0], sample.name, rules, volumes)]
    if not tried:
        raise ImageError(f"{sample.files[0]}: data.label_map={rules.image}:{rules.pattern} is for other names")
    is_there = Path.exists if volumes else Path.is_file
    if there := next((path for path in tried if is_there(path)), None):
        return there
    if tried[0].exists() or tried[0].is_symlink():
        raise ImageError(f"{tried[0]}: no regular file")
    suffixes = [*dict.fromkeys(formats_of(volumes).suffix(path) for path in tried)][1:3]
    others = f", nor with {' or '.join(suffixes)}" if suffixes else ""
    beside, cure = hint(sample, folder, volumes)
    raise ImageError(f"{tried[0]}{beside and f' (there is {beside})'}: no such labels{others}{cure}")


def hint(sample: Sample, folder: Path, volumes: bool) -> tuple[str, str]:
    """Return a name in a folder like the sample's and an option that splits no number; without one "" and the rule."""
    rule = "; data.labels holds one file of labels for each image"
    channel = CHANNEL.fullmatch(sample.name)
    if channel and channel["number"] != FIRST[1:]:
        case = f"by nnU-Net's names it is a channel of {channel['case']}"
        return "", f"{rule}; {case}: each needs as many files as data.channels says, numbered from {FIRST} on"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    beside = [entry.name for entry in entries if formats_of(volumes).suffix(entry)]
    matches = [SequenceMatcher(None, sample.name, name, autojunk=False).find_longest_match() for name in beside]
    best = max(zip(matches, beside, strict=True), key=lambda part: part[0].size, default=None)
    if best is None:
        return "", rule
    match, name = best
    image, label = (f"{text[:at]}*{text[at + match.size :]}" for text, at in ((sample.name, match.a), (name, match.b)))
    option = f"data.label_pattern={label}" if image == "*" else f"data.label_map={image}:{label}"
    option = option if UNQUOTED.fullmatch(option) else shlex.quote(option)
    if re.search(r"\d\*|\*\d", f"{image} {label}") or (match.size < LEAST_SHARED and not (image == "*" and match.size)):
        return "", rule
    return name, f"{rule}; {option} names them so"


def of_no_sample(
    folder: Path, files: Sequence[Path], used: Sequence[Path], rules: LabelRules, volumes: bool
) -> list[str]:
    """Return a line for each label file without a sample; none if labels and samples share a folder."""
    if folder.resolve() == files[0].parent.resolve():
        return []
    spare = [path for path in sorted(set(folder.iterdir()) - set(used)) if not path.name.startswith(".")]
    known = [path for path in spare if (is_sample(path, True) if volumes else path.match(rules.pattern))]
    return [f"{folder.name}/{path.name}: labels of no image" for path in known]
