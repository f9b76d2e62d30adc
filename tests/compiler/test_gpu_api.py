"""On a GPU the library's call compiles, answers as the network, saves and loads."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import compiler
from pipeline.compiler.agreement import distance
from pipeline.kernels.common.capability import barred_on
from tests.compiler.nets import classic, lively
from tests.process_state import own_switches

pytestmark = pytest.mark.gpu
MODES: list[Callable[[], AbstractContextManager[object]]] = [torch.inference_mode, torch.no_grad, nullcontext]


@pytest.fixture(autouse=True)
def switches_of_its_own() -> Iterator[None]:
    """Triton's folder is named in the environment at the first launch of a kernel."""
    with own_switches():
        yield
        torch._dynamo.reset()


@pytest.mark.timeout(900)  # two shapes are tuned and compiled, and compiled again when loaded
@pytest.mark.filterwarnings("ignore:compile:UserWarning")  # which form is the fastest is up to the GPU
@pytest.mark.parametrize(("precision", "off"), [("fp16", 1e-2), ("fp8", 0.2)])
def test_a_compiled_network_answers_as_the_network(precision: Any, off: float, tmp_path: Path) -> None:
    """In every mode, for another shape, and after it was saved and loaded; an answer outlasts the next call."""
    dtype = torch.float8_e4m3fn if precision == "fp8" else torch.float16
    if reason := barred_on(torch.device("cuda", 0), dtype):
        pytest.skip(reason)
    torch.manual_seed(0)
    network = lively(classic(base=32, depth=1)).cuda().eval()
    images = torch.randn(6, 3, 96, 128, device="cuda")
    options: dict[str, Any] = {"precision": precision, "search": "never", "cache": tmp_path / "tiles"}
    if precision == "fp8":
        options |= {"calibration": images, "budget": None, "error_budget": off}
    fast = compiler.compile(network, images[:2], **options)
    with torch.no_grad():
        wanted = [network(part) for part in images.split(2)]
    for mode in MODES:
        with mode():
            answers = [fast(part) for part in images.split(2)]
            assert max(map(distance, answers, wanted)) < off
            assert distance(fast(images[:1]), wanted[0][:1]) < off
    fast.save(tmp_path / "network.unet")
    again = compiler.load(tmp_path / "network.unet", trusted=True)
    for part in (images[:2], images[:1]):
        assert distance(again(part), fast(part)) < 1e-2
    with pytest.raises(compiler.CompileError, match="float16 on cuda:0, and the network was compiled for"):
        fast(images[:2].half())
