"""A second build of the same net makes what the first one found to be the fastest, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.compiler import agreement
from pipeline.compiler.autotune import Tuner
from pipeline.compiler.budget import Budget
from pipeline.compiler.exported_net import ExportedNet, export
from pipeline.stages import fp8
from pipeline.stages.common import rewritten_net
from pipeline.stages.common.earlier_build import fastest_or_known, values_digest, without_fp8
from pipeline.stages.common.rewritten_net import Rewritten
from tests.compiler.rewriting import copied
from tests.stages.test_fused import no_gpu, small_unet, times, workload

__all__ = ["no_gpu"]  # a fixture


@cache
def exported() -> ExportedNet:
    """The net's graph, which takes a second to trace."""
    batch = workload(small_unet(), Path()).batches[0]
    return export(small_unet().eval(), batch, torch.float16)


@pytest.fixture(autouse=True)
def exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewritten_net, "export", lambda *_: copied(exported()))


def build(folder: Path, said: list[str], given: str = "") -> dict[str, object]:
    """What a build's record keeps, its choices in a folder."""
    rewritten = Rewritten(workload(small_unet(), folder, said.append), Tuner(folder), None)
    return fastest_or_known(rewritten, without_fp8(rewritten), given).details


def test_a_second_build_makes_the_winner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports what was measured then; for other weights' shapes or other givens all is built and timed again."""
    times(monkeypatch, 2.0, 1.0)
    said: list[str] = []
    first = build(tmp_path, said)
    assert first["candidates_ms"] == {"Inductor": 2.0, "own kernels": 1.0}
    assert "all of it by Inductor" in said
    times(monkeypatch)
    said.clear()
    second = build(tmp_path, said)
    assert second == {**first, "known": True}
    assert "all of it by Inductor" not in said
    times(monkeypatch, 2.0, 1.0)
    assert "known" not in build(tmp_path, said, "something else")


def test_a_winner_that_is_wrong_now_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole choice is then made again, and the record says what was refused."""
    times(monkeypatch, 2.0, 1.0)
    build(tmp_path, [])
    times(monkeypatch)
    distances = cycle([0.9, 0.9, 0.01])  # from the plain net, from fp32, and the plain net's own
    monkeypatch.setattr(agreement, "distance", lambda *_: next(distances))
    details = build(tmp_path, [])
    assert "known" not in details
    assert "0.9 off those of the net by Inductor" in str(details["refused"])


def test_scales_and_sensitivity_are_known_for_the_same_weights_and_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(added: float) -> fp8.Sensitivity:
        given = workload(small_unet(), tmp_path)
        shifted = replace(given, batches=[batch + added for batch in given.batches])
        rewritten = Rewritten(shifted, Tuner(tmp_path), None)
        return fp8.sensitivity(rewritten, 4, "bottleneck.3", Budget(1.0, 1.0))

    first = found(0.0)

    def unknown(*_: object) -> dict[str, float]:
        raise LookupError

    monkeypatch.setattr(fp8, "largest", unknown)
    again = found(0.0)
    assert (again.seen, again.kept, again.taken) == (first.seen, ["bottleneck.3"], {})
    with pytest.raises(LookupError):
        found(1e-3)


@pytest.mark.parametrize("spoil", [lambda value: value + 1, lambda value: value.flip(0)])
def test_other_values_have_another_digest(spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    value = torch.arange(6.0).reshape(2, 3)
    assert values_digest([value]) == values_digest([value.clone()]) != values_digest([spoil(value)])


def test_norms_by_own_kernels_are_a_candidate_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel has summed for a norm and a pass was taken over; timed beside the others, it wins or doesn't."""
    for found, summed in (({}, ["a"]), ({"norm in a pass": 1}, [])):
        assert own_norms(found, summed, tmp_path, monkeypatch, 2.0, 1.0)["candidates_ms"].keys() == {
            "Inductor",
            "own kernels",
        }
    slow = own_norms({"norm in a pass": 1}, ["a"], tmp_path / "slow", monkeypatch, 3.0, 1.0, 2.0)
    assert slow["candidates_ms"] == {"Inductor": 3.0, "own kernels": 1.0, "own kernels and norms": 2.0}
    assert "norms" not in slow
    fast = own_norms({"norm in a pass": 1}, ["a"], tmp_path / "fast", monkeypatch, 3.0, 2.0, 1.0)
    assert fast["norms"] == {"norm in a pass": 1}


def own_norms(
    found: dict[str, int], summed: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *given: float
) -> dict[str, Any]:
    """A build's details where own kernels could take over so many norms, and kernels had summed for these layers."""
    times(monkeypatch, *given)
    monkeypatch.setattr(rewritten_net, "put_own_norms", lambda *_: found)
    rewritten = Rewritten(workload(small_unet(), folder), Tuner(folder), None)
    rewritten.net.matched["sum_where_made"] = summed
    return fastest_or_known(rewritten, without_fp8(rewritten), str(found)).details
