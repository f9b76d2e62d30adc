"""A stage that is refused late in its worker's life stays refused, whatever becomes of the worker then."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.orchestrate.trials import _gone
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.protocol import Phase

REFUSED = {"status": "inaccurate", "failure": "wrong device", "reason": "did no work on the GPU"}


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        (REFUSED, REFUSED),
        ({"status": "ok", "failure": None, "reason": ""}, {"status": "ok", "reason": "died in export: exit code 1"}),
    ],
    ids=["refused", "right"],
)
def test_a_worker_that_dies_after_the_check_keeps_its_verdict(fields: dict[str, Any], ending: dict[str, Any]) -> None:
    worker: Any = SimpleNamespace(phase=Phase.EXPORT, fields=fields)
    context: Any = SimpleNamespace(baseline=None)
    assert _gone(WorkerGone("died", "died in export: exit code 1"), worker, context) == ending
