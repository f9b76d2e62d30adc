"""The sceptic's script that a run leaves: short, plain, and it gives a ratio of its own."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.orchestrate import check_script
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.report import made_up_run as planted

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parents[1] / "records" / "data" / "schema4.json"


def on_a_gpu(baseline: str = "amp", **ratios: float) -> RunRecord:
    stages = [stage_record(name, steady_pair(value, a=baseline, b=name)) for name, value in ratios.items()]
    return run_record(stages, environment=planted.environment(), baseline=baseline)


def test_it_is_short_and_plain() -> None:
    """At most 40 lines for either baseline, none wider than 120, and nothing of the instrument."""
    for run in (on_a_gpu(fused=2.0), on_a_gpu("eager", half=2.0)):
        text = check_script.script(run)
        compile(text, "check.py", "exec")
        assert len(text.splitlines()) <= 40
        assert max(map(len, text.splitlines())) <= 120
        assert "pipeline.measure" not in text


def test_it_times_the_winner_beside_the_baseline() -> None:
    """Autocast with its switches, or eager without them."""
    today, fp32 = check_script.script(on_a_gpu(fused=2.0, half=1.2)), check_script.script(on_a_gpu("eager", half=2.0))
    assert '["fused"])[0]' in today
    assert 'torch.autocast("cuda", torch.float16)' in today
    assert "(plain, [True] * 3)" in today
    assert '["half"])[0]' in fp32
    assert "autocast" not in fp32
    assert "(plain, [False] * 3)" in fp32


def test_a_run_that_never_described_its_machine_leaves_none(tmp_path: Path) -> None:
    check_script.write(replace(on_a_gpu(fused=2.0), environment=None), tmp_path)
    assert not (tmp_path / "check.py").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run on a CPU, of eager and autocast, as it was recorded."""
    run = codec.load(RECORDED)
    stages = [replace(stage, target=f"pipeline.stages.{stage.name}") for stage in run.stages]
    found = replace(run, stages=stages, config={**run.config, "threads": 1})
    codec.save(found, tmp_path)
    check_script.write(found, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_it_runs_and_gives_a_ratio(folder: Path) -> None:
    """Of any stage that is named."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(folder / "check.py")]
    done = subprocess.run(
        [*command, "eager", "0.02"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = re.fullmatch(
        r"eager: ([\d.]+) ms, eager: ([\d.]+) ms a call, ratio ([\d.]+)\n", done.stdout
    )  # fmt: skip
    assert found, done.stderr
    assert float(found[3]) == pytest.approx(float(found[1]) / float(found[2]), rel=0.01)
    assert 0.3 < float(found[3]) < 3
