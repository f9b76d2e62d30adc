"""Shares of a folder's images: one for each GPU of this machine, or one for each task of a cluster.

A share is the images whose name's digest is I modulo N. It depends on nothing else, so tasks need no coordinator.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.command_line import FAILED
from pipeline.config.request_error import RequestError
from pipeline.devices.nvml import all_gpus, visible_gpus
from pipeline.errors import plural
from pipeline.predict.mask_files import PARTS, SIDECARS
from pipeline.predict.report import MANIFEST, Outcome
from pipeline.records.disk import open_lock

LOCK = ".predict.lock"
WRITTEN = re.compile(r"(?P<index>\d{1,9})/(?P<count>[1-9]\d{0,8})")
ALL, THIS = "all", "this"  # GPUs; the device of the run alone


@dataclass(frozen=True)
class Shard:
    """One of `count` shares, from 0 on."""

    index: int = 0
    count: int = 1

    def has(self, name: str) -> bool:
        """Return whether a case of this name is in the share."""
        digest = hashlib.sha256(os.fsencode(name)).digest() if self.count > 1 else b""
        return int.from_bytes(digest[:8]) % self.count == self.index

    @property
    def name(self) -> str:
        """Its name in files' names."""
        return f"{self.index}-of-{self.count}"

    @property
    def manifest(self) -> str:
        """File name of its predict.json."""
        return MANIFEST if self.count == 1 else f"predict.{self.name}.json"


WHOLE = Shard()


def shard_of(text: str | None) -> Shard:
    """Return the share that `--shard I/N` names; None names all images."""
    if text is None:
        return WHOLE
    match = WRITTEN.fullmatch(text)
    if not match or int(match["index"]) >= int(match["count"]):
        raise RequestError(f"--shard {text}: expected I/N, such as 0/4, with I from 0 to N - 1")
    return Shard(int(match["index"]), int(match["count"]))


@contextmanager
def alone_in(folder: Path, shard: Shard = WHOLE) -> Iterator[None]:
    """Hold the locks of a folder, which shares of one number alone may share; remove a new one that stays empty."""
    with ExitStack() as locks:
        locks.callback(remove_empty, folder, was_there=folder.exists())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            hold(folder / LOCK, fcntl.LOCK_EX if shard == WHOLE else fcntl.LOCK_SH, locks)
            if shard != WHOLE:
                for other in folder.glob(".predict.*-of-*.lock"):
                    if f"-of-{shard.count}." not in other.name:
                        with ExitStack() as asked:
                            hold(other, fcntl.LOCK_EX, asked)
                hold(folder / f".predict.{shard.name}.lock", fcntl.LOCK_EX, locks)
        except OSError as error:
            reason = "a link to nothing" if folder.is_symlink() and not folder.exists() else error.strerror or error
            raise RequestError(f"--out {folder}: no masks can be written there: {reason}") from None
        yield


def hold(lock: Path, kind: int, locks: ExitStack) -> None:
    """Hold a lock until the stack is closed."""
    descriptor = open_lock(lock)
    locks.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(f"--out {lock.parent}: another process makes masks there; wait for it") from None


def clear_unfinished(folder: Path, shard: Shard = WHOLE) -> None:
    """Remove what killed processes had written for this share, or for one that can't be made at the same time."""
    for parts in (folder / SIDECARS).glob(f"*{PARTS}"):
        if parts.stem == shard.name or not parts.stem.endswith(f"-of-{shard.count}"):
            shutil.rmtree(parts)
    for part in folder.glob(f"{shard.manifest}.*.part"):
        part.unlink()


def remove_empty(folder: Path, was_there: bool) -> None:
    """Remove a new folder that holds nothing but locks."""
    with suppress(OSError):
        entries = [*folder.iterdir()]
        if not was_there and all(entry.name.endswith(".lock") for entry in entries):
            for entry in entries:
                entry.unlink()
            folder.rmdir()


def on_devices(devices: str, words: Sequence[str], out: Path) -> Outcome:
    """Make the masks with one process for each GPU, each with its share of the cases; return the sum."""
    gpus = [gpu.uuid() for gpu in visible_gpus(all_gpus())]
    try:
        chosen = gpus if devices == ALL else [gpus[int(index)] for index in devices.split(",")]
    except (ValueError, IndexError):
        chosen = []
    if not chosen:
        there = plural(len(gpus), "GPU")
        raise RequestError(f"--devices {devices}: expected all, or indices; this machine has {there}")
    named = [index for index, word in enumerate(words) if word.split("=")[0] == "--devices"]
    dropped = {*named, *(index + 1 for index in named if words[index] == "--devices")}
    kept = [word for index, word in enumerate(words) if index not in dropped]
    shards = [Shard(index, len(chosen)) for index in range(len(chosen))]
    cores = max(1, len(os.sched_getaffinity(0)) // len(chosen))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for shard, gpu in zip(shards, chosen, strict=True):
            its_own = ["--shard", f"{shard.index}/{shard.count}", "--workers", str(cores)]
            command = [sys.executable, "-m", __package__, *kept, *its_own]
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        codes = [process.wait() for process in processes]
    except BaseException as error:  # each finishes what it has begun
        for process in () if isinstance(error, KeyboardInterrupt) else processes:  # a Ctrl-C has reached all
            process.terminate()
        for process in processes:
            process.wait()
        raise
    if bad := [code for code in codes if code not in (0, FAILED)]:
        raise RequestError(f"--devices {devices}: the process of one GPU ended with code {bad[0]}; its line is above")
    shares = [json.loads((out / shard.manifest).read_text()) for shard in shards]
    total = Outcome()
    for share in shares:
        total.add(share)
        total.profiles.append(share["profile"])
    return total
