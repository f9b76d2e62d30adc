"""What a user reads after a bad request: exit code 2, one line, the nearest valid choice, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.build import build_model
from models.checkpoint import read
from pipeline.cli.config_errors import one_line
from pipeline.config.request_error import RequestError
from pipeline.errors import CheckpointError, InputError
from tests.cli.conftest import ROOT, Ask
from tests.config.test_load import asked, composed

WRONG = [
    (["stage=compil"], "stage=compil", "did you mean 'compile'"),
    (["model=unett"], "model=unett", "did you mean 'unet'"),
    (["stage=compile", "stage.mod=default"], "stage.mod", "did you mean 'stage.mode'"),
    (["stage=compile", "+stage.mod=default"], "stage.mod", "did you mean 'mode'"),
    (["stage=compile", "stage.mode=max-autotun"], "stage.mode=max-autotun", "did you mean 'max-autotune'"),
    (["measure.interim_analysis=[3]"], "measure.interim_analysis", "did you mean 'measure.interim_analyses'"),
    (["data.batchsize=3"], "data.batchsize", "did you mean 'data.batch_size'"),
    (["dta.batch_size=3"], "dta.batch_size", "did you mean 'data.batch_size'"),
    (["report.target_p99=5"], "report.target_p99", "did you mean 'report.target_p99_ms'"),
    (["data.batch_size=0"], "data.batch_size=0", "expected an integer ≥ 1"),
    (["batch_size=3"], "batch_size", "did you mean 'data.batch_size'"),
    (["+batch_size=3"], "batch_size", "did you mean 'data.batch_size'"),
    (["stage=[half,compil]"], "stage=compil", "did you mean 'compile'"),
    (
        ["stage=[half,compile]", "stage.mode=default"],
        "stage.mode",
        "each stage has its own keys, such as stage.rungs.NAME",
    ),
    (["nonsense"], "nonsense", "key=value"),
    (["+constraint.dice=0.01"], "constraint", "no such key"),
    (["+model.chekpoint=x.pt"], "model.chekpoint", "did you mean 'checkpoint'"),
    (["+data.maen=[0.5]"], "data.maen", "did you mean 'mean'"),
    (["model.options.clases=2"], "model.options.clases", "'+model.options.clases=...' adds it"),
    (["model.options.upsamling=aligned"], "upsamling", "did you mean 'model.options.upsampling'? '+model"),
    (["+model.options.clases=2"], "model.options.clases", "did you mean 'classes'"),
    (["stage=null"], "stage=null", "conf/stage"),
    (["measure=null"], "measure=null", "conf/measure"),
    (["data.batch_size=100000000"], "data.batch_size=100000000", "GiB"),
    (["data.path=conf"], "data.path=conf", "add data=folder"),
    (["stage=[x"], "stage=[x", "key=value"),
    (["device=cuda"], "device=cuda", "device=cpu"),
    (["~data.siz"], "data.siz", "did you mean 'data.size'"),
    (["data=folder", "data.path=~/images"], "data.path=~/images", f"write data.path={Path.home()}/images"),
    (["data.size==32"], "data.size==32", "one = too many; write data.size=32"),
    (["data.path='images"], "data.path='images", "its quote ' isn't closed"),
    (["seed=${"], "seed=${", "a reference is written 'seed=${KEY}' or 'seed=${oc.env:NAME}', in quotes"),
    (["data=tensors", "data.path=t", "data.inputs=[a,b,a]"], "data.inputs=['a', 'b', 'a']", "a is given twice"),
    (["data=tensors", "data.path=/dev/null"], "data.path=/dev/null", "no such file, but no regular file"),
    (["data=folder"], "data.path", "name the folder"),
    (["data=folder", "data.path=conff"], "data.path=conff", "did you mean conf"),
    (["data=folder", "data.path=conf"], "conf", "image"),
    (["model.checkpoint=nowhere.safetensors"], "nowhere.safetensors", ".safetensors"),
    (["model=torchvision", "model.options.net=fcn_resnet"], "model.options.net=fcn_resnet", "'fcn_resnet50'"),
]


@pytest.mark.parametrize(
    ("arguments", "culprit", "remedy"), WRONG, ids=lambda part: " ".join(part) if isinstance(part, list) else None
)
def test_a_bad_request_is_one_line(arguments: list[str], culprit: str, remedy: str, tmp_path: Path, ask: Ask) -> None:
    """The line names the culprit and the nearest valid choice."""
    stage = [] if any("stage" in argument for argument in arguments) else ["stage=eager"]
    done = ask("preset=smoke", *stage, *arguments, f"hydra.run.dir={tmp_path}")
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2
    assert len(said) == 1
    assert culprit in said[0]
    assert remedy in said[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["-m", "data.batch_size=1,2"]])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("# @package _global_\nseed: 1\n", "has no key preset; write the line 'preset: mine' into it"),
        ("preset: mine\n", "has no line '# @package _global_'; write it above all keys, one of them preset: mine"),
    ],
)
def test_a_preset_that_lacks_its_name_is_told_by_its_file(
    content: str, told: str, words: list[str], tmp_path: Path, ask: Ask
) -> None:
    """What it lacks and what to write; each job of a sweep is refused so, and the sweep has its report."""
    file = tmp_path / "preset" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(content)
    folders = [f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"]
    done = ask(*words, "--config-dir", str(tmp_path), "preset=mine", "stage=eager", *folders)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert set(errors) == {f"error: preset=mine: {file} {told}"}
    assert done.returncode == (1 if words else 2)
    assert (tmp_path / "sweep" / "report.md").is_file() == bool(words)


def net_of(arguments: list[str]) -> None:
    """Make the net that is asked for."""
    model = asked(composed("preset=smoke", "stage=eager", *arguments)).model
    build_model(model.target, model.options, model.checkpoint, seed=0)


@pytest.mark.parametrize(
    ("arguments", "culprit", "remedy"),
    [
        (["model.checkpoint=pyproject.toml"], "pyproject.toml", ".safetensors"),
        (["model=unet", "model.checkpoint=models/weights/unet_small.safetensors"], "unet_small.safetensors", "UNet"),
        (["model=custom", "model.target=os.system"], "os.system", "my_package.MyNet"),
        (["model=custom", "model.target=models.unet.Unet"], "models.unet.Unet", "UNet"),
    ],
)
def test_a_net_that_cannot_be_made_is_one_line(arguments: list[str], culprit: str, remedy: str) -> None:
    """What comes of the request in parent or worker; the two above show that it comes to exit code 2."""
    with pytest.raises((InputError, RequestError)) as caught:
        net_of(arguments)
    assert culprit in str(caught.value)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_process_ends_as_the_program_does(tmp_path: Path) -> None:
    """What the others see within the test's process a shell sees, too: exit code 2, and one line on stderr alone."""
    command = [sys.executable, "-m", "pipeline", "preset=smoke", "threads=0", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: threads=0: expected an integer ≥ 1, or null\n"


def test_help_is_written_for_a_person(tmp_path: Path, ask: Ask) -> None:
    """It shows what to type, without Hydra's own words."""
    done = ask("--help", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0
    assert "python -m pipeline stage=compile" in done.stdout
    assert "Exit codes" in done.stdout


def test_the_parent_imports_no_torch() -> None:
    """So it holds no GPU context and starts at once."""
    code = "import sys; import pipeline.cli.one_request, pipeline.cli.sweep_callback; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_remedy_at_the_end_of_a_long_line_is_not_cut_off(tmp_path: Path) -> None:
    """A line of ours ends in what to do: here the code that takes the weights out of a pickle, with its path twice."""
    deep = tmp_path / ("lightning_logs-" * 10) / "last.ckpt"
    deep.parent.mkdir()
    torch.save({"state_dict": {}, "hyper_parameters": tmp_path}, deep)
    with pytest.raises(CheckpointError) as caught:
        read(deep)
    line = one_line(caught.value, ROOT / "conf")
    assert line == str(caught.value)
    assert line.endswith(", 'weights.pt')\"")
