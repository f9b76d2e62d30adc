"""Between Hydra and the run: the preset, the run's folder, the report, exit codes."""

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from models.errors import InputError
from pipeline.analysis.earlier_runs import since
from pipeline.analysis.summary import summarize
from pipeline.cli.config_errors import one_line
from pipeline.cli.preset import check_groups, config_folders, overrides_first, preset_for
from pipeline.cli.progress import Progress, complain
from pipeline.config import load
from pipeline.config.data_request import meant_everywhere
from pipeline.config.plan import for_every_device
from pipeline.config.request_error import RequestError
from pipeline.config.schema import RunConfig
from pipeline.config.yaml_size import check_sizes
from pipeline.devices.choice import choose_device
from pipeline.devices.discover import accelerators, cuda_gpus
from pipeline.devices.kinds import is_cuda
from pipeline.orchestrate.run import run_ladder
from pipeline.records import codec
from pipeline.records.masking import masked, values_to_hide
from pipeline.records.run_record import AUTOCAST, EAGER, RunRecord, RunWarning
from pipeline.records.run_settings import MeasureSettings, settings_of
from pipeline.report.formatting import visible
from pipeline.report.terminal import first_screen
from pipeline.report.write import write_report

CONF = Path(__file__).resolve().parents[2] / "conf"
FAILED, REFUSED, INTERRUPTED = 1, 2, 130
NOT_OK = {"failed", "inaccurate", "timeout"}


@dataclass
class Invocation:
    """One run, or one job of a sweep: its folder, how it was asked for, and the exit code that it comes to."""

    folder: Path
    command: str
    launcher: str
    of_a_sweep: bool
    code: int = 0


def guard(answer: Callable[[], None]) -> int:
    """Run the program and return its exit code; what was wrong with the request is said in one line.

    Hydra would print its own errors over several lines and leave with 1; HYDRA_FULL_ERROR hands them to us.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's TERM saves as Ctrl-C does
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra")
    sys.argv[1:] = masked(sys.argv[1:], values_to_hide())  # a secret that a shell put in is looked up where it is used
    preset = preset_for(sys.argv[1:], [gpu.name for gpu in cuda_gpus()])
    sys.argv[1:] = overrides_first([*sys.argv[1:], *preset])
    try:
        check_groups(sys.argv[1:], CONF)
        check_sizes([CONF, *config_folders(sys.argv[1:])])
        answer()
    except (RequestError, InputError, HydraException, OmegaConfBaseException) as error:
        complain(one_line(error, CONF))
        return REFUSED
    except KeyboardInterrupt:
        complain("interrupted; what was finished is saved")
        return INTERRUPTED
    return 0


@contextmanager
def job(config: DictConfig) -> Iterator[Invocation]:
    """One job: a folder of its own, and an end that a sweep survives and a single run's exit code tells."""
    hydra = HydraConfig.get()
    of_a_sweep = hydra.mode == RunMode.MULTIRUN
    folder = claim(Path(hydra.runtime.output_dir))
    launcher = str(hydra.runtime.choices.get("hydra/launcher", "basic"))
    invocation = Invocation(folder, "python -m pipeline " + shlex.join(sys.argv[1:]), launcher, of_a_sweep)
    try:
        yield invocation
    except (RequestError, InputError) as error:
        complain(one_line(error, CONF))
        if not of_a_sweep:  # Hydra would put a line of its own before any other exception
            raise SystemExit(REFUSED) from None
        codec.save(refusal(invocation, config, one_line(error, CONF)), folder)
    if invocation.code and not of_a_sweep:
        raise SystemExit(invocation.code)


def claim(folder: Path) -> Path:
    """A folder that no other run has: runs started in the same second get the same name from Hydra."""
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        candidate.mkdir(parents=True, exist_ok=True)
        try:
            (candidate / "claimed").touch(exist_ok=False)
        except FileExistsError:
            continue
        return candidate
    raise RequestError(f"{folder}: a thousand runs have this name already; set hydra.run.dir")


def read(config: DictConfig, invocation: Invocation) -> RunConfig:
    """The request, checked, and its config saved beside the answer; `${oc.env:...}` stays unresolved there."""
    load.check_keys({str(key): None for key in config}, groups=())
    values, typed = plain(config, resolve=True), HydraConfig.get().overrides.task
    load.check_keys(values)
    values["measure"] = for_every_device(values["measure"], typed)
    values["data"] = meant_everywhere(values["data"], values["preset"], typed)
    device = choose_device(values["device"], accelerators())
    files = {name: plain(OmegaConf.load(CONF / "stage" / f"{name}.yaml"), resolve=True) for name in (EAGER, AUTOCAST)}
    request = load.read(values, device, files, invocation.launcher)
    (invocation.folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=False), encoding="utf-8")
    return request


def run(request: RunConfig, invocation: Invocation) -> RunRecord:
    """Run the stages, with the progress on stderr."""
    with Progress(len(request.stages)) as progress:
        progress.say(opening(request, invocation))
        record = run_ladder(request, invocation.folder, blank_record(request, invocation), progress)
    if request.strict and any(stage.status in NOT_OK for stage in record.stages):
        invocation.code = FAILED
    return codec.without_secrets(record)


def opening(request: RunConfig, invocation: Invocation) -> str:
    """The first line of a run: what runs where, and what was chosen for the user."""
    where = f"on {cuda_gpus()[0].name}" if is_cuda(request.device) else "on the CPU (no GPU stage runs)"
    size = f"{request.data.size}×{request.data.size}" if request.data.size else "their own size"
    shape = f"batch {request.data.batch_size}, images at {size}"
    return f"{request.model.name} {where}, {shape}, preset {request.preset}; the run is kept in {invocation.folder}"


def report(record: RunRecord, invocation: Invocation) -> None:
    """Draw the report; the first screen goes to the terminal, the report's path last."""
    summary = replace(summarize(record), since=since(record, invocation.folder))
    path = write_report(summary, invocation.folder)
    console = Console(highlight=False)
    console.print(first_screen(summary))
    console.print(visible(path), soft_wrap=True, markup=False)


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
            model=replace(found.model, output=request.model.output),
            data=replace(
                found.data,
                image_size=data.size,
                batch_size=data.batch_size,
                contract=data.contract,
                label_rules=data.label_rules,
            ),
            measure=MeasureSettings(sampling_seconds=plan.sampling_seconds, trials=plan.trials),
        ),
        baseline=request.baseline.name,
    )


def refusal(invocation: Invocation, config: DictConfig, text: str) -> RunRecord:
    """The record of a job of a sweep whose request was wrong."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    warning = RunWarning("refused", text, "correct the request and run this job again")
    asked = plain(config, resolve=False)
    return RunRecord(now, invocation.command, str(config.preset), asked, settings_of(asked), warnings=[warning])


def plain(config: Any, resolve: bool) -> dict[str, Any]:
    """Hydra's config as plain containers."""
    value = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(value, dict)
    return {str(key): part for key, part in value.items()}
