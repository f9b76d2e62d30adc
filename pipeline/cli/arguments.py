"""The command line, parsed once: overrides in Hydra's grammar, Hydra's flags, and the words that this program adds."""

import os.path
import shlex
from argparse import ArgumentError, Namespace
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, QuotedString, Sweep
from hydra.errors import HydraException

from pipeline.analysis.sweeps import job_folders
from pipeline.cli.messages import CONF, USERS_CONF, known_keys
from pipeline.command_line import given_twice, mistaken_flag, opened
from pipeline.config.request_error import RequestError
from pipeline.devices.host import installed
from pipeline.errors import first_line, nearest, shortened
from pipeline.orchestrate.resume import refuse_running
from pipeline.records import codec
from pipeline.records.plan import LIMITS, GpuPlan, Phase

LADDER, LAUNCH = "ladder", "launch"
MOST_JOBS = 1000  # of a sweep: at a minute each, the shortest, most of a day
# Keys that a resumed run sets for itself.
OF_THE_RESUMED = {"resume", "resume_despite", "gpu_busy", "hydra.run.dir", "hydra.sweep.dir"}
SUBDIR = "hydra.sweep.subdir"
PROGRAM_WORDS = 3  # python -m pipeline
OUTPUTS = Path("outputs")  # conf/config.yaml: hydra.run.dir
HYDRAS_SIGNS = frozenset("[]{}(),'\"$")  # a value with one of these is Hydra's syntax, not plain text
# Keys of paths and names of files, whose commas, brackets and equals signs are letters.
PATHS = {"data.path", "data.labels", "data.label_map", "data.label_pattern", "model.checkpoint", "model.file", "resume"}
PATHS |= {"hydra.run.dir", "hydra.sweep.dir"}
# Keys that this program still reads under their earlier names.
RENAMED = {
    **{f"measure.gpu_{knob.name}": f"measure.gpu.{knob.name}" for knob in fields(GpuPlan)},
    **{f"measure.{phase}_limit_seconds": f"measure.limits.{phase}" for phase in LIMITS if phase != Phase.WARMUP},
    "measure.peaks_limit_seconds": "measure.limits.measured_peaks",
    "measure.warmup_phase_limit_seconds": "measure.limits.warmup",
    "measure.sample_limit_seconds": "measure.limits.sampling",
    "measure.latency_limit_seconds": "measure.limits.latencies",
}
WITH_OWN_SIZE = {"tensors": ("cpu", "smoke"), "volume": ("cpu",), "folder": ("cpu",)}  # data, and presets with a size
UNREADABLE = "cannot be read; write KEY=VALUE, and quote a value with special characters: 'KEY=\"VALUE\"'"


@dataclass(frozen=True)
class CommandLine:
    """One parsed command line."""

    typed: list[str]  # the words as typed, after those of a resumed run and the preset were added
    overrides: list[Override]  # the words that are no flags, parsed
    options: Namespace  # Hydra's flags
    flags: list[str]  # the words of the flags
    launching: list[Override] = field(default_factory=list)  # the words of `launch`, which Hydra doesn't know

    @property
    def words(self) -> list[str]:
        """The words for Hydra, overrides first, as argparse takes them in one row; also of ./conf, if there is one."""
        overrides = [word for override in self.overrides for word in hydra_words(override)]
        names_one = self.options.config_dir or self.options.config_path
        theirs = USERS_CONF.is_dir() and not USERS_CONF.samefile(CONF) and not names_one
        return [*overrides, *self.flags, *(["--config-dir", str(USERS_CONF)] if theirs else [])]

    @property
    def launch(self) -> dict[str, object]:
        """The word `launch=local` or `launch=slurm`, and submitit's parameters, such as `launch.timeout_min=60`."""
        return {str(override.key_or_group).removeprefix(f"{LAUNCH}."): override.value() for override in self.launching}

    @property
    def keys(self) -> set[str]:
        """The keys and groups that are set."""
        return {str(override.key_or_group) for override in self.overrides}

    @property
    def renamed(self) -> list[str]:
        """The typed keys that have another name now."""
        keys = [word.partition("=")[0].lstrip("+") for word in self.typed]
        return [f"{key} is called {RENAMED[key]} now" for key in keys if key in RENAMED]

    @property
    def sweeps(self) -> bool:
        """True if several jobs are asked for."""
        return bool(self.options.multirun) or "hydra.mode" in self.keys

    @property
    def only_shows(self) -> bool:
        """True if Hydra shows something instead of running a job."""
        return bool(self.options.cfg or self.options.help or self.options.hydra_help or self.options.info)

    def values(self, key: str) -> list[str]:
        """Return the value of `key`, or each value of its sweep; an empty list if it is not set."""
        for override in self.overrides:
            if override.key_or_group == key:
                value = override.value()
                parts = value.list if isinstance(value, ChoiceSweep) else [value]
                return [str(getattr(part, "text", part)) for part in parts if part is not None]
        return []


def parse(words: Sequence[str], gpus: Collection[str]) -> CommandLine:
    """Parse the words that follow the program's name."""
    line = _read(words)
    if earlier := earlier_words(line):
        line = _read([*words, *earlier])
    if line.options.hydra_help:  # which knows Hydra's own keys alone
        return line
    devices = set(line.values("device")) or {"auto"}
    has_gpu = bool(gpus) or line.launch.get(LAUNCH) == "slurm"  # which is that of a job
    on_cpu = devices == {"cpu"} if has_gpu else not devices <= {"cuda"}  # without a GPU, device=cuda is refused
    preset = ["preset=cpu"] if on_cpu and "preset" not in line.keys else []
    line = replace(line, typed=[*line.typed, *preset], overrides=[*line.overrides, *map(_override, preset)])
    # A typed knob of `measure` holds on a GPU, too, which has values of its own for some.
    knobs = [knob.name for knob in fields(GpuPlan)]
    typed = [knob for knob in knobs if f"measure.{knob}" in line.keys and f"measure.gpu.{knob}" not in line.keys]
    on_gpu = [f"measure.gpu.{knob}=${{measure.{knob}}}" for knob in typed]
    return replace(line, overrides=[*line.overrides, *map(_override, [*_own_size(line), *on_gpu])])


def _read(words: Sequence[str]) -> CommandLine:
    """Parse flags and overrides, and check them as far as possible without a configuration."""
    parser = get_args_parser()
    parser.exit_on_error = False
    (version,) = (action for action in parser._actions if "--version" in action.option_strings)
    versions = installed(("unet-ladder", "torch", "hydra-core"))
    version.version = ", ".join(map(" ".join, versions.items()))  # type: ignore[attr-defined]
    try:
        options, unknown = parser.parse_known_intermixed_args(words)
    except ArgumentError as error:
        raise RequestError(f"{first_line(error).removeprefix('argument ')}; see python -m pipeline --help") from None
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        otherwise = f"{shortened(unknown[0])}: no such flag; {nearest(unknown[0], flags)}"
        raise RequestError(mistaken_flag(words, flags, known_keys()) or otherwise)
    sweeps = options.multirun or any(word.startswith("hydra.mode=") for word in options.overrides)
    overrides = [_override(word, sweeps=sweeps) for word in opened(options.overrides)]
    for override in overrides:
        _check_group(override)
    given = [str(override.input_line).partition("=") for override in overrides]
    if clause := given_twice(f"{key.replace('/', '.')}{equals}{value}" for key, equals, value in given):
        raise RequestError(clause)  # Hydra would take the last
    if folder := next((value for key, _, value in given if key == SUBDIR and not value.isdigit()), ""):
        raise RequestError(f"{SUBDIR}={folder}: the jobs of a sweep are folders by number; leave it out")
    _check_number_of_jobs(overrides)
    flags = [word for word in words if word not in options.overrides]
    launching = [override for override in overrides if str(override.key_or_group).partition(".")[0] == LAUNCH]
    return CommandLine(list(words), [each for each in overrides if each not in launching], options, flags, launching)


def _override(word: str, *, sweeps: bool = False) -> Override:
    """Parse one word; a plain value that Hydra reads in quotes only, such as a path with `é` or a comma, is quoted."""
    key, equals, value = word.partition("=")
    name = key.lstrip("+")
    key = key.removesuffix(name) + RENAMED.get(name, name)
    value = os.path.expanduser(value) if name in PATHS else value  # noqa: PTH111 - a Path would lose a slash at the end
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    literal = not (HYDRAS_SIGNS & set(value) or value.startswith("=")) or os.path.exists(value)  # noqa: PTH110 - a value may be no path
    is_path = key in PATHS and not value.startswith(("'", '"', "${")) and (literal or not sweeps)
    candidates = [f"{key}{equals}{value}"]
    if equals and value and (literal or is_path):
        candidates.append(f"{key}='{escaped}'")
    for candidate in candidates:
        try:
            override = OverridesParser.create().parse_override(candidate)
        except HydraException:
            continue
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{shortened(word, 100)}: {first_line(error)}") from None
        if is_path and isinstance(override.value(), list | dict | Sweep | int | float):
            continue  # the text is the name of a file, such as 2026
        if override.key_or_group:
            return override
    raise RequestError(f"{shortened(word, 100)}: {UNREADABLE}")


def is_group(key: str) -> bool:
    """Return whether a key is a folder of conf/."""
    return any(path.name == key and path.is_dir() for path in CONF.iterdir())


def _check_group(override: Override) -> None:
    """Raise RequestError if a folder of conf/ is given anything but the name of a file; Hydra would drop `data={}`."""
    group, value = str(override.key_or_group), override.value()
    if not is_group(group):
        return
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    if group == "stage" and stage_names(override):
        return
    if not all(isinstance(each, str | QuotedString | Sweep | Glob) for each in values):
        files = ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))
        raise RequestError(f"{shortened(str(override.input_line), 100)}: name one file of conf/{group}: {files}")


def _check_number_of_jobs(overrides: Sequence[Override]) -> None:
    """Raise RequestError if a sweep has no job, or more than `MOST_JOBS`; one that searches draws from its ranges."""
    if any(override.key_or_group == "hydra/sweeper" for override in overrides):
        return
    jobs = 1
    for override in (each for each in overrides if each.is_sweep_override()):
        value, typed = override.value(), override.input_line
        if isinstance(value, IntervalSweep):
            raise RequestError(f"{typed}: a grid has no interval; range(0,1,0.25) steps through one")
        if isinstance(value, Glob) and not is_group(str(override.key_or_group)):
            raise RequestError(f"{typed}: glob is for the files of a folder of conf/; list the values")
        if not isinstance(value, Glob):  # whose files Hydra finds
            jobs *= sum(1 for _ in islice(override.sweep_iterator(), MOST_JOBS + 1))
        if not jobs:
            raise RequestError(f"{typed}: no value; range(1,4) is 1, 2 and 3")
    if jobs > MOST_JOBS:
        raise RequestError(f"a sweep has at most {MOST_JOBS:,} jobs; this one has more")


def hydra_words(override: Override) -> list[str]:
    """Return the words for Hydra that stand for an override: itself, or the ladder cut to `stage=[half,compile]`."""
    names = stage_names(override)
    if not names:
        return [str(override.input_line)]
    ladder = yaml.safe_load((CONF / "stage" / f"{LADDER}.yaml").read_text(encoding="utf-8"))
    rungs = [str(name) for name in ladder["rungs"]]
    without = [f"~stage.rungs.{name}" for name in rungs if name not in names]
    return [f"stage={LADDER}", *without, *(f"+stage@stage.rungs.{name}={name}" for name in names if name not in rungs)]


def stage_names(override: Override) -> list[str]:
    """Return the names of `stage=[half,compile]`, each once; an empty list of any other override."""
    value = override.value()
    if override.key_or_group != "stage" or not isinstance(value, list):
        return []
    names = [str(getattr(part, "text", part)) for part in value if isinstance(part, str | QuotedString)]
    return list(dict.fromkeys(names)) if len(names) == len(value) and all(names) else []


def _own_size(line: CommandLine) -> list[str]:
    """Return the word that takes a preset's size of images back where the data have a size of their own."""
    names, presets = line.values("data") or ["samples"], line.values("preset")
    kept = {preset in WITH_OWN_SIZE.get(name, ()) for name in names for preset in presets}
    if "data.size" in line.keys or True not in kept:
        return []
    if False in kept:
        raise RequestError(f"data={','.join(names)}: not all of them take the preset's size; type data.size, or null")
    return ["data.size=null"]


def earlier_words(line: CommandLine) -> list[str]:
    """Return the words of the run that `resume` names, if nothing else is typed, so that `resume=RUN` is enough."""
    folders = line.values("resume")
    shows_a_job = bool(line.options.cfg)
    if not folders or not folders[-1] or "${" in folders[-1] or (line.only_shows and not shows_a_job):
        return []
    earlier = Path(folders[-1])
    alone = (shows_a_job or not line.flags) and not line.keys - OF_THE_RESUMED
    refuse_running(earlier)
    jobs = job_folders(earlier) if line.sweeps or alone else []
    words = _recorded_words(earlier, jobs if line.sweeps else [earlier, *jobs], sweeps=line.sweeps)
    if alone and not jobs and {"-m", "--multirun"} & {*words}:
        raise RequestError(f"resume={earlier}: a job of a sweep; resume={earlier.parent} goes on with the sweep")
    return [word for word in words if word.partition("=")[0] not in OF_THE_RESUMED] if alone else []


def _recorded_words(earlier: Path, folders: Sequence[Path], *, sweeps: bool) -> list[str]:
    """Return the command of the first of `folders` that has a record; raise RequestError if none has one."""
    wrong = ""
    for folder in folders:
        try:
            return shlex.split(codec.load(folder).command)[PROGRAM_WORDS:]
        except (codec.RecordError, OSError, ValueError) as error:
            wrong = wrong or first_line(error)
    wrong = wrong or f"no {'sweep' if sweeps else 'run'} there"
    record = f"0/{codec.FILE}" if sweeps else codec.FILE
    records = sorted(OUTPUTS.glob(f"*/*/{record}"), key=lambda path: path.stat().st_mtime, reverse=True)
    runs = [str(path.parents[sweeps]) for path in records]
    near = get_close_matches(str(earlier), runs, n=1) or runs[:1]  # or the newest
    raise RequestError(f"resume={earlier}: {wrong}{f'; did you mean {near[0]!r}?' if near else ''}")
