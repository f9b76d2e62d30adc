"""The masks of a folder or an object store by Ray Data: one actor for each GPU of a cluster.

Ray hands out blocks of cases alone, whose masks each actor makes by the plain engine. It asks for each mask whether it
is there: a block that Ray runs again costs little and writes nothing twice. Of places that fsspec reaches, such as
s3://bucket/images, the plain engine works on copies. A mask goes to its place after its sidecar, by one put that fails
if the name has been taken meanwhile: it is there once and whole.
"""

import argparse
import hashlib
import json
import logging
import os
import pickle
import secrets
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import numpy as np
import pyarrow as pa
import ray
import torch
from pyarrow import parquet
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayError
from ray.util.annotations import RayDeprecationWarning

from pipeline.command_line import FILES_TOO, tell
from pipeline.config.request_error import RequestError
from pipeline.errors import first_line, plural, typed_line
from pipeline.export.contract import Contract
from pipeline.inputs.folders import stem
from pipeline.inputs.formats import TIFF, formats_of
from pipeline.predict.cases import Case
from pipeline.predict.command import PARQUET, check_kind, given, loaded, refuse, takes_volumes
from pipeline.predict.folder import Ready, planned_for, tell_invisible
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import SIDECARS, Form, Sidecar, Statements, overlay_of
from pipeline.predict.report import MANIFEST, TOLD_EVERY, Outcome, Rate
from pipeline.predict.shards import THIS, alone_in, clear_unfinished
from pipeline.predict.sources import identity
from pipeline.records.disk import write_bytes
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import clean

CHANGED = ("mtime", "LastModified", "last_modified", "updated", "created")  # keys of fsspec's file systems, by turns
FIRST_BLOCK, LARGEST_BLOCK = 16, 4096  # names: the first blocks are small, so that all actors begin early
LARGEST_COPIED = 512  # names of a block whose images are copied from a store
NAMES_OF_A_PART = 512  # of a Parquet file, on average
TRIES = 3  # of a block whose actor dies: a file may be what kills it
AT_ONCE = 32  # requests to an object store
LIST = ".txt"  # of names in a store, one a line, within its folder
LEAST_SECONDS = 1.0  # of a rate: blocks come all at once at the end


def predict_by_ray(asked: argparse.Namespace) -> Outcome:
    """Make the masks that are missing."""
    source = loaded(asked.run)
    check_kind(asked, takes_volumes(source))
    stored = [Store(place).url for place in (asked.images, asked.out) if isinstance(place, str)]
    itself = "Ray hands out the images itself; leave it out, or take --actors N"
    refuse(
        (asked.nnunet and stored, f"--nnunet: of local folders alone, not of {', '.join(stored)}"),
        (asked.devices != THIS, f"--devices: {itself}"),
        (asked.shard, f"--shard: {itself}"),
        (asked.profile, "--profile: of the plain engine alone; Ray's own dashboard shows its actors"),
    )
    outcome, told = Outcome(), time.monotonic()
    made_of: dict[str, object] = {}
    stored_out = isinstance(asked.out, str)  # whose masks are put once each
    with nullcontext() if stored_out else alone_in(asked.out), on_cluster() as cluster:
        if not stored_out:
            clear_unfinished(asked.out)
        for found in results(asked, source, cluster):
            if found["refusal"]:
                raise RequestError(found["refusal"])
            for note in [] if made_of else found["notes"]:
                tell(f"note: {clean(note)}")
            made_of = found["made_of"]
            outcome.add(found)
            outcome.largest = max(outcome.largest, found["largest"])
            if found["made"]:
                outcome.rate.made(found["made"])
            if (now := time.monotonic()) - told > TOLD_EVERY:
                told = now
                tell(f"{plural(outcome.done, outcome.sample)} settled; {outcome.rate.told()}".removesuffix("; "))
        if not outcome.done:
            raise RequestError(f"{asked.images}: nothing in it that the network takes")
        if outcome.rate.last[0] - outcome.rate.first[0] < LEAST_SECONDS:
            outcome.rate = Rate()
        with tempfile.TemporaryDirectory() as scratch:
            manifest = Path(scratch if stored_out else asked.out, MANIFEST)
            outcome.write(manifest, made_of, identity(made_of), finished=True)
            if stored_out:
                Store(asked.out).put(MANIFEST, manifest.read_bytes(), new=False)
    tell_invisible(outcome)
    return outcome


@contextmanager
def on_cluster() -> Iterator[dict[str, float]]:
    """Connect to the cluster that RAY_ADDRESS names, or start one on this machine; yield its resources."""
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"})
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=RayDeprecationWarning)  # no other argument bounds the tries
    warnings.filterwarnings("ignore", module=r"ray\.")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**quiet)
    else:
        ray.init("local", num_cpus=max(2, len(os.sched_getaffinity(0))), include_dashboard=False, **quiet)
    try:
        yield ray.cluster_resources()
    except RayError as error:
        raise RequestError(f"--engine ray: {first_line(error)}; finished masks are kept") from error
    finally:
        ray.shutdown()


def results(
    asked: argparse.Namespace, source: RunRecord | Contract, cluster: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """Yield what has become of each block, as `Actor.block` gives it."""
    context = DataContext.get_current()
    context.target_max_block_size = context.target_min_block_size = 1  # bytes: each block of names is one of Ray's
    context.enable_progress_bars = context.print_on_execution_start = False
    on_gpu = device_of(asked, source, cluster) == "cuda"
    actors = asked.actors or (int(cluster.get("GPU", 0)) if on_gpu else len(ray.nodes()))
    free = (cluster["CPU"] - 1) / actors  # one core lists the names
    share = {"num_gpus": 1} if on_gpu else {"num_cpus": int(free) or free}
    threads = max(1, int(cluster["CPU"]) // actors)
    blocks = ray.data.range(1).map_batches(partial(listed, asked, source), batch_size=1, num_cpus=1)
    settled = blocks.map_batches(
        Actor,
        fn_constructor_args=(asked, threads),
        batch_size=1,
        compute=ActorPoolStrategy(
            size=actors, max_concurrent_calls_per_actor=2, enable_true_multi_threading=isinstance(asked.images, str)
        ),
        max_task_retries=TRIES,
        **share,
    )
    for row in settled.iter_rows():
        yield json.loads(row["told"])


def device_of(asked: argparse.Namespace, source: RunRecord | Contract, cluster: dict[str, float]) -> str:
    """Return the device of the actors."""
    environment = source.measured if isinstance(source, Contract) else source.environment
    device = asked.device or (environment.device if environment else "auto")
    if device == "auto":
        return "cuda" if cluster.get("GPU") else "cpu"
    if device == "cuda" and (gpus := cluster.get("GPU", 0)) < (actors := asked.actors or 1):
        raise RequestError(f"--device cuda: the cluster has {gpus:g} GPUs for {actors} actors")
    return str(device)


def listed(
    asked: argparse.Namespace, source: RunRecord | Contract, _: dict[str, np.ndarray]
) -> Iterator[dict[str, list[bytes]]]:
    """Yield blocks of cases in a task of Ray, or why there are none."""
    volumes, largest = takes_volumes(source), LARGEST_BLOCK
    cases: Iterable[Case] | Iterable[str]
    try:
        if isinstance(asked.images, str):
            cases, largest = stored_names(asked.images, volumes), LARGEST_COPIED
        else:
            len(cases := given(asked, source))  # refuses two of one mask
        for block in blocks_of(cases, 0 if asked.format == PARQUET else largest):
            stored = isinstance(asked.images, str)
            form = Form(asked.format, asked.probabilities)
            yield {"cases": [pickle.dumps(cases_of(block, volumes, form) if stored else block)]}
    except (*FILES_TOO, UnicodeDecodeError) as error:
        yield {"cases": [pickle.dumps(error)]}


def root_of(images: str) -> str:
    """Return the URL of the folder within which images have their names: that of a list."""
    return images.rpartition("/")[0] if images.endswith(LIST) else images


def stored_names(images: str, volumes: bool) -> Iterator[str]:
    """Yield the names of images in a store, folder by folder, or of a list in it, line by line."""
    store, suffixes = Store(root_of(images)), tuple(formats_of(volumes))
    names: Iterable[str] = (name for folder in store.names() for name in folder)
    if images.endswith(LIST):
        names = store.lines(images.rpartition("/")[2])
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise RequestError(f"{images}: {name}: names are within the list's own folder")
        if name.lower().endswith(suffixes):
            yield name


def cases_of(names: Sequence[str], volumes: bool, form: Form) -> list[Case]:
    """Return the cases of names in a store; two that would share a mask are a problem of their own."""
    by_stem: dict[str, list[Path]] = {}
    for name in map(Path, names):
        by_stem.setdefault(str(name.with_name(stem(name, volumes))), []).append(name)
    cases = []
    for case, files in by_stem.items():
        problem = f"{', '.join(map(str, files))} would share a mask; give each a name of its own"
        suffix = form.suffix(files[0], volumes)
        cases.append(Case(case, tuple(files), problem if len(files) > 1 else "", suffix, volumes))
    return cases


def blocks_of(cases: Iterable[Any], largest: int) -> Iterator[list[Any]]:
    """Yield blocks of cases or names, each larger than the one before it, up to the largest.

    0 yields the part of each Parquet file: it ends before a name whose digest says so, whatever is beside it.
    """
    block: list[Any] = []
    size = FIRST_BLOCK
    for case in cases:
        digest = b"" if largest else hashlib.sha256(os.fsencode(getattr(case, "name", case))).digest()
        if block and (len(block) == size if largest else int.from_bytes(digest[:8]) % NAMES_OF_A_PART == 0):
            yield block
            block, size = [], min(2 * size, largest)
        block.append(case)
    if block:
        yield block


class Store:
    """A folder that fsspec reaches."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise RequestError(f"{url}: {first_line(error)}") from error

    def path(self, name: str) -> str:
        """Return the file system's name of a file."""
        return f"{self.root.rstrip('/')}/{name}"

    def names(self, within: str = "") -> Iterator[list[str]]:
        """Yield the names of the files of each folder in order, hidden ones left out; one folder is held at a time."""
        entries = sorted(self.fs.ls(self.path(within), detail=True), key=lambda entry: str(entry["name"]))
        self.fs.invalidate_cache()
        seen = [(within + entry["name"].rstrip("/").rpartition("/")[2], entry["type"]) for entry in entries]
        seen = [(name, kind) for name, kind in seen if not name.rpartition("/")[2].startswith(".")]
        yield [name for name, kind in seen if kind == "file"]
        for name, kind in seen:
            if kind == "directory":
                yield from self.names(f"{name}/")

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a text file that aren't empty."""
        with self.fs.open(self.path(name), "rt") as file:
            yield from filter(None, map(str.strip, file))

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None where there is none."""
        try:
            content: bytes = self.fs.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return content

    def put(self, name: str, content: bytes, *, new: bool) -> bool:
        """Write a file at once; return False if it is to be new and is there already."""
        write = partial(self.fs.pipe_file, self.path(name), content, mode="create" if new else "overwrite")
        try:
            try:
                write()
            except FileNotFoundError:  # of a file system with folders
                self.fs.makedirs(self.path(name).rpartition("/")[0], exist_ok=True)
                write()
        except FileExistsError:
            return False
        except Exception as error:  # each file system has errors of its own
            raise RequestError(f"{self.url}/{name}: it can't be written: {first_line(error)}") from error
        return True

    def stand_in(self, name: str, copy: Path) -> int:
        """Make an empty file of the size and the time of change of a file; return that time in ns."""
        told = self.fs.info(self.path(name))
        when = next((told[key] for key in CHANGED if told.get(key) is not None), 0)
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        seconds = when.timestamp() if isinstance(when, datetime) else float(when)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.open("wb") as file:
            file.truncate(told["size"])
        os.utime(copy, ns=(changed := int(seconds * 1e6) * 1000, changed))
        return changed


def sidecar_of(mask: str) -> str:
    """Return the name of a mask's sidecar in a store."""
    folder, _, name = mask.rpartition("/")
    return f"{folder and folder + '/'}{SIDECARS}/{name}.json"


class Masks:
    """The masks of some cases, which the plain engine writes in their place; other places copy them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statements = Statements(folder)

    def fetch(self, mask: str) -> tuple[Sidecar, ...]:
        """Copy a mask into the folder, if it is there; return its sidecars."""
        return self.statements.check(mask)

    def keep(self, made: Sequence[str], failed: Sequence[str]) -> None:
        """Bring masks from the folder to their place, and remove those of cases that have none."""


class StoredMasks(Masks):
    """Masks in a store, in the layout of a local folder."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(folder)
        self.store = store
        self.there: set[str] = set()

    def fetch(self, mask: str) -> tuple[Sidecar, ...]:
        """Copy a mask into the folder, if it is there; return its sidecar."""
        if (content := self.store.get(mask)) is None:
            return ()
        if (sidecar := self.store.get(sidecar_of(mask))) is None:
            raise RequestError(f"{self.store.url}/{mask}: it is there and no mask of pipeline.predict")
        self.there.add(mask)
        place(content, self.folder / mask)
        with suppress(msgspec.MsgspecError):
            return (msgspec.json.decode(sidecar, type=Sidecar),)
        return ()

    def keep(self, made: Sequence[str], failed: Sequence[str]) -> None:
        """Put the sidecars first; a mask that another process has made meanwhile is the same and stays."""
        self.statements.read()
        for mask in made:
            if (self.folder / (shown := overlay_of(mask))).exists():
                self.store.put(shown, (self.folder / shown).read_bytes(), new=False)
            self.store.put(sidecar_of(mask), msgspec.json.encode(self.statements.about(mask)[-1]), new=False)
            self.store.put(mask, (self.folder / mask).read_bytes(), new=mask not in self.there)
        for mask in self.there.intersection(failed):
            for name in (mask, sidecar_of(mask)):
                with suppress(FileNotFoundError):
                    self.store.fs.rm_file(self.store.path(name))


class PartMasks(Masks):
    """Masks in one Parquet file with columns name, mask and sidecar, named after the first of its cases."""

    def __init__(self, out: Path | str, first: str, folder: Path) -> None:
        super().__init__(folder)
        self.store = Store(str(out))
        self.local = out if isinstance(out, Path) else None
        self.name = f"part-{hashlib.sha256(os.fsencode(first)).hexdigest()[:24]}.parquet"
        self.content = self.store.get(self.name)
        self.rows: dict[str, dict[str, Any]] = {}
        with suppress(pa.ArrowInvalid):  # no part
            rows = parquet.read_table(pa.BufferReader(self.content)).to_pylist() if self.content else []
            self.rows = {row["name"]: row for row in rows}

    def fetch(self, mask: str) -> tuple[Sidecar, ...]:
        """Copy a mask into the folder, if the part has it; return its sidecar."""
        if not (row := self.rows.get(mask)):
            return ()
        place(row["mask"], self.folder / mask)
        return (msgspec.json.decode(row["sidecar"], type=Sidecar),)

    def keep(self, made: Sequence[str], failed: Sequence[str]) -> None:  # noqa: ARG002 - the folder shows them
        """Write the part again if a mask of it is new or gone."""
        files = [path.relative_to(self.folder) for path in sorted(self.folder.rglob("*")) if path.is_file()]
        names = [file.as_posix() for file in files if not any(part.startswith(".") for part in file.parts)]
        if not made and names == sorted(self.rows):
            return
        self.statements.read()
        new = [self.statements.about(name)[-1:] for name in names]
        sidecars = [
            msgspec.json.encode(*found) if found else self.rows[name]["sidecar"]
            for found, name in zip(new, names, strict=True)
        ]
        masks = [(self.folder / name).read_bytes() for name in names]
        out = pa.BufferOutputStream()
        parquet.write_table(pa.table({"name": names, "mask": masks, "sidecar": sidecars}), out)
        content = bytes(out.getvalue())
        if self.local:
            write_bytes(content, self.local / self.name)
        else:
            self.store.put(self.name, content, new=self.content is None)


def place(content: bytes, path: Path) -> None:
    """Write a file, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def copied(case: Case, images: Store, masks: Masks, made_by: str, form: Form, *, scratch: Path) -> Case:
    """Return a case whose files are copies in the scratch folder; of one whose mask is there, without their content."""
    files = tuple(scratch / file for file in case.files)
    changed = [images.stand_in(file.as_posix(), copy) for file, copy in zip(case.files, files, strict=True)]
    if not TIFF.suffix(files[0]):  # whose mask is named by its content
        case = replace(case, sidecars=masks.fetch(case.mask))
        if replace(case, files=files).is_made(masks.folder, made_by):
            return replace(case, files=files)
    for file, copy, when in zip(case.files, files, changed, strict=True):
        images.fs.get_file(images.path(file.as_posix()), str(copy))
        os.utime(copy, ns=(when, when))
    case = replace(case, files=files, suffix=form.suffix(files[0], case.is_volume))
    return replace(case, sidecars=masks.fetch(case.mask)) if TIFF.suffix(files[0]) else case


class Actor:
    """Makes the masks of blocks with one network."""

    def __init__(self, asked: argparse.Namespace, threads: int) -> None:
        self.asked = argparse.Namespace(**vars(asked) | {"workers": asked.workers or threads})
        self.scratch = tempfile.TemporaryDirectory(prefix="unet-ladder-")
        self.network = threading.Lock()
        self.form = Form(asked.format, asked.probabilities)
        self.prediction: Prediction | None = None
        self.refusal = ""
        torch.set_num_threads(threads)
        try:
            self.images = Store(root_of(asked.images)) if isinstance(asked.images, str) else None
            source = loaded(asked.run)
            self.volumes = takes_volumes(source)
            self.ready = Ready(planned_for(source, asked, Path(self.scratch.name)), self.asked)
        except FILES_TOO as error:
            self.refusal = first_line(error)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        """Make the masks of a block, and return what has become of it as JSON."""
        found = pickle.loads(batch["cases"][0])  # noqa: S301 - of a task of this program
        why = self.refusal or (first_line(found) if isinstance(found, Exception) else "")
        told: dict[str, object] = {"refusal": why}
        try:
            if not told["refusal"]:
                told |= self.block(found)
        except FILES_TOO as error:
            told = {"refusal": first_line(error)}
        return {"told": [json.dumps(told)]}

    def block(self, cases: list[Case]) -> dict[str, object]:
        """Make the masks of a block by the plain engine, and bring them to their place."""
        names: list[str] = []
        with tempfile.TemporaryDirectory(dir=self.scratch.name) as scratch:
            (folder := Path(scratch, "masks")).mkdir()
            if self.asked.format == PARQUET:
                masks: Masks = PartMasks(self.asked.out, cases[0].name, folder)
            elif isinstance(self.asked.out, str):
                masks = StoredMasks(Store(self.asked.out), folder)
            else:
                masks = Masks(self.asked.out)
            there, failed = self.fetched(cases, masks, Path(scratch, "images"))
            with self.network:
                outcome = self.ready.kept(there, masks.folder) or self.made(there, masks.folder, names)
            outcome.failed |= failed
            by_name = {case.name: case.mask for case in [*cases, *there]}
            masks.keep([by_name[name] for name in names], [by_name[name] for name in outcome.failed])
        failed = {
            name: text.replace(f"{scratch}/images", self.images.url if self.images else "")
            for name, text in outcome.failed.items()
        }
        counts = {"made": outcome.made, "kept": outcome.kept, "failed": failed}
        nouns = {"product": outcome.product, "sample": outcome.sample, "largest": outcome.largest}
        return counts | nouns | {"made_of": self.ready.made_of, "notes": self.ready.planned.notes}

    def fetched(self, cases: list[Case], masks: Masks, scratch: Path) -> tuple[list[Case], dict[str, str]]:
        """Return cases whose files are here, and of each other case why they aren't; fetch the masks that are there."""
        if self.images is None:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found = [*pool.map(masks.fetch, [case.mask for case in cases])]
            return [replace(case, sidecars=part) for case, part in zip(cases, found, strict=True)], {}
        there, failed = [], {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            known = self.images, masks, self.ready.made_by, self.form
            tasks = [pool.submit(copied, case, *known, scratch=scratch) for case in cases]
        for case, task in zip(cases, tasks, strict=True):
            error = task.exception()
            if isinstance(error, RequestError):
                raise error
            if error:
                failed[case.name] = f"{self.images.url}/{case.files[0]}: {typed_line(error)}"
            else:
                there.append(task.result())
        return there, failed

    def made(self, cases: list[Case], folder: Path, names: list[str]) -> Outcome:
        """Make the masks of cases in a folder, and add the names of those that were made."""
        if self.prediction is None:
            self.prediction = self.ready.prediction(folder)
            self.prediction.share = secrets.token_hex(8)  # of a folder that several machines share
            self.prediction.kept = self.prediction.new_workers()
        self.prediction.again(folder, names.extend)
        return self.prediction.make(cases, say=len)  # the calling process tells the progress
