"""A bad request ends with exit code 2 and one line that names the nearest valid choice."""

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from models.checkpoint import read
from pipeline.cli import app
from pipeline.cli.messages import one_line
from pipeline.cli.progress import IN_A_NOTEBOOK, Progress, SteadyConsole, print_error
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import Accelerator
from pipeline.errors import CheckpointError
from tests.cli.conftest import ROOT, Ask

WRONG = [
    (["preset=smok"], "preset=smok: no such choice; ", "did you mean 'smoke'"),
    (["stage=[half,compil]"], "stage=compil: no such choice", "did you mean 'compile'"),
    (["stage=compile", "stage.mod=default"], "stage.mod", "did you mean 'stage.mode'"),
    (["stage=compile", "+stage.mod=default"], "stage.mod", "did you mean 'mode'"),
    (["stage=[half,compile]", "stage.mode=default"], "stage.mode", "stage.rungs.NAME.mode"),
    (["stage=half", "stage.mode=default"], "stage.mode", "it goes with stage=compile"),
    (["stage=EAGER"], "stage=EAGER", "did you mean 'eager'?"),
    (["+data=folder"], "data", "leave + out to choose another"),
    (["data.mean=0.5,0.5"], "data.mean=0.5,0.5", "brackets make one list: [1,2]"),
    (["+" + "a" * 3000 + "=1"], "aaa…: ", "File name too long"),
    (["task.steps=5"], "task.steps", "it goes with task=diffusion"),
    (["batch_size=3"], "batch_size: no such key; ", "did you mean 'data.batch_size'"),
    (["~data.siz"], "data.siz: no such key; ", "did you mean 'data.size'"),
    (["data.batch_size=1,2"], "data.batch_size=1,2", "-m"),
    (["+data.batch_size=1"], "data.batch_size", "already"),
    (["report=[1,2]"], "report=[1,2]", "Cannot merge"),
    (["hydra/launcher=joblib"], "hydra/launcher=joblib", ""),
    (["model.options.clases=2"], "model.options.clases", "did you mean 'model.options.classes'? +model.options."),
    (["model=diffusers", "model.options.net=UNet1DModel"], "model.options.net", "one network; others by model=custom"),
    (["model=custom", "model.target=models.unet.UNet", "model.options.width=16"], "model.options.width: no option", ""),
    (["+model.options.clases=2"], "model.options.clases", "did you mean 'classes'"),
    (["data.batch_size=100000000"], "data.batch_size=100000000", "GiB"),
    (["data.path=conf"], "data.path=conf", "add data=folder"),
    (["device=cuda"], "device=cuda", "device=cpu"),
    (["data=folder", "data.path=conf"], "conf", "image"),
    (["seed=${oc.env:NO_SUCH_VARIABLE_HERE}"], "seed: ", "NO_SUCH_VARIABLE_HERE"),
    (["hydra.run.dir=/dev/null/run"], "/dev/null/run", "Not a directory"),
    (["--config-name", "confg"], "confg", "Cannot find primary config"),
]


@pytest.mark.parametrize(("typed", "culprit", "remedy"), WRONG, ids=str)
def test_a_bad_request_is_one_line(typed: list[str], culprit: str, remedy: str, tmp_path: Path, ask: Ask) -> None:
    usual = {"preset": "preset=smoke", "stage": "stage=eager", "hydra.run": f"hydra.run.dir={tmp_path}"}
    done = ask(*(word for name, word in usual.items() if name not in " ".join(typed)), *typed)
    assert done.returncode == 2
    assert "the run is kept" not in done.stderr
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("error: ")
    assert culprit in line
    assert remedy in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["-m", "data.batch_size=1,2"]])
def test_a_preset_that_lacks_its_name_is_told(words: list[str], tmp_path: Path, ask: Ask) -> None:
    file = tmp_path / "preset" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\nseed: 1\n")
    folders = [f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"]
    done = ask(*words, "--config-dir", str(tmp_path), "preset=mine", "stage=eager", *folders)
    assert {line for line in done.stderr.splitlines() if line.startswith("error: ")} == {"error: preset: not set"}
    assert done.returncode == (1 if words else 2)
    assert (tmp_path / "sweep" / "report.md").is_file() == bool(words)


def test_a_process_ends_as_the_program_does(tmp_path: Path) -> None:
    """A shell sees exit code 2 and one line on stderr."""
    command = [sys.executable, "-m", "pipeline", "preset=smoke", "threads=0", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: threads=0: ")


def test_a_gpu_of_another_kind_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    monkeypatch.setattr(app, "cuda_gpus", list)
    monkeypatch.setattr(app, "accelerators", lambda: [Accelerator("rocm", 0, "AMD Instinct MI300X")])
    done = ask(f"hydra.run.dir={tmp_path / 'run'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "device=auto: found AMD Instinct MI300X (ROCm), but this version runs only CUDA GPUs and CPUs" in line
    assert line.endswith("device=cpu runs on the CPU")
    assert not (tmp_path / "run" / "results.json").exists()


def test_help_is_written_for_a_person(tmp_path: Path, ask: Ask) -> None:
    done = ask("--help", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0
    assert "python -m pipeline stage=compile" in done.stdout
    assert "Exit codes" in done.stdout


def test_the_version_is_this_program_s(ask: Ask) -> None:
    told = ask("stage=eager", "--version")
    assert (told.returncode, told.stderr) == (0, "")
    assert re.fullmatch(r"unet-ladder \d+\.\d+\.\d+\S*, torch \d+\.\d+\.\d+\S*, hydra-core 1\.3\.\d+\n", told.stdout)


def test_a_remedy_at_the_end_of_a_long_line_is_not_cut_off(tmp_path: Path) -> None:
    deep = tmp_path / ("lightning_logs-" * 10) / "last.ckpt"
    deep.parent.mkdir()
    torch.save({"state_dict": {}, "hyper_parameters": tmp_path}, deep)
    with pytest.raises(CheckpointError) as caught:
        read(deep)
    line = one_line(caught.value)
    assert line == str(caught.value)
    assert line.endswith("save model.state_dict()")


def test_a_value_with_a_line_break_loses_no_reason() -> None:
    assert one_line(RequestError("resume=a\nb: no such folder")) == "resume=a b: no such folder"


def test_a_file_that_is_no_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\nb: [", encoding="utf-8")
    with pytest.raises(yaml.YAMLError) as raised, file.open(encoding="utf-8") as text:
        yaml.safe_load(text)
    assert one_line(raised.value).startswith(f"{file}, line 2: ")
    with pytest.raises(UnicodeDecodeError) as caught:
        "name: Größe".encode("latin-1").decode()
    assert one_line(caught.value) == "a YAML file is no UTF-8 text, near 'name: Gr\ufffd\ufffde'; save it as UTF-8"


@pytest.mark.parametrize("value", ["${nothing}", "${data.size}"])
def test_an_interpolation_that_leads_nowhere_names_its_key(value: str) -> None:
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.to_container(OmegaConf.create({"data": {"size": value}}), resolve=True)
    assert one_line(caught.value).startswith("data.size: ")


def test_environment_values_are_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MY_PLACE", "/home/somebody")
    monkeypatch.setattr(sys, "argv", ["pipeline", "data.size=${oc.env:MY_PLACE}"])
    print_error("data.size=/home/somebody: expected an integer")
    assert capsys.readouterr().err == "error: data.size=${oc.env:MY_PLACE}: expected an integer\n"


NOWHERE = "nowhere/at-all"
ASKED = {  # words that name nothing on the disk, and the message
    "pipeline.report": ([NOWHERE], f"{NOWHERE}/results.json: no such file"),
    "pipeline.compare": ([NOWHERE, NOWHERE], f"{NOWHERE}/results.json: no such file"),
    "pipeline.export": ([NOWHERE, "--to", "bundle"], f"{NOWHERE}/results.json: no such file"),
    "pipeline.verify": ([NOWHERE], f"{NOWHERE}/contract.json: no such file"),
    "pipeline.predict": ([NOWHERE, "images", "--out", "masks"], "no such file; name the folder of a run or a bundle"),
    "pipeline.lessons": (["--draw", NOWHERE], f"{NOWHERE}/lessons.json: no such file"),
    "models.train": (["model=unett", "--out", "a.safetensors"], "did you mean 'unet'?"),
    "models.made_inputs": (["a=3", "--out", f"{NOWHERE}/a.safetensors"], f"there is no folder {NOWHERE}"),
}
MISSPELT = (["--only", "chian"], "--only chian: no such lesson; did you mean 'chain'?")  # of the lessons, as well
# Of each command line its exit code and what it wrote, from one process in which torch can't be imported.
PROGRAM = """
import contextlib, io, json, runpy, sys
sys.modules["torch"] = None
said = []
for module, words in json.load(sys.stdin):
    sys.argv[1:] = words
    told, code = io.StringIO(), 0
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as left:
            code = left.code
    said.append((code, told.getvalue()))
print(json.dumps(said))
"""


@pytest.mark.fresh_process
def test_no_wrong_word_waits_for_torch(tmp_path: Path) -> None:
    """Nor does --help; a missing folder or a misspelt network is reported as early."""
    asked = [(module, words) for module, (wrong, _) in ASKED.items() for words in (["--help"], ["--hlep"], wrong)]
    asked.append(("pipeline.lessons", MISSPELT[0]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(asked), cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = iter(json.loads(done.stdout))
    for module, (_, line) in ASKED.items():
        (helped, usage), (mistaken, flag), (wrong, told) = next(found), next(found), next(found)
        assert (helped, mistaken, wrong) == (0, 2, 2), (module, usage, flag, told)
        assert usage.startswith(f"usage: python -m {module}")
        assert usage.count(f"python -m {module} ") > 1, "no example"
        assert flag.startswith("error: --hlep: no such flag")
        assert line in told
        assert told.count("\n") == 1
    assert next(found) == [2, f"error: {MISSPELT[1]}\n"]


@pytest.mark.parametrize(
    ("terminal", "notebook", "live"),
    [
        (True, False, True),
        (False, False, False),  # a pipe of `pipeline.measure`, or of a CI that asks for colours
        (True, True, False),  # `!python -m pipeline` in a cell
    ],
)
def test_live_on_a_terminal_alone(terminal: bool, notebook: bool, live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-color")
    monkeypatch.delenv(IN_A_NOTEBOOK, raising=False)
    if notebook:
        monkeypatch.setenv(IN_A_NOTEBOOK, "1")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    with Progress(1, SteadyConsole(file=stream)) as progress:
        progress.phase_entered("half", "build")
        assert (progress.status is not None) == live
    assert ("half: build\n" in stream.getvalue()) == (not live)
    assert ("\x1b[2K" in stream.getvalue()) == live


def test_a_log_is_told_how_far_a_long_phase_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress(1, SteadyConsole(file=stream, width=120)) as progress:
        progress.phase_entered("fused", "build")
        for second in range(1, 71):
            now[0] = float(second)
            progress.phase_entered("fused", "build", f"tiles of layer {second}")
    assert [line.strip() for line in stream.getvalue().splitlines()] == [
        "[0:00]   fused: build",
        "[0:30]   fused: build: tiles of layer 30",
        "[1:00]   fused: build: tiles of layer 60",
    ]
