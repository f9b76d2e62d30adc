"""Messages between parent and worker: whatever a worker says ends as a message, or as a stage that failed."""

import math
import subprocess
import sys
from typing import Any

import pytest

from pipeline.protocol import Entered, Nonsense, SampleTaken, StageReport, decoded, encoded
from pipeline.records.plan import Phase
from pipeline.records.samples import Sample, WarmUp


@pytest.mark.parametrize(
    "message", [Entered(Phase.BUILD), SampleTaken(Sample(3, 0.5, None)), StageReport({"build_seconds": 1.0})]
)
def test_a_message_survives_the_pipe(message: Any) -> None:
    assert encoded(message).count("\n") == 1
    assert decoded(encoded(message)) == message


def test_a_record_in_a_report_is_plain_json_or_an_error_and_nan_survives() -> None:
    back = decoded(encoded(StageReport({"warm_up": WarmUp(3, math.nan, True)})))
    assert isinstance(back, StageReport)
    fields: dict[str, Any] = back.fields
    assert fields["warm_up"]["calls"] == 3
    assert math.isnan(fields["warm_up"]["seconds"])
    with pytest.raises(TypeError):
        encoded(StageReport({"details": {"object": object()}}))


ASKS = """
import sys
from pipeline.protocol import PipeReporter
reporter = PipeReporter(1)
try:
    input("trust this repository? ")
except EOFError:
    reporter.progress(f"nobody answers {reporter.job()}")
"""


def test_a_net_that_asks_its_user_waits_for_nobody() -> None:
    """As torch.hub asks whom to trust: it waited on the parent's commands until its phase's limit, and took one."""
    with subprocess.Popen([sys.executable, "-c", ASKS], stdin=-1, stdout=-1, text=True) as worker:
        worker.stdin.write('{"role": "stage"}\n')
        worker.stdin.flush()
        assert "nobody answers {'role': 'stage'}" in worker.stdout.readline()


ORPHAN = """
import os, sys, time
from pipeline.protocol import die_with_the_parent
if os.fork() == 0:
    die_with_the_parent()
    print("ready", flush=True)
time.sleep(600)
"""


def test_a_worker_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.stdout.read() == ""  # or the worker, which has it open as well, sleeps on


@pytest.mark.parametrize(
    "line",
    [
        "", "no json", "[]", "{}", '{"type": "entered", "phase": "lunch"}', '{"type": "sample", "sample": 3}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_message_is_nonsense(line: str) -> None:
    found = decoded(line)
    assert isinstance(found, Nonsense)
    assert len(found.line) <= 200
    assert found.error
