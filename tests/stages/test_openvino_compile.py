"""OpenVINO as a backend of torch.compile: what ran, by what the backend keeps, as it falls back without a word."""

from dataclasses import replace
from operator import getitem
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

from models.build import build_model
from pipeline.devices import host
from pipeline.profiling.observed_execution import complete
from pipeline.stages import StageError
from pipeline.stages.openvino import PIECES, compiled_pieces, left_to_torch
from tests.process_state import own_switches
from tests.stages.conftest import small_net
from tests.stages.test_stages import check_answers, check_net, run_once


class Piece(nn.Module):
    """A part of a net that OpenVINO compiled."""

    perm_fallback = False


def kept(*models: str) -> Any:
    """What the backend keeps after a call: its compiled models, and the net in pieces."""
    graph = fx.Graph()
    image = graph.placeholder("image")
    first = graph.call_function(getitem, (graph.call_module("fused_0", (image,)), 0))
    graph.output(graph.call_function(torch.relu, (first,)))
    net = fx.GraphModule({"fused_0": Piece()}, graph)
    return SimpleNamespace(compiled_cache=dict(enumerate(models)), partitioned_modules={"net": net})


def test_what_openvino_compiled_is_told_from_what_it_left() -> None:
    pieces = kept("model")
    assert compiled_pieces(pieces) == ["model"]
    assert left_to_torch(pieces) == [str(torch.relu)]


def test_a_net_that_inductor_runs_is_no_stage_of_openvinos() -> None:
    """The backend hands it over where it fails."""
    with pytest.raises(StageError, match="handed the network to Inductor") as raised:
        compiled_pieces(kept())
    assert raised.value.kind == "wrong device"


def test_a_piece_that_torch_runs_is_none_either() -> None:
    """From its first failed call on torch runs it for good."""
    pieces = kept("model")
    pieces.partitioned_modules["net"].fused_0.perm_fallback = True
    with pytest.raises(StageError, match="handed a piece of the network to torch"):
        compiled_pieces(pieces)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_answers_within_its_tolerance(dtype: str, tmp_path: Path) -> None:
    """With OpenVINO itself: the whole net in one piece, nothing left to torch, and as it declares."""
    pytest.importorskip(PIECES, exc_type=ImportError)
    if dtype == "bf16" and not host.computes_bf16():
        pytest.skip("no units for bf16")
    with own_switches():
        net = build_model("models.unet.UNet", {"base": 8, "depth": 1}, None, seed=10)
        workload = replace(small_net(tmp_path), model=net)
        ran = run_once("openvino_compile", workload, dtype=dtype)
        found, contradicted = complete(ran.runner, workload, [])
    check_answers(ran)
    assert (found.precision, contradicted) == (dtype, "")
    check_net(ran)
    assert (ran.runner.details["pieces"], ran.runner.details["operators_left_to_torch"]) == (1, [])
