"""The fork server's modules, imported once for all workers of a CPU run, and the worker that is a copy of the server.

The standard library's fork server starts the copy: `pipeline.orchestrate.spawning` sends it this module, whose
`_bootstrap` is called in the place of a `multiprocessing.Process`'s.
"""

import gc
import os
import sys
from contextlib import suppress
from multiprocessing import forkserver

from conf import safe_path

if sys.argv[:1] == ["-c"]:  # in the server, which looks for no module in the current folder; its imports print nothing
    sys.path[:] = safe_path()
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)

import torch._dynamo  # noqa: F401 - imported for the workers

from pipeline.errors import InputError
from pipeline.inputs.datasets import sample_images
from pipeline.worker import net_file, run_stage  # noqa: F401 - likewise
from pipeline.worker.__main__ import main

with suppress(InputError, OSError):  # a worker that needs the images reports the error
    sample_images()
gc.freeze()  # so that copies share the memory of all imports


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
