"""Sweeps whose jobs submitit starts: one at a time on each GPU of this machine, or as jobs of SLURM with a GPU each.

Each job is a sweep of one job in a process of its own, with its own baseline. Jobs on equal GPUs share the reference
(`pipeline.orchestrate.shared_reference`), and the calling process writes one report.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from pipeline.cli.arguments import LAUNCH, CommandLine
from pipeline.command_line import tell
from pipeline.config.request_error import RequestError
from pipeline.devices.nvml import all_gpus, visible_gpus
from pipeline.errors import first_line, plural
from pipeline.report.formatting import visible

LOCAL, SLURM = "local", "slurm"
COMMAND = "UNET_LADDER_COMMAND"  # variable: the command line of the whole sweep, for the records
LOGS = "logs"  # folder of submitit's files
SWEEP_DIR = "hydra.sweep.dir"
MINUTES = 7 * 24 * 60  # submitit's own limit of a local job is 5 minutes


def check(line: CommandLine) -> None:
    """Raise RequestError if the request is no sweep, or none that submitit can launch."""
    by = line.launch.get(LAUNCH)
    if by not in (LOCAL, SLURM):
        raise RequestError(f"launch={by}: expected {LOCAL} or {SLURM}")
    if not line.sweeps:
        raise RequestError(f"launch={by}: of sweeps alone; add -m, and several values for a key")
    if {"hydra/sweeper", "hydra/launcher"} & line.keys:
        raise RequestError(f"launch={by}: takes all jobs of a grid; leave hydra/sweeper and hydra/launcher out")
    try:
        import submitit  # noqa: F401 - used once the sweep has a folder
    except ModuleNotFoundError:
        raise RequestError(f"launch={by}: needs submitit; python -m pip install 'unet-ladder[submitit]'") from None


def new_folder(line: CommandLine) -> Path:
    """Create and return the sweep's folder."""
    if named := line.values(SWEEP_DIR):
        folder = Path(named[0])
        if (folder / LOGS).exists():
            raise RequestError(f"{SWEEP_DIR}={folder}: a sweep is there already; name another folder")
    else:
        folder = Path(f"outputs/{datetime.now().astimezone():%Y-%m-%d/%H-%M-%S}-sweep")
        while folder.exists():
            folder = folder.with_name(f"{folder.name}-2")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(line: CommandLine, folder: Path) -> bool:
    """Run all jobs; return whether each has left a folder with its results."""
    import submitit

    options = dict(line.launch)
    by = str(options.pop(LAUNCH))
    overrides = [override for override in line.overrides if override.key_or_group != SWEEP_DIR]
    (jobs,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    executor = submitit.AutoExecutor(folder / LOGS, cluster=by)
    on_cpu = line.values("device") == ["cpu"]
    gpus = [] if on_cpu else [gpu.uuid() for gpu in visible_gpus(all_gpus())]
    each = {"gpus_per_node": 0 if on_cpu or (by == LOCAL and not gpus) else 1}
    try:
        executor.update_parameters(**{"timeout_min": MINUTES} | options | each)
    except (TypeError, NameError, ValueError) as error:
        raise RequestError(f"launch: {first_line(error)}") from error
    tell(f"{plural(len(jobs), 'job')} by {by}, kept in {visible(folder)}")
    started: list[Any] = []
    begin = ["env", f"{COMMAND}={shlex.join(['python', '-m', 'pipeline', *line.typed])}", sys.executable, "-m"]
    begin.append(str(__package__).rpartition(".")[0])
    place = [f"{SWEEP_DIR}='{folder.resolve()}'", "~hydra.callbacks.sweep_report", *line.flags]
    commands = [[*begin, *words, f"hydra.sweep.subdir={number}", *place] for number, words in enumerate(jobs)]
    try:
        if by == SLURM:
            with executor.batch():
                started += [executor.submit(subprocess.call, command) for command in commands]
            whole = [ended(number, job) for number, job in enumerate(started)]
        else:
            whole = each_on_a_gpu(executor, commands, gpus or [None], started)
    except KeyboardInterrupt:
        for job in started:
            job.cancel()
        raise
    return all(whole) and all((folder / str(number)).is_dir() for number in range(len(jobs)))


def each_on_a_gpu(
    executor: Any, commands: list[list[str]], gpus: Sequence[str | None], started: list[Any]
) -> list[bool]:
    """Run each command on the next GPU that is free, and return whether each came to its end."""
    free: SimpleQueue[str | None] = SimpleQueue()
    for gpu in gpus:
        free.put(gpu)

    def one(number: int) -> bool:
        gpu = free.get()
        where = ["env", f"CUDA_VISIBLE_DEVICES={gpu}"] if gpu else []
        try:
            started.append(job := executor.submit(subprocess.call, [*where, *commands[number]]))
            return ended(number, job)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(gpus)) as pool:
        return [*pool.map(one, range(len(commands)))]


def ended(number: int, job: Any) -> bool:
    """Wait for a job, tell its end, and return whether it measured."""
    try:
        code = job.result()
    except Exception as error:  # noqa: BLE001 - submitit's, of a job that ended otherwise than by its own code
        tell(f"error: job {number}: {first_line(error)}; its log: {visible(job.paths.stderr)}")
        return False
    tell(f"job {number}: ended with code {code}; its log: {visible(job.paths.stderr)}")
    return True
