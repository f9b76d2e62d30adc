"""What a net raises is told with the line of the net's code: torch's own words are the same for all nets."""

import io
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pipeline.errors import MOST_CHARACTERS, first_line
from pipeline.stages.api import StageError
from pipeline.worker.failures import failure_of


class Inner(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([image, image[:, :, :-1]], 1)


class Terse(nn.Module):
    def forward(s, image: Tensor) -> Tensor:  # noqa: N805 - as some write it
        assert image.dim() == 3
        return image


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Inner())

    def forward(self, image: Tensor) -> Tensor:
        answer: Tensor = self.blocks(image)
        return answer


class OfTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(7, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        answer: Tensor = self.conv(image)
        return answer


class ByItsData(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        while image.mean() > 1:
            image = image / 2
        return image


def raised(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever torch raises
        work()
    return caught.value


@pytest.mark.parametrize(
    ("net", "place"), [(Outer(), "Inner.forward"), (OfTorch(), "OfTorch.forward"), (nn.Conv2d(7, 1, 1), None)]
)
def test_the_innermost_line_of_the_nets_own_code_is_named(net: nn.Module, place: str | None) -> None:
    """The layer that calls torch, where torch itself raised; of a net of torch's own there is none."""
    kind, reason = failure_of(raised(lambda: net(torch.zeros(1, 3, 4, 4))))
    assert kind == "error"
    assert reason.startswith("RuntimeError: ")
    assert len(reason) <= MOST_CHARACTERS
    found = re.search(r"\(in (.+), test_where_raised\.py:\d+\)$", reason)
    assert (found and found[1]) == place
    assert (".py:" in reason) == (place is not None)


def test_the_place_is_told_whatever_the_net_calls_itself() -> None:
    assert re.search(
        r"\(in Terse.forward, test_where_raised\.py:\d+\)$", failure_of(raised(lambda: Terse()(torch.ones(1))))[1]
    )


def test_the_place_is_told_of_a_stages_own_error_too() -> None:
    error = StageError("torch.export can't take the network")
    error.__cause__ = raised(lambda: Outer()(torch.zeros(1, 3, 4, 4)))
    assert "in Inner.forward" in failure_of(error)[1]


def test_what_torch_compile_explains_is_in_the_line() -> None:
    """Its first line is the same for any operator that fails; the lines of the net it quotes in its text alone."""
    compiled = torch.compile(Outer(), backend="eager")
    reason = failure_of(raised(lambda: compiled(torch.zeros(1, 3, 4, 4))))[1]
    torch._dynamo.utils.clear_compilation_metrics()  # a stage of this process would be told to have compiled nothing
    assert "cat" in reason
    assert "in forward, test_where_raised.py" in reason


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_code_that_torchscript_writes_is_no_place_in_the_net() -> None:
    """A program that was saved names files that nobody has."""
    content = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Conv2d(3, 1, 1), torch.zeros(1, 3, 4, 4)), content)
    content.seek(0)
    kind, reason = failure_of(raised(lambda: torch.jit.load(content)(torch.zeros(1, 7, 4, 4))))
    assert kind == "error"
    assert reason.startswith("RuntimeError: Given groups=1, weight of size [1, 3, 1, 1]")
    assert ".py" not in reason


def test_a_heading_gives_way_to_the_cause() -> None:
    program = torch.export.export
    error = RuntimeError("Failed to export. \x1b[96mThis is step 1/3\x1b[0m of exporting. Next steps:\n- Modify it")
    error.__cause__ = raised(lambda: program(ByItsData(), (torch.ones(1, 3, 4, 4),)))
    kind, reason = failure_of(error)
    assert kind == "error"
    assert "data-dependent" in reason
    assert "in forward, test_where_raised.py" in reason
    assert "step 1/3" not in reason


def test_colours_of_a_terminal_are_no_part_of_an_error() -> None:
    """They would be read as figures in brackets."""
    assert first_line(ValueError("\x1b[96mno\x1b[0m such layer")) == "no such layer"
