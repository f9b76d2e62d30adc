"""Measures a net that lives in a notebook: its weights go to a file, its class is imported again by each worker."""

import copy
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.checkpoint import difference
from pipeline.config.request_error import RequestError, nearest
from pipeline.notebook.commands import ROOT, command
from pipeline.notebook.finished_run import Run, load_run
from pipeline.records import codec

Array = Tensor | np.ndarray
SAME_ANSWER = 1e-4  # relative L2 between the net and the one that its class and weights make again, both in fp32
CONF = ROOT / "conf"
PLAIN = re.compile(r"(?!(true|false|null|nan|inf)$)[A-Za-z/][A-Za-z0-9_./-]*", re.IGNORECASE)  # of Hydra's grammar
BEFORE_A_QUOTE = re.compile(r"(\\*)('|$)")  # where alone a backslash is one that escapes


def measure(
    net: nn.Module,
    images: Array | Sequence[Array] | str | Path,
    stages: Sequence[str] = (),
    *,
    labels: Array | str | Path | None = None,
    net_options: Mapping[str, object] | None = None,
    folder: str | Path | None = None,
    **knobs: object,
) -> Run:
    """Take a net through the stages, as `python -m pipeline` does, and wait for the record.

    Args:
        net: of a class in a file that can be imported; it takes [batch, channels, height, width] and gives logits
            [batch, classes, height, width]. Its weights are measured as they are now.
        images: normalised ones, [images, channels, height, width], as the net takes them, or a list of such batches,
            whose first gives the batch size; or a folder, which `data.normalize` and the like say how to read.
        stages: their names; all of the ladder where none is named.
        labels: class indices [images, height, width], 255 where not labelled; or a folder of them.
        net_options: what the net's class was called with, where it needs any.
        folder: of the run; outputs/DATE/TIME unless given.
        knobs: of the command line, such as device="cpu", measure="quick" or **{"data.batch_size": 8}.

    Raises:
        RequestError: the net's class can't be imported or doesn't make this net again, or the request was wrong.
    """
    target, options, batches = target_of(net), dict(net_options or {}), batches_of(images)
    check_made_again(net, options, batches[0][:1] if batches else None)
    place = Path(folder) if folder else Path("outputs") / datetime.now().astimezone().strftime("%Y-%m-%d/%H-%M-%S")
    if any((place / name).exists() for name in (codec.FILE, codec.CLAIM)):
        raise RequestError(f"folder={place}: another run's; name a new one")
    given = place / "given"
    given.mkdir(parents=True, exist_ok=True)
    asked = {"hydra.run.dir": place, **net_of(net, target, options, given), "data": "folder"}
    asked |= {**data_of(images, batches, given), **labels_of(labels, given), **knobs}
    words = [*(f"{key}={worded(value)}" for key, value in asked.items()), *stages_asked(stages)]
    _, last_line = command("pipeline", words, [home_of(net)])
    if (place / codec.FILE).exists():
        return load_run(place)
    raise RequestError(last_line)


def target_of(net: nn.Module) -> str:
    """Return the dotted name of the net's class.

    Raises:
        RequestError: no other process can import it.
    """
    cls = type(net)
    if cls.__module__ == "__main__" or "." in cls.__qualname__:
        raise RequestError(
            f"{cls.__qualname__} was defined in the notebook or in a function, where the workers, which are processes "
            f"of their own, can't import it: put it into a file such as nets.py, and from nets import {cls.__name__}"
        )
    return f"{cls.__module__}.{cls.__qualname__}"


def net_of(net: nn.Module, target: str, options: Mapping[str, object], given: Path) -> dict[str, object]:
    """Return the keys of `model` for a network, whose weights are kept in `given`."""
    path = given / "weights.safetensors"
    save_file({name: part.detach().cpu().clone().contiguous() for name, part in net.state_dict().items()}, path)
    named = {f"+model.options.{key}": value for key, value in options.items()}
    return {"model": "custom", "model.target": target, "model.checkpoint": path, **named}


def home_of(net: nn.Module) -> Path:
    """Return the folder in which Python finds the module of the net's class."""
    name = type(net).__module__
    file = Path(str(sys.modules[name].__file__)).resolve()
    depth = name.count(".") + (file.name == "__init__.py")
    return file.parents[depth]


def check_made_again(net: nn.Module, options: Mapping[str, object], example: Tensor | None) -> None:
    """Check that class, options and weights make this net again: the workers know no more of it.

    Args:
        net: the notebook's.
        options: of its class.
        example: an image [1, channels, height, width] that both must answer alike; None compares what they consist of.

    Raises:
        RequestError: they don't.
    """
    cls = type(net)
    takes = f"net_options of {cls.__name__}: {', '.join(inspect.signature(cls).parameters)}"
    try:
        made = cls(**options).eval().float()
    except (TypeError, ValueError) as error:
        raise RequestError(f"{cls.__name__} can't be made again from net_options={options}: {error}; {takes}") from None
    if misfit := difference(made.state_dict(), net.state_dict()):
        raise RequestError(f"net_options={options} make another net than this one: {misfit}; {takes}")
    given = copy.deepcopy(net).cpu().eval().float()
    made.load_state_dict(given.state_dict())
    if example is None:
        if repr(made) != repr(given):
            raise RequestError(f"net_options={options} make a net of other modules than this one; {takes}")
        return
    with torch.inference_mode():
        one, other = made(example), given(example)
    if isinstance(one, Tensor) and not (one - other).norm() <= SAME_ANSWER * other.norm():
        raise RequestError(f"net_options={options} make a net that answers otherwise than this one; {takes}")


def batches_of(images: Array | Sequence[Array] | str | Path) -> list[Tensor]:
    """Return the batches [batch, channels, height, width], fp32, on the CPU; none where a folder is named.

    Raises:
        RequestError: they are no images of one size, or hold NaN.
    """
    if isinstance(images, str | Path):
        return []
    parts = [images] if isinstance(images, Tensor | np.ndarray) else list(images)
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
    """Return the keys of `data` for labels, kept in `given` where they are no folder.

    Raises:
        RequestError: they are no class indices [images, height, width].
    """
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


def stages_asked(stages: Sequence[str]) -> list[str]:
    """Return the word that asks for these stages; all of the ladder if none is named.

    Raises:
        RequestError: conf/stage has no such file.
    """
    known = {path.stem for path in (CONF / "stage").glob("*.yaml")}
    for name in stages:
        if name not in known:
            raise RequestError(f"stages: no such stage {name!r}; {nearest(name, sorted(known))}")
    return [f"stage=[{','.join(stages)}]" if stages else "stage=ladder"]


def worded(value: object) -> str:
    """Return a value in Hydra's grammar, with text and paths in quotes where they could be read otherwise."""
    if isinstance(value, str | Path):
        if PLAIN.fullmatch(str(value)):
            return str(value)
        escaped = BEFORE_A_QUOTE.sub(lambda found: 2 * found[1] + ("\\'" if found[2] else ""), str(value))
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{worded(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(worded, value)) + "]"
    return json.dumps(value)
