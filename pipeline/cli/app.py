"""Between Hydra and the run: the preset, the run's folder, the report, exit codes."""

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf import FOLDER
from pipeline.analysis.earlier_runs import since
from pipeline.analysis.objectives import to_be_least
from pipeline.analysis.summary import summarize
from pipeline.cli import preset
from pipeline.cli.config_errors import known_keys, one_line, why_it_cannot_begin
from pipeline.cli.hydra_targets import check_targets
from pipeline.cli.late_reports import end_of_sweep, write_report
from pipeline.cli.progress import Progress, SteadyConsole, print_error
from pipeline.cli.resumed import job_of, resumed_words
from pipeline.cli.run_folder import claim, stages_in, withdraw
from pipeline.cli.sweep_size import check_sweep
from pipeline.cli.ways_on import UnderWay, drawn_elsewhere, end_at_once, interrupted
from pipeline.command_line import FAILED, INTERRUPTED, REFUSED, guarded, leave_unread, show, unforeseen
from pipeline.config import load
from pipeline.config.chosen_stages import with_chosen_stages
from pipeline.config.data_request import TENSORS, meant_everywhere
from pipeline.config.goal_request import points_note
from pipeline.config.plans_note import check_regions, plans_note
from pipeline.config.request_error import RequestError
from pipeline.config.threads_request import omp_note
from pipeline.config.yaml_size import check_sizes
from pipeline.devices.choice import choose_device
from pipeline.devices.discover import accelerators, cuda_gpus
from pipeline.devices.kinds import is_cuda
from pipeline.errors import InputError
from pipeline.orchestrate import interruption
from pipeline.orchestrate.run import run_ladder
from pipeline.records import codec
from pipeline.records.content_digest import code_digest, data_digest
from pipeline.records.elsewhere import elsewhere
from pipeline.records.masking import masked, values_to_hide
from pipeline.records.request import DataSpec, RunConfig
from pipeline.records.run_record import AUTOCAST, EAGER, RunRecord, RunWarning
from pipeline.records.run_settings import MeasureSettings, settings_of
from pipeline.report.formatting import visible
from pipeline.report.run_text import inputs_at
from pipeline.report.terminal import first_screen

CONF = FOLDER
REFUSALS = (RequestError, InputError, HydraException, OmegaConfBaseException, yaml.YAMLError)
NOT_OK = {"failed", "inaccurate", "timeout"}


@dataclass
class Invocation:
    """One run, or one job of a sweep: its folder, how it was asked for, and the exit code that it comes to."""

    folder: Path
    command: str
    launcher: str
    of_a_sweep: bool
    code: int = 0
    begun: ClassVar[int] = 0  # of this process


def guard(answer: Callable[[], None]) -> int:
    """Run the program and return its exit code; whatever goes wrong is said in one line.

    Hydra would print its own errors over several lines and leave with 1; HYDRA_FULL_ERROR hands them to us.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra")

    def answered() -> int:
        words = masked(sys.argv[1:], values_to_hide())  # a secret that a shell put in is looked up where it is used
        try:
            preset.check_typed(words, partial(known_keys, CONF))
            words = with_chosen_stages(preset.with_quoted_paths(words), CONF)
            words += resumed_words(words)
            sys.argv[1:] = preset.overrides_first(
                [*words, *preset.preset_for(words, [gpu.name for gpu in cuda_gpus()])]
            )
            preset.check_flags(sys.argv[1:])
            preset.check_groups(sys.argv[1:], CONF)
            check_sweep(sys.argv[1:])
            check_sizes([CONF, *preset.config_folders(sys.argv[1:])])
            check_targets(sys.argv[1:], preset.config_folders(sys.argv[1:]))
            with interruption.heeded(end_at_once), refused_before_it_began():
                answer()
        except REFUSALS as error:
            print_error(one_line(error, CONF))
            return REFUSED
        except KeyboardInterrupt:
            print_error(interrupted())
            return INTERRUPTED
        return 0

    return guarded(answered)


@contextmanager
def refused_before_it_began() -> Iterator[None]:
    """Until a run has its folder, an error of Hydra's or of the system is one of the request: it names what can't be.

    Raises:
        RequestError: in place of such an error.
    """
    begun = Invocation.begun
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, (BrokenPipeError, *REFUSALS)) or Invocation.begun > begun:
            raise
        raise RequestError(why_it_cannot_begin(error)) from error


@contextmanager
def job(config: DictConfig) -> Iterator[Invocation]:
    """One job: a folder of its own, and an end that a sweep survives and a single run's exit code tells."""
    hydra = HydraConfig.get()
    of_a_sweep = hydra.mode == RunMode.MULTIRUN
    try:
        folder = claim(Path(hydra.runtime.output_dir))
    except RequestError as error:  # Hydra would put a line of its own before it
        print_error(one_line(error, CONF))
        raise SystemExit(REFUSED) from None
    launcher = str(hydra.runtime.choices.get("hydra/launcher", "basic"))
    invocation = Invocation(folder, "python -m pipeline " + shlex.join(sys.argv[1:]), launcher, of_a_sweep)
    Invocation.begun += 1
    UnderWay.folder = Path(hydra.sweep.dir) if of_a_sweep else folder
    try:
        yield invocation
    except KeyboardInterrupt:
        leave_unread()
        report_what_there_is(invocation)
        if not (folder / codec.FILE).exists():
            withdraw(folder)
        if of_a_sweep:
            show(f"{end_of_sweep(Path(hydra.sweep.dir))}\n")
        raise
    except Exception as error:  # noqa: BLE001 - Hydra would put a line of its own before any that passes
        refused = isinstance(error, REFUSALS)
        text = one_line(error, CONF) if refused else unforeseen(error, folder)
        print_error(text)
        report_what_there_is(invocation)
        invocation.code = REFUSED if refused else FAILED
        if not of_a_sweep:
            withdraw(folder)
        elif not stages_in(folder):
            codec.save(refusal(invocation, config, text), folder)
    if invocation.code and not of_a_sweep:
        raise SystemExit(invocation.code)


def read(config: DictConfig, invocation: Invocation) -> RunConfig:
    """The request, checked, and its config saved beside the answer; `${oc.env:...}` stays unresolved there."""
    preset.check_preset_file(config, HydraConfig.get())
    load.check_keys(plain(config, resolve=False), groups=())
    values, typed = plain(config, resolve=True), HydraConfig.get().overrides.task
    load.check_keys(values)
    values["measure"] = load.for_every_device(values["measure"], typed)
    values["data"] = meant_everywhere(values["data"], values["preset"], typed)
    device = choose_device(values["device"], accelerators())
    files = {name: plain(OmegaConf.load(CONF / "stage" / f"{name}.yaml"), resolve=True) for name in (EAGER, AUTOCAST)}
    request = load.read(values, device, files, invocation.launcher)
    check_regions(request)
    if request.resume and invocation.of_a_sweep:
        request = replace(request, resume=job_of(Path(request.resume), int(HydraConfig.get().job.num)))
    if invocation.of_a_sweep:
        request = replace(request, sweep=str(HydraConfig.get().sweep.dir))
    (invocation.folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=False), encoding="utf-8")
    return request


def run(request: RunConfig, invocation: Invocation) -> RunRecord:
    """Run the stages, with the progress on stderr."""
    with Progress(len(request.stages)) as progress:
        progress.say(opening(request))
        progress.say(f"the run is kept in {invocation.folder}")
        for note in filter(None, (plans_note(request), points_note(request.accuracy), omp_note())):
            progress.say(note)
        record = run_ladder(request, invocation.folder, blank_record(request, invocation), progress)
    if request.strict and any(stage.status in NOT_OK for stage in record.stages):
        invocation.code = FAILED
    return codec.without_secrets(record)


def opening(request: RunConfig) -> str:
    """The first line of a run: what runs where, and what was chosen for the user."""
    where = f"on {cuda_gpus()[0].name}" if is_cuda(request.device) else "on the CPU (no GPU stage runs)"
    data = request.data
    shape = f"batch {data.batch_size}, {inputs_at(data.name, data.size, data.depth)}"
    return f"{request.model.name} {where}, {shape}, preset {request.preset}"


def report(record: RunRecord, invocation: Invocation) -> float:
    """Draw the report; the first screen goes to the terminal, the report's path last.

    Returns:
        The winner's figure, as `pipeline.analysis.objectives.to_be_least` has it.
    """
    summary = replace(summarize(record), since=since(record, invocation.folder))
    try:
        path = write_report(summary, invocation.folder)
    except OSError as error:
        print_error(drawn_elsewhere(invocation.folder, error))
        path = write_report(summary, elsewhere(invocation.folder))
        invocation.code = FAILED
    console = SteadyConsole(highlight=False)
    console.print(first_screen(summary), crop=False)
    console.print(visible(path), soft_wrap=True, markup=False)
    return to_be_least(summary)


def report_what_there_is(invocation: Invocation) -> None:
    """The report of a run that came to no good end; nothing where no stage did."""
    try:
        if stages_in(invocation.folder):
            report(codec.load(invocation.folder), invocation)
    except Exception as error:  # noqa: BLE001 - the run's own end is what is to be told
        print_error(unforeseen(error, invocation.folder))


def blank_record(request: RunConfig, invocation: Invocation) -> RunRecord:
    """What is known before anything has run."""
    config = plain(OmegaConf.load(invocation.folder / "config.yaml"), resolve=False)
    found, data, plan = settings_of(config), request.data, request.plan
    return RunRecord(
        started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=invocation.command,
        preset=request.preset,
        config=config,
        settings=replace(
            found,
            model=replace(found.model, output=request.model.output, file=request.model.file),
            data=replace(
                found.data,
                image_size=data.size,
                batch_size=data.batch_size,
                contract=data.contract,
                label_rules=data.label_rules,
                inputs=list(data.inputs),
                depth=data.depth,
            ),
            measure=MeasureSettings(sampling_seconds=plan.sampling_seconds, trials=plan.trials),
            accuracy=request.accuracy,
            goal=request.goal,
            task=request.task,
        ),
        baseline=request.baseline.name,
        code_sha256=code_digest(),
        data_sha256=digest_of(data),
    )


def digest_of(data: DataSpec) -> str | None:
    """The digest of the user's images and labels.

    Raises:
        RequestError: one can't be read.
    """
    try:
        return data_digest([data.path, None if data.name == TENSORS else data.labels])
    except OSError as error:
        raise RequestError(f"{error.filename}: {error.strerror}") from error


def refusal(invocation: Invocation, config: DictConfig, text: str) -> RunRecord:
    """The record of a job of a sweep whose request was wrong."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    warning = RunWarning("refused", text, "correct the request and run this job again")
    asked = plain(config, resolve=False)
    named = str(asked.get("preset"))  # there may be none, which may be what is wrong
    return RunRecord(now, invocation.command, named, asked, settings_of(asked), warnings=[warning])


def plain(config: DictConfig | ListConfig, resolve: bool) -> dict[str, Any]:
    """Hydra's config as plain containers."""
    value = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(value, dict)
    return {str(key): part for key, part in value.items()}
