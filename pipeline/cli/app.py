"""The program `python -m pipeline`: a request of the command line, its run folder, its report and its exit code."""

import math
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.analysis.plans_note import check_regions, training_notes
from pipeline.analysis.run_comparison import since
from pipeline.analysis.summary import check_calls, summarize, to_be_least
from pipeline.analysis.sweeps import job_folders, read_jobs
from pipeline.cli import launched
from pipeline.cli.arguments import CommandLine, parse
from pipeline.cli.messages import CONF, one_line
from pipeline.cli.progress import Progress, SteadyConsole, print_error
from pipeline.command_line import FAILED, INTERRUPTED, REFUSED, guarded, leave_unread, show, tell, unforeseen
from pipeline.config import load
from pipeline.config.data_request import TENSORS
from pipeline.config.goal_request import points_note
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import accelerators, choose_device, cuda_gpus
from pipeline.errors import InputError
from pipeline.orchestrate import check_script, interruption, shared_reference
from pipeline.orchestrate.run import run_ladder
from pipeline.orchestrate.worker_process import kill_all
from pipeline.records import codec
from pipeline.records.disk import code_digest, data_digest, elsewhere, own_code_digest
from pipeline.records.masking import is_typed_secret, masked, referred_to, values_to_hide
from pipeline.records.request import RunConfig, flattened
from pipeline.records.run_record import AUTOCAST, EAGER, RunRecord
from pipeline.report import DRAWN
from pipeline.report.formatting import visible
from pipeline.report.run_text import inputs_at
from pipeline.report.terminal import first_screen

REFUSALS = (RequestError, InputError, HydraException, OmegaConfBaseException, yaml.YAMLError)
NOT_OK = {"failed", "inaccurate", "timeout"}
OWN_FILES = (codec.FILE, check_script.FILE, "config.yaml", codec.CLAIM)  # of a run's folder
WORKERS = ("reference", "baseline", "aa_pairs")  # folders of workers that belong to no stage


@dataclass
class Invocation:
    """One run, or one job of a sweep."""

    folder: Path  # its own
    command: str  # the command line that asks for it
    of_a_sweep: bool  # whether it is a job of a sweep
    code: int = 0  # the exit code
    under_way: ClassVar[Path | None] = None  # folder of this process's run or sweep, once it has one


def main() -> int:
    """Answer the request of `sys.argv`; return the exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra")
    Invocation.under_way = None
    return guarded(answered)


def answered() -> int:
    """Parse the command line and answer it; return the exit code."""
    try:
        typed = masked(sys.argv[1:], values_to_hide())  # a secret from a shell's variable is read where it is used
        line = parse(typed, [gpu.name for gpu in cuda_gpus()])
        sys.argv[1:] = line.words
        for note in line.renamed:
            tell(f"note: {note}")
        with interruption.heeded(end_at_once):
            if line.launching and not line.only_shows:
                return launch(line)
            answer(line)
    except REFUSALS as error:
        print_error(one_line(error))
        return REFUSED
    except KeyboardInterrupt:
        print_error(interrupted())
        return INTERRUPTED
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, BrokenPipeError) or Invocation.under_way:
            raise
        print_error(one_line(error))  # before the run has a folder, such an error is about the request
        return REFUSED
    return 0


def launch(line: CommandLine) -> int:
    """Run the jobs of a sweep by submitit, report them, and return the exit code."""
    launched.check(line)
    folder = Invocation.under_way = launched.new_folder(line)
    try:
        whole = launched.run(line, folder)
    finally:
        if recorded():
            show(f"{visible(end_of_sweep(folder))}\n")
    return FAILED if not whole or failed(folder) else 0


def answer(line: CommandLine) -> None:
    """Answer one request, or each job of a sweep."""

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def measured(config: DictConfig) -> float:
        """Return the figure that a sweeper which searches minimises."""
        with job(line) as invocation:
            request = read(config, invocation)
            record = run(request, invocation)
            return report(record, invocation)
        return math.inf

    try:
        measured()
    except SystemExit as ended:
        if ended.code == FAILED and line.options.cfg:  # Hydra has named a --package that isn't there
            raise SystemExit(REFUSED) from None
        raise


@contextmanager
def job(line: CommandLine) -> Iterator[Invocation]:
    """Give a job a folder of its own, and report its errors without ending the sweep that it belongs to."""
    settings = HydraConfig.get()
    of_a_sweep = settings.mode == RunMode.MULTIRUN
    try:
        folder = claim(Path(settings.runtime.output_dir), of_a_sweep)
    except RequestError as error:  # Hydra would print a line of its own first
        print_error(one_line(error))
        raise SystemExit(REFUSED) from None
    invocation = Invocation(
        folder, os.environ.get(launched.COMMAND) or f"python -m pipeline {shlex.join(line.typed)}", of_a_sweep
    )
    Invocation.under_way = Path(settings.sweep.dir) if of_a_sweep else folder
    try:
        yield invocation
    except KeyboardInterrupt:
        leave_unread()
        report_finished_stages(invocation)
        if not (folder / codec.FILE).exists():
            withdraw(folder)
        if of_a_sweep:
            show(f"{end_of_sweep(Path(settings.sweep.dir))}\n")
        raise
    except Exception as error:  # noqa: BLE001 - Hydra would print a line of its own before any that passes
        refused = isinstance(error, REFUSALS)
        text = one_line(error) if refused else unforeseen(error, folder)
        print_error(text)
        report_finished_stages(invocation)
        invocation.code = REFUSED if refused else FAILED
        if not of_a_sweep:
            withdraw(folder)
        elif not stages_in(folder):
            (folder / codec.REFUSAL).write_text(text, encoding="utf-8")
    if invocation.code and not of_a_sweep:
        raise SystemExit(invocation.code)


def read(config: DictConfig, invocation: Invocation) -> RunConfig:
    """Return the checked request, and save its config, with `${oc.env:...}` unresolved, in the run's folder."""
    composed: Any = OmegaConf.to_container(config, resolve=False)
    for key, value in flattened(composed):
        if is_typed_secret(key, value):
            remedy = f"set a variable, such as TOKEN, and type {key}='${{oc.env:TOKEN}}'"
            raise RequestError(f"{key}: a secret typed here would be kept in results.json and in the report; {remedy}")
    values: Any = OmegaConf.to_container(config, resolve=True)
    device = choose_device(values.get("device", "auto"), accelerators())
    loaded = {name: OmegaConf.load(CONF / "stage" / f"{name}.yaml") for name in (EAGER, AUTOCAST)}
    files: Any = {name: OmegaConf.to_container(file) for name, file in loaded.items()}
    launcher = HydraConfig.get().runtime.choices.get("hydra/launcher", "basic")
    request = load.read(values, device, files, str(launcher))
    request = replace(request, variables=sorted(referred_to(composed)))
    check_regions(request)
    check_calls(request, invocation.command)
    if request.resume and invocation.of_a_sweep:
        earlier = Path(request.resume) / str(HydraConfig.get().sweep.subdir)
        request = replace(request, resume=str(earlier) if (earlier / codec.FILE).exists() else None)
    if invocation.of_a_sweep:
        request = replace(request, sweep=str(HydraConfig.get().sweep.dir))
    (invocation.folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=False), encoding="utf-8")
    return request


def run(request: RunConfig, invocation: Invocation) -> RunRecord:
    """Run the stages and report the progress on stderr."""
    with Progress(len(request.stages)) as progress:
        where = f"on {cuda_gpus()[0].name}" if request.device == "cuda" else "on the CPU (no GPU stage runs)"
        shape = f"batch {request.data.batch_size}, {inputs_at(request.data)}"
        progress.say(f"{request.model.name} {where}, {shape}, preset {request.preset}")
        for note in (*map("note: {}".format, training_notes(request)), *filter(None, [points_note(request.accuracy)])):
            progress.say(note)
        labels = None if request.data.name == TENSORS else request.data.labels
        try:
            digest = data_digest([request.data.path, labels])
        except OSError as error:
            raise RequestError(f"{error.filename}: {error.strerror}") from error
        blank = RunRecord(
            started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=invocation.command,
            config=request,
            baseline=request.baseline.name,
            code_sha256=code_digest(),
            own_code_sha256=own_code_digest([request.model.target, *(stage.target for stage in request.stages)]),
            data_sha256=digest,
        )
        record = run_ladder(request, invocation.folder, blank, progress)
    if request.strict and any(stage.status in NOT_OK for stage in record.stages):
        invocation.code = FAILED
    return codec.without_secrets(record)


def report(record: RunRecord, invocation: Invocation) -> float:
    """Write the report, print its first screen and its path, and return the winner's figure as `to_be_least` has it."""
    from pipeline.report import write  # a refused request does not wait for templates and charts

    summary = replace(summarize(record), since=since(record, invocation.folder))
    try:
        path = write.write_report(summary, invocation.folder)
    except OSError as error:
        place = elsewhere(invocation.folder)
        again = command("pipeline.report", str(place if (place / codec.FILE).exists() else invocation.folder))
        why = error.strerror or error
        print_error(f"{invocation.folder}: {why}; the report is written elsewhere; {again} writes it again")
        path = write.write_report(summary, place)
        invocation.code = FAILED
    console = SteadyConsole(highlight=False)
    console.print(first_screen(summary), crop=False)
    console.print(visible(path), soft_wrap=True, markup=False)
    return to_be_least(summary)


def report_finished_stages(invocation: Invocation) -> None:
    """Report what a run measured before it failed, if a stage of it was finished."""
    try:
        if stages_in(invocation.folder):
            report(codec.load(invocation.folder), invocation)
    except Exception as error:  # noqa: BLE001 - the run's own error is the one to report
        print_error(unforeseen(error, invocation.folder))


def claim(folder: Path, of_a_sweep: bool = False) -> Path:
    """Make and return a folder that no other run has: runs started in the same second get one name from Hydra.

    A job of a sweep takes no other name, under which the sweep's report would miss it.
    """
    for number in range(1, 2 if of_a_sweep else 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            there = [name for name in (*OWN_FILES, *DRAWN, *WORKERS) if (candidate / name).exists()]
            if there and codec.CLAIM not in there:
                shutil.rmtree(candidate / ".hydra", ignore_errors=True)  # which Hydra has just written
                raise RequestError(f"{candidate}: a run would write over {there[0]} in it; name another folder")
            (candidate / codec.CLAIM).touch(exist_ok=False)
        except FileExistsError:
            continue
        return candidate
    if of_a_sweep:
        raise RequestError(f"hydra.sweep.dir={folder.parent}: another sweep has its jobs there; name a new folder")
    raise RequestError(f"{folder}: a thousand runs have this name already; set hydra.run.dir")


def stages_in(folder: Path) -> int:
    """Return the number of finished stages in the folder's record; 0 without a record that can be read."""
    try:
        return len(codec.load(folder).stages)
    except (codec.RecordError, OSError):
        return 0


def withdraw(folder: Path) -> None:
    """Remove the files of a run without a finished stage, except logs with a reason; keep files that are the user's."""
    if stages_in(folder):
        return
    for name in OWN_FILES:
        with suppress(OSError):
            (folder / name).unlink()
    shutil.rmtree(folder / ".hydra", ignore_errors=True)
    workers = [folder / name for name in WORKERS]
    if not any(log.stat().st_size for place in workers for log in place.rglob("log.txt")):
        for place in workers:
            shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):  # not empty
        folder.rmdir()


def end_of_sweep(folder: Path) -> Path:
    """Write the report of a sweep's jobs, remove what only they needed, and return the report's path."""
    from pipeline.report import write

    shutil.rmtree(folder / shared_reference.FOLDER, ignore_errors=True)
    return write.write_sweep_report(read_jobs(folder), folder)


class SweepReport(Callback):
    """Hydra's callback that reports all jobs of a sweep and exits with 1 if one of them failed."""

    def on_multirun_end(self, config: DictConfig, **_: object) -> None:
        """Report after the last job."""
        folder = Path(config.hydra.sweep.dir)
        try:
            show(f"{visible(end_of_sweep(folder))}\n")
        except Exception as error:  # noqa: BLE001 - Hydra would ignore it
            print_error(unforeseen(error, folder))
            raise SystemExit(FAILED) from None
        if failed(folder):
            raise SystemExit(FAILED)


def failed(folder: Path) -> bool:
    """Return whether a job of the sweep left no finished record, or one with a stage that is not ok."""
    for path in job_folders(folder):
        try:
            record = codec.load(path)
        except codec.RecordError:
            return True
        if not record.finished or any(stage.status in NOT_OK for stage in record.stages):
            return True
    return False


def command(module: str, *words: str) -> str:
    """Return a command line of this program as it can be typed."""
    return visible(shlex.join(["python", "-m", module, *words]))


def recorded() -> Path | None:
    """Return the folder of the run or sweep that is under way, if it has a record."""
    folder = Invocation.under_way
    there = folder and ((folder / codec.FILE).exists() or any(folder.glob(f"*/{codec.FILE}")))
    return folder if there else None


def end_at_once() -> None:
    """Kill the workers and say what is saved: no report follows. Called in a signal handler, so it writes to fd 2."""
    kill_all()
    leave_unread()
    text, folder = "ended at once; nothing is saved", recorded()
    if folder:
        resume, redraw = command("pipeline", f"resume={folder}"), command("pipeline.report", str(folder))
        text = f"ended at once; finished stages are saved; {resume} resumes it, {redraw} writes its report"
    with suppress(OSError):
        os.write(2, f"error: {text}\n".encode(errors="backslashreplace"))


def interrupted() -> str:
    """Return the message of a run that was interrupted once."""
    folder = recorded()
    resumed = f"; {command('pipeline', f'resume={folder}')} resumes it" if folder else ""
    return f"interrupted; what was finished is saved{resumed}"
