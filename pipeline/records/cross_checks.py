"""What some figures of a record say of others: a run's own never contradict each other, those of a pencil often do.

Each rule follows from how the figures are computed (`pipeline.measure.accuracy`), whatever was measured.
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.inputs.input_contract import NAMED
from pipeline.records.accuracy_check import judge
from pipeline.records.renamed import of_today
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.run_settings import settings_of
from pipeline.records.samples import Accuracy

ROUNDING = 1e-4  # relative: sums in fp64 of differences in fp32
# Warnings of runs whose stages were measured as another request, or beside another baseline.
PIECED_TOGETHER = {"resumed", "baseline replaced"}
PROGRAM_WORDS = 3  # python -m pipeline
PLAIN = re.compile(r"[\w./-]+")  # a value that the command line's grammar doesn't read otherwise than it is written
NOT_THERE = object()  # in place of a value
AS_CONFIGURED = {"model": ("name", "target", "options", "checkpoint"), "data": ("name", "path", "labels", "batch_size")}


def check_settings(run: RunRecord) -> None:
    """That the settings, which are read, are those of the config, which is shown: a run writes both from one request.

    Raises:
        ValueError: one is another; the text names it.
    """
    for name, own, configured in _told_twice(run):
        if own != configured:
            raise ValueError(f"settings.{name} is {own!r}, and by its config {configured!r}")


def check_command(run: RunRecord) -> None:
    """That the config has what the command says, of which it was made; a sweep's jobs have one command.

    Raises:
        ValueError: it has something else; the text names the key.
    """
    for word in _words(run.command):
        key, _, typed = of_today(word).lstrip("+").partition("=")
        found: object = run.config
        for part in key.split("."):
            found = found.get(part, NOT_THERE) if isinstance(found, Mapping) else NOT_THERE
        told = PLAIN.fullmatch(typed) and not _refers(found)
        if told and isinstance(found, str | float | int | None) and not _means(typed, found):
            raise ValueError(f"config.{key} is {found!r}, and by its command {typed}")


def _words(command: str) -> list[str]:
    """The words of a command that set a key to one value; none of a sweep's."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return [] if {"-m", "--multirun"} & set(words[PROGRAM_WORDS:]) else words[PROGRAM_WORDS:]


def _means(typed: str, found: str | float | None) -> bool:
    """Whether a word's value, as it was typed, is that of the config: a number may be written in several ways."""
    if typed == found or typed.lower() == json.dumps(found):
        return True
    try:
        return isinstance(found, int | float) and float(typed) == float(found)
    except ValueError:
        return False


def _told_twice(run: RunRecord) -> Iterator[tuple[str, object, object]]:
    """What settings and config both say: its name, the one and the other."""
    asked = settings_of(run.config)
    for group, names in AS_CONFIGURED.items():
        given = run.config.get(group)
        for name in names:
            if isinstance(given, Mapping) and name in given and not _refers(given[name]):
                yield f"{group}.{name}", *(getattr(getattr(part, group), name) for part in (run.settings, asked))
    if isinstance(data := run.config.get("data"), Mapping):
        for name, figure in _contract(data).items():
            yield f"data.contract.{name}", getattr(run.settings.data.contract, name), figure


def _contract(data: Mapping[str, object]) -> dict[str, object]:
    """The fields of an `InputContract` that a config's data tell, as far as they need no look at the images.

    None where one of them refers to another key or the environment, as only the settings have it resolved.
    """
    if any(_refers(data.get(key)) for key in ("mean", "std", "low", "high", "normalize", "channels", "scale")):
        return {}
    found = {key: each for key in ("mean", "std", "low", "high") if (each := _figures(data.get(key)))}
    if not found and (named := NAMED.get(str(data.get("normalize")))):
        found = dict(zip(("mean", "std"), named, strict=True))
    counted = {key: data[key] for key in ("channels", "scale") if isinstance(data.get(key), int | float)}
    return {**found, **counted}


def _refers(value: object) -> bool:
    """Whether a value of the config refers to another one, or one of its parts does; a run resolves it."""
    if isinstance(value, Mapping):
        return any(map(_refers, value.values()))
    each = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return any(isinstance(part, str) and "${" in part for part in each)


def _figures(value: object) -> tuple[float, ...]:
    """One figure, or several; none of anything else, such as a reference to the environment."""
    each = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(map(float, each)) if all(isinstance(part, int | float) for part in each) else ()


def check_figures(run: RunRecord) -> None:
    """That no figure of an answer contradicts another one, nor a stage's status its figures.

    Raises:
        ValueError: one does; the text names the stage and both.
    """
    for stage in run.stages:
        if stage.accuracy and (wrong := contradiction(stage.accuracy)):
            raise ValueError(f"{stage.name}.accuracy: {wrong}")
    if PIECED_TOGETHER.isdisjoint(warning.code for warning in run.warnings):
        for stage in run.stages:
            _check_stage(run, stage)
            _check_inputs(run, stage)
        _check_reference(run.stages)


def _check_stage(run: RunRecord, stage: StageRecord) -> None:
    """That a stage's pairs are its own, and that one which is right is so by its figures."""
    for pair in stage.pairs:
        if (pair.baseline, pair.stage) != (run.baseline, stage.name):
            raise ValueError(
                f"{stage.name}.pairs: of {pair.stage} against {pair.baseline}, and the baseline is {run.baseline}"
            )
    if stage.status == "ok" and stage.accuracy:
        _, wrong = judge(stage.accuracy, stage.tolerance, run.settings.model.trained, run.words)
        if wrong:
            raise ValueError(f"{stage.name} is ok, and by its figures {wrong}")


def _check_inputs(run: RunRecord, stage: StageRecord) -> None:
    """That a stage was called with the batch and the window of the settings, where it was timed on parts of them."""
    data, found = run.settings.data, stage.diagnostics
    if found is None:
        return
    if found.growth and data.batch_size and max(found.growth.images) != max(2, data.batch_size):
        most = max(found.growth.images)
        raise ValueError(
            f"{stage.name} was timed on {most} images at once, and settings.data.batch_size is {data.batch_size}"
        )
    if found.image_growth and data.image_size and found.image_growth.pixels[-1] != data.image_size**2:
        pixels = found.image_growth.pixels[-1]
        raise ValueError(
            f"{stage.name} was timed on images of {pixels} pixels, and settings.data.image_size is {data.image_size}"
        )


def _check_reference(stages: Sequence[StageRecord]) -> None:
    """That stages which were judged on the same images name the same figures of the reference on them."""
    known: dict[int, tuple[str, list[float]]] = {}
    for stage in stages:
        found = stage.accuracy
        if found is None or stage.calibration:  # what it is calibrated on it may leave out
            continue
        own = [found.reference_spread, *(found.reference_dice or ())]
        name, first = known.setdefault(found.images, (stage.name, own))
        if len(first) != len(own) or not all(map(_alike, first, own)):
            raise ValueError(f"{stage.name}.accuracy: the reference's figures are others than {name}'s, of one answer")


def contradiction(found: Accuracy) -> str:
    """The first rule that figures of an answer break, in words; empty where they keep all."""
    return next((text for text, keeps in RULES.items() if not keeps(found)), "")


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING) or (math.isnan(one) and math.isnan(other))


def _at_most(one: float, other: float) -> bool:
    """Whether it is so within rounding; of what is no number nobody knows."""
    return not one > other * (1 + ROUNDING)


def _shares(found: Accuracy) -> bool:
    overlaps = [
        part for each in (found.dice, found.iou, found.reference_dice, found.reference_iou) for part in each or ()
    ]
    return all(not (part < 0 or part > 1) for part in (found.flipped_share or 0.0, found.nan_share, *overlaps))


def _overlaps(found: Accuracy) -> bool:
    pairs = ((found.dice, found.iou), (found.reference_dice, found.reference_iou))
    return all(
        len(dice or ()) == len(iou or ())
        and all(_alike(one / (2 - one), other) for one, other in zip(dice or (), iou or (), strict=True))
        for dice, iou in pairs
    )


# What holds of any answer. A pixel changes its class only where two errors together reach the reference's margin there;
# the root of the mean square is no more than the largest, and of the reference no less than its spread.
RULES: dict[str, Callable[[Accuracy], bool]] = {
    "a share, Dice or IoU isn't within 0 and 1": _shares,
    "IoU isn't Dice / (2 − Dice)": _overlaps,
    "relative_l2 is 0 and largest_error isn't, or the other way round": lambda found: (
        math.isnan(found.relative_l2 + found.largest_error) or (found.relative_l2 == 0) == (found.largest_error == 0)
    ),
    "relative_l2 times reference_spread is more than largest_error": lambda found: _at_most(
        found.relative_l2 * found.reference_spread, found.largest_error
    ),
    "flipped_margin goes with a flipped_share above 0 alone": lambda found: (
        (found.flipped_margin is None) == (not found.flipped_share)
    ),
    "flipped_margin is more than twice largest_error": lambda found: _at_most(
        found.flipped_margin or 0.0, 2 * found.largest_error
    ),
    "flipped_share is 0, and dice isn't reference_dice": lambda found: (
        found.flipped_share != 0 or found.dice == found.reference_dice
    ),
    "one_class without a pixel that changes its class": lambda found: not found.one_class or bool(found.flipped_share),
}
