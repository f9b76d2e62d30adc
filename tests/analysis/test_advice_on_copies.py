"""What is advised of the copies is what the run measured of them, and makes the input that the run made."""

from dataclasses import replace

import pytest

from pipeline.analysis import recommendations as rules
from pipeline.analysis.recommendations import Recommendation
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.records.samples import HostPath
from tests.report import made_up_run as made_up

UINT8 = 'uint8_batch.to("cuda", non_blocking=True) / 255'


def advised(*path: HostPath) -> Recommendation:
    """With copies that take four of nine milliseconds, and this path measured around the net."""
    whole = made_up.run()
    found = made_up.summary(whole)
    assert found.winner is not None
    slow = replace(found.winner.stage, latencies=[0.005] * 100, host_latencies=[0.009] * 100, host_path=list(path))
    stages = [slow if stage.name == slow.name else stage for stage in whole.stages]
    summary = made_up.summary(replace(whole, stages=stages))
    assert summary.winner is not None
    told = rules.shrink_the_copies(summary, summary.winner)
    assert told is not None
    return told


@pytest.mark.parametrize(("seconds", "sent"), [(0.008, True), (0.0095, False)])
def test_bytes_are_advised_where_they_were_measured_to_pay(seconds: float, sent: bool) -> None:
    """At batch 1 on an H200 the path took 1.07 times as long with them."""
    as_it_is = HostPath("as it is", [0.009], 3 * 2**20, 2**20)
    told = advised(as_it_is, HostPath("uint8 in", [seconds], 2**20, 2**20))
    assert (told.code == "shrink the copies", "uint8" in told.command) == (sent, sent)
    assert told.command.endswith("masks = net(images).argmax(1).byte()")


@pytest.mark.parametrize(
    ("contract", "line"),
    [
        (InputContract(), f"({UINT8} - 0.5) / 0.25"),
        (InputContract(3, "unit", *NAMED["unit"]), UINT8),
        (InputContract(3, "imagenet", *NAMED["imagenet"]), f"({UINT8} - mean) / std"),
        (InputContract(scale=255.0), f"({UINT8} - 0.5) / 0.25"),
        (InputContract(scale=4095.0), None),
        (InputContract(3, "zscore", (), ()), None),
        (InputContract(1, "ct", (0.1,), (0.2,), low=(0.0,), high=(1.0,)), None),
    ],
)
def test_the_line_makes_the_input_of_the_run(contract: InputContract, line: str | None) -> None:
    """Its own normalisation on the device; nothing where bytes can't hold the values, or the image decides."""
    assert rules.from_bytes(contract) == line
