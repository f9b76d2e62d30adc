"""Inductor on the CPU: torch.compile, built once, and AOTInductor with a stand-in, as it takes a minute for any net."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._inductor import cpu_vec_isa

from models.build import build_model
from models.unet import DoubleConv
from pipeline.compiler.half import CAST_OWN_VALUES
from pipeline.records.run_record import CompileFacts
from pipeline.stages import StageError, aot_inductor
from pipeline.stages.aot_inductor import cold_start, package_compiler
from pipeline.stages.api import Workload
from pipeline.stages.common import aot_loading
from pipeline.stages.common.inductor import check_compiled
from pipeline.stages.compile import build, compile_facts
from tests.input_nets import Between
from tests.process_state import own_switches
from tests.stages.conftest import small_net
from tests.stages.test_own_values import NETS
from tests.stages.test_stages import Ran, built, check_answers, check_net, references, run_once

pytestmark = pytest.mark.long


class Shelf:
    """Packages by their paths, each the net itself; and what was asked for."""

    def __init__(self) -> None:
        self.nets: dict[Path, torch.nn.Module] = {}
        self.built: list[tuple[bool, bool]] = []
        self.started: list[Path] = []
        self.wrong_if_frozen = False

    def build_package(self, model: torch.nn.Module, _: Tensor, path: Path, freezing: bool, max_autotune: bool) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"package")
        self.nets[path] = model
        self.built.append((freezing, max_autotune))
        return freezing and not self.wrong_if_frozen

    def cold_start(self, path: Path, device: str, shape: tuple[int, ...]) -> dict[str, object]:
        self.started.append(path)
        return {"cold_start_seconds": {"load": 0.5, "first call": 0.25}}


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    found = Shelf()
    monkeypatch.setattr(aot_inductor, "build_package", found.build_package)
    monkeypatch.setattr(aot_inductor, "load_package", found.nets.__getitem__)
    monkeypatch.setattr(aot_inductor, "cold_start", found.cold_start)
    monkeypatch.setattr(aot_inductor, "check_possible", lambda device: None)
    compilers = {"cpp_compiler": "g++", "cpp_compiler_passed_over": "odd-g++"}
    monkeypatch.setattr(aot_inductor, "package_compiler", lambda: compilers)
    return found


def test_the_package_is_built_once_and_its_cold_start_is_on_record(shelf: Shelf, workload: Workload) -> None:
    first = built("aot_inductor", workload, dtype="fp32")
    assert shelf.built == [(True, False)]
    assert first.details["cold_start_seconds"] == {"load": 0.5, "first call": 0.25}
    assert first.details["package_bytes"] == len(b"package")
    assert (first.details["cpp_compiler"], first.details["cpp_compiler_passed_over"]) == ("g++", "odd-g++")
    assert (first.execution.precision, first.execution.provider) == ("fp32", "AOTInductor")
    again = built("aot_inductor", replace(workload, earlier=workload.caches), dtype="fp32")
    assert len(shelf.built) == len(shelf.started) == 1
    assert "cold_start_seconds" not in again.details


def test_a_build_from_caches_says_of_casts_what_the_first_one_said(shelf: Shelf, workload: Workload) -> None:
    work = replace(workload, model=NETS["places"]().eval())
    first = built("aot_inductor", work, dtype="bf16")
    assert first.description.endswith(CAST_OWN_VALUES)
    assert built("aot_inductor", replace(work, earlier=work.caches), dtype="bf16").description == first.description
    assert len(shelf.built) == 1


def test_the_package_is_left_in_the_stages_folder(shelf: Shelf, workload: Workload) -> None:
    runner = built("aot_inductor", workload, freezing=False)
    assert shelf.built == [(False, False)]
    assert runner.save is not None
    assert runner.save(workload.folder) == [workload.folder / "package.pt2"]
    assert (workload.folder / "package.pt2").read_bytes() == b"package"


def test_a_package_that_freezing_makes_wrong_says_that_it_has_none(shelf: Shelf, workload: Workload) -> None:
    shelf.wrong_if_frozen = True
    runner = built("aot_inductor", workload)
    assert runner.description.startswith("AOTInductor, without freezing, which fails or is wrong, ")


@pytest.mark.parametrize(("mended", "fails"), [(True, False), (True, True), (False, False)])
def test_wrong_packages_are_rebuilt_unfrozen(
    mended: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, image, asked = torch.nn.Conv2d(3, 2, 1).eval(), torch.rand(1, 3, 8, 8), list[object]()
    zeros = torch.zeros(1, 2, 8, 8)

    def compile_package(*_: object, package_path: str, inductor_configs: dict[str, object]) -> None:
        asked.append(inductor_configs["freezing"])
        if fails and inductor_configs["freezing"]:
            raise RuntimeError("Cannot view a tensor")

    monkeypatch.setattr(aot_inductor, "aoti_compile_and_package", compile_package)
    monkeypatch.setattr(aot_inductor, "package_compiler", lambda: {"cpp_compiler": "g++"})
    monkeypatch.setattr(aot_inductor, "load_package", lambda _: net if mended and len(asked) > 1 else lambda _: zeros)
    build = partial(aot_inductor.build_package, net, [image], tmp_path / "net.pt2", True, False)
    if mended:
        assert not build()
    else:
        with pytest.raises(StageError, match=r"^AOTInductor's package is 1 \(relative L2\) off .* the first batch$"):
            build()
    assert asked == [True, False]


def test_a_net_that_cannot_be_exported_has_no_package(tmp_path: Path) -> None:
    decides = Between(lambda value: value * 2 if value.sum() > 0 else value)
    with pytest.raises(StageError, match=r"^AOTInductor can't take the network: the network decides"):
        aot_inductor.build_package(decides, [torch.rand(1, 3, 8, 8)], tmp_path / "net.pt2", True, False)


def started(folder: Path, program: str) -> dict[str, object]:
    """What is made of a fresh process that runs a program in place of the package."""
    script = folder / "stands_in.py"
    script.write_text(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aot_loading, "__file__", str(script))
        return cold_start(folder / "package.pt2", "cpu", [torch.zeros(1, 3, 8, 8)])


def test_a_package_that_does_not_load_in_a_fresh_process_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"fresh process: PytorchStreamReader: not a ZIP archive$"):
        started(tmp_path, "import sys; sys.exit('PytorchStreamReader: not a ZIP archive')")
    crash = "import faulthandler\ndef load():\n    faulthandler._sigsegv()\nload()"
    with pytest.raises(RuntimeError, match=r"fresh process: killed by SIGSEGV in load \(stands_in.py:3\)$"):
        started(tmp_path, crash)


def test_a_process_that_dies_once_it_has_answered_has_shown_what_it_takes(tmp_path: Path) -> None:
    answers = "print('{\"load\": 0.5}', flush=True)\n"
    assert started(tmp_path, answers) == {"cold_start_seconds": {"load": 0.5}}
    died = started(tmp_path, answers + "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert died == {"cold_start_seconds": {"load": 0.5}, "cold_start_died": "killed by SIGTERM"}


def test_each_step_of_a_cold_start_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aot_loading, "load_package", lambda path: torch.neg)
    found = aot_loading.steps(tmp_path, "cpu", ["float32:1,3,8,8"])
    assert list(found) == ["import torch", "import torch._inductor", "open the device", "load", "first call"]
    assert all(seconds >= 0 for seconds in found.values())


@pytest.mark.parametrize(
    ("here", "said"), [("AVX512", "AVX512 AVX512_VNNI"), ("AVX512_CORE", "AVX512 AVX512_VNNI"), ("AVX2", "AVX2")]
)
def test_packages_load_without_compilers(here: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = cpu_vec_isa.pick_vec_isa
    of_avx512 = SimpleNamespace(load_metadata_from_package=lambda *_: {"AOTI_CPU_ISA": "AVX512 AVX512_VNNI"})
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", of_avx512)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: here)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda _: cpu_vec_isa.pick_vec_isa())
    assert str(aot_loading.load_package(tmp_path / "net.pt2")) == said
    assert cpu_vec_isa.pick_vec_isa is asked
    assert aot_loading.known_units("AVX2") == "AVX2"
    assert aot_loading.known_units("") == ""


GXX = shutil.which("g++")
NEEDS_GXX = pytest.mark.skipif(GXX is None, reason="needs g++")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """No test hears what was found for another's compilers."""
    package_compiler.cache_clear()
    yield
    package_compiler.cache_clear()


def as_compiler(folder: Path, script: str, mode: int = 0o755) -> str:
    folder.mkdir()
    (folder / "g++").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "g++").chmod(mode)
    return str(folder / "g++")


@pytest.fixture
def compilers(tmp_path: Path) -> dict[str, str]:
    """The machine's; one that links libstdc++ into all that it makes, as some images' wrappers do; two that fail."""
    return {
        "shared": str(GXX),
        "static": as_compiler(tmp_path / "static", f'exec {GXX} -static-libstdc++ "$@"'),
        "ends with 1": as_compiler(tmp_path / "failing", "exit 1"),
        "can't be run": as_compiler(tmp_path / "unrunnable", "exit 1", 0o644),
    }


@pytest.mark.parametrize(
    ("inductors", "others", "taken"),
    [
        ("shared", [], "shared"),
        ("static", ["static", "shared"], "shared"),
        ("static", ["ends with 1", "can't be run", "shared"], "shared"),
        ("ends with 1", [], "ends with 1"),
        ("can't be run", [], "can't be run"),
    ],
)
@NEEDS_GXX
def test_a_compiler_of_the_path_links_where_inductors_links_the_library_into_all(
    inductors: str, others: list[str], taken: str, compilers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot_inductor, "get_cpp_compiler", lambda: compilers[inductors])
    monkeypatch.setattr("os.get_exec_path", lambda: [str(Path(compilers[name]).parent) for name in others])
    passed_over = {} if taken == inductors else {"cpp_compiler_passed_over": compilers[inductors]}
    assert package_compiler() == {"cpp_compiler": compilers[taken], **passed_over}


@NEEDS_GXX
def test_of_static_ones_alone_the_compiler_is_told(compilers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    static = compilers["static"]
    monkeypatch.setattr(aot_inductor, "get_cpp_compiler", lambda: static)
    monkeypatch.setattr("os.get_exec_path", lambda: [str(Path(static).parent)])  # the linker's own path stays
    with pytest.raises(RuntimeError, match=rf"^{re.escape(static)} links the C\+\+ library .*set CXX"):
        package_compiler()


def test_why_dynamo_broke_a_graph_is_told_without_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "function `isinstance` in file `{}` should not be traced"
    breaks = {said.format(torch.__file__): 2}
    monkeypatch.setitem(torch._dynamo.utils.counters, "graph_break", breaks)
    again = SimpleNamespace(recompile_reason=f"2/0: at {torch.__file__}")
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: [again])
    facts = compile_facts(tmp_path)
    assert facts.graph_breaks == {said.format("torch/__init__.py"): 2}
    assert facts.recompile_reasons == ["2/0: at torch/__init__.py"]


def test_a_compiler_that_is_switched_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name := "TORCHDYNAMO_DISABLE", "1")
    with own_switches(), pytest.raises(StageError, match=f"compiled nothing: {name}=1 is set; unset it") as caught:
        build(shallow_net(tmp_path))
    assert caught.value.kind == "unsupported"


def test_a_net_that_dynamo_leaves_alone_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch._dynamo.utils.counters, "stats", Counter())
    with pytest.raises(StageError, match="compiled nothing: the network, or its process"):
        check_compiled()


@dataclass(frozen=True)
class Compiled:
    """The stage at the shape that it was built for, then at another, with what it had compiled after each."""

    first: Ran
    odd: Ran
    at_first: CompileFacts
    at_odd: CompileFacts
    compilations: tuple[int, int]
    files: int


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """One build; the second shape, a batch of two whose sides don't halve, is compiled by the call that brings it.

    For itself, as the first: for any size, which is torch's choice there, takes four times as long.
    """
    with own_switches():
        workload = shallow_net(tmp_path_factory.mktemp("compile"))
        first = run_once("compile", workload, dynamic=False)
        runner = first.runner
        assert runner.compile_facts is not None
        at_first, built = runner.compile_facts(), runner.compilations()
        odd = at_odd_size(first, workload)
        assert runner.save is not None
        files = len(runner.save(workload.folder))
        yield Compiled(first, odd, at_first, runner.compile_facts(), (built, runner.compilations()), files)


def shallow_net(folder: Path) -> Workload:
    """A net of two levels of one convolution each, as every kernel takes g++ seconds; it finds both classes."""
    net = build_model("models.unet.UNet", {"base": 16, "depth": 1}, None, seed=0)
    for part in [*net.modules()]:
        if isinstance(part, DoubleConv):
            del part[3:]
    return replace(small_net(folder), model=net)


def at_odd_size(ran: Ran, workload: Workload) -> Ran:
    batches = [torch.cat(workload.batches[:2])[..., :45, :61].contiguous()]
    with torch.inference_mode():
        answers = [ran.runner.run(batch).float().clone() for batch in batches]
    return replace(ran, workload=replace(workload, batches=batches), answers=answers)


def test_compile_answers_as_eager_at_any_size_and_leaves_the_net(compiled: Compiled) -> None:
    assert all(len(logits.argmax(1).unique()) == 2 for logits in references(compiled.first.workload))
    check_answers(compiled.first)
    check_net(compiled.first)
    assert compiled.odd.answers[0].shape == (2, 2, 45, 61)
    check_answers(compiled.odd)


def test_compile_counts_what_it_compiles_at_its_build_and_after(compiled: Compiled) -> None:
    assert compiled.at_first.graphs == 1
    assert compiled.at_first.breaks == 0
    assert compiled.at_first.generated_kernels
    assert compiled.compilations == (1, 2)
    assert compiled.files
    assert (compiled.at_first.recompiles, compiled.at_odd.recompiles) == (0, 1)
    assert "size mismatch" in compiled.at_odd.recompile_reasons[0]
