"""A bundle of a half net has the modules in fp32 that the run kept so."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from pipeline.export.artefacts import eager_form
from pipeline.export.recorded_stage import RecordedStage
from pipeline.records.run_record import Execution
from pipeline.stages.api import Workload
from pipeline.worker.bench import Bench
from tests.fake_machine import run_record, stage_record
from tests.made_up_request import changed


@pytest.mark.parametrize(("option", "kept"), [(["1"], ["1.weight", "1.bias"]), ("auto", []), ("none", [])])
def test_modules_that_were_kept_are_so_in_a_bundle(option: object, kept: list[str], tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)).eval()
    work = Workload(net, [torch.rand(1, 3, 4, 4)], torch.device("cpu"), tmp_path)
    stage = changed(
        stage_record("half", None),
        target="pipeline.stages.half",
        exports="exported",
        options={"keep_fp32": option},
        execution=Execution("fp16"),
    )
    made = eager_form(
        RecordedStage(tmp_path, run_record([stage]), stage, cast("Bench", SimpleNamespace(workload=work)))
    )
    found = {name.removeprefix("net."): part.dtype for name, part in made.named_parameters()}
    assert [name for name, dtype in found.items() if dtype == torch.float32] == kept
    assert {dtype for name, dtype in found.items() if name not in kept} == {torch.float16}
