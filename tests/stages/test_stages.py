"""Every stage in its CPU form, against eager fp32 and within the tolerance of its own YAML."""

import importlib
import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import onnx
import pytest
import torch
import yaml
from torch import Tensor

from models.build import build_model
from pipeline.compiler.ends import NO_CLASS, Classes
from pipeline.config.load import read_stages
from pipeline.config.stage_options import signature_of
from pipeline.inputs.datasets import dataset_loader
from pipeline.measure import accuracy
from pipeline.records.request import StageSpec
from pipeline.stages import Runner, Skip, StageError, fp8, fused
from pipeline.stages.api import Workload
from tests.config.test_load import composed
from tests.fork_server import torch_alone
from tests.process_state import own_switches
from tests.stage_files import FOLDER, stage_file
from tests.stages.conftest import SIZE, small_net

FILES = sorted(path.stem for path in FOLDER.glob("*.yaml") if "rungs:" not in path.read_text())
COMPILED = {"compile", "aot_inductor"}  # test_aot_inductor.py: a build takes half a minute
IN_INT8 = {name for name in FILES if stage_file(name)["target"] == "pipeline.stages.int8"}  # test_runtimes.py
EXTRAS = {"openvino", "openvino_compile", "xla", "tvm", "thunder"}  # a network of one level, as some take minutes
ON_THE_CPU = [name for name in FILES if "cpu" in stage_file(name)["devices"] and name not in COMPILED | IN_INT8]
INSTALLED = [name for name in ON_THE_CPU if name not in EXTRAS]


@cache
def spec(name: str) -> StageSpec:
    (found,) = read_stages(composed(f"stage={name}")["stage"])
    return found


def built(name: str, workload: Workload, **options: Any) -> Runner:
    runner = importlib.import_module(spec(name).target).build(workload, **{**spec(name).options, **options})
    assert isinstance(runner, Runner)
    return runner


def answers(runner: Runner, workload: Workload) -> list[Tensor]:
    with torch.inference_mode():
        return [runner.run(batch).float().clone() for batch in workload.batches]


def references(workload: Workload) -> list[Tensor]:
    with torch.inference_mode():
        return [workload.model(batch) for batch in workload.batches]


@dataclass(frozen=True)
class Ran:
    """A stage that was built and has answered every batch, and the net's tensors as they were before."""

    name: str
    workload: Workload
    runner: Runner
    answers: list[Tensor]
    before: dict[str, Tensor]
    strides: dict[str, tuple[int, ...]]


def run_once(name: str, workload: Workload, **options: Any) -> Ran:
    tensors = workload.model.state_dict()
    before = {key: value.clone() for key, value in tensors.items()}
    strides = {key: value.stride() for key, value in tensors.items()}
    runner = built(name, workload, **options)
    return Ran(name, workload, runner, answers(runner, workload), before, strides)


def check_answers(ran: Ran) -> None:
    _, status, reason = accuracy.check(ran.answers, references(ran.workload), None, spec(ran.name).tolerance)
    assert (status, reason) == ("ok", "")


def check_net(ran: Ran) -> None:
    after = ran.workload.model.state_dict()
    assert after.keys() == ran.before.keys()
    assert not ran.workload.model.training
    for key, value in after.items():
        assert value.dtype == ran.before[key].dtype
        assert value.stride() == ran.strides[key]
        assert torch.equal(value, ran.before[key])


@pytest.fixture(scope="module", params=ON_THE_CPU)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One stage, built once for all tests of its answers; skipped where its library isn't installed."""
    name, work = request.param, small_net(tmp_path_factory.mktemp(request.param))
    if name in EXTRAS:
        work = replace(work, model=build_model("models.unet.UNet", {"base": 8, "depth": 1}, None, seed=10))
    with own_switches():
        try:
            made = run_once(name, work)
        except Skip as reason:
            pytest.skip(str(reason))
        yield made


@pytest.mark.filterwarnings("ignore:torch.is_autocast_cpu_enabled:DeprecationWarning")  # Thunder's
def test_a_stage_answers_as_eager_within_its_tolerance_and_leaves_the_net_as_it_was(ran: Ran) -> None:
    check_answers(ran)
    check_net(ran)
    execution = ran.runner.execution
    assert execution.precision is not None
    assert execution.provider is not None


@pytest.mark.parametrize("name", INSTALLED)
def test_a_stage_takes_sizes_that_do_not_halve(name: str, workload: Workload) -> None:
    pairs = [torch.cat(workload.batches[:2])[..., :45, :61].contiguous()]
    odd = run_once(name, replace(workload, batches=pairs))
    assert odd.answers[0].shape == (2, 2, 45, 61)
    check_answers(odd)


@pytest.mark.parametrize("name", ["cuda_graph", "fused", "fp8"])
def test_a_stage_of_the_gpu_is_skipped_with_a_reason_on_a_cpu(name: str, workload: Workload) -> None:
    assert spec(name).unavailable
    with pytest.raises(Skip, match="need a CUDA GPU"):
        built(name, workload)


@pytest.mark.parametrize("name", FILES)
def test_the_yaml_is_the_signature(name: str) -> None:
    options, own = spec(name).options, yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    parameters = inspect.signature(importlib.import_module(spec(name).target).build).parameters
    keywords = {key: part for key, part in parameters.items() if key != "workload"}
    assert all(part.kind is inspect.Parameter.KEYWORD_ONLY for part in keywords.values())
    assert options.keys() == keywords.keys()
    set_by_variant = own if "defaults" in own else {}
    assert options == {key: set_by_variant.get(key, part.default) for key, part in keywords.items()}


@pytest.mark.parametrize("name", FILES)
def test_the_source_says_of_build_what_python_says(name: str) -> None:
    target = spec(name).target
    signature = signature_of(target)
    hints = get_type_hints(importlib.import_module(target).build)
    assert signature.options == {key: part for key, part in hints.items() if key not in ("workload", "return")}
    assert Any not in signature.options.values()


@pytest.mark.parametrize("method", ["trace", "script"])
def test_torchscript_saves_a_file_that_gives_the_same_answer(method: str, workload: Workload, tmp_path: Path) -> None:
    runner = built("torchscript", workload, method=method)
    assert runner.save is not None
    kept = tmp_path / "kept"
    kept.mkdir()
    (path,) = runner.save(kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        loaded = torch.jit.load(path)
    with torch.inference_mode():
        logits = loaded(workload.batches[0])
    torch.testing.assert_close(logits, references(workload)[0], rtol=1e-3, atol=1e-3)


def test_onnxruntime_asked_for_the_gpu_on_a_cpu_fails(workload: Workload) -> None:
    with pytest.raises(StageError, match="provider=cuda was asked for and this run is on the CPU"):
        built("onnxruntime", workload, provider="cuda")


@pytest.mark.parametrize("ran", ["onnxruntime"], indirect=True)
def test_onnxruntime_says_where_every_node_runs(ran: Ran) -> None:
    runner = ran.runner
    assert runner.searches_asked == ()
    nodes = runner.details["nodes"]
    assert list(nodes) == ["CPUExecutionProvider"]
    assert sum(nodes["CPUExecutionProvider"].values()) > 18  # convolutions alone
    assert runner.save is not None
    paths = runner.save(ran.workload.folder)
    assert paths[0].name == "model.onnx"
    onnx.checker.check_model(str(paths[0]), full_check=True)


def test_the_baseline_turns_off_what_others_turn_on(workload: Workload) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    built("eager", workload)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark


def test_the_images_have_both_classes(workload: Workload) -> None:
    assert all(len(logits.argmax(1).unique()) == 2 for logits in references(workload))


def test_a_cache_of_its_own_needs_nothing_that_others_imported(tmp_path: Path) -> None:
    """A worker's process has imported no compiler when the stage asks for its cache.

    Without a GPU it starts no processes that compile for Triton. Inductor asks the processor as it does for a user.
    """
    code = "import os, sys; from pathlib import Path; from pipeline.stages.common import inductor; "
    code += "inductor.own_cache(Path(sys.argv[1])); print(inductor.torch._inductor.config.cpp.vec_isa_ok); "
    code += "print(os.environ.get('TORCH_WARM_POOL'))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    told = ("TORCHINDUCTOR_VEC_ISA_OK", "TORCH_WARM_POOL")
    clean = {name: value for name, value in os.environ.items() if name not in told}
    with torch_alone():
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None", "None" if torch.cuda.is_available() else "0"]
    assert (tmp_path / "inductor").is_dir()


def test_what_launches_singly_is_asked_for_no_truth() -> None:
    falsy, batch = torch.nn.Sequential(), torch.ones(1)  # of no layers
    assert Runner(torch.neg, "captured", uncaptured=falsy).one_by_one(batch) is batch
    assert Runner(torch.neg, "plain").one_by_one is torch.neg


@pytest.mark.gpu
@pytest.mark.timeout(900)  # each is tuned and compiled, and compiled again
@pytest.mark.parametrize("stage", [fused, fp8], ids=["fused", "fp8"])
def test_on_a_gpu_classes_are_those_of_the_network_without_ends(stage: Any, tmp_path: Path) -> None:
    small, images = small_net(tmp_path), dataset_loader("samples", None, None, SIZE)(3).images
    batches, device = [batch.cuda() for batch in small.batches], torch.device("cuda")
    work = replace(small, model=small.model.cuda(), batches=batches, device=device, images=images)
    options: dict[str, Any] = {"tuning_folder": str(tmp_path / "tiles"), "inductor_search": "never"}
    plain, whole = stage.build(work, **options), stage.build(work, **options, uint8_in=True, classes_out=True)
    given = work.called_with(whole.ends).batches
    assert given[0].dtype == torch.uint8
    for mode in (torch.inference_mode, torch.no_grad, nullcontext):
        for image, batch in zip(given, batches, strict=True):
            with mode():
                assert torch.equal(whole.run(image), Classes()(plain.run(batch)))
    only_classes = stage.build(work, **options, classes_out=True)
    if stage is fused:
        spoilt = batches[0].clone()
        spoilt[0, :, 40, 40] = torch.nan
        assert (only_classes.run(spoilt) == NO_CLASS).any()
    assert not (only_classes.run(batches[0]) == NO_CLASS).any()
