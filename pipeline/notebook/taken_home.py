"""The way home from a notebook: the winner as a bundle, and the masks of a folder of images."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.config.request_error import RequestError
from pipeline.notebook.commands import command
from pipeline.notebook.finished_run import Run


@dataclass(frozen=True)
class Masks:
    """The masks of a folder of images."""

    folder: Path  # of the masks, PNGs of class indices, named as their images; of volumes, files of their kind
    made: int  # how many were made now
    kept: int  # how many were there, made of the same images by the same stage
    failed: dict[str, str]  # why an image has none, by its name without the suffix


def predict(  # noqa: PLR0913 - as the command has them; all but the first three are named
    run: Run | str | Path,
    images: str | Path,
    out: str | Path,
    *,
    stage: str | None = None,
    device: str | None = None,
    batch: int | None = None,
    overlap: int | None = None,
    step: float | None = None,
    whole: bool = False,
    nnunet: bool = False,
) -> Masks:
    """Predict the masks of a folder of images or volumes with a stage or a bundle; docs/predict.md has the rules.

    Args:
        run: a run, or the folder of a run or a bundle.
        images: their folder.
        out: the folder of the masks; what is done there is kept.
        stage: of the run; None takes the winner.
        device: "auto", "cuda" or "cpu"; None takes the run's.
        batch: windows a call; None takes the run's.
        overlap: of an image's neighbouring windows, in pixels; None takes a quarter of a side.
        step: from a volume's window to the next one, as a share of its side; None takes a half.
        whole: each image in one call, where the stage takes any size.
        nnunet: case_0000.png, case_0001.png … are the channels of case.png.

    Raises:
        RequestError: the request was wrong; one line.
    """
    choices = {"--stage": stage, "--device": device, "--batch": batch, "--overlap": overlap, "--step": step}
    words = [part for name, value in choices.items() if value is not None for part in (name, value)]
    words += [name for name, chosen in (("--whole", whole), ("--nnunet", nnunet)) if chosen]
    _, last_line = command("pipeline.predict", [folder_of(run), images, "--out", out, *words])
    path = Path(out) / "predict.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if told is None or not told["finished"]:
        raise RequestError(last_line)
    return Masks(Path(out), told["made"], told["kept"], told["failed"])


def export(
    run: Run | str | Path,
    to: str | Path,
    *,
    stage: str | None = None,
    dynamic: Sequence[Literal["batch", "size"]] = (),
    uint8_in: bool = False,
    classes_out: bool = False,
) -> Path:
    """Export a stage as a folder that runs without this project, checked by another process; see docs/deploy.md.

    Args:
        run: a run, or its folder.
        to: the bundle's folder, which must not be there.
        stage: of the run; None takes the winner.
        dynamic: axes of which other lengths are to be taken.
        uint8_in: the graph takes images as files hold them, [batch, height, width, channels], and normalises them.
        classes_out: the graph gives the class of every pixel, [batch, height, width], in place of logits.

    Returns:
        The bundle's folder.

    Raises:
        RequestError: the request was wrong, or the bundle failed its check; one line.
    """
    words = [part for name in dynamic for part in ("--dynamic", name)] + (["--stage", stage] if stage else [])
    words += [name for name, chosen in (("--uint8-in", uint8_in), ("--classes-out", classes_out)) if chosen]
    code, last_line = command("pipeline.export", [folder_of(run), "--to", to, *words])
    if code:
        raise RequestError(last_line)
    return Path(to)


def folder_of(run: Run | str | Path) -> Path:
    """Return the folder of a run, or the folder that was named."""
    return run.folder if isinstance(run, Run) else Path(run)
