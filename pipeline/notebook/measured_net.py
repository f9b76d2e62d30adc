"""Measures a net that lives in a notebook: it goes to a file, which each worker loads."""

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.command_line import worded
from pipeline.config.request_error import RequestError
from pipeline.errors import nearest
from pipeline.notebook.commands import ROOT, command
from pipeline.notebook.finished_run import Run, load_run
from pipeline.notebook.given import TARGET, save
from pipeline.records import codec

Array = Tensor | np.ndarray
GIVEN = "given"  # folder within the run's, of what the notebook gave
CONF = ROOT / "conf"


def measure(
    net: nn.Module,
    images: Array | Sequence[Array] | str | Path,
    stages: str | Sequence[str] = (),
    *,
    labels: Array | str | Path | None = None,
    folder: str | Path | None = None,
    **knobs: object,
) -> Run:
    """Take a net through the stages, as `python -m pipeline` does, and wait for the record.

    Args:
        net: measured as it is now, with its weights and attributes; it takes [batch, channels, height, width] and gives
            logits [batch, classes, height, width]. Its classes lie in files that can be imported.
        images: normalised ones, [images, channels, height, width], as the net takes them, or a list of such batches,
            whose first gives the batch size; or a folder, which `data.normalize` and the like say how to read.
        stages: their names; all of the ladder where none is named.
        labels: class indices [images, height, width], 255 where not labelled; or a folder of them.
        folder: of the run; outputs/DATE/TIME unless given.
        knobs: of the command line, such as device="cpu", measure="quick" or **{"data.batch_size": 8}.

    Raises:
        RequestError: no other process can load the net, or the request was wrong.
    """
    batches, chosen = batches_of(images), stages_asked(stages)
    place = claimed(folder)
    given = place / GIVEN
    try:
        saved = save(net, given)
        asked: dict[str, object] = {"hydra.run.dir": place, "model": "custom", "model.target": TARGET}
        made_of = f"{type(net).__module__}.{type(net).__name__}"
        asked |= {"+model.options.file": saved, "+model.options.made_of": made_of, "model.trained": True}
        asked |= {"data": "folder"}
        asked |= {**data_of(images, batches, given), **labels_of(labels, given), **knobs}
        words = [*(f"{key}={worded(value)}" for key, value in asked.items()), chosen]
        _, last_line = command("pipeline", words, [home_of(net)])
    except RequestError:
        if not (place / codec.FILE).exists():
            shutil.rmtree(given)
            with suppress(OSError):  # a log is there, or something of the user's
                place.rmdir()
        raise
    if run := ran_with(place, saved):
        return run
    raise RequestError(last_line)


def claimed(folder: str | Path | None) -> Path:
    """Make a folder that no other call and no run has, with room for what is given to the workers; return it."""
    named = Path("outputs") / datetime.now().astimezone().strftime("%Y-%m-%d/%H-%M-%S")
    for number in count(1):
        place = Path(folder) if folder else named if number == 1 else named.with_name(f"{named.name}-{number}")
        try:
            (place / GIVEN).mkdir(parents=True)
        except FileExistsError:
            pass
        else:
            if not any((place / name).exists() for name in (codec.FILE, codec.CLAIM)):
                return place
            (place / GIVEN).rmdir()
        if folder:
            raise RequestError(f"folder={place}: another run's; name a new one")
    raise AssertionError


def ran_with(place: Path, saved: Path) -> Run | None:
    """Return the run that measured the saved network, in `place` or beside it; None where it left no record."""
    for folder in (place, *sorted(place.parent.glob(f"{place.name}-*"))):
        if (folder / codec.FILE).exists():
            run = load_run(folder)
            if run.record.config.model.options.get("file") == str(saved):
                return run
    return None


def home_of(net: nn.Module) -> Path:
    """Return the folder in which Python finds the module of the net's class."""
    name = type(net).__module__
    file = Path(str(sys.modules[name].__file__)).resolve()
    depth = name.count(".") + (file.name == "__init__.py")
    return file.parents[depth]


def batches_of(images: Array | Sequence[Array] | str | Path) -> list[Tensor]:
    """Return the batches [batch, channels, height, width], fp32, on the CPU; none where a folder is named."""
    if isinstance(images, str | Path):
        return []
    parts = [images] if isinstance(images, Tensor | np.ndarray) else list(images)
    if any(torch.as_tensor(part).is_complex() for part in parts):
        raise RequestError("images of complex numbers: real ones are wanted, such as their real and imaginary parts")
    found = [torch.as_tensor(part).detach().cpu().float() for part in parts]
    shapes = {tuple(part.shape[1:]) for part in found if part.ndim == 4 and len(part)}
    if len(shapes) != 1 or any(part.ndim != 4 or not len(part) for part in found):
        shown = ", ".join(str(list(part.shape)) for part in found[:3]) or "nothing"
        raise RequestError(f"images of {shown}: [images, channels, height, width] of one size is wanted")
    if not all(bool(part.isfinite().all()) for part in found):
        raise RequestError("the images hold NaN or infinite values")
    return found


def data_of(images: object, batches: Sequence[Tensor], given: Path) -> dict[str, object]:
    """Return the keys of `data` for the folder, or for batches [batch, channels, height, width], kept in `given`."""
    if not batches:
        return {"data.path": images}
    folder, each = given / "images", torch.cat(list(batches)).permute(0, 2, 3, 1).contiguous().numpy()
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(each):
        np.save(folder / f"{number:06d}.npy", image)
    as_it_is = {"data.scale": 1.0, "data.mean": 0.0, "data.std": 1.0}
    size = {"data.size": None, "data.channels": each.shape[-1], "data.batch_size": len(batches[0])}
    return {"data.path": folder, **as_it_is, **size}


def labels_of(labels: Array | str | Path | None, given: Path) -> dict[str, object]:
    """Return the keys of `data` for labels, kept in `given` where they are no folder."""
    if labels is None:
        return {}
    if isinstance(labels, str | Path):
        return {"data.labels": labels}
    classes = torch.as_tensor(labels).detach().cpu().numpy()
    if classes.ndim != 3 or classes.dtype.kind not in "iu" or not ((classes >= 0) & (classes <= 255)).all():
        raise RequestError(f"labels of {classes.dtype} {list(classes.shape)}: class indices [images, height, width]")
    folder = given / "labels"
    folder.mkdir(exist_ok=True)
    for number, label in enumerate(classes.astype(np.uint8)):
        np.save(folder / f"{number:06d}.npy", label)
    return {"data.labels": folder, "data.label_pattern": "*.npy"}


def stages_asked(stages: str | Sequence[str]) -> str:
    """Return the word that asks for these stages; all of the ladder if none is named."""
    names = [stages] if isinstance(stages, str) else list(stages)
    known = sorted({path.stem for conf in (CONF, Path("conf")) for path in (conf / "stage").glob("*.yaml")})
    for name in names:
        if name not in known:
            raise RequestError(f"stages: no such stage {name!r}; {nearest(name, known)}")
    return f"stage=[{','.join(names)}]" if names else "stage=ladder"
