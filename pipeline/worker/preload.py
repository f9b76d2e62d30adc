"""The fork server's modules, imported once for all workers, and `_bootstrap`, which `orchestrate.spawning` calls."""

import gc
import os
import sys
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

from conf import safe_path

if serves := sys.argv[:1] == ["-c"]:  # in the server, which imports nothing of the current folder, and prints nothing
    sys.path[:] = safe_path()
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)

import torch._dynamo  # noqa: F401 - imported for the workers

from pipeline.errors import InputError
from pipeline.inputs.datasets import sample_images
from pipeline.worker import net_file, run_stage  # noqa: F401 - likewise
from pipeline.worker.__main__ import main


def holds_gpu(open_files: Path = Path("/proc/self/fd")) -> bool:
    """Return whether this process has begun to use a GPU, which its copies then can't."""
    return any(os.path.realpath(each).startswith("/dev/nvidia") for each in open_files.iterdir())


with suppress(InputError, OSError):  # a worker that needs the images reports the error
    sample_images()
gc.freeze()  # so that copies share the memory of all imports
if serves and holds_gpu():
    sys.exit("a GPU is in use after the imports, and no copy of this process could use it")


def _bootstrap(_parent_sentinel: int) -> int:
    """Be the worker: lead a session, take over the three descriptors that came with the request, do one job."""
    os.setsid()
    stdin, output, report = forkserver.get_inherited_fds() or []
    for descriptor, standard in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    for descriptor in (stdin, output):
        os.close(descriptor)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    main(report)
    return 0
