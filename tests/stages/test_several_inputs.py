"""`fused` rewrites nets of several inputs beside a GPU that is made up."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.artifact import load
from pipeline.compiler.autotune import Tuner
from pipeline.compiler.batch import Batch
from pipeline.compiler.budget import Budget
from pipeline.stages import fp8, fused
from pipeline.stages.api import Workload
from pipeline.stages.common import not_rewritten, rewritten_net
from pipeline.stages.common.earlier_build import digest_of, fastest_or_known, without_fp8
from pipeline.stages.common.rewritten_net import Rewritten
from pipeline.stages.common.what_ran import owned_up
from tests.compiler.nets import lively
from tests.input_nets import SEVERAL, Masked, of_masked
from tests.stages.test_fused import CPU, no_gpu, times

__all__ = ["no_gpu"]  # a fixture


def workload(net: nn.Module, folder: Path, rotation: list[Batch]) -> Workload:
    """The net with a rotation of its inputs."""
    first, *names = rotation[0].names
    columns = dict(zip(names, map(list, zip(*[row.tensors[1:] for row in rotation], strict=True)), strict=True))
    batches = [row.first for row in rotation]
    return Workload(model=net, batches=batches, device=CPU, folder=folder, name=first, others=columns)


def drawn(name: str, folder: Path) -> Workload:
    """A net of the list and two rows of inputs."""
    make, inputs = SEVERAL[name]
    torch.manual_seed(0)
    return workload(lively(make()), folder, [inputs(), inputs()])


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_own_kernels_win_are_saved_and_known_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 2.0, 1.0)
    work = drawn(name, tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), None, "never")
    stage = owned_up(fastest_or_known(rewritten, without_fp8(rewritten)), "fp16")
    assert stage.execution is not None
    assert (stage.execution.provider, stage.execution.instead) == ("own kernels", "")
    assert stage.details["refused"] == {}
    given = work.inputs[1]
    assert torch.allclose(stage.run(*given), work.model(*given), atol=2e-2)
    assert stage.save is not None
    net, _ = stage.save(tmp_path / "artefact")
    assert torch.equal(load(net.parent)(*given), stage.run(*given))
    times(monkeypatch)
    again = Rewritten(work, Tuner(tmp_path), None, "never")
    assert fastest_or_known(again, without_fp8(again)).details["known"]


def test_another_shape_of_a_further_input_is_another_net(tmp_path: Path) -> None:
    """An earlier build's choice isn't taken for it."""
    work = drawn("conditioned", tmp_path)
    states = work.others["encoder_hidden_states"]
    twice = {"encoder_hidden_states": [torch.cat([part] * 2, 1) for part in states]}
    longer = replace(work, others=work.others | twice)
    one, other = (Rewritten(each, Tuner(tmp_path), None) for each in (work, longer))
    other.plain = one.plain
    assert digest_of(one, []) != digest_of(other, [])


def test_fp8_of_layers_that_all_read_the_image_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 2.0, 1.0)
    rewritten = Rewritten(drawn("conditioned", tmp_path), Tuner(tmp_path), None, "never")
    stage = owned_up(fp8.fastest_of_both(rewritten, 4, "auto", Budget(1.0, 1.0)), "fp8")
    why = "none of its layers can read fp8"
    assert stage.details["refused"] == {"fp8": why}
    assert stage.execution is not None
    assert stage.execution.instead == f"1 layers by own kernels, in fp16: fp8 was refused: {why}"
    assert stage.details["candidates_ms"] == {"Inductor": 2.0, "own kernels": 1.0}


class Deciding(nn.Module):
    """Looks at the values of its second input: no single graph."""

    def forward(self, batch: Tensor, sign: Tensor) -> Tensor:
        return batch if float(sign.sum()) > 0 else -batch


@pytest.mark.parametrize("failing", ["export", "rewrite"])
def test_what_cannot_be_rewritten_is_left_to_inductor(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its inputs, and the reason."""

    def fail(*_: object) -> None:
        raise RuntimeError("no such node")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(fused, "supported", lambda *_: None)
    work = drawn("masked", tmp_path)
    if failing == "export":
        row = Batch((torch.rand(2, 3, 8, 8), torch.tensor([1, 2])), ("batch", "sign"))
        work = workload(Deciding().eval(), tmp_path, [row])
    else:
        monkeypatch.setattr(rewritten_net, "rewrite", fail)
    stage = fused.rewritten_or_not(work, Tuner(tmp_path), "never")
    whys = {"export": "torch.export can't take the net", "rewrite": "a rewrite failed: RuntimeError: no such node"}
    assert stage.details["not_rewritten"].startswith(whys[failing])
    given = work.inputs[0]
    with torch.no_grad():
        assert torch.allclose(stage.run(*given).float(), work.model(*given), atol=2e-2)


def test_the_first_input_says_whether_kernels_may_take_a_net(tmp_path: Path) -> None:
    rows = of_masked()
    assert not_rewritten.beyond_kernels(workload(Masked().eval(), tmp_path, [rows])) == ""
    turned = Batch(rows.tensors[::-1], rows.names)
    assert not_rewritten.beyond_kernels(workload(Masked().eval(), tmp_path, [turned])) == ""
    numbers = Batch((rows.tensors[1], rows.tensors[0]), ("kind", "image"))
    assert "has 1 axes" in not_rewritten.beyond_kernels(workload(Masked().eval(), tmp_path, [numbers]))
