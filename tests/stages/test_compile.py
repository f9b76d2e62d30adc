"""torch.compile on the CPU, built once: its answers at two shapes, what it counts, and what it leaves behind."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.build import build_model
from models.unet import DoubleConv
from pipeline.records.run_record import CompileFacts
from pipeline.stages.api import StageError, Workload
from pipeline.stages.common.inductor import check_compiled
from pipeline.stages.compile import build, compile_facts
from tests.process_state import own_switches
from tests.stages.conftest import small_net
from tests.stages.test_stages import Ran, check_answers, check_net, references, run_once

pytestmark = pytest.mark.long


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
