"""On a GPU a net tuned layer by layer, in fp16 and fp8 and with any activation, answers as its references do."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline.compiler.autotune import Tuner
from pipeline.compiler.calibrate import largest, mixed
from pipeline.compiler.choose import choose, with_choices
from pipeline.compiler.kernel_layer import Backend
from pipeline.compiler.lowering import Program
from pipeline.compiler.passes import rewrite
from pipeline.compiler.quantize import Precision
from pipeline.kernels.common.capability import supported
from tests.compiler.nets import classic, ending_in, image, traced
from tests.process_state import own_switches

pytestmark = pytest.mark.gpu

ENDS: dict[str, Callable[[], nn.Module]] = {"leaky_relu": lambda: nn.LeakyReLU(0.2), "silu": nn.SiLU}


@pytest.fixture(autouse=True)
def switches_of_its_own() -> Iterator[None]:
    """Torch names its compiler's cache in the environment at the first launch of a kernel."""
    with own_switches():
        yield


@pytest.fixture(scope="module")
def tuner(tmp_path_factory: pytest.TempPathFactory) -> Tuner:
    return Tuner(Path(tmp_path_factory.mktemp("tuning")))


@pytest.mark.parametrize(("stored", "end"), [("fp16", "leaky_relu"), ("fp8", "silu")])
@torch.no_grad()
def test_a_tuned_net_answers_as_its_references(stored: str, end: str, tuner: Tuner) -> None:
    """And a second build finds every choice on disk."""
    dtype = torch.float8_e4m3fn if stored == "fp8" else torch.float16
    if reason := supported(torch.cuda.get_device_capability(), dtype):
        pytest.skip(reason)
    device = torch.device("cuda")
    net, batch = ending_in(classic(base=64, depth=1), ENDS[end]).to(device), image(2, 3, 80, 112).to(device)
    graph = traced(net, batch)
    rewrite(graph)
    precision = Precision()
    if stored == "fp8":
        precision = mixed(graph, largest(Program(graph, precision, device), [batch]), [], "fp16")
    plain = Program(graph, precision, device)
    chosen = choose(plain, batch, tuner)
    measured = tuner.measured
    assert choose(plain, batch, tuner) == chosen
    assert tuner.measured == measured
    assert any(not isinstance(choice, Backend) for choice in chosen.values())
    got, want = with_choices(plain, chosen)(batch), plain(batch)
    assert float((got - want).norm() / want.norm()) < (3e-2 if stored == "fp8" else 3e-3)
